"""When an arm loses its traffic, and how it gets it back.

```
up ──── died, or failed so often in a row, or does not pass a check ────▶ suspect ──▶ checked at once
 ▲                                                                          │  passes (it had died): up
 ├──────── one request answered ◀── trial ◀── passes (it had failed) ───────┤
 └──────────────────────────────────────────── passes: up ◀── down ◀── does not pass: checked again, ever later
```

A suspect arm may well serve (one of its replicas died), a down one does not: nobody there answers the check. A trial is
one request at a time, for arms that pass checks and yet fail requests.

Knows the rules and a clock; the checks themselves are `deploy/arm.py`'s.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from deploy.router_settings import Limits

State = Literal["up", "trial", "suspect", "down"]


class ArmHealth:
    """What is known of one arm.

    Attributes:
        state: as in the module's drawing.
        since: the clock's seconds when the state began.
        reason: what took the arm out; "" while it is up.
        has_been_up: whether it has ever answered or passed a check. Until then its engine may still be starting, which
            takes minutes and then ends at once: checks do not become fewer.
    """

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[State, State, str], None] = lambda old, new, reason: None,
    ) -> None:
        """An arm begins as up.

        Args:
            on_change: called with the state before, the state now, and the reason.
        """
        self._limits = limits
        self._clock = clock
        self._on_change = on_change
        self.state: State = "up"
        self.since = clock()
        self.reason = ""
        self.has_been_up = False
        self._num_failures = 0
        self._needs_trial = False
        self._trial: float | None = None
        self._retry_s = limits.retry_s
        self._next_check = self.since + limits.probe_period_s

    @property
    def is_candidate(self) -> bool:
        """Whether a new request may go there as if nothing had happened."""
        return self.state == "up" or (self.state == "trial" and self._trial is None)

    @property
    def is_last_resort(self) -> bool:
        """Whether a new request may go there when no arm is a candidate."""
        return self.state != "down"

    @property
    def check_in_s(self) -> float:
        """Seconds until the arm is to be checked; 0 or less: now."""
        return self._next_check - self._clock()

    def describe(self) -> dict[str, object]:
        """For operators."""
        return {"state": self.state, "for_s": round(self._clock() - self.since, 3), "reason": self.reason}

    def began(self) -> float:
        """A request goes to the arm; what is returned belongs to `answered`, `failed` and `ended`."""
        now = self._clock()
        if self.state == "trial" and self._trial is None:
            self._trial = now
        return now

    def ended(self, began: float) -> None:
        """That request is over, however it went."""
        if self._trial == began:
            self._trial = None

    def answered(self, began: float) -> None:
        """The arm answered, be it that the request was wrong."""
        if began < self.since:
            return  # it may have come from a replica that is dead by now
        self.has_been_up = True
        self._num_failures = 0
        if self.state == "up":
            self._next_check = self._clock() + self._limits.probe_period_s
        elif self.state != "down":
            self._go_up()

    def failed(self, began: float, reason: str, is_dead: bool) -> None:
        """The arm failed that request.

        Args:
            is_dead: its replica or engine is gone, rather than one request went wrong.
        """
        if began < self.since or self.state not in ("up", "trial"):
            return  # the arm is out already, or has come back meanwhile
        self._num_failures += 1
        if is_dead or self.state == "trial" or self._num_failures >= self._limits.unhealthy_after:
            self._needs_trial = not is_dead
            was_trial = self.state == "trial"
            self._enter("suspect", reason)
            self._next_check = self._clock() + (self._back_off() if was_trial else 0.0)

    def check_soon(self) -> None:
        """Something about the arm is odd: check it now."""
        self._next_check = self._clock()

    def passed(self) -> None:
        """The arm passed a check."""
        self.has_been_up = True
        self._next_check = self._clock() + self._limits.probe_period_s
        if self.state == "suspect" and self._needs_trial:
            self._enter("trial", self.reason)
        elif self.state in ("suspect", "down"):
            self._go_up()

    def did_not_pass(self, reason: str) -> None:
        """The arm did not pass a check."""
        if self.state != "down":
            self._enter("down", reason)
        self._next_check = self._clock() + (self._back_off() if self.has_been_up else self._limits.retry_s)

    def _go_up(self) -> None:
        self._enter("up", "")
        self._num_failures = 0
        self._needs_trial = False
        self._retry_s = self._limits.retry_s
        self._next_check = self.since + self._limits.probe_period_s

    def _enter(self, state: State, reason: str) -> None:
        before, self.state = self.state, state
        self.since = self._clock()
        self.reason = reason
        self._trial = None
        self._on_change(before, state, reason)

    def _back_off(self) -> float:
        wait_s = self._retry_s
        self._retry_s = min(2 * wait_s, self._limits.max_retry_s)
        return wait_s
