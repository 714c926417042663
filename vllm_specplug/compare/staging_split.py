"""Whether a log's requests are split among the arms as the weights say (sample ratio mismatch).

Where they are not, something besides the draw decides who meets which arm, or lines of some arm are missing; then arms
differ by more than what serves them, and no comparison of them means anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vllm_specplug.compare.staging_log import StagedRequest

MAX_P_VALUE = 0.001
"""Below it there is a mismatch. Strict, since it is looked at as often as the log."""
MIN_EXPECTED = 5
"""Draws that each arm must be expected to get for the test to say anything."""


@dataclass(frozen=True, slots=True)
class Split:
    """Who got how many draws. A draw is a session or user, or a request that named neither."""

    observed: dict[str, int]
    """By arm."""
    expected: dict[str, float]
    """By arm, from the weights as they stood at each draw."""
    p_value: float | None
    """Of a chi-square test; None: too few draws, or a single arm."""
    units_in_several_arms: int
    """Sessions or users that met several arms, as they do when weights change."""

    @property
    def mismatch(self) -> bool:
        return self.p_value is not None and self.p_value < MAX_P_VALUE


def check_split(requests: Sequence[StagedRequest], arms: Sequence[str]) -> Split:
    """Compare the draws with the weights.

    A session or user is drawn once for all its requests, so its first one alone is counted. With weights that change,
    draws are independent but not alike. With o and e the arms' observed and expected draws, p_i the shares of draw i:

        chi2 = (o - e)' V^-1 (o - e),  V = sum_i diag(p_i) - p_i p_i',  one arm left out,

    which is Pearson's statistic where all p_i are the same.

    Args:
        requests: in the order of their exposures; those that were not randomised are passed over.
        arms: all there are.
    Source: Pearson 1900; Fabijan et al. 2019, Diagnosing sample ratio mismatch in online controlled experiments, KDD.
    """
    drawn = [request for request in requests if request.randomised]
    draws = list(_first_of_each_unit(drawn))
    observed = Counter(request.arm for request in draws)
    places = {arm: place for place, arm in enumerate(arms)}
    expected, variance = np.zeros(len(arms)), np.zeros((len(arms), len(arms)))
    alike = Counter(tuple(request.exposure.weights.items()) for request in draws)
    for weights, count in alike.items():
        shares = np.zeros(len(arms))
        for arm, weight in weights:
            shares[places[arm]] = weight
        shares /= shares.sum()
        expected += count * shares
        variance += count * (np.diag(shares) - np.outer(shares, shares))
    counts = np.asarray([observed[arm] for arm in arms], dtype=np.float64)
    return Split(
        {arm: observed[arm] for arm in arms},
        dict(zip(arms, map(float, expected), strict=True)),
        _p_value(counts, expected, variance),
        _num_in_several(drawn),
    )


def _p_value(counts: Any, expected: Any, variance: Any) -> float | None:
    from scipy import stats

    if counts[expected == 0].any():
        return 0.0  # an arm of weight 0 was drawn
    used = np.flatnonzero(expected)
    if len(used) < 2 or expected[used].min() < MIN_EXPECTED:
        return None
    rest = used[:-1]
    excess = (counts - expected)[rest]
    chi2 = float(excess @ np.linalg.solve(variance[np.ix_(rest, rest)], excess))
    return float(stats.chi2.sf(chi2, len(rest)))


def _first_of_each_unit(requests: Iterable[StagedRequest]) -> Iterable[StagedRequest]:
    seen: set[str] = set()
    for request in requests:
        unit = request.exposure.unit
        if unit is None or unit not in seen:
            yield request
        if unit is not None:
            seen.add(unit)


def _num_in_several(requests: Iterable[StagedRequest]) -> int:
    arms: dict[str, set[str]] = {}
    for request in requests:
        if request.exposure.unit is not None:
            arms.setdefault(request.exposure.unit, set()).add(request.arm)
    return sum(len(met) > 1 for met in arms.values())
