"""What a report and its notes say of noise, of what would decide, and of power; the second baseline of --aa."""

from __future__ import annotations

import argparse
import copy

import pytest
from run_cases import run_of_itself

from vllm_specplug.compare.arms import Arm, with_baseline, with_second_baseline
from vllm_specplug.compare.command import add_arguments, main
from vllm_specplug.compare.notes import notes
from vllm_specplug.compare.report_format import validate
from vllm_specplug.compare.terminal import power_lines
from vllm_specplug.errors import CompareError


def test_report_holds_each_arm_against_itself() -> None:
    report = run_of_itself(0, noise=0.02)
    validate(report)
    assert list(report["noise"]) == ["baseline", "baseline_again"]
    for floor in report["noise"].values():
        assert floor["ci95"][0] < floor["ratio"] < floor["ci95"][1]
    assert (report["too_noisy"], report["too_noisy_reason"]) == (False, None)
    assert any(line.startswith("Noise: each arm's later passes over its earlier ones") for line in notes(report))


def test_one_pass_says_that_it_knows_nothing_of_its_noise() -> None:
    report = run_of_itself(0, noise=0.02, num_passes=1)
    validate(report)
    assert set(report["noise"].values()) == {None}
    assert any(line.startswith("Noise: not known, every prompt was measured once.") for line in notes(report))


def test_machine_that_changed_between_passes_decides_nothing() -> None:
    report = run_of_itself(0, noise=0.02, favoured=0.5, second_pass=1.2)
    assert report["too_noisy"]
    comparison = report["comparisons"][0]
    assert comparison["ci95"][0] > 1
    assert comparison["verdict"] == "undecided"
    assert {part["verdict"] for part in comparison["categories"].values()} == {"undecided"}
    first = notes(report)[0]
    assert first.startswith("Too noisy to decide anything: baseline measured against itself it is 0.8")
    assert first.endswith("Every verdict is undecided; measure on a quieter machine or with more passes.")


def test_undecided_comes_with_the_prompts_that_would_decide() -> None:
    report = run_of_itself(3, noise=0.2, favoured=1.02)
    comparison = report["comparisons"][0]
    assert comparison["verdict"] == "undecided"
    assert comparison["prompts_to_decide"] > 64
    line = next(line for line in notes(report) if "would decide" in line)
    assert line.startswith("baseline_again: prompts that would decide what is undecided (90 % chance, rough): overall ")
    for part in comparison["categories"].values():
        assert ("prompts_to_decide" in part) == (part["verdict"] == "undecided")


def test_notes_say_when_ranks_do_not_agree() -> None:
    report = run_of_itself(0, noise=0.02, favoured=0.5)
    assert not any("Wilcoxon" in line for line in notes(report))
    report["comparisons"][0]["wilcoxon"]["p_value"] = 0.2
    assert any("few of them carry the difference" in line for line in notes(report))


def test_notes_of_former_reports_still_read() -> None:
    report = copy.deepcopy(run_of_itself(0))
    for key in ("noise", "too_noisy", "too_noisy_reason"):
        del report[key]
    for part in (report["comparisons"][0], *report["comparisons"][0]["categories"].values()):
        for key in ("wilcoxon", "p_value", "log_ratio_sd", "prompts_to_decide"):
            part.pop(key, None)
    assert notes(report)


def test_power_is_told_for_all_and_for_each_category() -> None:
    report = run_of_itself(0)
    comparison = report["comparisons"][0]
    comparison["log_ratio_sd"] = 0.1
    comparison["categories"]["c0"]["log_ratio_sd"] = None
    comparison["categories"]["c1"]["log_ratio_sd"] = 9.0
    (line,) = power_lines(report, 0.05)
    # 46.1 of `prompts_needed`, and seven more for eight categories.
    assert line.startswith(
        "baseline_again: prompts that find +5 % with 90 % power: over all categories 54, c0 unknown,"
    )
    assert "c1 over 10,000" in line


def test_second_baseline_is_a_copy_of_the_first() -> None:
    assert [arm.name for arm in with_baseline(with_second_baseline([]))] == ["baseline", "baseline_again"]
    own = Arm("ngram", {"method": "ngram"}, {"seed": 1})
    again = with_second_baseline([own], "ngram")[1]
    assert again == Arm("ngram_again", own.speculative_config, own.engine_args)
    with pytest.raises(CompareError, match="the baseline 'x' is not among the arms"):
        with_baseline(with_second_baseline([own], "x"), "x")


def test_impossible_effect_is_refused_before_anything_is_measured() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(CompareError, match=r"an effect of 0\.0 cannot be looked for"):
        main(parser.parse_args(["--model", "none", "--aa", "--power", "0"]))
    with pytest.raises(
        CompareError, match="one arm alone cannot be compared; add another with --arm NAME=JSON or --aa"
    ):
        main(parser.parse_args(["--model", "none"]))
