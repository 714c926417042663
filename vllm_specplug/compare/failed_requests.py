"""Requests of an arm that were not answered: what they were, and which prompts they leave. Never averaged away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from vllm_specplug.compare.measure import Block, Engine
from vllm_specplug.errors import CompareError

MAX_FAILED_SHARE = 0.05
"""An arm of whose requests a larger share failed gets no verdict."""


@dataclass(frozen=True, slots=True)
class Failures:
    """What became of the requests of one arm."""

    requests: int
    """All of them."""
    failed: int
    kinds: Mapping[str, int]
    """Number of failed ones by kind, such as "timeout" or "http_500"."""
    first: str | None
    """What the first one said."""
    prompts_left_out: tuple[str, ...]
    """Prompts that this arm's numbers are without: one pass of them failed, or stood in a block with one that did."""

    @property
    def too_many(self) -> bool:
        """Whether nothing may be said of the arm's speed."""
        return self.failed > MAX_FAILED_SHARE * self.requests

    def text(self) -> str:
        """For example '3 of 160 requests failed (timeout 2, http_500 1)'."""
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.kinds.items())
        return f"{self.failed} of {self.requests} requests failed" + (f" ({kinds})" if kinds else "")

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return {**asdict(self), "prompts_left_out": list(self.prompts_left_out)}


def find_failures(blocks: Sequence[Block]) -> Failures:
    """Count what failed in the blocks of one arm."""
    answers = [answer for block in blocks for answer in block.answers]
    errors = [answer.error for answer in answers if answer.error is not None]
    # The time of a block is that of all its prompts, so one that failed spoils it for the others.
    spoilt = [block for block in blocks if any(answer.error is not None for answer in block.answers)]
    return Failures(
        len(answers),
        len(errors),
        dict(Counter(error.partition(":")[0] for error in errors)),
        errors[0] if errors else None,
        tuple(dict.fromkeys(answer.prompt_id for block in spoilt for answer in block.answers)),
    )


def without_failed(blocks: Sequence[Block], failures: Failures) -> list[Block]:
    """The blocks of prompts that were answered in every pass; a prompt is left out as a whole."""
    left_out = set(failures.prompts_left_out)
    kept: list[Block] = []
    for block in blocks:
        answers = tuple(answer for answer in block.answers if answer.prompt_id not in left_out)
        if answers:  # blocks are the same in all passes, so either all of them or none
            kept.append(replace(block, answers=answers))
    return kept


def why_undecided(found: Mapping[str, Failures], arms: Sequence[str]) -> str | None:
    """Why nothing can be said of arms' speeds, None where it may."""
    reasons = [f"{name}: {found[name].text()}" for name in arms if name in found and found[name].too_many]
    if not reasons:
        return None
    return f"{'; '.join(reasons)}, more than {100 * MAX_FAILED_SHARE:g} %"


def failure_notes(report: Mapping[str, Any]) -> list[str]:
    """What failed in a report, a sentence for each arm that anything failed of, and what follows."""
    lines = []
    for name, result in report["results"].items():
        errors = result.get("errors")  # reports of former versions do not have it
        if errors and errors["failed"]:
            kinds = ", ".join(f"{kind} {count}" for kind, count in errors["kinds"].items())
            lines.append(
                f"{name}: {errors['failed']} of {errors['requests']} requests failed ({kinds}); its numbers and its "
                f"comparisons are without {len(errors['prompts_left_out'])} prompts. The first: {errors['first']}"
            )
    for comparison in report["comparisons"]:
        if comparison.get("undecided_reason"):
            lines.append(f"{comparison['arm']}: undecided, because of {comparison['undecided_reason']}.")
    return lines


def check_some_answered(found: Mapping[str, Failures], blocks: Mapping[str, Sequence[Block]], baseline: str) -> None:
    """Refuse where nothing is left to compare.

    Args:
        blocks: by arm, without what failed.
    Raises:
        CompareError: an arm and the baseline have no prompt that both answered.
    """
    answered = {name: {answer.prompt_id for block in part for answer in block.answers} for name, part in blocks.items()}
    for name, prompts in answered.items():
        if not prompts & answered[baseline]:
            culprit = name if found[name].failed else baseline
            raise CompareError(
                f"arm {culprit!r}: {found[culprit].text()}, so that no prompt is left that {name!r} and {baseline!r} "
                f"both answered; the first: {found[culprit].first}"
            )


class Careful:
    """An engine of whose answers none may fail: before the measurement there is nothing to count it for."""

    def __init__(self, name: str, engine: Engine) -> None:
        self._name = name
        self._engine = engine

    def request(self, op: str, **args: Any) -> Any:
        """As the engine's own.

        Raises:
            CompareError: also where a single answer failed.
        """
        found = self._engine.request(op, **args)
        for output in found["outputs"] if op == "generate" else ():
            if output.get("error"):
                raise CompareError(f"arm {self._name!r}: a request before the measurement failed: {output['error']}")
        return found
