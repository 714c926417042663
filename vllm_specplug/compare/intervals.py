"""How much faster an arm is than another on the same prompts, and how sure that is. Judges nothing.

The statistic is the log of the ratio of two overall speeds: the mean over categories of log(arm's tokens a second /
baseline's), each pooled over the category's prompts. A prompt is the unit that is drawn: its passes stay together.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from vllm_specplug.compare.statistics import PromptSpeed

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

NUM_RESAMPLES = 4999
MIN_DEGREES_OF_FREEDOM = 3
"""Prompts less categories (or categories less 1): below it an interval would be a guess."""
MAX_BATCH_ELEMENTS = 4_000_000
"""Indices drawn at once; a bootstrap of thousands of values must not take gigabytes."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speed of an arm divided by the baseline's."""

    ratio: float
    ci95: tuple[float, float] | None
    """None: too few prompts."""
    resampled: str | None
    """What the bootstrap drew: 'prompts' within each category, or whole 'categories' where some have one prompt."""


def compare(
    arm: Mapping[str, PromptSpeed],
    baseline: Mapping[str, PromptSpeed],
    seed: int,
    num_resamples: int = NUM_RESAMPLES,
) -> Ratio:
    """Ratio of overall speeds with a 95 % bootstrap interval (BCa), paired by prompt, stratified by category.

    Where a category has one prompt only, resampling prompts would take that prompt as beyond doubt; then whole
    categories are drawn instead. With too few of either there is no interval.

    Args:
        arm: by prompt id; those that the baseline lacks are left out.
    Source: Efron 1987, Better bootstrap confidence intervals, JASA 82 (BCa).
    """
    tables = list(paired_tables(arm, baseline).values())
    log_ratios = np.asarray([pooled_log_ratio(table) for table in tables])
    point = float(log_ratios.mean())
    ratio, num_prompts, num_categories = math.exp(point), len(baseline), len(tables)
    unit = resampling_unit(tables)
    if unit is None:
        return Ratio(ratio, None, None)
    if unit == "categories":
        level = expanded_level(num_categories, 1)
        return Ratio(ratio, interval((log_ratios,), np.mean, point, level, seed, num_resamples), unit)

    def mean_log_ratio(*rows: Any, axis: int = -1) -> Any:
        parts = [pooled_log_ratio(table[index], axis=axis) for table, index in zip(tables, rows, strict=True)]
        return np.mean(parts, axis=0)

    samples = tuple(np.arange(len(table)) for table in tables)
    level = expanded_level(num_prompts, num_categories)
    return Ratio(ratio, interval(samples, mean_log_ratio, point, level, seed, num_resamples), unit)


def paired_tables(arm: Mapping[str, PromptSpeed], baseline: Mapping[str, PromptSpeed]) -> dict[str, Floats]:
    """By category: [num_prompts, 4], columns arm's output tokens, arm's seconds, baseline's tokens, its seconds."""
    rows: dict[str, list[tuple[float, float, float, float]]] = {}
    for prompt_id, theirs in baseline.items():
        ours = arm[prompt_id]
        row = (float(ours.output_tokens), ours.seconds, float(theirs.output_tokens), theirs.seconds)
        rows.setdefault(theirs.category, []).append(row)
    return {category: np.asarray(table) for category, table in rows.items()}


def resampling_unit(tables: Sequence[Floats]) -> str | None:
    """What may be drawn from these categories: 'prompts', 'categories', or None where an interval would be a guess."""
    if min(map(len, tables)) >= 2:
        enough = sum(map(len, tables)) - len(tables) >= MIN_DEGREES_OF_FREEDOM
        return "prompts" if enough else None
    return "categories" if len(tables) - 1 >= MIN_DEGREES_OF_FREEDOM else None


def pooled_log_ratio(table: Floats, axis: int = -1) -> Any:
    """Log of arm speed / baseline speed, pooled over the prompts of a table [..., num_prompts, 4]."""
    arm_tokens, arm_seconds, tokens, seconds = np.moveaxis(table, -1, 0)
    return np.log(arm_tokens.sum(axis) * seconds.sum(axis) / (arm_seconds.sum(axis) * tokens.sum(axis)))


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


def interval(
    samples: tuple[Any, ...],
    statistic: Callable[..., Any],
    point: float,
    level: float,
    seed: int,
    num_resamples: int = NUM_RESAMPLES,
    method: str = "BCa",
) -> tuple[float, float]:
    """Bootstrap interval of a log ratio, as ratios.

    Args:
        samples: drawn from independently, each [num_values].
        statistic: of as many arrays [..., num_values], along `axis`; a log ratio.
        point: its value on the samples; returned twice where nothing varies.
        level: of confidence, as the bootstrap is asked for it.
    """
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        warnings.filterwarnings("ignore", category=RuntimeWarning)
        found = stats.bootstrap(
            samples,
            statistic,
            n_resamples=num_resamples,
            batch=max(1, MAX_BATCH_ELEMENTS // max(map(len, samples))),
            vectorized=True,
            method=method,
            confidence_level=level,
            rng=np.random.default_rng(seed),
        ).confidence_interval
    if math.isnan(found.low) or math.isnan(found.high):
        # Every resample gave the same value: nothing varies.
        return math.exp(point), math.exp(point)
    return math.exp(float(found.low)), math.exp(float(found.high))
