"""How many prompts would decide a comparison. Rough: the spread is itself an estimate from the prompts there were."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vllm_specplug.compare.intervals import MIN_DEGREES_OF_FREEDOM, Floats, pooled_log_ratio
from vllm_specplug.compare.tests_of_difference import jackknife_variance
from vllm_specplug.errors import CompareError

MAX_PROMPTS = 10_000
"""Beyond it the answer is "hopeless": nobody measures so many."""
POWER = 0.9


def log_ratio_sd(tables: Sequence[Floats]) -> float | None:
    """Spread of one prompt's log-ratio, so that the standard error of the overall one is sd / sqrt(num_prompts).

    Prompts' spread within their categories; where a category has one prompt, that between categories, which is more.
    Includes the noise of as many passes as there were. None with a single prompt.

    Args:
        tables: a category each, [num_prompts, 4], of `intervals.paired_tables`.
    """
    num_prompts = sum(map(len, tables))
    if min(map(len, tables)) >= 2:
        variance = sum(map(jackknife_variance, tables)) / len(tables) ** 2
    elif len(tables) >= 2:
        variance = float(np.var([pooled_log_ratio(table) for table in tables], ddof=1)) / len(tables)
    else:
        return None
    return math.sqrt(variance * num_prompts)


def prompts_needed(
    log_ratio_sd: float, effect: float, power: float = POWER, level: float = 0.95, num_strata: int = 1
) -> int | None:
    """Prompts, over all categories, with which an effect is found with the given probability; None beyond 10,000.

    n = (z_(1 - alpha / 2) + z_power)^2 (sd / log(1 + effect))^2 + z_(1 - alpha / 2)^2 / 2, one more for each further
    category, at least as many as an interval needs.

    Args:
        log_ratio_sd: spread of one prompt's log-ratio.
        effect: change of speed, 0.05 for 5 % faster, -0.1 for 10 % slower.
        level: of confidence; alpha = 1 - level, two-sided.
        num_strata: categories the prompts are spread over.
    Raises:
        CompareError: the effect is 0, -1 or less, or not finite; power or level is not within (0, 1).
    Source: Guenther 1981, Sample sizes for normal theory t tests, The American Statistician 35.
    """
    check_effect(effect)
    for name, value in (("power", power), ("level", level)):
        if not 0 < value < 1:
            raise CompareError(f"the {name} is {value}, expected a number between 0 and 1")
    from scipy import stats

    z = float(stats.norm.ppf(0.5 + level / 2))
    per_effect = log_ratio_sd / abs(math.log1p(effect))
    n = (z + float(stats.norm.ppf(power))) ** 2 * per_effect**2 + z**2 / 2 + num_strata - 1
    return max(math.ceil(n), num_strata + MIN_DEGREES_OF_FREEDOM) if n <= MAX_PROMPTS else None


def prompts_to_decide(
    log_ratio_sd: float | None, ratio: float, margin: float, level: float = 0.95, num_strata: int = 1
) -> int | None:
    """Prompts that would end an undecided comparison with 90 % probability if its ratio were the truth.

    A ratio beyond the margin is to be found; one within it is taken for 1, and the interval is to lie within it.
    None: hopeless, or too little is known.

    Args:
        log_ratio_sd, level, num_strata: as in `prompts_needed`.
        margin: ratios within 1 -/+ margin count as no difference.
    """
    if log_ratio_sd is None:
        return None
    if not 1 - margin <= ratio <= 1 + margin:
        return prompts_needed(log_ratio_sd, ratio - 1, POWER, level, num_strata)
    if margin <= 0:
        return None  # an interval never lies within nothing
    # Both ends have to stay inside, so each may fail half as often.
    return prompts_needed(log_ratio_sd, margin, 1 - (1 - POWER) / 2, 0.95, num_strata)


def check_effect(effect: float) -> None:
    """Refuse what is no change of speed.

    Raises:
        CompareError: it is 0, -1 or less, or not finite.
    """
    if not math.isfinite(effect) or effect <= -1 or effect == 0:
        raise CompareError(f"an effect of {effect} cannot be looked for; expected for example 0.05, or -0.1 for slower")
