"""Levels of load: what may be asked for, and who comes when."""

from __future__ import annotations

import argparse
import math
from typing import Any

import pytest

from vllm_specplug.compare.levels import Level, LoadPlan, Schedule, add_arguments, load_plan, parse_levels, schedule
from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.compare.workload import Workload
from vllm_specplug.errors import CompareError

PROMPTS = tuple(Prompt(f"p{index}", "c", "") for index in range(200))


def asked(*arguments: str) -> LoadPlan | None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return load_plan(parser.parse_args(arguments))


def log(*arrivals: float) -> tuple[Prompt, ...]:
    return tuple(Prompt(f"p{index}", "c", "", arrival_s=time) for index, time in enumerate(arrivals))


def workload(prompts: tuple[Prompt, ...]) -> Workload:
    return Workload("mine", "0" * 64, prompts)


def test_without_an_argument_there_is_no_load() -> None:
    assert asked() is None


def test_levels_are_sorted_and_named_for_gates_and_json() -> None:
    plan = asked("--concurrency", "16, 1,4")
    assert plan is not None
    assert [level.name for level in plan.levels] == ["at_1", "at_4", "at_16"]
    assert [level.at_once for level in plan.levels] == [1, 4, 16]
    assert plan.as_json() == {"kind": "concurrency", "levels": [1, 4, 16], "passes": 4}
    plan = asked("--request-rate", "inf,0.5,2", "--load-passes", "6")
    assert plan is not None
    assert [level.name for level in plan.levels] == ["at_0.5", "at_2", "at_inf"]
    assert {level.at_once for level in plan.levels} == {None}
    assert plan.as_json() == {"kind": "request_rate", "levels": [0.5, 2, "inf"], "passes": 6}
    plan = asked("--replay")
    assert plan is not None
    assert plan.as_json() == {"kind": "replay", "levels": [1], "passes": 4}
    plan = asked("--replay", "--replay-speed", "1,2.5")
    assert plan is not None
    assert [level.name for level in plan.levels] == ["at_1", "at_2.5"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--concurrency", "0"],
            "--concurrency 0: '0' is no whole number of 1 or more; expected for example 1,4,16",
        ),
        (["--concurrency", "1,-4"], "--concurrency 1,-4: '-4' is no whole number of 1 or more; "),
        (["--concurrency", "1.5"], "--concurrency 1.5: '1.5' is no whole number of 1 or more; "),
        (["--concurrency", "inf"], "--concurrency inf: 'inf' is no whole number of 1 or more; "),
        (["--concurrency", "1,,2"], "--concurrency 1,,2: '' is no whole number of 1 or more; "),
        (["--concurrency", "many"], "--concurrency many: 'many' is no whole number of 1 or more; "),
        (["--concurrency", "4,1,4.0"], "--concurrency 4,1,4.0: 4.0 is there twice; keep one of them"),
        (["--request-rate", "2,0"], "--request-rate 2,0: '0' is no number above 0 or inf; expected for example 0.5,2"),
        (["--request-rate", "-1"], "--request-rate -1: '-1' is no number above 0 or inf; "),
        (["--request-rate", "nan"], "--request-rate nan: 'nan' is no number above 0 or inf; "),
        (["--replay", "--replay-speed", "inf"], "--replay-speed inf: 'inf' is no number above 0; "),
        (["--replay", "--replay-speed", "0"], "--replay-speed 0: '0' is no number above 0; "),
        (["--replay-speed", "2"], "--replay-speed has no use without --replay; add it or leave the speed out"),
        (
            ["--concurrency", "1", "--request-rate", "2"],
            "--concurrency and --request-rate are different kinds of load; give one of them",
        ),
        (["--request-rate", "2", "--replay"], "--request-rate and --replay are different kinds of load; "),
        (["--load-passes", "4"], "--load-passes has no use without --concurrency, --request-rate or --replay"),
        (["--concurrency", "1", "--load-passes", "0"], "--load-passes is 0, expected 1 or more"),
    ],
)
def test_what_is_no_load_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(CompareError) as caught:
        asked(*arguments)
    assert str(caught.value).startswith(message)


def test_level_that_the_prompts_cannot_hold_is_refused() -> None:
    plan = LoadPlan(parse_levels("concurrency", "2,8"))
    plan.check(workload(PROMPTS[:8]))
    with pytest.raises(CompareError, match="--concurrency 8 cannot be held with 7 prompts; give more of them or a"):
        plan.check(workload(PROMPTS[:7]))


def test_replay_of_prompts_without_times_is_refused() -> None:
    plan = LoadPlan(parse_levels("replay", "1"))
    plan.check(workload(log(0.0, 1.0)))
    with pytest.raises(CompareError, match="at their 'arrival_s', which those of mine do not have; give a log with"):
        plan.check(workload(PROMPTS))


def planned(kind: Any, value: float, seed: int = 3, pass_index: int = 0) -> Schedule:
    return schedule(Level(kind, value), PROMPTS, seed, pass_index)


def test_closed_loop_has_all_prompts_in_random_order_and_no_times() -> None:
    found = planned("concurrency", 4.0)
    assert found.at_once == 4
    assert set(found.arrival_s) == {0.0}
    assert sorted(prompt.id for prompt in found.prompts) == sorted(prompt.id for prompt in PROMPTS)
    assert found.prompts != PROMPTS


def test_order_follows_from_seed_and_pass_and_is_the_same_under_every_level() -> None:
    assert planned("concurrency", 4.0) == planned("concurrency", 4.0)
    assert planned("concurrency", 4.0).prompts == planned("request_rate", 2.0).prompts
    assert planned("concurrency", 4.0).prompts != planned("concurrency", 4.0, seed=4).prompts
    assert planned("concurrency", 4.0).prompts != planned("concurrency", 4.0, pass_index=1).prompts


def test_open_loop_is_a_poisson_process_from_0_on() -> None:
    """Gaps are exponential: their mean and their standard deviation are 1 / rate, here within four standard errors."""
    found = planned("request_rate", 2.0)
    assert found.at_once is None
    assert found.arrival_s[0] == 0.0
    gaps = [later - earlier for earlier, later in zip(found.arrival_s, found.arrival_s[1:], strict=False)]
    assert min(gaps) > 0
    mean = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / (len(gaps) - 1))
    assert mean == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(199))
    assert spread == pytest.approx(0.5, rel=0.35)
    assert found.arrival_s != planned("request_rate", 2.0, pass_index=1).arrival_s


def test_twice_the_rate_has_the_same_gaps_halved() -> None:
    slow, fast = planned("request_rate", 2.0), planned("request_rate", 4.0)
    assert fast.arrival_s == pytest.approx([time / 2 for time in slow.arrival_s])
    assert fast.prompts == slow.prompts


def test_at_an_infinite_rate_all_come_at_once() -> None:
    found = planned("request_rate", math.inf)
    assert set(found.arrival_s) == {0.0}
    assert found.at_once is None


def test_replay_keeps_the_order_and_the_gaps_of_the_log_from_its_first_prompt_on() -> None:
    prompts = log(30.0, 30.5, 30.5, 40.0)
    for pass_index in (0, 1):
        found = schedule(Level("replay", 2.0), prompts, 0, pass_index)
        assert found == Schedule(prompts, (0.0, 0.25, 0.25, 5.0), None)
