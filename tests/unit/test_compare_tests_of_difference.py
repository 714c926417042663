"""Tests of difference against sums done by hand and against scipy's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from speed_cases import experiment, speeds

from vllm_specplug.compare.intervals import paired_tables
from vllm_specplug.compare.tests_of_difference import (
    degrees_of_freedom,
    holm,
    jackknife_variance,
    prompt_log_ratios,
    t_test,
    wilcoxon,
)


def tables(arm: dict[str, list[float]], baseline: dict[str, list[float]]) -> list[np.ndarray]:
    return list(paired_tables(speeds(**arm), speeds(**baseline)).values())


def test_log_ratios_are_of_each_prompt_alone() -> None:
    logs = prompt_log_ratios(tables({"a": [1.0], "b": [2.0, 4.0]}, {"a": [2.0], "b": [2.0, 1.0]}))
    assert logs == pytest.approx([math.log(2), 0.0, -math.log(4)])


def test_six_prompts_all_faster_have_two_of_64_sign_patterns() -> None:
    found = wilcoxon(tables({"a": [1.0] * 6}, {"a": [1.1, 1.2, 1.3, 1.4, 1.5, 1.6]}))
    assert found == {"p_value": pytest.approx(2 / 64), "pairs": 6}


def test_fewer_than_six_pairs_have_no_rank_test() -> None:
    assert wilcoxon(tables({"a": [1.0] * 5}, {"a": [2.0] * 5})) is None


def test_ties_are_no_difference_and_count_as_pairs() -> None:
    assert wilcoxon(tables({"a": [1.0] * 7}, {"a": [1.0] * 7})) == {"p_value": 1.0, "pairs": 7}


def test_jackknife_by_hand() -> None:
    # Ratios of the arms' seconds without each prompt: 5/4, 4/3 of the others' sums.
    table = tables({"a": [1.0, 2.0, 2.0]}, {"a": [1.0, 2.0, 3.0]})[0]
    thetas = [math.log(5 / 4), math.log(4 / 3), math.log(3 / 3)]
    mean = sum(thetas) / 3
    assert jackknife_variance(table) == pytest.approx(2 / 3 * sum((theta - mean) ** 2 for theta in thetas))


def test_jackknife_of_equally_long_prompts_is_the_textbook_error() -> None:
    rng = np.random.default_rng(0)
    seconds = np.exp(rng.normal(0, 0.01, 50))
    table = tables({"a": list(seconds)}, {"a": [1.0] * 50})[0]
    assert jackknife_variance(table) == pytest.approx(np.log(seconds).var(ddof=1) / 50, rel=0.05)


def test_one_long_prompt_leaves_few_degrees_of_freedom() -> None:
    # Equal prompts: n - 1. 3, 1, 1, 1: 36 / 12 = 3 effective prompts.
    assert degrees_of_freedom(tables({"a": [1.0] * 4}, {"a": [2.0] * 4})[0]) == pytest.approx(3)
    assert degrees_of_freedom(tables({"a": [1.0] * 4}, {"a": [3.0, 1.0, 1.0, 1.0]})[0]) == pytest.approx(2)


def test_whole_categories_are_an_ordinary_t_test() -> None:
    ratios = {"a": 2.0, "b": 3.0, "c": 1.5, "d": 2.5}
    found = t_test(tables({name: [1.0] for name in ratios}, {name: [value] for name, value in ratios.items()}))
    assert found == pytest.approx(stats.ttest_1samp(np.log(list(ratios.values())), 0).pvalue)


def test_nothing_that_varies_is_certain() -> None:
    same = {"a": [1.0, 2.0, 3.0, 4.0]}
    assert t_test(tables(same, same)) == 1
    assert t_test(tables(same, {"a": [2.0, 4.0, 6.0, 8.0]})) == 0


@pytest.mark.parametrize("num_prompts", [1, 2, 3])
def test_too_few_prompts_have_no_test(num_prompts: int) -> None:
    assert t_test(tables({"a": [1.0] * num_prompts}, {"a": [2.0] * num_prompts})) is None


def test_holm_by_hand() -> None:
    # 0.01 * 4, 0.02 * 3, then 0.03 * 2 and 0.04 * 1, never less than the one before.
    found = holm({"d": 0.04, "a": 0.01, "none": None, "b": 0.02, "c": 0.03})
    assert found == pytest.approx({"d": 0.06, "a": 0.04, "none": None, "b": 0.06, "c": 0.06})
    assert list(found) == ["d", "a", "none", "b", "c"]
    assert holm({"a": 0.7, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_p_values_are_uniform_when_nothing_differs() -> None:
    rng = np.random.default_rng(6)
    p_values = [t_test(list(paired_tables(*experiment(rng)).values())) for _ in range(1000)]
    assert stats.kstest(p_values, "uniform").pvalue > 0.001
