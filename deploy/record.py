"""What is kept of one request: the lines of the exposure log and the counts.

`exposure` when an arm is chosen, again when the request moves on, then with the arm that was out; `outcome` once at
its end. Nothing that a user wrote or read is in them, and users only as a keyed hash. The format is read by
`specplug compare`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from deploy.meters import Meters

SCHEMA = "specplug.staging/1"
CANCELLED = "cancelled"
CANCELLED_STATUS = 499  # nginx's, since HTTP has none

By = Literal["weight", "sticky", "forced", "moved", "shadow"]


class Sink(Protocol):
    """Where lines go."""

    def write(self, line: Mapping[str, Any]) -> None:
        """Take one line."""


@dataclass(frozen=True)
class Subject:
    """What the lines say of a request itself.

    Attributes:
        unit: 16 hexadecimal digits for the session or user; None: the request named neither.
    """

    request_id: str
    model: str
    call: str
    stream: bool
    unit: str | None
    router: str


class Record:
    """One request.

    Attributes:
        arm: the one that was chosen last; "" before.
        num_moves: how often it did not go, or stay, where it was meant to.
        num_prompt_tokens, num_output_tokens: as the engine counts; None: it has not said.
    """

    def __init__(self, subject: Subject, sink: Sink | None, meters: Meters) -> None:
        self.arm = ""
        self.num_moves = 0
        self.num_prompt_tokens: int | None = None
        self.num_output_tokens: int | None = None
        self._subject = subject
        self._sink = sink
        self._meters = meters
        self._began = time.monotonic()
        self._ttft_s: float | None = None
        self._is_shadow = False
        self._is_over = False

    @property
    def elapsed_s(self) -> float:
        """Since the request came."""
        return time.monotonic() - self._began

    def exposed(
        self,
        arm: str,
        by: By,
        weights: Mapping[str, float],
        out: Sequence[str] | None = None,
        instead_of: tuple[str, str] | None = None,
    ) -> None:
        """An arm was chosen.

        Args:
            out: arms that were not up at that moment; None: nobody looked.
            instead_of: for "moved", the arm that it passed by or left, and why in a word.
        """
        self._leave()
        self._is_shadow = by == "shadow"
        self._meters.count("shadow_requests" if self._is_shadow else "requests", arm)
        self.num_moves += by == "moved"
        self.arm = arm
        self._meters.in_flight(arm, 1)
        subject = self._subject
        self._write(
            "exposure",
            {
                "model": subject.model,
                "arm": arm,
                "by": by,
                "unit": subject.unit,
                "weights": dict(weights),
                "stream": subject.stream,
                "call": subject.call,
                "router": subject.router,
                **({} if out is None else {"out": list(out)}),
                **({} if instead_of is None else {"instead_of": instead_of[0], "why": instead_of[1]}),
            },
        )

    def first_chunk(self) -> None:
        """A stream has begun."""
        self._ttft_s = self.elapsed_s
        if not self._is_shadow:
            self._meters.ttft(self.arm, self._ttft_s)

    def used(self, usage: Mapping[str, Any]) -> None:
        """The engine's count of tokens, as OpenAI's `usage`."""
        self.num_prompt_tokens = usage.get("prompt_tokens")
        self.num_output_tokens = usage.get("completion_tokens")

    def ended(self, status: int, error: str | None = None) -> None:
        """The request is over; only the first call counts.

        Args:
            status: of HTTP. A stream that breaks off gets the status its error would have had.
            error: in a word; None: it was answered.
        """
        if self._is_over or not self.arm:
            return
        self._is_over = True
        self._leave()
        if error is not None and not self._is_shadow:
            self._meters.count("cancelled" if error == CANCELLED else "errors", self.arm)
        self._write(
            "outcome",
            {
                "arm": self.arm,
                "status": status,
                "error": error,
                "ttft_s": self._ttft_s,
                "e2e_s": self.elapsed_s,
                "num_prompt_tokens": self.num_prompt_tokens,
                "num_output_tokens": self.num_output_tokens,
                "num_moves": self.num_moves,
            },
        )

    def cancelled(self) -> None:
        """The client went away."""
        self.ended(CANCELLED_STATUS, CANCELLED)

    def _leave(self) -> None:
        if self.arm:
            self._meters.in_flight(self.arm, -1)

    def _write(self, event: str, fields: Mapping[str, Any]) -> None:
        if self._sink is not None:
            head = {"schema": SCHEMA, "event": event, "request_id": self._subject.request_id, "time_s": time.time()}
            self._sink.write({**head, **fields})
