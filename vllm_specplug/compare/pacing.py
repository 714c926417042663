"""Hands requests to an engine that is stepped by hand, when they are due, and times what comes out. Knows no vLLM."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Given:
    """What one step gave one request."""

    index: int
    """Of the request, as it was added."""
    token_ids: Sequence[int]
    finished: bool
    finish_reason: str | None = None


class SteppedEngine(Protocol):
    """An engine that works only while it is stepped."""

    def add(self, index: int) -> None: ...

    def step(self) -> Iterable[Given]: ...


def drive(
    engine: SteppedEngine,
    arrival_s: Sequence[float],
    at_once: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[float, list[dict[str, Any]]]:
    """Answer all requests, each handed in when it has come and, with `at_once`, when one before it is answered.

    A request that comes while the engine is in a step is handed in after it, as an engine that serves would take it.
    Its times count from when it came, so that this wait, and that in the engine's queue, are in them.

    Args:
        arrival_s: when each request comes, in s from the start, never going back.
        at_once: requests in flight at most; a request then comes when it is handed in. None: no limit.
        clock, sleep: of the same time, in s.
    Returns:
        Seconds from the start to the end of the last answer, and for each request token_ids, num_forwards (steps that
        gave it tokens), arrival_s and sent_s (when it came and when it was handed in), ttft_s and e2e_s (s from
        arrival_s to the end of the steps that gave its first and last token), finish_reason.
    """
    outputs: list[dict[str, Any]] = [{} for _ in arrival_s]
    waiting = deque(range(len(arrival_s)))
    in_flight = 0
    start = clock()
    seconds = 0.0
    while waiting or in_flight:
        while waiting and (at_once is None or in_flight < at_once):
            due, now = arrival_s[waiting[0]], clock() - start
            if due > now:
                break
            index = waiting.popleft()
            outputs[index] = {
                "token_ids": [],
                "num_forwards": 0,
                "arrival_s": due if at_once is None else now,
                "sent_s": now,
                "ttft_s": None,
                "e2e_s": None,
                "finish_reason": None,
            }
            engine.add(index)
            in_flight += 1
        if not in_flight:
            sleep(max(0.0, arrival_s[waiting[0]] - (clock() - start)))
            continue
        step = engine.step()
        seconds = clock() - start
        for given in step:
            output = outputs[given.index]
            since = seconds - output["arrival_s"]
            if given.token_ids:
                output["token_ids"] += given.token_ids
                output["num_forwards"] += 1
                output["ttft_s"] = since if output["ttft_s"] is None else output["ttft_s"]
            if given.finished:
                output["e2e_s"], output["finish_reason"] = since, given.finish_reason
                in_flight -= 1
    return seconds, outputs
