"""The prompts of an experiment: which file they come from and which of them are used. Knows no engine and no tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vllm_specplug import jsonl
from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.compare.prompt_lines import parse_lines
from vllm_specplug.errors import CompareError

SHIPPED_PROMPTS = Path(__file__).with_name("prompts") / "specplug-v1.jsonl"


@dataclass(frozen=True, slots=True)
class Workload:
    """The prompts of one experiment, in the order of the file."""

    name: str
    """Stem of the file they came from."""
    sha256: str
    """Of the whole file, whatever was selected from it."""
    prompts: tuple[Prompt, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """In order of first appearance."""
        return tuple(dict.fromkeys(prompt.category for prompt in self.prompts))

    def arrivals(self) -> tuple[float, ...] | None:
        """When each prompt arrives, in seconds from the start of the log, never less than the one before; None: no log.

        A selection keeps the times of the whole log.
        """
        times = tuple(prompt.arrival_s for prompt in self.prompts if prompt.arrival_s is not None)
        return times or None

    def select(self, categories: Sequence[str] | None = None, limit: int | None = None) -> Workload:
        """Keep some categories, and of each at most the first `limit` prompts; each turn of a conversation counts.

        Raises:
            CompareError: a category does not exist, none is named, or the limit is below 1.
        """
        if categories is not None and not categories:
            known = ", ".join(self.categories)
            raise CompareError(f"no category is asked for; name some of {self.name}, which has: {known}")
        if limit is not None and limit < 1:
            raise CompareError(f"a limit of {limit} prompts per category leaves nothing to measure; give 1 or more")
        for category in categories or ():
            if category not in self.categories:
                known = ", ".join(self.categories)
                raise CompareError(f"unknown category {category!r} in {self.name}; it has: {known}")
        wanted = set(categories or self.categories)
        taken: dict[str, int] = {}
        kept: list[Prompt] = []
        for prompt in self.prompts:
            seen = taken.get(prompt.category, 0)
            if prompt.category in wanted and (limit is None or seen < limit):
                taken[prompt.category] = seen + 1
                kept.append(prompt)
        return Workload(self.name, self.sha256, tuple(kept))

    def blocks(self, size: int) -> list[tuple[Prompt, ...]]:
        """Groups of at most `size` prompts that are sent at once; a group never mixes categories."""
        groups: list[tuple[Prompt, ...]] = []
        for category in self.categories:
            members = [prompt for prompt in self.prompts if prompt.category == category]
            groups += [tuple(members[start : start + size]) for start in range(0, len(members), size)]
        return groups

    def rounds(self, size: int) -> list[list[tuple[Prompt, ...]]]:
        """The same groups, dealt out so that a round has one of each category, as long as it has any left."""
        by_category: dict[str, list[tuple[Prompt, ...]]] = {}
        for group in self.blocks(size):
            by_category.setdefault(group[0].category, []).append(group)
        longest = max(map(len, by_category.values()), default=0)
        return [[groups[turn] for groups in by_category.values() if turn < len(groups)] for turn in range(longest)]

    def only(self, ids: Collection[str]) -> Workload:
        """The prompts with these ids."""
        return replace(self, prompts=tuple(prompt for prompt in self.prompts if prompt.id in ids))


def load_workload(
    path: str | Path | None = None, categories: Sequence[str] | None = None, limit: int | None = None
) -> Workload:
    """Read prompts from a JSONL file, by default the set that is shipped.

    `prompt_lines` says what a line may hold: `prompt`, `messages`, or `turns` as in Spec-Bench's question.jsonl;
    `category`, `id`, `max_tokens` and `arrival_s` are optional, other keys are ignored.

    Args:
        categories: keep these only; None keeps all.
        limit: keep the first so many prompts of each category; None keeps all.
    Raises:
        CompareError: the file cannot be read, a line is malformed (file:line is named), or nothing is selected.
    """
    file = Path(path) if path is not None else SHIPPED_PROMPTS
    text = jsonl.read_text(file, "the prompts", CompareError)
    prompts = parse_lines(jsonl.objects(text, file, CompareError, "a JSON object"), str(file))
    if not prompts:
        raise CompareError(f"{file} holds no prompts; expected one JSON object a line, with 'prompt' for example")
    return Workload(file.stem, hashlib.sha256(text.encode()).hexdigest(), tuple(prompts)).select(categories, limit)
