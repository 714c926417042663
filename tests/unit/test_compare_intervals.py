"""Ratios and their intervals: by hand, against a bootstrap written out, and their coverage."""

from __future__ import annotations

import math

import pytest
from speed_cases import speeds

from vllm_specplug.compare.intervals import compare, expanded_level
from vllm_specplug.compare.statistics import overall_speed
from vllm_specplug.compare.verdicts import verdict


def test_ratio_is_the_geometric_mean_of_category_ratios() -> None:
    # a: 4 s against 2 s = 2x; b: 9 s against 18 s = 0.5x; overall 1x although the arm needs more seconds.
    found = compare(speeds(a=[1.0, 1.0], b=[9.0, 9.0]), speeds(a=[2.0, 2.0], b=[4.5, 4.5]), seed=0)
    assert found.ratio == pytest.approx(1.0)


def test_ratio_agrees_with_overall_speeds() -> None:
    arm, baseline = speeds(a=[1.0, 2.0], b=[3.0, 1.5]), speeds(a=[2.0, 2.5], b=[3.5, 1.0])
    expected = overall_speed(arm) / overall_speed(baseline)
    assert compare(arm, baseline, seed=0).ratio == pytest.approx(expected)


def test_interval_is_the_same_for_the_same_seed_and_holds_the_ratio() -> None:
    baseline = speeds(a=[2.0, 2.2, 1.9, 2.4, 2.1], b=[3.0, 2.8, 3.3, 2.9, 3.1])
    arm = speeds(a=[1.5, 1.8, 1.2, 2.0, 1.7], b=[2.4, 2.5, 2.2, 2.0, 2.6])
    first, again = (compare(arm, baseline, seed=7) for _ in range(2))
    assert first == again
    assert first.ci95 is not None
    assert first.ci95[0] < first.ratio < first.ci95[1]
    assert first.resampled == "prompts"


def test_interval_is_paired_by_prompt() -> None:
    # Prompts differ tenfold in length, yet every one takes exactly half the time: nothing is uncertain.
    found = compare(speeds(a=[0.5, 5.0, 1.0, 2.0]), speeds(a=[1.0, 10.0, 2.0, 4.0]), seed=0)
    assert found.ci95 == pytest.approx((2.0, 2.0))


def test_interval_agrees_with_a_bootstrap_written_out() -> None:
    import numpy as np

    rng = np.random.default_rng(3)
    ours, theirs = rng.uniform(1, 2, 40), rng.uniform(1.5, 3, 40)
    found = compare(speeds(a=list(ours)), speeds(a=list(theirs)), seed=0)
    draws = rng.integers(0, 40, (20_000, 40))
    ratios = theirs[draws].sum(1) / ours[draws].sum(1)
    assert found.ci95 == pytest.approx(tuple(np.percentile(ratios, (2.5, 97.5))), abs=0.03)


def test_tie_is_no_difference() -> None:
    same = speeds(a=[1.0, 2.0, 3.0], b=[3.0, 4.0, 5.0])
    found = compare(same, same, seed=0)
    assert found.ratio == 1
    assert found.ci95 == (1, 1)
    assert verdict(found.ci95) == "no difference"


def test_one_prompt_has_a_ratio_but_no_interval() -> None:
    found = compare(speeds(a=[1.0]), speeds(a=[2.0]), seed=0)
    assert (found.ratio, found.ci95, found.resampled) == (pytest.approx(2.0), None, None)
    assert verdict(found.ci95) == "undecided"


def test_two_noisy_prompts_decide_nothing() -> None:
    found = compare(speeds(a=[5.2, 4.0]), speeds(a=[7.9, 4.1]), seed=0)
    assert found.ci95 is None


def test_one_prompt_in_a_category_makes_categories_the_unit() -> None:
    arm, baseline = speeds(a=[1.0], b=[1.0, 1.0]), speeds(a=[2.0], b=[3.0, 3.0])
    found = compare(arm, baseline, seed=0)
    assert (found.ratio, found.ci95) == (pytest.approx(math.sqrt(2 * 3)), None)
    more = {"c": [1.0], "d": [1.0]}
    found = compare(speeds(a=[1.0], b=[1.0], **more), speeds(a=[2.0], b=[3.0], c=[4.0], d=[5.0]), seed=0)
    assert found.resampled == "categories"
    assert found.ratio == pytest.approx((2 * 3 * 4 * 5) ** 0.25)
    assert found.ci95 is not None
    assert found.ci95[0] > 1


def test_interval_is_widened_for_few_prompts() -> None:
    # 8 prompts of one category: sqrt(8 / 7) * 2.3646 = 2.5279 standard errors, which is 98.85 % of a normal curve.
    assert expanded_level(8, 1) == pytest.approx(0.98853, abs=1e-4)
    # Many prompts need no widening.
    assert expanded_level(100_000, 10) == pytest.approx(0.95, abs=1e-3)


def test_interval_of_eight_prompts_covers_the_truth() -> None:
    import numpy as np

    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(100):
        seconds = rng.uniform(1, 4, 8)
        faster = seconds * np.exp(rng.normal(0, 0.2, 8)) / 1.5
        found = compare(speeds(a=list(faster)), speeds(a=list(seconds)), seed=0)
        assert found.ci95 is not None
        hits += found.ci95[0] <= 1.5 * math.exp(-0.02) <= found.ci95[1]
    assert hits >= 88  # 95 expected; fewer than 88 with p = 0.0015
