"""What a report recommends, and in which words: hand-made reports, one for each case."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_specplug.compare.recommendation import recommend
from vllm_specplug.compare.sentences import recommendation, sentences

#: Ratio and interval that go with a verdict.
FOUND = {
    "faster": (1.5, [1.4, 1.6]),
    "slower": (0.8, [0.7, 0.9]),
    "no difference": (1.0, [0.98, 1.02]),
    "undecided": (1.1, [0.9, 1.3]),
}


def part(
    verdict: str, low: float | None = None, high: float | None = None, decide: int | None = None
) -> dict[str, Any]:
    ratio, ci95 = FOUND[verdict]
    if low is not None and high is not None:
        ratio, ci95 = (low + high) / 2, [low, high]
    return {"prompts": 10, "ratio": ratio, "ci95": ci95, "verdict": verdict, "prompts_to_decide": decide}


def report(arms: dict[str, dict[str, dict[str, Any]]], **more: Any) -> dict[str, Any]:
    """By arm: its part `overall` (undecided when left out), the others being categories."""
    comparisons = [
        {
            "arm": name,
            "against": "baseline",
            "metric": "output_tokens_per_s",
            **parts.get("overall", part("undecided")),
            "categories": {key: value for key, value in parts.items() if key != "overall"},
            "looping": None,
            "not_looping": part("faster"),
        }
        for name, parts in arms.items()
    ]
    configs = {"baseline": None, **{name: {"method": name} for name in arms}}
    return {
        "arms": [{"name": name, "speculative_config": config, "engine_args": {}} for name, config in configs.items()],
        "baseline": "baseline",
        "results": {name: {"overall": {}, "categories": {}, "errors": None} for name in configs},
        "comparisons": comparisons,
        "lossless": {name: {"prompts": 10, "identical": 10, "near_ties": 0, "different": 0} for name in arms},
        **more,
    }


def test_the_sentence_of_a_whole_report() -> None:
    found = report(
        {
            "prompt_lookup": {
                "overall": part("faster", 1.2, 1.4),
                "copying": part("faster"),
                "code": part("faster"),
                "chat": part("no difference"),
                "maths": part("undecided", decide=128),
            },
        },
        load={"advice": {"prompt_lookup": {"faster_up_to": 8, "slower_from": 16, "unit": "requests at once"}}},
    )
    assert sentences(found) == [
        "Ship prompt_lookup for copying and code.",
        "prompt_lookup makes no difference for chat.",
        "Undecided for maths: about 120 more prompts would tell.",
        "Over all categories together prompt_lookup is faster, 1.30x.",
        "Under load prompt_lookup is faster up to 8 requests at once; switch it off from 16 on.",
    ]


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        ("faster", "Ship medusa for code."),
        ("slower", "Keep baseline for code: medusa is slower."),
        ("no difference", "medusa makes no difference for code."),
        ("undecided", "Undecided for code: how many more prompts would tell cannot be said."),
    ],
)
def test_one_arm_and_one_category_is_one_sentence(verdict: str, line: str) -> None:
    assert sentences(report({"medusa": {"overall": part(verdict), "code": part(verdict)}})) == [line]


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        ("faster", "Ship medusa."),
        ("slower", "Keep baseline: medusa is slower."),
        ("no difference", "medusa makes no difference."),
        ("undecided", "Undecided: about 5 more prompts would tell."),
    ],
)
def test_prompts_without_categories_name_none(verdict: str, line: str) -> None:
    assert sentences(report({"medusa": {"overall": part(verdict), "all": part(verdict, decide=15)}})) == [line]


def test_best_arm_is_the_one_whose_interval_begins_highest() -> None:
    found = report(
        {
            "wide": {"code": part("faster", 1.1, 2.9)},
            "narrow": {"code": part("faster", 1.5, 1.7)},
            "small": {"code": part("faster", 1.05, 1.49)},
            "loses": {"code": part("slower")},
        }
    )
    assert recommend(found)["categories"]["code"] == {
        "outcome": "ship",
        "arms": ["narrow", "wide"],  # 'small' ends below the beginning of 'narrow'
        "slower": ["loses"],
        "more_prompts": None,
    }
    assert sentences(found)[0] == "Ship narrow or wide for code (a tie: their intervals overlap)."


def test_intervals_that_touch_are_a_tie_and_three_tie_too() -> None:
    arms = {"c": part("faster", 1.2, 1.4), "b": part("faster", 1.3, 1.5), "a": part("faster", 1.4, 1.6)}
    found = report({name: {"code": row} for name, row in arms.items()})
    assert sentences(found)[0] == "Ship a, b or c for code (a tie: their intervals overlap)."


def test_categories_with_the_same_best_arm_share_a_sentence() -> None:
    found = report(
        {
            "a": {"x": part("faster", 1.9, 2), "y": part("faster", 1.1, 1.2), "z": part("faster", 1.9, 2)},
            "b": {"x": part("faster", 1.1, 1.2), "y": part("faster", 1.9, 2), "z": part("undecided")},
        }
    )
    assert sentences(found)[:2] == ["Ship a for x and z.", "Ship b for y."]


def test_an_undecided_rival_does_not_stand_in_the_way_of_a_faster_arm() -> None:
    found = report({"a": {"x": part("faster")}, "b": {"x": part("undecided", 0.9, 3.0)}})
    assert sentences(found)[0] == "Ship a for x."


def test_nothing_faster_with_several_arms() -> None:
    none = report({"a": {"x": part("no difference")}, "b": {"x": part("no difference")}})
    assert sentences(none)[0] == "No arm is faster than baseline for x."
    some = report({"a": {"x": part("no difference")}, "b": {"x": part("slower")}})
    assert sentences(some)[0] == "Keep baseline for x: b is slower."
    both = report({"a": {"x": part("slower")}, "b": {"x": part("slower")}})
    assert sentences(both)[0] == "Keep baseline for x: a and b are slower."


def test_undecided_as_long_as_any_arm_may_still_be_faster() -> None:
    found = report({"a": {"x": part("slower")}, "b": {"x": part("undecided", decide=110)}})
    assert recommend(found)["categories"]["x"] == {
        "outcome": "undecided",
        "arms": ["b"],
        "slower": ["a"],
        "more_prompts": 100,
    }


def test_prompts_that_would_tell_are_those_of_the_arm_that_needs_most() -> None:
    found = report({"a": {"x": part("undecided", decide=30)}, "b": {"x": part("undecided", decide=234)}})
    assert sentences(found)[0] == "Undecided for x: about 230 more prompts would tell."
    hopeless = report({"a": {"x": part("undecided", decide=30)}, "b": {"x": part("undecided")}})
    assert sentences(hopeless)[0] == "Undecided for x: how many more prompts would tell cannot be said."


@pytest.mark.parametrize(("more", "told"), [(2, "2"), (99, "99"), (101, "110"), (1234, "1,300"), (9_990, "10,000")])
def test_rough_numbers_have_two_digits_rounded_up(more: int, told: str) -> None:
    found = report({"a": {"x": part("undecided", decide=10 + more)}})
    assert sentences(found)[0] == f"Undecided for x: about {told} more prompts would tell."


def test_one_more_prompt_is_said_in_the_singular() -> None:
    found = report({"a": {"x": part("undecided", decide=11)}})
    assert sentences(found) == ["Undecided for x: about 1 more prompt would tell."]


def test_several_undecided_categories_share_a_sentence() -> None:
    found = report(
        {
            "a": {
                "w": part("faster"),
                "x": part("undecided", decide=30),
                "y": part("undecided", decide=510),
                "z": part("undecided"),
            }
        }
    )
    assert sentences(found)[1:3] == [
        "Undecided for x and y: about 20 to 500 more prompts in each would tell.",
        "Undecided for z: how many more prompts would tell cannot be said.",
    ]


def test_all_categories_are_counted_not_listed() -> None:
    parts = {name: part("undecided", decide=20) for name in "abc"}
    assert sentences(report({"arm": {"overall": part("faster"), **parts}})) == [
        "Ship arm for a mix of prompts like this one: over all categories together it is faster, 1.50x.",
        "Undecided for each of the 3 categories alone: about 10 more prompts in each would tell.",
    ]


@pytest.mark.parametrize(
    ("overall", "line"),
    [
        (part("slower"), "Over all categories together no arm is faster than baseline."),
        (part("no difference"), "Over all categories together no arm is faster than baseline."),
        (
            part("undecided", decide=50),
            "Over all categories together it is undecided: about 40 more prompts would tell.",
        ),
        (
            part("undecided"),
            "Over all categories together it is undecided: how many more prompts would tell cannot be said.",
        ),
    ],
)
def test_over_all_categories(overall: dict[str, Any], line: str) -> None:
    parts = {"x": part("no difference"), "y": part("undecided", decide=20)}
    assert sentences(report({"arm": {"overall": overall, **parts}}))[0] == line


def test_a_tie_over_all_names_every_ratio() -> None:
    parts = {"x": part("undecided"), "y": part("undecided")}
    found = report(
        {"a": {"overall": part("faster", 1.4, 1.6), **parts}, "b": {"overall": part("faster", 1.3, 1.5), **parts}}
    )
    assert sentences(found)[0] == (
        "Ship a or b for a mix of prompts like this one: over all categories together they are faster, 1.50x and 1.40x "
        "(a tie: their intervals overlap)."
    )


def test_arm_whose_answers_differ_is_never_recommended() -> None:
    found = report({"wrong": {"x": part("faster", 3, 4)}, "right": {"x": part("faster", 1.1, 1.2)}})
    found["lossless"]["wrong"] = {"prompts": 10, "identical": 8, "near_ties": 1, "different": 1}
    assert sentences(found) == [
        "Ship right for x.",
        "wrong is not recommended: 1 of 10 answers differ from those of baseline beyond rounding.",
    ]
    held = recommend(found)
    assert held["candidates"] == ["right"]
    assert held["categories"]["x"]["arms"] == ["right"]


def test_near_ties_do_not_exclude() -> None:
    found = report({"a": {"x": part("faster")}})
    found["lossless"]["a"] = {"prompts": 10, "identical": 0, "near_ties": 10, "different": 0}
    assert sentences(found) == ["Ship a for x."]


def test_no_arm_left() -> None:
    found = report({"wrong": {"x": part("faster")}})
    found["lossless"]["wrong"]["different"] = 2
    assert sentences(found) == [
        "wrong is not recommended: 2 of 10 answers differ from those of baseline beyond rounding.",
        "No arm is left to take the place of baseline.",
    ]
    assert recommend(found)["overall"] is None


def test_arm_with_too_many_errors_is_not_recommended() -> None:
    found = report({"bad": {"x": part("undecided")}, "good": {"x": part("faster")}})
    found["comparisons"][0]["undecided_reason"] = "bad: 3 of 10 requests failed (timeout 3), more than 5 %"
    assert sentences(found) == [
        "Ship good for x.",
        "bad is not recommended: bad: 3 of 10 requests failed (timeout 3), more than 5 %.",
    ]


def test_what_to_know_before_shipping() -> None:
    found = report({"a": {"overall": part("faster"), "x": part("faster")}})
    found["results"]["a"]["errors"] = {"failed": 1, "requests": 40}
    found["lossless"]["a"] = None
    found["comparisons"][0] |= {"looping": part("faster"), "not_looping": part("undecided")}
    assert sentences(found) == [
        "Ship a for x.",
        "Before you ship a: its answers were not compared with those of baseline; 1 of its 40 requests failed; without "
        "the answers that loop its speed is undecided.",
    ]


def test_cautions_are_said_of_shipped_arms_only() -> None:
    found = report({"a": {"x": part("slower")}})
    found["lossless"]["a"] = None
    assert sentences(found) == ["Keep baseline for x: a is slower."]
    assert recommend(found)["cautions"] == {"a": ["its answers were not compared with those of baseline"]}


def test_too_noisy_run_recommends_nothing() -> None:
    found = report({"a": {"x": part("faster")}}, too_noisy=True, too_noisy_reason="against itself it is 1.40x")
    assert sentences(found) == ["No recommendation: the run is too noisy: baseline against itself it is 1.40x."]
    held = recommend(found)
    assert (held["candidates"], held["overall"], held["categories"]) == ([], None, {})


def with_copy(found: dict[str, Any], name: str = "baseline_again") -> dict[str, Any]:
    next(arm for arm in found["arms"] if arm["name"] == name)["speculative_config"] = None
    return found


def test_baseline_against_itself_recommends_nothing() -> None:
    found = with_copy(report({"baseline_again": {"x": part("no difference")}}))
    assert sentences(found) == ["No recommendation: baseline was compared with itself alone."]


def test_baseline_found_faster_than_itself_stops_every_recommendation() -> None:
    found = with_copy(report({"a": {"x": part("faster")}, "baseline_again": {"overall": part("faster")}}))
    assert sentences(found) == [
        "No recommendation: baseline_again, configured as baseline is, was found faster: that is noise."
    ]


def test_copy_of_the_baseline_is_no_candidate() -> None:
    found = with_copy(report({"a": {"x": part("slower")}, "baseline_again": {"x": part("faster")}}))
    assert sentences(found) == ["Keep baseline for x: a is slower."]


def test_same_config_with_other_engine_arguments_is_an_arm_of_its_own() -> None:
    found = with_copy(report({"baseline_again": {"x": part("faster")}}))
    found["arms"][1]["engine_args"] = {"max_num_seqs": 8}
    assert sentences(found) == ["Ship baseline_again for x."]


@pytest.mark.parametrize(
    ("up_to", "start", "line"),
    [
        (8, 16, "Under load a is faster up to 8 requests at once; switch it off from 16 on."),
        (8, None, "Under load a is faster up to 8 requests at once; that it is beyond was not shown."),
        (None, 4, "Switch a off from 4 requests at once on: there it is slower."),
        (None, None, "That a is faster under load was not shown."),
        ("inf", None, "Under load a is faster even when all requests come at once."),
        (8, "inf", "Under load a is faster up to 8 requests at once; switch it off when all requests come at once."),
        (None, "inf", "Switch a off when all requests come at once: there it is slower."),
    ],
)
def test_load(up_to: float | str | None, start: float | str | None, line: str) -> None:
    advice = {"faster_up_to": up_to, "slower_from": start, "unit": "requests at once"}
    assert sentences(report({"a": {"x": part("faster")}}, load={"advice": {"a": advice}})) == ["Ship a for x.", line]


def test_load_of_arms_nobody_ships_is_told_only_where_it_is_faster() -> None:
    advice = {
        "a": {"faster_up_to": 0.5, "slower_from": None, "unit": "requests a second"},
        "b": {"faster_up_to": None, "slower_from": 2.0, "unit": "requests a second"},
    }
    found = report({"a": {"x": part("undecided")}, "b": {"x": part("undecided")}}, load={"advice": advice})
    assert sentences(found)[1:] == [
        "Under load a is faster up to 0.5 requests a second; that it is beyond was not shown."
    ]
    found = report({"a": {"x": part("undecided")}, "b": {"x": part("faster")}}, load={"advice": advice})
    assert sentences(found)[1:] == ["Switch b off from 2 requests a second on: there it is slower."]


def test_load_of_an_excluded_arm_is_not_told() -> None:
    advice = {"a": {"faster_up_to": 8, "slower_from": None, "unit": "requests at once"}}
    found = report({"a": {"x": part("faster")}, "b": {"x": part("slower")}}, load={"advice": advice})
    found["lossless"]["a"]["different"] = 1
    assert not any("Under load" in line for line in sentences(found))


def test_without_load_nothing_is_said_of_it() -> None:
    assert recommend(report({"a": {"x": part("faster")}}))["load"] == {}
    assert recommend(report({"a": {"x": part("faster")}}, load=None))["load"] == {}


def test_category_that_an_arm_never_answered_is_decided_among_the_others() -> None:
    found = report({"a": {"x": part("faster")}, "b": {"x": part("slower"), "y": part("slower")}})
    assert sentences(found)[:2] == ["Ship a for x.", "Keep baseline for y: b is slower."]


def test_sentences_are_read_from_a_report_that_has_them() -> None:
    found = report({"a": {"x": part("faster")}})
    held = recommendation(found)
    assert held["sentences"] == ["Ship a for x."]
    assert sentences({**found, "recommendation": {**held, "sentences": ["as written"]}}) == ["as written"]
