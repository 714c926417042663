"""The numbers of a report by name, `<arm>[.<category or level>].<metric>`. Knows the names before it is measured."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_specplug.errors import CompareError

OVERALL = "overall"
VERDICT = "verdict"
SPEED = "output_tokens_per_s"

#: Of an arm, over all or in one category.
RESULT_METRICS = (
    SPEED,
    *(f"{key}.{percentile}" for key in ("ttft_ms", "tpot_ms", "e2e_ms") for percentile in ("p50", "p90", "p99")),
    "tokens_per_forward",
    "acceptance_length",
    "acceptance_rate",
    "prompts",
    "requests",
    "output_tokens",
    "seconds",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
    "num_emitted_accepted_tokens",
    "goodput.share",
    "goodput.output_tokens_per_s",
    "cost_per_million_tokens",
)
#: Of an arm against the baseline, over all or in one category.
COMPARISON_METRICS = ("ratio", "ratio.low", "ratio.high", VERDICT)
#: Of an arm under a level of load, beside RESULT_METRICS and COMPARISON_METRICS.
LOAD_METRICS = (
    "throughput.ratio",
    "requests_per_s",
    "failed",
    "in_flight.max",
    "in_flight.mean",
    "late_ms.p50",
    "late_ms.p90",
    "late_ms.p99",
    "num_preemptions",
)
#: Of an arm as a whole.
ARM_METRICS = (
    *(f"lossless.{key}" for key in ("prompts", "identical", "near_ties", "different")),
    *(
        f"theory.{key}"
        for key in (
            "acceptance_rate",
            "draft_cost_ratio",
            "verify_cost_ratio",
            "predicted_speedup",
            "measured_speedup",
        )
    ),
)
METRICS = (*COMPARISON_METRICS, *RESULT_METRICS, *LOAD_METRICS, *ARM_METRICS)
_OF_COMPARISONS = (*COMPARISON_METRICS, "throughput.ratio")
#: As in the report, from 0.
_POSITION = re.compile(r"acceptance_per_position\.\d{1,3}")


@dataclass(frozen=True, slots=True)
class Known:
    """The names of one experiment, which are known before it runs."""

    arms: tuple[str, ...]
    categories: tuple[str, ...]
    baseline: str
    levels: tuple[str, ...] = ()
    """Of load, as `levels.Level.name` has them."""

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Known:
        """The names of a report that has been measured."""
        names = tuple(arm["name"] for arm in report["arms"])
        categories = dict.fromkeys(name for result in report["results"].values() for name in result["categories"])
        levels = tuple(level["name"] for level in (report.get("load") or {"levels": ()})["levels"])
        return cls(names, tuple(categories), report["baseline"], levels)


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a report, or its verdict."""

    arm: str
    category: str | None
    """None: over all."""
    metric: str
    """One of METRICS, or `acceptance_per_position.<position from 0>`."""
    level: str | None = None
    """Of load; None: without load."""

    def __str__(self) -> str:
        return ".".join(part for part in (self.arm, self.category, self.level, self.metric) if part is not None)

    def read(self, report: Mapping[str, Any]) -> float | str:
        """The value; a text for verdicts, else a number.

        Raises:
            CompareError: the report does not have it, or it is null, and why.
        """
        try:
            value = self._find(report)
        except (KeyError, IndexError, StopIteration) as error:
            raise CompareError(f"{self} is not in the report") from error
        if value is None:
            raise CompareError(f"{self} is null: {self._why_null()}")
        if self.metric != VERDICT and not (isinstance(value, (int, float)) and math.isfinite(value)):
            raise CompareError(f"{self} is {value!r}, which is no number to compare with")
        return value  # type: ignore[no-any-return]

    def _find(self, report: Mapping[str, Any]) -> Any:
        head, *rest = self.metric.split(".")
        if self.metric in ARM_METRICS:
            entry = report[head][self.arm]
            return entry and entry[rest[0]]
        if self.metric in _OF_COMPARISONS:
            found = self._comparison(report)
            if found is None or not rest:
                return found and found[head]
            if head == "throughput":
                return found[head][rest[0]]
            return found["ci95"] and found["ci95"][("low", "high").index(rest[0])]
        value = self._result(report)[head]
        if value is None or not rest:
            return value
        return value[int(rest[0]) if isinstance(value, list) else rest[0]]

    def _comparison(self, report: Mapping[str, Any]) -> Any:
        if self.level is not None:
            return next(found for found in self._under_load(report)["comparisons"] if found["arm"] == self.arm)
        found = comparison_of(report, self.arm)
        return found if self.category is None else found["categories"][self.category]

    def _result(self, report: Mapping[str, Any]) -> Any:
        if self.level is not None:
            return self._under_load(report)["results"][self.arm]
        result = report["results"][self.arm]
        return result[OVERALL] if self.category is None else result["categories"][self.category]

    def _under_load(self, report: Mapping[str, Any]) -> Any:
        return next(level for level in report["load"]["levels"] if level["name"] == self.level)

    def _why_null(self) -> str:
        if self.metric in ("ratio.low", "ratio.high"):
            return "there are too few prompts" + (" or passes" if self.level else "") + " for an interval"
        if self.metric in ("ratio", "throughput.ratio"):
            return "no request was answered by both arms in every run"
        if self.metric.startswith("theory."):
            return "the arm made no drafts, or its drafting was not timed"
        if self.metric.startswith("lossless."):
            return "answers were not compared: token ids are not told, or the prompts are not the same"
        if self.metric.startswith("goodput."):
            return "it was not asked for; add --slo"
        if self.metric == "cost_per_million_tokens":
            return "it was not asked for; add --gpu-hour-price"
        if "_ms." in self.metric:
            return "no answer was long enough"
        if self.metric == "num_preemptions":
            return "a running endpoint does not tell it"
        return "the arm made no drafts there"


