"""Looking after every prompt: how often it goes wrong, and that it still finds what is there."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vllm_specplug.compare.peeking import FIRST_LOOK, confidence_sequence, first_crossing
from vllm_specplug.errors import CompareError

NUM_LOOKS = 1000


def crossings(draws: np.ndarray) -> list[int | None]:
    return [first_crossing(*confidence_sequence(row)) for row in draws]


def test_bounds_by_hand() -> None:
    # Two values, mean 2, standard deviation sqrt(2); r = (5.9915 + log 6.9915) / 100 = 0.079360.
    lower, upper = confidence_sequence([1.0, 3.0], first_look=2)
    grown = 2 * 0.079360 + 1
    width = math.sqrt(2) * math.sqrt(2 * grown / (4 * 0.079360) * math.log(math.sqrt(grown) / 0.05))
    assert (lower[1], upper[1]) == (pytest.approx(2 - width, rel=1e-4), pytest.approx(2 + width, rel=1e-4))
    assert (lower[0], upper[0]) == (-math.inf, math.inf)


def test_nothing_is_said_before_the_first_look() -> None:
    lower, upper = confidence_sequence(np.arange(FIRST_LOOK) % 3)
    assert np.isinf(lower[:-1]).all()
    assert np.isfinite([lower[-1], upper[-1]]).all()


def test_wider_than_a_fixed_interval_at_every_look() -> None:
    values = np.random.default_rng(0).normal(0, 1, 2000)
    lower, upper = confidence_sequence(values)
    for t in (30, 100, 500, 2000):
        assert (upper[t - 1] - lower[t - 1]) / 2 > 1.96 * values[:t].std(ddof=1) / math.sqrt(t)


@pytest.mark.parametrize("tails", [None, 3.0])
def test_a_thousand_looks_at_an_arm_against_itself_are_wrong_in_six_per_cent_at_most(tails: float | None) -> None:
    """Normal noise, and single steps that are slow by chance (Student's t with 3 degrees of freedom)."""
    rng = np.random.default_rng(1)
    shape = (2, 2000, FIRST_LOOK + NUM_LOOKS - 1)
    ours, theirs = 0.085 * (rng.normal(0, 1, shape) if tails is None else rng.standard_t(tails, shape))
    found = crossings(ours - theirs)
    wrong = sum(crossed is not None for crossed in found)
    assert 0.01 * 2000 <= wrong <= 0.06 * 2000


def test_fixed_intervals_looked_at_again_and_again_are_wrong_far_more_often() -> None:
    draws = np.random.default_rng(2).normal(0, 1, (500, FIRST_LOOK + NUM_LOOKS - 1))
    t = np.arange(1, draws.shape[1] + 1)
    z = np.abs(draws.cumsum(axis=1)) / np.sqrt(t)
    assert (z[:, FIRST_LOOK - 1 :] > 1.96).any(axis=1).mean() > 0.3


@pytest.mark.parametrize(("sigma", "by"), [(0.12, 60), (0.4, 400)])
def test_ten_per_cent_is_found(sigma: float, by: int) -> None:
    draws = np.random.default_rng(3).normal(-math.log(1.1), sigma, (500, NUM_LOOKS))
    found = crossings(draws)
    assert sum(crossed is not None and crossed <= by for crossed in found) >= 0.9 * 500


def test_small_spread_around_a_large_mean_loses_no_digits() -> None:
    values = 1e6 + np.random.default_rng(4).normal(0, 1e-3, 50)
    lower, upper = confidence_sequence(values)
    assert 0 < upper[-1] - lower[-1] < 0.01


@pytest.mark.parametrize("wrong", [{"level": 1.0}, {"first_look": 1}, {"tuned_for": 0}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(CompareError, match="expected a level between 0 and 1"):
        confidence_sequence([1.0, 2.0], **wrong)
