"""One prompt of an experiment: what is said in it and how it is answered. Knows no files, no engine and no tokens."""

from __future__ import annotations

from dataclasses import dataclass

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, as chat templates take it."""

    role: str
    """One of ROLES."""
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user message to answer, and what was said before it."""

    id: str
    category: str
    text: str
    before: tuple[Message, ...] = ()
    """What the file has before `text`."""
    follows: str | None = None
    """Id of the turn before this one, an earlier prompt of the same workload: its messages and the answer to it come
    first."""
    max_tokens: int | None = None
    """Output tokens of the answer at most; None: as many as all prompts."""
    arrival_s: float | None = None
    """Seconds from the start of the log it is from; None: it is from no log."""

    def messages(self) -> tuple[Message, ...]:
        """Its own messages, the last one the user's; not those of the turns it follows."""
        return (*self.before, Message("user", self.text))

    def output_limit(self, max_tokens: int) -> int:
        """Output tokens at most, where other prompts have `max_tokens`."""
        return max_tokens if self.max_tokens is None else self.max_tokens
