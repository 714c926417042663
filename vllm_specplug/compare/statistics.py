"""From measured blocks to numbers of one arm: speed, latency, acceptance, loops. Pure arithmetic; compares nothing.

Speed of an arm in a category: output tokens of all its requests / seconds of all its blocks. Overall speed: the
geometric mean over categories, so that each category weighs the same and the ratio of two overall speeds is the
geometric mean of the categories' ratios.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from vllm_specplug.compare.measure import UNKNOWN_TOKEN, Answer, Block, DraftCounts

LOOP_NGRAM = 4
LOOP_SHARE = 0.15
"""An answer loops when a larger share of its 4-grams of tokens has occurred in it before."""


@dataclass(frozen=True, slots=True)
class PromptSpeed:
    """What one arm needed for one prompt, summed over the passes."""

    category: str
    output_tokens: int
    seconds: float
    """With several prompts at once each is charged an equal part of its block's time."""

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


def prompt_speeds(blocks: Sequence[Block]) -> dict[str, PromptSpeed]:
    """By prompt id, in the order of the blocks."""
    speeds: dict[str, PromptSpeed] = {}
    for block in blocks:
        for answer in block.answers:
            old = speeds.get(answer.prompt_id, PromptSpeed(block.category, 0, 0.0))
            seconds = old.seconds + block.seconds / len(block.answers)
            speeds[answer.prompt_id] = PromptSpeed(block.category, old.output_tokens + len(answer.token_ids), seconds)
    return speeds


def summarise(blocks: Sequence[Block]) -> dict[str, Any]:
    """The report's R of one arm over some blocks; counts are sums over all passes."""
    answers = [answer for block in blocks for answer in block.answers]
    output_tokens = sum(len(answer.token_ids) for answer in answers)
    return {
        "prompts": len({answer.prompt_id for answer in answers}),
        "requests": len(answers),
        "output_tokens": output_tokens,
        "seconds": sum(block.seconds for block in blocks),
        "output_tokens_per_s": overall_speed(prompt_speeds(blocks)),
        "ttft_ms": percentiles_ms([answer.ttft_s for answer in answers]),
        "tpot_ms": percentiles_ms([answer.tpot_s for answer in answers if answer.tpot_s is not None]),
        "e2e_ms": percentiles_ms([answer.e2e_s for answer in answers]),
        # Every end, at a stop or at the length limit, may trim drafts that vLLM has counted as accepted.
        "finish_reasons": dict(Counter(str(answer.finish_reason) for answer in answers)),
        **acceptance(answers, total_drafts(blocks)),
    }


def total_drafts(blocks: Sequence[Block]) -> DraftCounts | None:
    """Summed over all blocks; None: the arm does not speculate."""
    drafts = [block.drafts for block in blocks if block.drafts is not None]
    return reduce(add, drafts) if drafts else None


def step_seconds(blocks: Sequence[Block]) -> float | None:
    """Mean time of a step of decoding, the prompts' own steps left out; None where there was none."""
    answers = [answer for block in blocks for answer in block.answers]
    known = [answer.num_forwards for answer in answers if answer.num_forwards is not None]
    num_steps = sum(known) - len(known) if len(known) == len(answers) else 0
    return sum(answer.e2e_s - answer.ttft_s for answer in answers) / num_steps if num_steps else None


def acceptance(answers: Sequence[Answer], drafts: DraftCounts | None) -> dict[str, Any]:
    """Numbers of speculation; null where there were no drafts.

    acceptance_length = 1 + accepted / draft rounds, acceptance_rate = accepted / drafted,
    acceptance_per_position[i] = rounds whose draft i was accepted / draft rounds (vLLM's convention: a round that
    drafted fewer counts as not accepted there), tokens_per_forward = output tokens / (output tokens - emitted accepted)
    """
    output_tokens = sum(len(answer.token_ids) for answer in answers)
    known = [answer.num_emitted_accepted_tokens for answer in answers if answer.num_emitted_accepted_tokens is not None]
    emitted = sum(known) if len(known) == len(answers) else None
    drafted = drafts is not None and drafts.num_draft_tokens > 0
    numbers: dict[str, Any] = {
        "tokens_per_forward": None,
        "acceptance_length": None,
        "acceptance_rate": None,
        "acceptance_per_position": None,
        "num_drafts": None,
        "num_draft_tokens": None,
        "num_accepted_tokens": None,
        "num_emitted_accepted_tokens": None,
    }
    if drafts is not None and drafted:
        numbers |= {
            "tokens_per_forward": None if emitted is None else output_tokens / (output_tokens - emitted),
            "acceptance_length": 1 + drafts.num_accepted_tokens / drafts.num_drafts,
            "acceptance_rate": drafts.num_accepted_tokens / drafts.num_draft_tokens,
            "acceptance_per_position": [count / drafts.num_drafts for count in drafts.accepted_per_position],
            "num_drafts": drafts.num_drafts,
            "num_draft_tokens": drafts.num_draft_tokens,
            "num_accepted_tokens": drafts.num_accepted_tokens,
            "num_emitted_accepted_tokens": emitted,
        }
    return numbers


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float] | None:
    """p50, p90 and p99 in milliseconds, linear between neighbours; None without values."""
    if not seconds:
        return None
    p50, p90, p99 = np.percentile(np.asarray(seconds) * 1000, (50, 90, 99))
    return {"p50": float(p50), "p90": float(p90), "p99": float(p99)}


def overall_speed(speeds: Mapping[str, PromptSpeed]) -> float:
    """Output tokens a second: geometric mean over the categories there are."""
    tokens: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for speed in speeds.values():
        tokens[speed.category] = tokens.get(speed.category, 0) + speed.output_tokens
        seconds[speed.category] = seconds.get(speed.category, 0.0) + speed.seconds
    return math.exp(math.fsum(math.log(tokens[name] / seconds[name]) for name in tokens) / len(tokens))


def repeated_share(token_ids: Sequence[int], n: int = LOOP_NGRAM) -> float:
    """Share of an answer's n-grams that have occurred in it before, 0 for answers shorter than n."""
    ngrams = [tuple(token_ids[start : start + n]) for start in range(len(token_ids) - n + 1)]
    return (len(ngrams) - len(set(ngrams))) / len(ngrams) if ngrams else 0.0


def loops(token_ids: Sequence[int]) -> bool:
    """Whether an answer goes round in circles, which flatters drafters that copy."""
    return UNKNOWN_TOKEN not in token_ids and repeated_share(token_ids) > LOOP_SHARE
