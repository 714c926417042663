"""The numbers of a report by name, `<arm>[.<category>].<metric>`. Knows the names before anything is measured."""

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
METRICS = (*COMPARISON_METRICS, *RESULT_METRICS, *ARM_METRICS)
#: As in the report, from 0.
_POSITION = re.compile(r"acceptance_per_position\.\d{1,3}")


@dataclass(frozen=True, slots=True)
class Known:
    """The names of one experiment, which are known before it runs."""

    arms: tuple[str, ...]
    categories: tuple[str, ...]
    baseline: str

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Known:
        """The names of a report that has been measured."""
        names = tuple(arm["name"] for arm in report["arms"])
        categories = dict.fromkeys(name for result in report["results"].values() for name in result["categories"])
        return cls(names, tuple(categories), report["baseline"])


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a report, or its verdict."""

    arm: str
    category: str | None
    """None: over all."""
    metric: str
    """One of METRICS, or `acceptance_per_position.<position from 0>`."""

    def __str__(self) -> str:
        parts = (self.arm, self.metric) if self.category is None else (self.arm, self.category, self.metric)
        return ".".join(parts)

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
        if self.metric in COMPARISON_METRICS:
            found = comparison_of(report, self.arm)
            if self.category is not None:
                found = found["categories"][self.category]
            if found is None or not rest:
                return found and found[head]
            return found["ci95"] and found["ci95"][("low", "high").index(rest[0])]
        result = report["results"][self.arm]
        value = (result[OVERALL] if self.category is None else result["categories"][self.category])[head]
        if value is None or not rest:
            return value
        return value[int(rest[0]) if isinstance(value, list) else rest[0]]

    def _why_null(self) -> str:
        if self.metric in ("ratio.low", "ratio.high"):
            return "there are too few prompts for an interval"
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
    if not rest and like is not None:
        category, metric = like.category, like.metric
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
    if metric in ARM_METRICS and category is not None:
        raise CompareError(f"{metric} is counted over all categories; write {arm}.{metric} without {category!r}")
    if arm == known.baseline and metric in (*COMPARISON_METRICS, *ARM_METRICS):
        others = ", ".join(name for name in known.arms if name != arm)
        raise CompareError(f"{arm} is what the others are compared with and has no {metric}; they have it: {others}")
    return Quantity(arm, category, metric)


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


def _is_metric(name: str) -> bool:
    return name in METRICS or _POSITION.fullmatch(name) is not None


def _unknown_metric(metric: str, rest: Sequence[str], known: Known) -> CompareError:
    if metric != ".".join(rest):  # a category stood in front of it
        return CompareError(f"unknown metric {metric!r}; there are: {_listing()}.{nearest(metric, METRICS)}")
    scopes = (OVERALL, *known.categories)
    if _is_metric(".".join(rest[1:])):
        hint = nearest(rest[0], scopes)
        return CompareError(f"unknown category {rest[0]!r}; there are: {', '.join(scopes)}.{hint}")
    hint = nearest(metric, METRICS) or nearest(rest[0], scopes)
    return CompareError(
        f"unknown metric {metric!r}; there are: {_listing()}; in front of it may stand {', '.join(scopes)}.{hint}"
    )


def _listing() -> str:
    names = (re.sub(r"\.p\d+$", ".p50|p90|p99", name) for name in METRICS)
    return ", ".join((*dict.fromkeys(names), "acceptance_per_position.0, .1, ..."))
