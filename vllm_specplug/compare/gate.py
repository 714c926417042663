"""Gates for CI: conditions on a report that fail a run when they hold. Parsed before anything is measured.

A gate compares a quantity (`quantity`) with a number, a text or another quantity: `medusa.tpot_ms.p50 > 1.05 *
baseline`. Its grammar is in `gate_syntax`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vllm_specplug.compare.gate_syntax import Path, split_gate
from vllm_specplug.compare.quantity import VERDICT, Known, Quantity, nearest, resolve
from vllm_specplug.compare.report_format import VERDICTS
from vllm_specplug.errors import CompareError

State = Literal["passed", "failed", "error"]

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition that must not hold."""

    text: str
    """As it was given."""
    left: Quantity
    op: str
    right: Quantity | float | str
    factor: float | None = None
    """What `right` is multiplied by; None: by nothing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a gate."""

    gate: Gate
    state: State
    """failed: the condition holds; error: it cannot be told."""
    detail: str
    """The measured values, or why there are none."""
    left: float | str | None = None
    right: float | str | None = None
    """With its factor."""

    @property
    def line(self) -> str:
        """For people."""
        verb = {"passed": "passed", "failed": "FAILED", "error": "CANNOT BE TOLD"}[self.state]
        return f"gate {verb}: {self.gate.text}: {self.detail}"

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "fail_if": self.gate.text,
            "state": self.state,
            "left": self.left,
            "right": self.right,
            "detail": self.detail,
        }


def parse_gates(texts: Sequence[str], known: Known) -> list[Gate]:
    """Read what `--fail-if` was given.

    Raises:
        CompareError: one is malformed, or names an arm, category or metric that does not exist.
    """
    return [parse_gate(text, known) for text in texts]


def parse_gate(text: str, known: Known) -> Gate:
    """Read one gate.

    Raises:
        CompareError: it is malformed, or names an arm, category or metric that does not exist.
    """
    parts = split_gate(text)
    try:
        left = resolve(parts.left.segments, known)
        if left.metric == VERDICT:
            if parts.op not in ("==", "!="):
                raise CompareError(f"a verdict is a text, which {parts.op} cannot compare; use == or !=")
            if parts.factor is not None:
                raise CompareError("a verdict is a text, which takes no factor")
        return Gate(text, left, parts.op, _right(parts.right, left, known), parts.factor)
    except CompareError as error:
        raise CompareError(f"gate {text!r}: {error}") from error


def _right(right: Path | float, left: Quantity, known: Known) -> Quantity | float | str:
    of_verdict = left.metric == VERDICT
    if isinstance(right, float):
        if of_verdict:
            raise CompareError(f"a verdict is one of {_verdicts()}, not a number")
        return right
    if of_verdict and right.quoted:
        return _verdict(right.segments[0])
    if of_verdict and right.segments[0] in VERDICTS and right.segments[0] not in known.arms:
        raise CompareError(f'a verdict stands in quotes: "{right.segments[0]}"')
    found = resolve(right.segments, known, like=left)
    if (found.metric == VERDICT) != of_verdict:
        raise CompareError(f"{left} and {found} cannot be compared: one is a number, the other a text")
    return found


def _verdict(text: str) -> str:
    if text not in VERDICTS:
        raise CompareError(f"unknown verdict {text!r}; there are: {_verdicts()}.{nearest(text, VERDICTS)}")
    return text


def _verdicts() -> str:
    return ", ".join(f'"{verdict}"' for verdict in VERDICTS)


def check_gates(gates: Sequence[Gate], report: Mapping[str, Any]) -> list[Outcome]:
    """Hold gates against a report."""
    return [check_gate(gate, report) for gate in gates]


def check_gate(gate: Gate, report: Mapping[str, Any]) -> Outcome:
    """Hold one gate against a report. A null is an error, never a pass: what was not measured proves nothing."""
    try:
        left = gate.left.read(report)
        right = gate.right.read(report) if isinstance(gate.right, Quantity) else gate.right
    except CompareError as error:
        return Outcome(gate, "error", str(error))
    made_of = ""
    if gate.factor is not None:
        assert isinstance(right, (int, float))
        made_of, right = f" ({gate.factor:g} * {_shown(right)})", gate.factor * right
    holds = _COMPARE[gate.op](left, right)
    texts = _shown(left), _shown(right)
    if texts[0] == texts[1] and left != right:
        texts = repr(left), repr(right)
    detail = f"{texts[0]} {gate.op} {texts[1]}" if holds else f"{texts[0]}, not {gate.op} {texts[1]}"
    return Outcome(gate, "failed" if holds else "passed", detail + made_of, left, right)


def _shown(value: float | str) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value:.6g}"


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """2 when a gate cannot be told, else 1 when one failed, else 0."""
    states = {outcome.state for outcome in outcomes}
    return 2 if "error" in states else 1 if "failed" in states else 0
