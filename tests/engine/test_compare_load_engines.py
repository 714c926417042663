"""A load sweep on real engines: an arm against itself and against one that sleeps; arrivals of an open loop."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import LOOKUP

from vllm_specplug.compare.arms import Arm, with_second_baseline
from vllm_specplug.compare.engine import running
from vllm_specplug.compare.levels import Level, LoadPlan, parse_levels, schedule
from vllm_specplug.compare.page import render_page
from vllm_specplug.compare.report_format import read_report, write_report
from vllm_specplug.compare.run import run_compare
from vllm_specplug.compare.settings import CompareSettings
from vllm_specplug.compare.start import engine_arguments
from vllm_specplug.compare.workload import Workload, load_workload

SETTINGS = CompareSettings(
    dtype="float32", max_tokens=6, max_model_len=256, enforce_eager=True, kv_cache_gib=0.1, num_passes=1
)
NUM_PROMPTS, NUM_PASSES = 8, 4
#: Many times a step of the target, on a machine that does much else too: of such a difference there is no doubt.
SLEEP_S = 0.08


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    path = tmp_path_factory.mktemp("load") / "prompts.jsonl"
    lines = [
        {"id": f"p{number}", "category": "ab"[number % 2], "prompt": f"{number}: " + "abc, " * (2 + number)}
        for number in range(NUM_PROMPTS)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return load_workload(path)


@pytest.fixture(scope="module")
def report(tiny_text: str, workload: Workload, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The baseline, itself again, and an arm that sleeps in each step, with 1, 3 and 8 requests at once."""
    sleeping = {"method": "specplug:sleeping.Sleeping", "num_speculative_tokens": 2, "sleep_s": SLEEP_S}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))  # where the engine's process finds it
        found = run_compare(
            tiny_text,
            with_second_baseline([Arm("sleeping", sleeping)]),
            workload,
            SETTINGS,
            load=LoadPlan(parse_levels("concurrency", "1,3,8"), NUM_PASSES),
        )
    path = tmp_path_factory.mktemp("report") / "report.json"
    write_report(found, path)
    return read_report(path)


def test_every_prompt_is_answered_once_a_run_and_as_without_load_v1(report: dict[str, Any]) -> None:
    names = {f"p{number}" for number in range(NUM_PROMPTS)}
    answers = {row["id"]: len(row["output_token_ids"]) for row in report["prompts"]}
    for level in report["load"]["levels"]:
        for arm, rows in level["requests"].items():
            for index in range(NUM_PASSES):
                run = [row for row in rows if row["pass"] == index]
                assert len(run) == NUM_PROMPTS, (level["name"], arm)
                assert {row["id"]: row["output_tokens"] for row in run} == answers
            assert {row["id"] for row in rows} == names
            result = level["results"][arm]
            assert result["requests"] == NUM_PROMPTS * NUM_PASSES
            assert result["output_tokens"] == NUM_PASSES * sum(answers.values())
            assert (result["failed"], result["num_preemptions"]) == (0, 0)
            # Nothing was drafted, so each token took a step.
            assert all(row["num_forwards"] == row["output_tokens"] for row in rows)
        assert all(entry["identical"] == entry["prompts"] == NUM_PROMPTS for entry in level["lossless"].values())


def test_so_many_requests_are_in_flight_and_never_more_v1(report: dict[str, Any]) -> None:
    for level in report["load"]["levels"]:
        for arm, result in level["results"].items():
            assert result["in_flight"]["max"] == level["value"], arm
            assert [run["max_in_flight"] for run in level["runs"][arm]] == [level["value"]] * NUM_PASSES
            assert result["late_ms"]["p99"] == 0.0
    one, _, eight = report["load"]["levels"]
    assert one["results"]["baseline"]["in_flight"]["mean"] == pytest.approx(1.0, abs=0.05)
    # Most of a step is the same sleep, however many requests are in it.
    together, alone = (level["results"]["sleeping"]["output_tokens_per_s"] for level in (eight, one))
    assert together > 3 * alone


@pytest.mark.slow  # measures time: needs a quiet machine
def test_sleeping_arm_is_found_slower_under_each_load_v1(report: dict[str, Any]) -> None:
    for level in report["load"]["levels"]:
        found = {entry["arm"]: entry for entry in level["comparisons"]}
        sleeping, again = found["sleeping"], found["baseline_again"]
        assert sleeping["verdict"] == "slower", level["name"]
        assert sleeping["ratio"] < 0.6
        assert sleeping["throughput"]["ratio"] < 0.6
        assert again["ratio"] > 2 * sleeping["ratio"]
        # A step's sleep is in the time of every further token.
        assert level["results"]["sleeping"]["tpot_ms"]["p50"] >= 1000 * SLEEP_S
    assert report["load"]["advice"]["sleeping"] == {
        "faster_up_to": None,
        "slower_from": 1,
        "unit": "requests at once",
    }


def test_page_of_a_sweep_shows_its_levels_v1(report: dict[str, Any]) -> None:
    page = render_page(report)
    assert "Faster up to which load" in page
    assert "8 · sleeping" in page


def test_open_loop_takes_requests_when_they_come_while_others_run_v1(tiny_text: str, workload: Workload) -> None:
    """At 20 requests a second, on an engine that drafts: none before its time, and steps of others go on meanwhile."""
    arm = Arm("lookup", {"method": LOOKUP, "num_speculative_tokens": 4, "min_confidence": 0.0})
    planned = schedule(Level("request_rate", 20.0), workload.prompts, 1, 0)
    with running([arm]) as (engine,):
        engine.request("start", model=tiny_text, llm_args=engine_arguments(arm, SETTINGS, 1, cpu=True))
        chats = {prompt.id: [{"role": "user", "content": prompt.text}] for prompt in planned.prompts}
        tokens = engine.request("tokenize", chats=chats)
        prompts = [tokens[prompt.id] for prompt in planned.prompts]
        alone = engine.request("generate", prompts=prompts, max_tokens=[30] * NUM_PROMPTS, at_once=1)
        loaded = engine.request(
            "generate", prompts=prompts, max_tokens=[30] * NUM_PROMPTS, arrival_s=list(planned.arrival_s)
        )
    outputs = loaded["outputs"]
    assert [output["token_ids"] for output in outputs] == [output["token_ids"] for output in alone["outputs"]]
    assert [output["arrival_s"] for output in outputs] == pytest.approx(planned.arrival_s)
    for output in outputs:
        assert output["sent_s"] >= output["arrival_s"]
        assert 0 < output["sent_s"] - output["arrival_s"] + 1e-9 <= output["ttft_s"] <= output["e2e_s"]
    assert loaded["seconds"] >= planned.arrival_s[-1]
    assert loaded["seconds"] == pytest.approx(max(output["arrival_s"] + output["e2e_s"] for output in outputs))
    # One at a time, each is sent when the one before is answered.
    ends = [output["sent_s"] + output["e2e_s"] for output in alone["outputs"]]
    assert all(later["sent_s"] >= end for end, (_, later) in zip(ends, pairwise(alone["outputs"]), strict=False))
    assert loaded["counts"]["num_draft_tokens"] > 0
