"""Two samples of different requests, as two arms serving parts of live traffic give them. Nothing is paired here.

Which requests an arm gets adds to the spread, so that far more of them are needed than of paired prompts. Requests of
one user or session are alike: these clusters, not requests, are what is drawn and counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vllm_specplug.compare.intervals import NUM_RESAMPLES, Floats, expanded_level, interval
from vllm_specplug.errors import CompareError

MIN_CLUSTERS = 5
"""In each sample; below it there is no interval."""
MAX_BCA_CLUSTERS = 2000
"""With more, the plain percentile interval: BCa's correction has vanished and its jackknife takes minutes."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of one arm, as an amount of something for each unit of something else."""

    amount: float
    """Numerator: output tokens for a speed, seconds for a mean latency."""
    per: float = 1.0
    """Denominator: seconds for a speed, 1 for a mean over requests."""
    cluster: str | None = None
    """User or session; None: on its own."""


@dataclass(frozen=True, slots=True)
class UnpairedRatio:
    """Rate of an arm divided by the baseline's."""

    ratio: float
    ci95: tuple[float, float] | None
    """None: fewer than 5 clusters in one of the samples."""
    mann_whitney_p: float
    """Two-sided, of the clusters' rates."""
    clusters: tuple[int, int]
    """Arm's, baseline's."""


def compare_samples(
    arm: Sequence[Request], baseline: Sequence[Request], seed: int = 0, num_resamples: int = NUM_RESAMPLES
) -> UnpairedRatio:
    """Ratio of two pooled rates, sum of amounts / sum of units, with a 95 % cluster bootstrap interval (BCa).

    With amount = output tokens and per = seconds it is the ratio of tokens a second; with per = 1 a ratio of means.
    Clusters are drawn with all their requests, in each sample apart; a user with requests in both samples is taken
    for two, which makes the interval a little wide. Assumed: which arm serves a cluster does not depend on it.

    Raises:
        CompareError: a sample is empty, or a rate is not above 0.
    Source: Cameron, Gelbach and Miller 2008, Rev. Econ. Stat. 90 (resampling clusters); Mann and Whitney 1947, Ann.
    Math. Stat. 18.
    """
    from scipy import stats

    tables = [cluster_sums(sample, name) for sample, name in ((arm, "arm"), (baseline, "baseline"))]

    def log_ratio(*rows: Any, axis: int = -1) -> Any:
        ours, theirs = (table[index].sum(axis=-2) for table, index in zip(tables, rows, strict=True))
        return np.log(ours[..., 0] * theirs[..., 1] / (ours[..., 1] * theirs[..., 0]))

    samples = tuple(np.arange(len(table)) for table in tables)
    point = float(log_ratio(*samples))
    sizes = (len(tables[0]), len(tables[1]))
    ci95 = None
    if min(sizes) >= MIN_CLUSTERS:
        # As sure as two samples of the smaller one's size.
        level = expanded_level(2 * min(sizes), 2)
        method = "BCa" if max(sizes) <= MAX_BCA_CLUSTERS else "percentile"
        ci95 = interval(samples, log_ratio, point, level, seed, num_resamples, method)
    rates = [table[:, 0] / table[:, 1] for table in tables]
    p_value = float(stats.mannwhitneyu(*rates, alternative="two-sided").pvalue)
    return UnpairedRatio(math.exp(point), ci95, p_value, sizes)


def cluster_sums(requests: Sequence[Request], name: str) -> Floats:
    """Amounts and units summed within each cluster, [num_clusters, 2], in order of first appearance.

    Raises:
        CompareError: there are none, or an amount or unit is not above 0; `name` says whose.
    """
    if not requests:
        raise CompareError(f"the {name}'s sample holds no requests; expected at least one")
    sums: dict[tuple[str, str | int], list[float]] = {}
    for index, request in enumerate(requests):
        if not (0 < request.amount < math.inf and 0 < request.per < math.inf):
            raise CompareError(f"request {index} of the {name} is {request}; expected an amount and units above 0")
        key = ("request", index) if request.cluster is None else ("cluster", request.cluster)
        row = sums.setdefault(key, [0.0, 0.0])
        row[0] += request.amount
        row[1] += request.per
    return np.asarray(list(sums.values()))
