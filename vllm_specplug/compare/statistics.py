"""From measured blocks to numbers: speed, acceptance, ratios with intervals, verdicts, loops. Pure arithmetic.

Speed of an arm in a category: output tokens of all its requests / seconds of all its blocks. Overall speed: the
geometric mean over categories, so that each category weighs the same and the ratio of two overall speeds is the
geometric mean of the categories' ratios.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, TypeAlias

import numpy as np

from vllm_specplug.compare.measure import Answer, Block, DraftCounts

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

NUM_RESAMPLES = 4999
MIN_DEGREES_OF_FREEDOM = 3
"""Prompts less categories (or categories less 1): below it an interval would be a guess."""
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


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speed of an arm divided by the baseline's."""

    ratio: float
    ci95: tuple[float, float] | None
    """None: too few prompts."""
    resampled: str | None
    """What the bootstrap drew: 'prompts' within each category, or whole 'categories' where some have one prompt."""


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
    num_steps = sum(answer.num_forwards - 1 for answer in answers)
    return sum(answer.e2e_s - answer.ttft_s for answer in answers) / num_steps if num_steps else None


def acceptance(answers: Sequence[Answer], drafts: DraftCounts | None) -> dict[str, Any]:
    """Numbers of speculation; null where there were no drafts.

    acceptance_length = 1 + accepted / draft rounds, acceptance_rate = accepted / drafted,
    acceptance_per_position[i] = rounds whose draft i was accepted / draft rounds (vLLM's convention: a round that
    drafted fewer counts as not accepted there), tokens_per_forward = output tokens / (output tokens - emitted accepted)
    """
    output_tokens = sum(len(answer.token_ids) for answer in answers)
    emitted = sum(answer.num_emitted_accepted_tokens for answer in answers)
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
            "tokens_per_forward": output_tokens / (output_tokens - emitted),
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


def compare(arm: Mapping[str, PromptSpeed], baseline: Mapping[str, PromptSpeed], seed: int) -> Ratio:
    """Ratio of overall speeds with a 95 % bootstrap interval (BCa), paired by prompt, stratified by category.

    Where a category has one prompt only, resampling prompts would take that prompt as beyond doubt; then whole
    categories are drawn instead. With too few of either there is no interval.
    """
    strata: dict[str, list[tuple[float, float, float, float]]] = {}
    for prompt_id, theirs in baseline.items():
        ours = arm[prompt_id]
        row = (float(ours.output_tokens), ours.seconds, float(theirs.output_tokens), theirs.seconds)
        strata.setdefault(theirs.category, []).append(row)
    tables = [np.asarray(rows) for rows in strata.values()]
    log_ratios = np.asarray([_log_ratio(table) for table in tables])
    ratio = math.exp(float(log_ratios.mean()))
    num_prompts, num_categories = len(baseline), len(tables)
    if min(len(table) for table in tables) >= 2:
        if num_prompts - num_categories < MIN_DEGREES_OF_FREEDOM:
            return Ratio(ratio, None, None)

        def mean_log_ratio(*rows: Any, axis: int = -1) -> Any:
            parts = [_log_ratio(table[index], axis=axis) for table, index in zip(tables, rows, strict=True)]
            return np.mean(parts, axis=0)

        samples = tuple(np.arange(len(table)) for table in tables)
        level = expanded_level(num_prompts, num_categories)
        return Ratio(ratio, _interval(samples, mean_log_ratio, math.log(ratio), level, seed), "prompts")
    if num_categories - 1 < MIN_DEGREES_OF_FREEDOM:
        return Ratio(ratio, None, None)
    level = expanded_level(num_categories, 1)
    return Ratio(ratio, _interval((log_ratios,), np.mean, math.log(ratio), level, seed), "categories")


def expanded_level(num_samples: int, num_strata: int) -> float:
    """Confidence level to ask a bootstrap for so that its interval covers 95 %.

    Resampling n values spreads by sqrt((n - 1) / n) too little and knows nothing of Student's t; eight prompts would
    get an interval that covers 90 %. The level is 1 - 2 Phi(-sqrt(n / (n - 1)) t), t the 97.5 % point of Student's t.

    Args:
        num_samples: over all strata; n is the mean size of a stratum.
    Source: Hesterberg 2015, arXiv:1411.5279, section 3.3 (expanded percentile interval).
    """
    from scipy import stats  # here, not at the top: of the extra [compare], and the command line imports this module

    mean_size = num_samples / num_strata
    t = stats.t.ppf(0.975, num_samples - num_strata)
    return float(1 - 2 * stats.norm.cdf(-math.sqrt(mean_size / (mean_size - 1)) * t))


def _log_ratio(table: Floats, axis: int = -1) -> Any:
    """Log of arm speed / baseline speed, pooled over the prompts of a table [..., num_prompts, 4]."""
    arm_tokens, arm_seconds, tokens, seconds = np.moveaxis(table, -1, 0)
    return np.log(arm_tokens.sum(axis) * seconds.sum(axis) / (arm_seconds.sum(axis) * tokens.sum(axis)))


def _interval(samples: tuple[Any, ...], statistic: Any, point: float, level: float, seed: int) -> tuple[float, float]:
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        warnings.filterwarnings("ignore", category=RuntimeWarning)
        found = stats.bootstrap(
            samples,
            statistic,
            n_resamples=NUM_RESAMPLES,
            vectorized=True,
            method="BCa",
            confidence_level=level,
            rng=np.random.default_rng(seed),
        ).confidence_interval
    if math.isnan(found.low) or math.isnan(found.high):
        # Every resample gave the same value: nothing varies.
        return math.exp(point), math.exp(point)
    return math.exp(float(found.low)), math.exp(float(found.high))


def verdict(ci95: tuple[float, float] | None, margin: float = 0.03) -> str:
    """In words: faster or slower when the interval excludes 1, no difference when it lies within 1 -/+ margin."""
    if ci95 is None:
        return "undecided"
    low, high = ci95
    if low > 1:
        return "faster"
    if high < 1:
        return "slower"
    return "no difference" if low >= 1 - margin and high <= 1 + margin else "undecided"


def repeated_share(token_ids: Sequence[int], n: int = LOOP_NGRAM) -> float:
    """Share of an answer's n-grams that have occurred in it before, 0 for answers shorter than n."""
    ngrams = [tuple(token_ids[start : start + n]) for start in range(len(token_ids) - n + 1)]
    return (len(ngrams) - len(set(ngrams))) / len(ngrams) if ngrams else 0.0


def loops(token_ids: Sequence[int]) -> bool:
    """Whether an answer goes round in circles, which flatters drafters that copy."""
    return repeated_share(token_ids) > LOOP_SHARE
