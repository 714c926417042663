"""Whether an arm's answers are the baseline's own, and where not, whether rounding explains it.

In 16-bit floats the logits of a step depend a little on how many tokens are in it, so greedy answers may part where
the two best tokens nearly tie. Each first difference is put before the baseline engine again, after the measurement:
both tokens must be within a tolerance of its most probable one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from vllm_specplug.compare.measure import UNKNOWN_TOKEN, Answer, Block, Engine

TOLERANCE_16_BIT = 0.05
"""Natural-log probability."""


def default_tolerance(dtype: str) -> float:
    """How far apart two tokens may be and still count as tied: nothing in float32, where answers must be equal."""
    return 0.0 if dtype in ("float32", "float") else TOLERANCE_16_BIT


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where an arm's answer parts from the baseline's."""

    prompt_id: str
    position: int
    """Index into the output tokens."""
    baseline_token: int | None
    """None: the baseline's answer ends here."""
    arm_token: int | None
    gap: float | None = None
    """Log-probability of the baseline's token minus that of the arm's; None when one is not among the top tokens."""
    distance_to_best: float | None = None
    """How far the less probable of the two is below the most probable token, in log-probability."""
    near_tie: bool = False


def first_difference(prompt_id: str, baseline: Sequence[int], arm: Sequence[int]) -> Difference | None:
    """Where two answers part, None when they are the same."""
    for position, (expected, found) in enumerate(zip_longest(baseline, arm)):
        if expected != found:
            return Difference(prompt_id, position, expected, found)
    return None


def find_differences(baseline: Sequence[Block], arm: Sequence[Block]) -> list[Difference]:
    """First differences of every pass of an arm from the baseline's first pass, at most one per prompt and place."""
    reference = told_answers(baseline)
    found: dict[tuple[str, int, int | None], Difference] = {}
    for block in arm:
        for answer in block.answers:
            expected = reference.get(answer.prompt_id)
            if expected is None or UNKNOWN_TOKEN in answer.token_ids:
                continue  # an endpoint failed there, or does not tell token ids
            difference = first_difference(answer.prompt_id, expected.token_ids, answer.token_ids)
            if difference is not None:
                found.setdefault((answer.prompt_id, difference.position, difference.arm_token), difference)
    return list(found.values())


def first_answers(blocks: Sequence[Block]) -> dict[str, Answer]:
    """The answer of the first pass to each prompt."""
    return {answer.prompt_id: answer for block in blocks if block.pass_index == 0 for answer in block.answers}


def told_answers(blocks: Sequence[Block]) -> dict[str, Answer]:
    """`first_answers` whose token ids are known."""
    return {name: found for name, found in first_answers(blocks).items() if UNKNOWN_TOKEN not in found.token_ids}


def num_unstable(blocks: Sequence[Block]) -> int:
    """Prompts that one arm answers differently from pass to pass."""
    reference = first_answers(blocks)
    changed = {
        answer.prompt_id
        for block in blocks
        for answer in block.answers
        if answer.token_ids != reference[answer.prompt_id].token_ids
    }
    return len(changed)


def judge(
    engine: Engine,
    differences: Sequence[Difference],
    prompts: Mapping[str, Sequence[int]],
    reference: Mapping[str, Answer],
    tolerance: float,
) -> list[Difference]:
    """Ask the baseline's engine how close the two tokens of each difference are.

    Args:
        prompts: token ids by prompt id.
        reference: the baseline's answers by prompt id.
        tolerance: log-probability both tokens may lie below the best.
    """
    open_cases = [d for d in differences if d.baseline_token is not None and d.arm_token is not None]
    if not open_cases:
        return list(differences)
    prefixes = [[*prompts[d.prompt_id], *reference[d.prompt_id].token_ids[: d.position]] for d in open_cases]
    candidates = [[d.baseline_token, d.arm_token] for d in open_cases]
    answers = engine.request("logprobs", prefixes=prefixes, candidates=candidates)
    judged = {id(d): _judged(d, answer, tolerance) for d, answer in zip(open_cases, answers, strict=True)}
    return [judged.get(id(difference), difference) for difference in differences]


def _judged(difference: Difference, answer: Mapping[str, Any], tolerance: float) -> Difference:
    expected, found = answer["candidates"]
    gap = distance = None
    if expected is not None and found is not None:
        gap = expected - found
        distance = answer["best"] - min(expected, found)
    near_tie = distance is not None and distance <= tolerance
    return replace(difference, gap=gap, distance_to_best=distance, near_tie=near_tie)


def tally(num_prompts: int, differences: Sequence[Difference]) -> dict[str, Any]:
    """The report's `lossless` entry of one arm; a prompt with any difference that is no near tie is different."""
    parted = {difference.prompt_id for difference in differences}
    different = {difference.prompt_id for difference in differences if not difference.near_tie}
    return {
        "prompts": num_prompts,
        "identical": num_prompts - len(parted),
        "near_ties": len(parted - different),
        "different": len(different),
    }
