"""What a report says: how often it is wrong when nothing differs, how often it finds what does, and when it is silent.

The simulations have fixed seeds; what they allow is what the design promises, 6 % and 90 %.
"""

from __future__ import annotations

import numpy as np
import pytest
from speed_cases import experiment, speeds

from vllm_specplug.compare.intervals import paired_tables
from vllm_specplug.compare.tests_of_difference import holm, t_test
from vllm_specplug.compare.verdicts import Rule, compared, decide, verdict

DECIDED = ("faster", "slower")


@pytest.mark.parametrize(
    ("ci95", "expected"),
    [
        ((1.01, 1.5), "faster"),
        ((1.001, 1.01), "faster"),  # excluding 1 goes before the margin
        ((0.5, 0.99), "slower"),
        ((0.97, 1.03), "no difference"),
        ((1.0, 1.02), "no difference"),
        ((0.96, 1.02), "undecided"),
        ((0.9, 1.2), "undecided"),
        (None, "undecided"),
    ],
)
def test_verdicts(ci95: tuple[float, float] | None, expected: str) -> None:
    assert verdict(ci95) == expected


@pytest.mark.parametrize(
    ("ci95", "p_value", "expected"),
    [
        ((1.01, 1.5), 0.05, "faster"),
        ((1.01, 1.5), 0.051, "undecided"),
        ((0.5, 0.99), 0.2, "undecided"),
        ((1.001, 1.01), 0.2, "no difference"),  # within the margin, whatever the test says
        ((0.9, 1.2), 0.001, "undecided"),  # the interval has to exclude 1 as well
    ],
)
def test_verdict_needs_the_interval_and_the_test(ci95: tuple[float, float], p_value: float, expected: str) -> None:
    assert verdict(ci95, p_value=p_value) == expected


def test_categories_hold_jointly() -> None:
    # a is 13 % faster: shown when it is the only category, not when it is one of eight, the others by chance as likely.
    same = [1.0, 1.1, 0.9, 1.2, 0.8, 1.05, 0.95, 1.0]
    better = [0.9, 1.0, 0.75, 0.95, 0.85, 0.9, 1.0, 0.8]
    others = {f"o{index}": same for index in range(7)}
    noisy = {f"o{index}": [*same[1:], same[0]] for index in range(7)}
    alone = decide(speeds(a=better), speeds(a=same), Rule())["categories"]["a"]
    among = decide(speeds(a=better, **noisy), speeds(a=same, **others), Rule())["categories"]["a"]
    assert alone["verdict"] == "faster"
    assert alone["p_holm"] == alone["p_value"] == among["p_value"]
    assert among["p_holm"] == pytest.approx(8 * among["p_value"])
    assert among["verdict"] == "undecided"
    assert among["ci95"] == alone["ci95"]  # the interval is never adjusted
    assert among["prompts_to_decide"] > 8


def test_category_too_small_to_test_costs_the_others_nothing() -> None:
    arm, baseline = speeds(a=[1.0, 1.1, 0.9, 1.2], b=[1.0]), speeds(a=[2.0, 2.1, 2.0, 2.2], b=[2.0])
    found = decide(arm, baseline, Rule())["categories"]
    assert found["b"]["p_value"] is None
    assert found["b"]["verdict"] == "undecided"
    assert found["b"]["prompts_to_decide"] is None  # one prompt has no spread
    assert found["a"]["p_holm"] == found["a"]["p_value"]


def test_noisy_run_decides_nothing_and_keeps_its_numbers() -> None:
    arm, baseline = experiment(np.random.default_rng(0), noise=0.05, factor=0.5)
    found = decide(arm, baseline, Rule(too_noisy=True))
    assert compared(arm, baseline, Rule())["verdict"] == "faster"
    assert {found["verdict"], *(part["verdict"] for part in found["categories"].values())} == {"undecided"}
    assert found["prompts_to_decide"] is None
    assert found["ci95"][0] > 1


def test_false_verdicts_of_a_thousand_runs_against_itself() -> None:
    rng = np.random.default_rng(2)
    wrong = 0
    for seed in range(1000):
        arm, baseline = experiment(rng)
        p_value = t_test(list(paired_tables(arm, baseline).values()))
        # Above 5 % no interval makes it faster or slower (test_verdict_needs_the_interval_and_the_test).
        assert p_value is not None
        wrong += p_value <= 0.05 and compared(arm, baseline, Rule(seed))["verdict"] in DECIDED
    assert 20 <= wrong <= 60  # 50 expected: a rule that never decides would prove nothing


def test_false_verdicts_of_any_category_of_two_thousand_runs() -> None:
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(2000):
        tables = paired_tables(*experiment(rng))
        adjusted = holm({category: t_test([table]) for category, table in tables.items()})
        wrong += any(p_value is not None and p_value <= 0.05 for p_value in adjusted.values())
    assert 40 <= wrong <= 120


@pytest.mark.parametrize("noise", [0.1, 0.2])
def test_ten_per_cent_slower_is_found(noise: float) -> None:
    """Up to sigma 0.2 of a single pass, twice what a busy shared machine has."""
    rng = np.random.default_rng(4)
    found = sum(
        compared(*experiment(rng, noise, factor=1.1), Rule(seed, num_resamples=199))["verdict"] == "slower"
        for seed in range(200)
    )
    assert found >= 180


def test_small_workload_is_undecided_and_says_how_many_prompts_would_decide() -> None:
    rng = np.random.default_rng(5)
    results = [
        compared(*experiment(rng, noise=0.2, factor=1.1, num_prompts=2), Rule(seed, num_resamples=199))
        for seed in range(100)
    ]
    undecided = [result for result in results if result["verdict"] == "undecided"]
    assert len(undecided) >= 60
    assert not any(result["verdict"] in ("faster", "no difference") for result in results)
    # 42 by the formula with the true spread (0.2) and effect; the median of what single small runs say is near it.
    needed = [result["prompts_to_decide"] for result in undecided if result["prompts_to_decide"]]
    assert 20 <= np.median(needed) <= 200


def test_one_prompt_is_undecided_without_a_guess() -> None:
    found = compared(speeds(a=[1.0]), speeds(a=[2.0]), Rule())
    assert (found["verdict"], found["ci95"], found["prompts_to_decide"]) == ("undecided", None, None)
