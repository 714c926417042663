"""Two samples of different requests, as two arms serving parts of live traffic give them. Nothing is paired here.

Which requests an arm gets adds to the spread, so that far more of them are needed than of paired prompts. Requests of
one user or session are alike: these clusters, not requests, are what is drawn and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vllm_specplug.compare.intervals import NUM_RESAMPLES, Floats, expanded_level, interval
from vllm_specplug.compare.peeking import FIRST_LOOK, standard_errors
from vllm_specplug.errors import CompareError

MIN_CLUSTERS = 5
"""In each sample; below it there is no interval."""
MAX_BCA_CLUSTERS = 2000
"""With more, the plain percentile interval: BCa's correction has vanished and its jackknife takes minutes."""
SEQUENCE_TUNED_FOR = 300
"""Clusters of both samples at which intervals for many looks are tightest, in standard errors; ten times as many or as
few cost them a tenth."""


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


def interval_for_many_looks(
    arm: Sequence[Request], baseline: Sequence[Request], level: float = 0.95
) -> tuple[float, float] | None:
    """An interval of the ratio of `compare_samples` that holds at all looks together, however often one looks.

    Half-width: `peeking.standard_errors` for as many clusters as there are in both samples, times the standard error of
    the log-ratio, each sample's by a jackknife over its clusters.

    Assumed: clusters come in an order that has nothing to do with their rates. Asymptotic, as `peeking` says. A cluster
    that goes on sending requests is not a new one; the tests simulate that too.

    Returns:
        None: fewer than 30 clusters in one of the samples.
    Raises:
        CompareError: as `compare_samples`.
    Source: Waudby-Smith et al. 2024, arXiv:2103.06476, sections 2 and 3 (two arms of a randomised experiment).
    """
    tables = [cluster_sums(sample, name) for sample, name in ((arm, "arm"), (baseline, "baseline"))]
    if min(map(len, tables)) < FIRST_LOOK:
        return None
    logs = [_jackknifed(table, np.log) for table in tables]
    point = logs[0][0] - logs[1][0]
    width = _width(sum(variance for _, variance in logs), sum(map(len, tables)), level)
    return math.exp(point - width), math.exp(point + width)


@dataclass(frozen=True, slots=True)
class ShareDifference:
    """Share of an arm's requests that something holds of, less the baseline's."""

    difference: float
    interval: tuple[float, float] | None
    """Holds at all looks together. None: fewer than 30 clusters in one of the samples."""


def compare_shares(
    arm: Sequence[tuple[bool, str | None]], baseline: Sequence[tuple[bool, str | None]], level: float = 0.95
) -> ShareDifference:
    """Difference of two shares of requests, those of a cluster being alike.

    A sample's variance is at least that of independent requests with the share of both together, so that an arm with
    few requests and no error is not taken for one that never fails.

    Args:
        arm, baseline: of each request, whether it holds of it, and its cluster (None: on its own).
    Raises:
        CompareError: a sample is empty.
    """
    tables = [_share_sums(sample, name) for sample, name in ((arm, "arm"), (baseline, "baseline"))]
    both = np.concatenate(tables).sum(axis=0)
    pooled = float(both[0] / both[1])
    found = [_jackknifed(table, lambda rate: rate) for table in tables]
    difference = found[0][0] - found[1][0]
    if min(map(len, tables)) < FIRST_LOOK:
        return ShareDifference(difference, None)
    variances = [
        max(variance, pooled * (1 - pooled) / float(table[:, 1].sum()))
        for (_, variance), table in zip(found, tables, strict=True)
    ]
    width = _width(sum(variances), sum(map(len, tables)), level)
    return ShareDifference(difference, (max(-1.0, difference - width), min(1.0, difference + width)))


def _width(variance: float, num_clusters: int, level: float) -> float:
    clusters = np.asarray([float(num_clusters)])
    return math.sqrt(variance) * float(standard_errors(clusters, level, SEQUENCE_TUNED_FOR)[0])


def _jackknifed(table: Floats, function: Callable[[Any], Any]) -> tuple[float, float]:
    """A function of the pooled rate of a table [num_clusters, 2], and its variance by leaving out each cluster.

    Source: Efron and Stein 1981, The jackknife estimate of variance, Annals of Statistics 9.
    """
    sums, n = table.sum(axis=0), len(table)
    point = float(function(sums[0] / sums[1]))
    if n == 1:
        return point, math.inf
    rest = sums - table
    thetas = function(rest[:, 0] / rest[:, 1])
    return point, float((n - 1) / n * np.square(thetas - thetas.mean()).sum())


def _share_sums(sample: Sequence[tuple[bool, str | None]], name: str) -> Floats:
    """Requests it holds of and all requests of each cluster, [num_clusters, 2]."""
    if not sample:
        raise CompareError(f"the {name}'s sample holds no requests; expected at least one")
    sums: dict[tuple[str, str | int], list[float]] = {}
    for index, (holds, cluster) in enumerate(sample):
        row = sums.setdefault(("request", index) if cluster is None else ("cluster", cluster), [0.0, 0.0])
        row[0] += holds
        row[1] += 1
    return np.asarray(list(sums.values()))


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
