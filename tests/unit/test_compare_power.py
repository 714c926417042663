"""Numbers of prompts against tables of others and against simulated experiments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from speed_cases import experiment, speeds

from vllm_specplug.compare.intervals import paired_tables
from vllm_specplug.compare.power import log_ratio_sd, prompts_needed, prompts_to_decide
from vllm_specplug.compare.verdicts import Rule, compared
from vllm_specplug.errors import CompareError


@pytest.mark.parametrize(("standardised", "expected"), [(0.5, 44), (1.0, 13)])
def test_agrees_with_published_sizes_of_the_paired_t_test(standardised: float, expected: int) -> None:
    """G*Power 3.1 and Cohen 1988: two-sided 5 %, power 0.9."""
    assert prompts_needed(math.log(1.1) / standardised, 0.1) == expected


def test_a_slowdown_needs_as_many_as_its_inverse() -> None:
    assert prompts_needed(0.3, 0.25) == prompts_needed(0.3, 1 / 1.25 - 1)


def test_at_least_as_many_as_an_interval_needs() -> None:
    assert prompts_needed(0.0, 0.5) == 4
    assert prompts_needed(0.0, 0.5, num_strata=8) == 11


def test_hopeless_is_null() -> None:
    assert prompts_needed(1.0, 0.001) is None
    assert prompts_to_decide(None, 1.2, 0.03) is None
    assert prompts_to_decide(0.1, 1.0, 0.0) is None


@pytest.mark.parametrize("effect", [0.0, -1.0, -2.0, math.nan, math.inf])
def test_what_is_no_effect_is_refused(effect: float) -> None:
    with pytest.raises(CompareError, match=f"an effect of {effect} cannot be looked for; expected for example 0.05"):
        prompts_needed(0.1, effect)


@pytest.mark.parametrize("wrong", [{"power": 1.0}, {"level": 0.0}])
def test_power_and_level_are_probabilities(wrong: dict[str, float]) -> None:
    with pytest.raises(CompareError, match="expected a number between 0 and 1"):
        prompts_needed(0.1, 0.1, **wrong)


def test_ratio_within_the_margin_is_to_be_shown_to_be_none() -> None:
    # (1.960 + 1.645)^2 (0.1 / log 1.03)^2 + 1.920 = 150.6
    assert prompts_to_decide(0.1, 1.01, 0.03) == 151
    # (1.960 + 1.282)^2 (0.1 / log 1.05)^2 + 1.920 = 46.1
    assert prompts_to_decide(0.1, 1.05, 0.03) == 47


def test_spread_of_a_prompt_is_found_again() -> None:
    # Two passes of each of two arms, sigma 0.1 each: sqrt(2 * 0.1^2 / 2) = 0.1, a little more as lengths differ.
    rng = np.random.default_rng(7)
    found = [log_ratio_sd(list(paired_tables(*experiment(rng)).values())) for _ in range(50)]
    assert np.mean([value for value in found if value is not None]) == pytest.approx(0.107, abs=0.005)


def test_spread_of_single_prompts_is_that_between_categories() -> None:
    tables = paired_tables(speeds(a=[1.0], b=[1.0]), speeds(a=[1.0], b=[math.e]))
    assert log_ratio_sd(list(tables.values())) == pytest.approx(math.sqrt(0.5))
    assert log_ratio_sd(list(paired_tables(speeds(a=[1.0]), speeds(a=[2.0])).values())) is None


def test_that_many_prompts_find_the_effect_in_nine_of_ten_runs() -> None:
    rng = np.random.default_rng(8)
    needed = prompts_needed(0.107 * 3, 0.1, num_strata=8)
    assert needed is not None
    per_category = math.ceil(needed / 8)
    found = sum(
        compared(*experiment(rng, 0.3, 1 / 1.1, num_prompts=per_category), Rule(seed, num_resamples=199))["verdict"]
        == "faster"
        for seed in range(200)
    )
    assert 170 <= found <= 195
