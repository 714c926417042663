"""Gates on the report of a staging log, in the grammar of all gates: `medusa.errors.share > 1.5 * baseline`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm_specplug.compare.gate import Gate
from vllm_specplug.compare.gate_syntax import Path, split_gate
from vllm_specplug.compare.quantity import Quantity, nearest
from vllm_specplug.compare.report_format import VERDICTS
from vllm_specplug.compare.staging_format import ERROR_VERDICTS, SPEED_NAMES
from vllm_specplug.errors import CompareError

#: Of every arm.
OWN_METRICS = (
    "requests",
    "units",
    "failed",
    "cancelled",
    "moved",
    "stood_in",
    "without_outcome",
    "output_tokens",
    "output_tokens_per_s",
    "errors.share",
    *(f"{key}.{percentile}" for key in ("ttft_ms", "tpot_ms", "e2e_ms") for percentile in ("p50", "p90", "p99")),
)
#: Of every arm but the baseline.
COMPARED_METRICS = (
    *(f"{name}.{metric}" for name in SPEED_NAMES for metric in ("ratio", "ratio.low", "ratio.high", "verdict")),
    *(f"errors.{metric}" for metric in ("difference", "difference.low", "difference.high", "verdict")),
)


class StagingQuantity(Quantity):
    """One number of the report of a staging log, or a verdict."""

    def read(self, report: Mapping[str, Any]) -> float | str:
        """The value.

        Raises:
            CompareError: it is null, or nothing can be compared, and why.
        """
        if self.metric in OWN_METRICS:
            value = _own(report["results"].get(self.arm), self.metric.split("."))
            why = "no request of the arm has it"
        elif report["split"]["mismatch"]:
            raise CompareError(f"{self}: nothing can be compared: {report['recommendation']['withheld']}")
        else:
            row = next((row for row in report["comparisons"] if row["arm"] == self.arm), None)
            value = _compared(row, self.metric.split("."))
            why = "too few users for it"
        if value is None:
            raise CompareError(f"{self} is null: {why}")
        assert isinstance(value, (int, float, str))
        return value


def _own(result: Mapping[str, Any] | None, path: Sequence[str]) -> Any:
    if result is None:
        return None
    if list(path) == ["errors", "share"]:
        return result["error_share"]
    value = result.get(path[0])  # reports of former versions lack some
    return value if value is None or len(path) == 1 else value[path[1]]


def _compared(row: Mapping[str, Any] | None, path: Sequence[str]) -> Any:
    if row is None:
        return None
    found = row["errors"] if path[0] == "errors" else row["speeds"][path[0]]
    if found is None or len(path) == 2:
        return found and found[path[1]]
    return found["interval"] and found["interval"][("low", "high").index(path[2])]


def parse_staging_gates(texts: Sequence[str], arms: Sequence[str], baseline: str) -> list[Gate]:
    """Read gates.

    Args:
        arms: all there are.
    Raises:
        CompareError: one is malformed or names what there is not, with the nearest.
    """
    return [_parse(text, arms, baseline) for text in texts]


def _parse(text: str, arms: Sequence[str], baseline: str) -> Gate:
    parts = split_gate(text)
    try:
        left = _resolve(parts.left.segments, arms, baseline)
        right = _right(parts.right, left, parts.factor, arms, baseline)
    except CompareError as error:
        raise CompareError(f"gate {text!r}: {error}") from error
    return Gate(text, left, parts.op, right, parts.factor)


def _right(
    right: Path | float, left: Quantity, factor: float | None, arms: Sequence[str], baseline: str
) -> Quantity | float | str:
    verdicts = ERROR_VERDICTS if left.metric.startswith("errors.") else VERDICTS
    if left.metric.endswith(".verdict"):
        if factor is None and isinstance(right, Path) and right.quoted and right.segments[0] in verdicts:
            return right.segments[0]
        raise CompareError(f"a verdict is compared with one of {', '.join(f'{verdict!r}' for verdict in verdicts)}")
    if isinstance(right, float):
        return right
    found = _resolve(right.segments, arms, baseline, left.metric)
    if found.metric.endswith(".verdict"):
        raise CompareError(f"{left} and {found} cannot be compared: one is a number, the other a text")
    return found


def _resolve(segments: Sequence[str], arms: Sequence[str], baseline: str, metric: str = "") -> StagingQuantity:
    """Args: metric: what an arm alone stands for."""
    # The name of an arm may hold dots; then the longest one counts.
    arm = next(
        (".".join(segments[:end]) for end in range(len(segments), 0, -1) if ".".join(segments[:end]) in arms), None
    )
    if arm is None:
        hint = nearest(segments[0], arms)
        raise CompareError(f"unknown arm {segments[0]!r}; arms: {', '.join(arms)}.{hint}")
    rest = segments[len(arm.split(".")) :]
    metric = ".".join(rest) or metric
    known = (*OWN_METRICS, *COMPARED_METRICS)
    if metric not in known:
        raise CompareError(f"unknown metric {metric!r}; there are: {', '.join(known)}.{nearest(metric, known)}")
    if arm == baseline and metric in COMPARED_METRICS:
        raise CompareError(f"{arm} is what the others are compared with and has no {metric}")
    return StagingQuantity(arm, None, metric)
