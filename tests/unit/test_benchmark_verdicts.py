"""The benchmark of verdicts, on reports of made-up runs in the real format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_cases import run_of_itself

from benchmarks import verdicts
from vllm_specplug.compare.report_format import write_report
from vllm_specplug.errors import CompareError


def test_ten_runs_give_few_false_verdicts_and_find_the_slowdown() -> None:
    found = verdicts.measure([run_of_itself(seed) for seed in range(10)], 30, 0.1, num_resamples=99)
    assert (found["reports"], found["runs"], found["experiments"], found["prompts"]) == (10, 10, 30, 64)
    assert found["false_verdicts"] <= 0.2  # 5 % expected of each way
    assert found["found"] >= 0.9
    assert sum(found["as_measured"].values()) == 10


def test_favoured_place_shows_when_mixed_and_cancels_when_prompts_are_flipped_one_by_one() -> None:
    reports = [run_of_itself(seed, noise=0.02, favoured=1.04) for seed in range(2)]
    found = verdicts.measure(reports, 20, 0.1, block=1, num_resamples=99)
    assert found["mixed"]["verdicts"] == {"slower": 20}
    assert found["flipped"]["false"] <= 0.25


def test_noise_that_lasts_over_prompts_shows_when_they_are_flipped_together() -> None:
    report = run_of_itself(0, noise=0.02, favoured=1.1)
    alone, together = (
        verdicts.measure([report], 20, 0.1, block=block, num_resamples=99)["flipped"]["false"] for block in (1, 32)
    )
    assert alone <= 0.25
    assert together >= 0.4


def test_few_prompts_of_each_category_stay_undecided() -> None:
    reports = [run_of_itself(seed, noise=0.2) for seed in range(3)]
    found = verdicts.measure(reports, 30, 0.1, per_category=2, num_resamples=99)
    assert found["prompts"] == 16
    for way in ("mixed", "flipped"):
        assert found[way]["verdicts"]["undecided"] >= 25
        assert found[way]["prompts_to_decide"] > 16


def test_report_without_a_twin_of_the_baseline_is_refused() -> None:
    with pytest.raises(
        CompareError, match="no arm configured like its baseline 'baseline'; arms: baseline, baseline_aga"
    ):
        verdicts.twins(run_of_itself(0, config={"method": "ngram"}))


def test_last_line_is_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "aa.json"
    write_report(run_of_itself(0), path)
    monkeypatch.setattr("sys.argv", ["verdicts", "--reports", str(path), "--experiments", "5", "--resamples", "99"])
    verdicts.main()
    *text, last = capsys.readouterr().out.splitlines()
    assert json.loads(last)["experiments"] == 5
    assert [line.split(":")[0] for line in text] == ["mixed", "flipped"]
