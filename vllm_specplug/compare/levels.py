"""Levels of load: so many requests at once, so many a second, or those of a log, and when each request of a run comes.

Knows no engine. Whatever is random follows from the seed and the pass alone, so that all arms get the same.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.compare.workload import Workload
from vllm_specplug.errors import CompareError

Kind = Literal["concurrency", "request_rate", "replay"]

UNITS: dict[Kind, str] = {
    "concurrency": "requests at once",
    "request_rate": "requests a second",
    "replay": "times the speed of the log",
}
_FLAGS: dict[Kind, str] = {
    "concurrency": "--concurrency",
    "request_rate": "--request-rate",
    "replay": "--replay-speed",
}
DEFAULT_PASSES = 4
"""The fewest that tell how much an arm differs from run to run."""


@dataclass(frozen=True, slots=True)
class Level:
    """One load that every arm is put under."""

    kind: Kind
    value: float
    """Requests at once (a whole number), requests a second (infinite: all at the start), or times the log's speed."""

    @property
    def name(self) -> str:
        """What gates and journals call it, for example 'at_16'."""
        return f"at_{self.shown}"

    @property
    def shown(self) -> str:
        """For people, without its unit: '16', '0.5', 'inf'."""
        return str(int(self.value)) if self.value.is_integer() else repr(self.value)

    @property
    def number(self) -> int | float | str:
        """For JSON, which knows no infinite number: then 'inf'."""
        if math.isinf(self.value):
            return "inf"
        return int(self.value) if self.value.is_integer() else self.value

    @property
    def at_once(self) -> int | None:
        """Requests in flight at most; None: as many as have come."""
        return int(self.value) if self.kind == "concurrency" else None


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The levels of a sweep, all of one kind, the lowest first."""

    levels: tuple[Level, ...]
    num_passes: int = DEFAULT_PASSES
    """Runs of each arm under each level."""

    def __post_init__(self) -> None:
        if self.num_passes < 1:
            raise CompareError(f"--load-passes is {self.num_passes}, expected 1 or more")

    @property
    def kind(self) -> Kind:
        return self.levels[0].kind

    def as_json(self) -> dict[str, Any]:
        """For settings of reports and journals."""
        return {"kind": self.kind, "levels": [level.number for level in self.levels], "passes": self.num_passes}

    def check(self, workload: Workload, budget_s: float | None = None) -> None:
        """Refuse prompts that cannot be sent like this.

        Raises:
            CompareError: there are fewer of them than have to be in flight, a log is to be replayed and there is none,
                or the time is limited.
        """
        if budget_s is not None:
            raise CompareError("--budget-s does not bound the time of levels of load; use --limit for fewer prompts")
        if self.kind == "replay" and workload.arrivals() is None:
            raise CompareError(
                f"--replay sends prompts at their 'arrival_s', which those of {workload.name} do not have; give a log "
                "with it, or --request-rate"
            )
        highest, there = self.levels[-1], len(workload.prompts)
        if highest.at_once is not None and highest.at_once > there:
            raise CompareError(
                f"--concurrency {highest.shown} cannot be held with {there} prompts; give more of them or a lower level"
            )


@dataclass(frozen=True, slots=True)
class Schedule:
    """The requests of one run, in the order they come."""

    prompts: tuple[Prompt, ...]
    arrival_s: tuple[float, ...]
    """From the start of the run, never going back; all 0 where the next one comes when another is answered."""
    at_once: int | None


def schedule(level: Level, prompts: Sequence[Prompt], seed: int, pass_index: int) -> Schedule:
    """Who comes when in a run, the same for every arm.

    Closed loop (concurrency): in random order, the next one as soon as one is answered. Open loop (request rate): in
    the same random order, as a Poisson process whose first request comes at 0; a run at twice the rate has the same
    gaps, halved. Replay: as the log has it, the first request at 0.

    Args:
        seed, pass_index: what the order and the gaps follow from.
    """
    if level.kind == "replay":
        times = [prompt.arrival_s for prompt in prompts if prompt.arrival_s is not None]
        assert len(times) == len(prompts), "LoadPlan.check comes first"
        return Schedule(tuple(prompts), tuple((time - times[0]) / level.value for time in times), None)
    rng = np.random.default_rng([seed, pass_index])
    ordered = tuple(prompts[place] for place in rng.permutation(len(prompts)))
    arrivals = (0.0,) * len(ordered)
    if level.kind == "request_rate" and math.isfinite(level.value):
        gaps = rng.exponential(size=len(ordered)) / level.value
        gaps[0] = 0.0
        arrivals = tuple(map(float, np.cumsum(gaps)))
    return Schedule(ordered, arrivals, level.at_once)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `load_plan` reads."""
    parser.add_argument("--concurrency", metavar="N,N", help="also measure with so many requests in flight, as 1,4,16")
    parser.add_argument("--request-rate", metavar="R,R", help="also measure with so many requests a second, as 2,8,inf")
    parser.add_argument("--replay", action="store_true", help="also measure with requests at the prompts' arrival_s")
    parser.add_argument("--replay-speed", metavar="F,F", help="replay the log so many times as fast, as 1,2 (1)")
    parser.add_argument("--load-passes", type=int, metavar="N", help=f"runs of each arm at a level ({DEFAULT_PASSES})")


def load_plan(args: argparse.Namespace) -> LoadPlan | None:
    """What a command line asks for; None: no load.

    Raises:
        CompareError: levels that are none, or of two kinds.
    """
    if args.replay_speed is not None and not args.replay:
        raise CompareError("--replay-speed has no use without --replay; add it or leave the speed out")
    asked: dict[Kind, str] = {}
    if args.concurrency is not None:
        asked["concurrency"] = args.concurrency
    if args.request_rate is not None:
        asked["request_rate"] = args.request_rate
    if args.replay:
        asked["replay"] = "1" if args.replay_speed is None else args.replay_speed
    if len(asked) > 1:
        flags = ["--replay" if kind == "replay" else _FLAGS[kind] for kind in asked]
        raise CompareError(f"{' and '.join(flags)} are different kinds of load; give one of them")
    if not asked:
        if args.load_passes is not None:
            raise CompareError("--load-passes has no use without --concurrency, --request-rate or --replay; add one")
        return None
    ((kind, text),) = asked.items()
    return LoadPlan(parse_levels(kind, text), DEFAULT_PASSES if args.load_passes is None else args.load_passes)


def parse_levels(kind: Kind, text: str) -> tuple[Level, ...]:
    """Levels with commas between them, the lowest first.

    Raises:
        CompareError: one is no number above 0, a concurrency is not whole, only a rate may be inf, or one comes twice.
    """
    flag = _FLAGS[kind]
    expected, example, fits = _EXPECTED[kind]
    values: list[float] = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not fits(value):
            raise CompareError(f"{flag} {text}: {part.strip()!r} is no {expected}; expected for example {example}")
        if value in values:
            raise CompareError(f"{flag} {text}: {part.strip()} is there twice; keep one of them")
        values.append(value)
    return tuple(Level(kind, value) for value in sorted(values))


_EXPECTED: dict[Kind, tuple[str, str, Callable[[float], bool]]] = {
    "concurrency": ("whole number of 1 or more", "1,4,16", lambda value: value >= 1 and value.is_integer()),
    "request_rate": ("number above 0 or inf", "0.5,2,inf", lambda value: value > 0),
    "replay": ("number above 0", "1,2", lambda value: value > 0 and math.isfinite(value)),
}
