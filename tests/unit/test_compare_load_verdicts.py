"""Verdicts under load: two reasons to vary, Holm over levels, up to which load an arm pays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from load_cases import PROMPTS, failed, run_of, runs_taking, steady
from scipy import stats

from vllm_specplug.compare.levels import LoadPlan, parse_levels
from vllm_specplug.compare.load_verdicts import advice, compare_levels
from vllm_specplug.compare.measure import Block
from vllm_specplug.compare.verdicts import Rule

CATEGORIES = {prompt.id: prompt.category for prompt in PROMPTS}
NAMES = ("arm", "baseline")
T_975_3 = 3.182446
USUAL = Rule()


def compared(
    arm: list[Block], baseline: list[Block], rule: Rule = USUAL, categories: dict[str, str] = CATEGORIES
) -> dict[str, Any]:
    found = compare_levels({"at_2": arm}, {"at_2": baseline}, categories, NAMES, rule)
    return found["at_2"]


def test_where_nothing_varies_the_ratio_is_exact() -> None:
    found = compared(runs_taking(steady(0.5)), runs_taking(steady(1.0)))
    assert found["ratio"] == pytest.approx(2.0)
    assert found["ci95"] == pytest.approx([2.0, 2.0])
    assert found["throughput"]["ratio"] == pytest.approx(2.0)
    assert found["throughput"]["ci95"] == pytest.approx([2.0, 2.0])
    assert (found["verdict"], found["p_value"], found["prompts"], found["passes"]) == ("faster", 0.0, 8, 4)
    assert found["more_would_help"] is None
    same = compared(runs_taking(steady(1.0)), runs_taking(steady(1.0)))
    assert (same["verdict"], same["p_value"]) == ("no difference", 1.0)


def test_runs_that_vary_widen_the_interval_though_prompts_do_not() -> None:
    """Runs of the arm are e^0.1, e^0.2, e^0.3 and e^0.2 times as fast, each prompt the same.

    Mean of the logs 0.2, standard deviation sqrt(0.02 / 3), error half of that, times t of 3 degrees of freedom.
    """
    logs = (0.1, 0.2, 0.3, 0.2)
    arm = runs_taking([[math.exp(-log)] * 8 for log in logs])
    found = compared(arm, runs_taking([[1.0] * 8] * 4))
    error = math.sqrt(0.02 / 3) / 2
    ratio = 4 / sum(math.exp(-log) for log in logs)
    assert found["ratio"] == pytest.approx(ratio)
    assert found["ci95_prompts"] == pytest.approx([ratio, ratio])
    spread = math.exp(T_975_3 * error)
    assert found["ci95_passes"] == pytest.approx([ratio / spread, ratio * spread], rel=1e-6)
    assert found["ci95"] == pytest.approx(found["ci95_passes"])
    assert found["throughput"]["ratio"] == pytest.approx(math.exp(0.2))
    assert found["throughput"]["ci95"] == pytest.approx([math.exp(0.2) / spread, math.exp(0.2) * spread], rel=1e-6)
    assert found["p_value"] == pytest.approx(2 * stats.t.sf(math.log(ratio) / error, 3))
    assert found["verdict"] == "faster"


def test_prompts_that_vary_widen_the_interval_though_runs_do_not() -> None:
    """Half of the prompts gain 40 %, half lose as much, the same in every run."""
    factors = [math.exp(0.4 * (-1) ** place) for place in range(8)]
    found = compared(runs_taking([factors] * 4), runs_taking([[1.0] * 8] * 4))
    assert found["ci95_passes"] == pytest.approx([found["ratio"]] * 2)
    assert found["ci95"] == pytest.approx(found["ci95_prompts"])
    assert found["ci95"][0] < 0.8 < 1.1 < found["ci95"][1]
    assert (found["verdict"], found["more_would_help"]) == ("undecided", "prompts")


def test_both_reasons_to_vary_add_in_squares() -> None:
    logs = (0.1, 0.2, 0.3, 0.2)
    arm = runs_taking([[math.exp(-log + 0.2 * (-1) ** place) for place in range(8)] for log in logs])
    found = compared(arm, runs_taking([[1.0] * 8] * 4))
    value = math.log(found["ratio"])
    for end in (0, 1):
        parts = [math.log(found[key][end]) - value for key in ("ci95", "ci95_prompts", "ci95_passes")]
        assert abs(parts[0]) == pytest.approx(math.hypot(parts[1], parts[2]))


@pytest.mark.parametrize("num_passes", [1, 2, 3])
def test_fewer_than_four_runs_decide_nothing_however_clear_they_are(num_passes: int) -> None:
    found = compared(runs_taking(steady(0.5, num_passes)), runs_taking(steady(1.0, num_passes)))
    assert found["ratio"] == pytest.approx(2.0)
    assert found["ci95_prompts"] is not None
    assert (found["ci95"], found["ci95_passes"], found["throughput"]["ci95"]) == (None, None, None)
    assert found["throughput"]["ratio"] == pytest.approx(2.0)
    assert (found["verdict"], found["undecided_reason"]) == ("undecided", "fewer than 4 passes")


def test_too_few_prompts_and_a_noisy_machine_decide_nothing() -> None:
    def two(factor: float) -> list[Block]:
        return runs_taking([[factor, factor]] * 4)

    found = compared(two(0.5), two(1.0))
    assert (found["verdict"], found["undecided_reason"]) == ("undecided", "too few prompts for an interval")
    noisy = compared(runs_taking(steady(0.5)), runs_taking(steady(1.0)), Rule(too_noisy=True))
    assert noisy["verdict"] == "undecided"


def test_prompt_that_one_arm_failed_is_compared_in_neither() -> None:
    """p7, which the arm answers a hundred times as fast, is left out; 1 of 32 requests is fewer than 5 %."""
    arm = runs_taking([[*row[:7], row[7] / 100] for row in steady(0.5)])
    broken = [run_of([*arm[0].answers[:7], failed("p7")], arm[0].seconds), *arm[1:]]
    found = compared(broken, runs_taking(steady(1.0)))
    assert found["prompts"] == 7
    assert found["ratio"] == pytest.approx(2.0)
    assert found["verdict"] == "faster"


def test_more_than_five_per_cent_of_failures_decide_nothing() -> None:
    arm = runs_taking(steady(0.5))
    broken = [run_of([*run.answers[:7], failed("p7", run.pass_index)], run.seconds) for run in arm]
    found = compared(broken, runs_taking(steady(1.0)))
    assert found["verdict"] == "undecided"
    assert found["undecided_reason"] == "arm: 4 of 32 requests failed (timeout 4), more than 5 %"


def test_level_that_nobody_survived_has_no_ratio() -> None:
    arm = [run_of([failed(prompt.id, index) for prompt in PROMPTS], 0.0) for index in range(4)]
    found = compared(arm, runs_taking(steady(1.0)))
    assert found["ratio"] is None
    assert found["throughput"] == {"ratio": None, "ci95": None}
    assert found["verdict"] == "undecided"
    assert found["undecided_reason"].startswith("arm: 32 of 32 requests failed (timeout 32)")


def test_levels_are_judged_jointly() -> None:
    """Holm: the smallest of three p-values is multiplied by 3, which one just below 5 % does not survive."""
    logs = (0.07, 0.2, 0.3, 0.2)
    unclear = runs_taking([[math.exp(-log)] * 8 for log in logs])
    same, clear = runs_taking(steady(1.0)), runs_taking([[1.0] * 8] * 4)
    alone = compare_levels({"at_1": unclear}, {"at_1": clear}, CATEGORIES, NAMES, Rule())["at_1"]
    assert alone["p_value"] == alone["p_holm"] < 0.05
    assert alone["verdict"] == "faster"
    arm, baseline = {"at_1": unclear, "at_2": same, "at_3": same}, {"at_1": clear, "at_2": same, "at_3": same}
    together = compare_levels(arm, baseline, CATEGORIES, NAMES, Rule())
    assert together["at_1"]["p_value"] == alone["p_value"]
    assert together["at_1"]["p_holm"] == pytest.approx(3 * alone["p_value"])
    assert together["at_1"]["verdict"] == "undecided"


@pytest.mark.parametrize(
    ("verdicts", "faster_up_to", "slower_from"),
    [
        (("faster", "faster", "slower"), 4, 16),
        (("faster", "undecided", "slower"), 1, 16),
        (("faster", "faster", "faster"), 16, None),
        (("slower", "slower", "slower"), None, 1),
        (("undecided", "faster", "faster"), None, None),
        (("faster", "slower", "no difference"), 1, None),
        (("faster", "slower", "slower"), 1, 4),
        (("slower", "faster", "slower"), None, 16),
        (("no difference",) * 3, None, None),
    ],
)
def test_advice_is_what_all_levels_below_or_above_agree_on(
    verdicts: tuple[str, ...], faster_up_to: int | None, slower_from: int | None
) -> None:
    plan = LoadPlan(parse_levels("concurrency", "1,4,16"))
    found = advice(plan, {level.name: one for level, one in zip(plan.levels, verdicts, strict=True)})
    assert found == {"faster_up_to": faster_up_to, "slower_from": slower_from, "unit": "requests at once"}


def test_advice_can_name_an_infinite_rate_in_json() -> None:
    plan = LoadPlan(parse_levels("request_rate", "2,inf"))
    found = advice(plan, {"at_2": "undecided", "at_inf": "slower"})
    assert found == {"faster_up_to": None, "slower_from": "inf", "unit": "requests a second"}


def simulated(
    rng: np.random.Generator, num_prompts: int, factor: float = 1.0, by_prompt: float = 0.05, by_run: float = 0.05
) -> str:
    """The verdict on an arm that takes `factor` times the baseline's time.

    A prompt takes 1 s, log-normal with sigma 0.35; the arm's gain on it is off by `by_prompt`, a whole run by `by_run`
    and each request by 0.1 (sigmas of logs).
    """
    base = np.exp(rng.normal(0, 0.35, num_prompts))
    gain = np.exp(rng.normal(0, by_prompt, num_prompts))

    def runs(times: Any) -> list[Block]:
        noise = rng.normal(0, by_run, (4, 1)) + rng.normal(0, 0.1, (4, num_prompts))
        return runs_taking((times * np.exp(noise)).tolist())

    categories = {f"p{index}": f"c{index % 4}" for index in range(num_prompts)}
    found = compared(
        runs(factor * base * gain), runs(base), Rule(int(rng.integers(1 << 30)), 0.03, False, 499), categories
    )
    return str(found["verdict"])


@pytest.mark.parametrize(("by_prompt", "by_run"), [(0.0, 0.08), (0.08, 0.0), (0.05, 0.05)])
def test_false_verdicts_under_load_are_rare_whatever_varies(by_prompt: float, by_run: float) -> None:
    rng = np.random.default_rng(5)
    verdicts = [simulated(rng, 16, 1.0, by_prompt, by_run) for _ in range(300)]
    assert sum(one in ("faster", "slower") for one in verdicts) <= 0.06 * 300


def test_difference_under_load_is_found() -> None:
    rng = np.random.default_rng(6)
    assert sum(simulated(rng, 40, 1.15, 0.05, 0.02) == "slower" for _ in range(100)) >= 90
