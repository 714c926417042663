"""`compare` against real servers: two `specplug serve`, one of them drafting, mixed with an engine of our own."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

import pytest
from conftest import LOOKUP
from servers import serving

from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.endpoint_address import Endpoint
from vllm_specplug.compare.levels import LoadPlan, parse_levels
from vllm_specplug.compare.report_format import read_report, write_report
from vllm_specplug.compare.run import CompareSettings, run_compare
from vllm_specplug.compare.workload import load_workload

SETTINGS = CompareSettings(dtype="float32", max_tokens=48, max_model_len=256, enforce_eager=True, kv_cache_gib=0.1)
DRAFTING = {"method": LOOKUP, "num_speculative_tokens": 4, "min_confidence": 0.0}


@pytest.fixture(scope="module")
def report(tiny_text: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """An offline baseline, an offline arm that drafts, a plain server and one that drafts the same."""
    folder = tmp_path_factory.mktemp("endpoints")
    lines = [
        {"category": category, "prompt": f"{category} {number}: " + "abc, " * (4 + number)}
        for category in ("first", "second")
        for number in range(4)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with ExitStack() as stack:
        plain, drafting = (
            stack.enter_context(serving(tiny_text, folder / f"{name}.log", config, "--served-model-name", "tiny"))
            for name, config in (("plain", None), ("drafting", DRAFTING))
        )
        arms = [
            Arm("offline", DRAFTING),
            Arm("plain", endpoint=Endpoint(f"http://127.0.0.1:{plain}/v1", "tiny")),
            Arm("served", endpoint=Endpoint(f"http://127.0.0.1:{drafting}/v1", "tiny")),
        ]
        load = LoadPlan(parse_levels("concurrency", "1,4"), num_passes=2)
        report = run_compare(tiny_text, arms, load_workload(folder / "prompts.jsonl"), SETTINGS, load=load)
    write_report(report, folder / "report.json")
    return read_report(folder / "report.json")


@pytest.mark.slow
def test_served_answers_are_those_of_an_engine_of_our_own_v1(report: dict[str, Any]) -> None:
    for name in ("offline", "plain", "served"):
        entry = report["lossless"][name]
        assert [entry[key] for key in ("prompts", "identical", "near_ties", "different")] == [8, 8, 0, 0], name
    assert all(report["results"][name]["errors"]["failed"] == 0 for name in ("plain", "served"))


@pytest.mark.slow
def test_served_arm_drafts_as_the_same_arm_offline_v1(report: dict[str, Any]) -> None:
    served, offline = (report["results"][name]["overall"] for name in ("served", "offline"))
    assert served["num_accepted_tokens"] >= 20
    assert served["num_draft_tokens"] - served["num_accepted_tokens"] >= 20
    # Greedy and alone, so it drafts the same; the server's front-end may put two steps of a fast engine into one chunk.
    for key in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert served[key] == offline[key], key
    assert served["tokens_per_forward"] >= offline["tokens_per_forward"] > 1


@pytest.mark.slow
def test_served_arm_without_drafts_has_null_v1(report: dict[str, Any]) -> None:
    plain = report["results"]["plain"]["overall"]
    assert plain["acceptance_rate"] is None
    assert plain["num_drafts"] is None


@pytest.mark.slow
def test_under_load_a_server_answers_and_drafts_as_an_engine_of_our_own_v1(report: dict[str, Any]) -> None:
    for level in report["load"]["levels"]:
        served, offline = (level["results"][name] for name in ("served", "offline"))
        for name, result in level["results"].items():
            assert (result["requests"], result["failed"]) == (16, 0), name
            assert result["output_tokens"] == level["results"]["baseline"]["output_tokens"]
            assert result["in_flight"]["max"] == level["value"]
            assert level["lossless"][name]["identical"] == level["lossless"][name]["prompts"] == 8
        # What is drafted for a request does not depend on those beside it; there are two passes with load and without.
        for key in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
            assert served[key] == offline[key] == report["results"]["offline"]["overall"][key], key
