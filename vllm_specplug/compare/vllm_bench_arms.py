"""Arms of imported `vllm bench serve` files side by side: were they sent the same, and what to know of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm_specplug.compare.vllm_bench import BenchRequest, BenchResult
from vllm_specplug.errors import CompareError


@dataclass(frozen=True, slots=True)
class BenchArm:
    """One file as an arm."""

    name: str
    result: BenchResult
    answered: Mapping[int, BenchRequest]
    """By place in the file."""


def bench_arm(name: str, result: BenchResult) -> BenchArm:
    """The arm of a file.

    Raises:
        CompareError: no request of it was answered, naming the file.
    """
    answered = {index: request for index, request in enumerate(result.requests) if request.answered}
    if not answered:
        error = next((request.error for request in result.requests if request.error), "answers of no token")
        last = error.strip().splitlines()[-1][:200]
        raise CompareError(f"{result.path}: no request was answered ({last}); measure {name!r} again")
    return BenchArm(name, result, answered)


def same_prompts(one: BenchResult, other: BenchResult) -> bool:
    """Whether two files hold the same prompts in the same order, as far as they tell: prompts are not in them.

    Their lengths must agree; where all are of one length, which says nothing, some answer must be the same as well.
    """
    lengths = [[request.prompt_tokens for request in result.requests] for result in (one, other)]
    if lengths[0] != lengths[1]:
        return False
    pairs = zip(one.requests, other.requests, strict=True)
    return len(set(lengths[0])) > 1 or any(ours.answered and ours.text == theirs.text for ours, theirs in pairs)


def incomparable(arm: BenchArm, baseline: BenchArm) -> list[str]:
    """What differs in the traffic the two were sent."""
    theirs = baseline.result.traffic
    return [
        f"{key} is {value}, that of {baseline.name} {theirs[key]}"
        for key, value in arm.result.traffic.items()
        if value != theirs[key]
    ]


def remarks(arms: Sequence[BenchArm]) -> list[str]:
    """What to know of numbers that were not measured here, a sentence each."""
    baseline, others = arms[0], arms[1:]
    throughput = ", ".join(
        f"{arm.name} {sum(r.output_tokens for r in arm.answered.values()) / arm.result.duration_s:,.1f}" for arm in arms
    )
    lines = [
        "Tokens/s and ratios are output tokens for each second that a request took; what the servers gave in all, in "
        f"tokens a second: {throughput}.",
        "Each arm was measured once, apart from the others: what drifted between the runs is in the ratios, and no "
        "interval knows of it.",
    ]
    for arm in others:
        lines += [f"NOT COMPARABLE: {arm.name}: {difference}." for difference in incomparable(arm, baseline)]
        if same_prompts(arm.result, baseline.result):
            lines.append(
                f"{arm.name}: paired with {baseline.name} by place in the files, whose prompts have the same lengths. "
                "Answers are compared as texts; whether rounding explains a difference was not looked into."
            )
        else:
            lines.append(
                f"{arm.name}: not paired, nothing shows that its prompts are those of {baseline.name} in the same "
                "order; answers were not compared. Its p-value is that of Mann and Whitney."
            )
    for arm in arms:
        failed = len(arm.result.requests) - len(arm.answered)
        if failed:
            lines.append(f"{arm.name}: {failed} of {len(arm.result.requests)} requests failed and are left out.")
    return lines