def comparison_of(report: Mapping[str, Any], arm: str) -> Mapping[str, Any]:
    """The comparison of an arm's speed with the baseline's.

    Raises:
        StopIteration: there is none.
    """
    found: Mapping[str, Any] = next(
        comparison
        for comparison in report["comparisons"]
        if (comparison["arm"], comparison["against"], comparison["metric"]) == (arm, report["baseline"], SPEED)
    )
    return found


def resolve(segments: Sequence[str], known: Known, like: Quantity | None = None) -> Quantity:
    """Find out what a dotted name means.

    Args:
        like: where the name may stop short of a metric, the quantity whose metric is meant; an arm alone also means
            its category.
    Raises:
        CompareError: no such arm, category or metric, naming what there is and the nearest; or the baseline is asked
            for what only its rivals have.
    """
    arm, rest = _split_arm(segments, known)
    category, metric = None, ".".join(rest)
    level, behind = _split_level(rest, known)
    if not rest and like is not None:
        category, metric, level = like.category, like.metric, like.level
    elif level is not None:
        metric = ".".join(behind)
        if not metric and like is not None:
            metric = like.metric
    elif not _is_metric(metric) and rest and rest[0] in (OVERALL, *known.categories):
        category, metric = rest[0], ".".join(rest[1:])
        if not metric and like is not None:
            metric = like.metric
        if category == OVERALL:
            category = None
    if not metric:
        raise CompareError(f"{'.'.join(segments)} names no metric; there are: {_listing()}")
    if not _is_metric(metric):
        raise _unknown_metric(metric, rest, known)
    if metric in ARM_METRICS and level is not None:
        raise CompareError(f"{metric} is known without load only; write {arm}.{metric}")
    if metric in LOAD_METRICS and level is None:
        there = ", ".join(known.levels) or "there is none: --concurrency, --request-rate or --replay"
        raise CompareError(f"{metric} is of a level of load, which stands in front of it: {there}")
    if metric in ARM_METRICS and category is not None:
        raise CompareError(f"{metric} is counted over all categories; write {arm}.{metric} without {category!r}")
    if arm == known.baseline and metric in (*_OF_COMPARISONS, *ARM_METRICS):
        others = ", ".join(name for name in known.arms if name != arm)
        raise CompareError(f"{arm} is what the others are compared with and has no {metric}; they have it: {others}")
    return Quantity(arm, category, metric, level)


def nearest(name: str, names: Sequence[str]) -> str:
    """A sentence with the closest of some names, to go behind an error; empty where none is close."""
    close = difflib.get_close_matches(name, names, n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _split_arm(segments: Sequence[str], known: Known) -> tuple[str, list[str]]:
    """The arm, whose name may hold dots (then the longest one counts), and what follows it."""
    for end in range(len(segments), 0, -1):
        name = ".".join(segments[:end])
        if name in known.arms:
            return name, list(segments[end:])
    hint = nearest(segments[0], known.arms)
    raise CompareError(f"unknown arm {segments[0]!r}; arms: {', '.join(known.arms)}.{hint}")


def _split_level(segments: Sequence[str], known: Known) -> tuple[str | None, list[str]]:
    """The level of load, whose name may hold a dot (at_0.5), and what follows; a category of that name goes first."""
    for end in (2, 1):
        name = ".".join(segments[:end])
        if name in known.levels and name not in known.categories:
            return name, list(segments[end:])
    return None, list(segments)


def _is_metric(name: str) -> bool:
    return name in METRICS or _POSITION.fullmatch(name) is not None


def _unknown_metric(metric: str, rest: Sequence[str], known: Known) -> CompareError:
    if metric != ".".join(rest):  # a category or level stood in front of it
        return CompareError(f"unknown metric {metric!r}; there are: {_listing()}.{nearest(metric, METRICS)}")
    scopes = (OVERALL, *known.categories, *known.levels)
    if _is_metric(".".join(rest[1:])):
        hint = nearest(rest[0], scopes)
        what = "category or level" if known.levels else "category"
        return CompareError(f"unknown {what} {rest[0]!r}; there are: {', '.join(scopes)}.{hint}")
    hint = nearest(metric, METRICS) or nearest(rest[0], scopes)
    return CompareError(
        f"unknown metric {metric!r}; there are: {_listing()}; in front of it may stand {', '.join(scopes)}.{hint}"
    )


def _listing() -> str:
    names = (re.sub(r"\.p\d+$", ".p50|p90|p99", name) for name in METRICS)
    return ", ".join((*dict.fromkeys(names), "acceptance_per_position.0, .1, ..."))
