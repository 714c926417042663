"""Ratios of two samples of different requests."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vllm_specplug.compare.unpaired import Request, cluster_sums, compare_samples
from vllm_specplug.errors import CompareError


def users(rng: np.random.Generator, num_users: int, factor: float = 1.0, per_user: int = 5) -> list[Request]:
    """Requests of 100 tokens; users differ by a log-normal factor of sigma 0.4, their requests by one of 0.2."""
    return [
        Request(100.0, float(seconds), f"user-{user}")
        for user in range(num_users)
        for seconds in factor * np.exp(rng.normal(0, 0.4) + rng.normal(0, 0.2, per_user))
    ]


def test_speeds_are_pooled_tokens_over_pooled_seconds() -> None:
    arm = [Request(100, 1.0), Request(300, 3.0)]
    baseline = [Request(50, 2.0), Request(150, 2.0)]
    found = compare_samples(arm, baseline)
    assert found.ratio == pytest.approx(100 / 50)
    assert found.ci95 is None  # two clusters
    assert found.clusters == (2, 2)


def test_units_of_one_give_a_ratio_of_means() -> None:
    found = compare_samples([Request(2.0), Request(4.0)], [Request(1.0), Request(2.0), Request(6.0)])
    assert found.ratio == pytest.approx(3 / 3)


def test_requests_of_a_cluster_are_summed_and_those_without_stand_alone() -> None:
    requests = [Request(1, 2, "u"), Request(5, 6), Request(3, 4, "u"), Request(7, 8), Request(9, 10, "1")]
    assert cluster_sums(requests, "arm").tolist() == [[4, 6], [5, 6], [7, 8], [9, 10]]


def test_rank_test_by_hand() -> None:
    # Three rates all above three others: one of 20 arrangements, two-sided 2 / 20.
    found = compare_samples([Request(v) for v in (4, 5, 6)], [Request(v) for v in (1, 2, 3)])
    assert found.mann_whitney_p == pytest.approx(0.1)


def test_same_seed_same_interval_which_holds_the_ratio() -> None:
    rng = np.random.default_rng(0)
    arm, baseline = users(rng, 40, 1 / 1.5), users(rng, 40)
    first, again = (compare_samples(arm, baseline, seed=3) for _ in range(2))
    assert first == again
    assert first.ci95 is not None
    assert 1 < first.ci95[0] < first.ratio < first.ci95[1]
    assert first.mann_whitney_p < 0.05


def test_large_samples_take_the_plain_percentile() -> None:
    rng = np.random.default_rng(1)
    found = compare_samples(users(rng, 2500, per_user=1), users(rng, 50, per_user=1), num_resamples=199)
    assert found.ci95 is not None
    assert found.clusters == (2500, 50)


@pytest.mark.parametrize("sizes", [(20, 20), (60, 30)])
def test_interval_covers_when_users_differ(sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(2)
    wrong = 0
    for seed in range(300):
        found = compare_samples(users(rng, sizes[0]), users(rng, sizes[1]), seed, num_resamples=299)
        assert found.ci95 is not None
        wrong += not found.ci95[0] <= 1 <= found.ci95[1]
    assert wrong <= 27  # 15 expected; more than 27 with p = 0.001


def test_taking_requests_for_independent_would_be_wrong_far_more_often() -> None:
    rng = np.random.default_rng(3)
    wrong = 0
    for seed in range(100):
        arm, baseline = ([Request(one.amount, one.per) for one in users(rng, 20, per_user=20)] for _ in range(2))
        found = compare_samples(arm, baseline, seed, num_resamples=99)
        assert found.ci95 is not None
        wrong += not found.ci95[0] <= 1 <= found.ci95[1]
    assert wrong >= 25


@pytest.mark.parametrize("wrong", [Request(0.0, 1.0), Request(1.0, 0.0), Request(math.inf), Request(math.nan)])
def test_impossible_requests_are_named(wrong: Request) -> None:
    with pytest.raises(
        CompareError, match=r"request 1 of the baseline is Request.*expected an amount and units above 0"
    ):
        compare_samples([Request(1.0)], [Request(1.0), wrong])


def test_empty_sample_is_refused() -> None:
    with pytest.raises(CompareError, match="the arm's sample holds no requests"):
        compare_samples([], [Request(1.0)])
