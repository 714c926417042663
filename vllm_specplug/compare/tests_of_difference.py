"""Tests whether two arms differ: by ranks, by Student's t, jointly over categories. Not by how much they do.

Most take tables of `intervals.paired_tables`, [num_prompts, 4] per category.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vllm_specplug.compare.intervals import Floats, pooled_log_ratio, resampling_unit

MIN_WILCOXON_PAIRS = 6
"""With five pairs the smallest two-sided p-value is 2 / 32, so that no difference could ever be found."""
ROUNDING = 1e-12
"""Log-ratios below it are 0."""


def prompt_log_ratios(tables: Sequence[Floats]) -> Floats:
    """Log of arm speed / baseline speed of each prompt alone, [num_prompts]."""
    arm_tokens, arm_seconds, tokens, seconds = np.concatenate(tables).T
    logs: Floats = np.log(arm_tokens * seconds / (arm_seconds * tokens))
    return logs


def wilcoxon(tables: Sequence[Floats]) -> dict[str, Any] | None:
    """Signed-rank test that the prompts' log-ratios lie symmetrically around 0, each prompt weighing the same.

    A check beside the interval: one prompt of a hundredfold time cannot carry it. Ties at 0 are left out of the ranks.

    Returns:
        p_value (two-sided, exact for few pairs) and pairs, ties among them; None with fewer than 6 pairs.
    Source: Wilcoxon 1945, Individual comparisons by ranking methods, Biometrics Bulletin 1.
    """
    from scipy import stats

    logs = prompt_log_ratios(tables)
    if len(logs) < MIN_WILCOXON_PAIRS:
        return None
    logs = np.where(np.abs(logs) < ROUNDING, 0.0, logs)  # a tie stays a tie
    p_value = float(stats.wilcoxon(logs).pvalue) if logs.any() else 1.0
    return {"p_value": p_value, "pairs": len(logs)}


def jackknife_variance(table: Floats) -> float:
    """Squared standard error of the pooled log-ratio of one category of two prompts or more.

    (n - 1) / n sum (theta_i - mean theta)^2, theta_i the log-ratio without prompt i. Unlike the delta method it
    does not take a category of few prompts, one of them long, for surer than it is.

    Source: Efron and Stein 1981, The jackknife estimate of variance, Annals of Statistics 9.
    """
    n = len(table)
    arm_tokens, arm_seconds, tokens, seconds = (table.sum(axis=0) - table).T
    thetas = np.log(arm_tokens * seconds / (arm_seconds * tokens))
    return float((n - 1) / n * np.square(thetas - thetas.mean()).sum())


def degrees_of_freedom(table: Floats) -> float:
    """(sum w)^2 / sum w^2 - 1, w the baseline's seconds: eight prompts of which one takes half the time are not eight.

    Source: Kish 1965, Survey Sampling (effective number under unequal weights).
    """
    seconds = table[:, 3]
    return float(seconds.sum() ** 2 / np.square(seconds).sum() - 1)


@dataclass(frozen=True, slots=True)
class Uncertain:
    """A log-ratio as an estimate."""

    value: float
    error: float
    """Its standard error."""
    freedom: float
    """Degrees of freedom of that."""

    def p_value(self) -> float:
        """Two-sided, that the truth is 0, by Student's t."""
        from scipy import stats

        if self.error < ROUNDING:  # nothing varies
            return 0.0 if abs(self.value) > ROUNDING else 1.0
        return float(2 * stats.t.sf(abs(self.value) / self.error, self.freedom))

    def half_width(self, level: float = 0.95) -> float:
        """Of its interval, by Student's t."""
        from scipy import stats

        return float(stats.t.ppf(0.5 + level / 2, self.freedom)) * self.error

    def and_also(self, other: Uncertain) -> Uncertain:
        """The same value, varying for a second reason that is independent of the first.

        Source: Satterthwaite 1946, An approximate distribution of estimates of variance components, Biometrics 2.
        """
        variances = self.error**2, other.error**2
        total = sum(variances)
        if not total:
            return self
        per_freedom = variances[0] ** 2 / self.freedom + variances[1] ** 2 / other.freedom
        return Uncertain(self.value, math.sqrt(total), total**2 / per_freedom)


def log_ratio(tables: Sequence[Floats]) -> Uncertain | None:
    """How sure two arms' speeds over these categories differ; None where no interval is given.

    The error is the jackknife's, of prompts or of whole categories as `intervals.compare` has it.
    """
    unit = resampling_unit(tables)
    if unit is None:
        return None
    log_ratios = np.asarray([float(pooled_log_ratio(table)) for table in tables])
    if unit == "prompts":
        error = math.sqrt(sum(map(jackknife_variance, tables))) / len(tables)
        freedom = sum(map(degrees_of_freedom, tables))
    else:
        error, freedom = float(log_ratios.std(ddof=1)) / math.sqrt(len(tables)), float(len(tables) - 1)
    return Uncertain(float(log_ratios.mean()), error, freedom)


def t_test(tables: Sequence[Floats]) -> float | None:
    """Two-sided p-value that two arms' speeds over these categories are the same; None where no interval is given.

    Student's t. The bootstrap's interval alone is not enough: where single steps are slow by chance (tails like t with
    3 degrees of freedom) BCa excludes 1 in 8 % of the runs of an arm against itself, this in 5 %. And with 8 prompts
    the level that Holm asks of the first of 8 categories (0.6 %, expanded 0.01 %) lies beyond what 4,999 resamples can
    tell. Two equal arms can be swapped, so their log-ratio is symmetric, which keeps t honest under heavy tails.
    """
    found = log_ratio(tables)
    return None if found is None else found.p_value()


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Adjusted p-values: all names at or below 0.05 differ, with at most 5 % risk that any of them does not.

    None is no test: it stays None and costs the others nothing. How many there are must not depend on results.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6.
    """
    adjusted: dict[str, float | None] = dict.fromkeys(p_values)
    tested = sorted((p_value, name) for name, p_value in p_values.items() if p_value is not None)
    largest = 0.0
    for rank, (p_value, name) in enumerate(tested):
        largest = max(largest, min(1.0, p_value * (len(tested) - rank)))
        adjusted[name] = largest
    return adjusted
