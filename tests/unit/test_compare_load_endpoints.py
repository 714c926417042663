"""Running endpoints under load, over real HTTP: how many requests a server sees at once, and what fails of them."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from endpoint_server import MODEL, Fake, counters, no_proxy, ordinary, serving, two

from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.endpoint import MAX_FAILED_IN_A_ROW, EndpointArm, EndpointSettings
from vllm_specplug.compare.endpoint_address import Endpoint
from vllm_specplug.compare.journal import journal_path, open_journal
from vllm_specplug.compare.levels import LoadPlan, parse_levels
from vllm_specplug.compare.page import render_page
from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.compare.report_format import validate
from vllm_specplug.compare.run import run_and_show, run_compare
from vllm_specplug.compare.settings import CompareSettings
from vllm_specplug.compare.workload import Workload
from vllm_specplug.errors import CompareError

__all__ = ["no_proxy", "two"]  # fixtures

QUICK = EndpointSettings(timeout_s=20)
SETTINGS = CompareSettings(max_tokens=6, num_passes=1)
NUM_PROMPTS = 12
PROMPTS = tuple(
    Prompt(f"p{index}", f"c{index % 2}", f"text {index}", arrival_s=index / 50) for index in range(NUM_PROMPTS)
)
WORKLOAD = Workload("made-up", "0" * 64, PROMPTS)


class Seats:
    """Answers after a while, and counts how many requests are in it."""

    def __init__(self, seconds: float = 0.02) -> None:
        self.lock, self.inside, self.most, self.seconds = threading.Lock(), 0, 0, seconds

    def __call__(self, prompt: list[int], max_tokens: int) -> list[list[int]]:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(self.seconds)
        with self.lock:
            self.inside -= 1
        return ordinary(prompt, max_tokens)


def arms(base: Fake, other: Fake) -> list[Arm]:
    return [Arm(name, endpoint=Endpoint(fake.url, MODEL)) for name, fake in (("base", base), ("other", other))]


def loaded(base: Fake, other: Fake, kind: Any, levels: str, num_passes: int = 2) -> dict[str, Any]:
    report = run_compare(
        None,
        arms(base, other),
        WORKLOAD,
        SETTINGS,
        baseline="base",
        endpoint_settings=QUICK,
        load=LoadPlan(parse_levels(kind, levels), num_passes),
    )
    validate(json.loads(json.dumps(report, allow_nan=False)))
    render_page(report)
    return report


def test_server_sees_as_many_requests_at_once_as_the_level_says(two: tuple[Fake, Fake]) -> None:
    seats = Seats(), Seats()
    for fake, one in zip(two, seats, strict=True):
        fake.chunks = one
    report = loaded(*two, "concurrency", "1,5")
    assert [one.most for one in seats] == [5, 5]
    for level in report["load"]["levels"]:
        for name in ("base", "other"):
            result = level["results"][name]
            assert result["in_flight"]["max"] == level["value"]
            assert (result["requests"], result["failed"]) == (2 * NUM_PROMPTS, 0)
            assert result["output_tokens"] == 2 * NUM_PROMPTS * 6
            assert result["num_preemptions"] is None
            assert level["lossless"][name] == {
                "prompts": NUM_PROMPTS,
                "identical": NUM_PROMPTS,
                "near_ties": 0,
                "different": 0,
            }


def test_replayed_requests_are_sent_at_the_times_of_the_log(two: tuple[Fake, Fake]) -> None:
    report = loaded(*two, "replay", "1,2", num_passes=1)
    for level in report["load"]["levels"]:
        for name in ("base", "other"):
            rows = level["requests"][name]
            assert [row["id"] for row in rows] == [prompt.id for prompt in PROMPTS]
            due = [index / 50 / level["value"] for index in range(NUM_PROMPTS)]
            assert [row["arrival_s"] for row in rows] == pytest.approx(due)
            assert all(row["sent_s"] >= row["arrival_s"] for row in rows)


def test_failures_under_load_are_counted_by_level_and_spoil_no_others(two: tuple[Fake, Fake]) -> None:
    base, other = two
    other.spoilt = [[ord(character) % 100 for character in "u:text 7;"]]
    report = loaded(base, other, "concurrency", "3")
    (level,) = report["load"]["levels"]
    errors = level["results"]["other"]["errors"]
    assert (errors["failed"], errors["requests"], errors["kinds"]) == (2, 2 * NUM_PROMPTS, {"http_500": 2})
    assert errors["prompts_left_out"] == ["p7"]
    assert level["results"]["base"]["failed"] == 0
    (comparison,) = level["comparisons"]
    assert comparison["prompts"] == NUM_PROMPTS - 1
    assert comparison["undecided_reason"] == "other: 2 of 24 requests failed (http_500 2), more than 5 %"


def test_acceptance_under_load_is_that_of_the_runs(two: tuple[Fake, Fake]) -> None:
    """The server counts two drafts a chunk and accepts what came without a chunk of its own: here one token in two."""
    base, other = two
    base.counters, other.counters = counters(speculating=False), counters(speculating=True)
    for fake in two:
        fake.chunks = lambda prompt, max_tokens: [[1, 2], [3], [4, 5], [6]]
    report = loaded(base, other, "concurrency", "4")
    result = report["load"]["levels"][0]["results"]["other"]
    assert (result["num_drafts"], result["num_accepted_tokens"]) == (2 * NUM_PROMPTS * 4, 2 * NUM_PROMPTS * 2)
    assert result["acceptance_rate"] == pytest.approx(0.25)
    assert result["tokens_per_forward"] == pytest.approx(6 / 4)
    assert report["load"]["levels"][0]["results"]["base"]["acceptance_rate"] is None


def test_server_that_is_asked_too_much_is_asked_on_and_a_dead_one_is_not() -> None:
    with serving(Fake()) as fake:
        arm = EndpointArm(Arm("a", endpoint=Endpoint(fake.url, MODEL)), QUICK)
        arm.request("start")
        for fault, last in (("429", "http_429"), ("500", "given_up")):
            fake.always = fault
            many = 2 * MAX_FAILED_IN_A_ROW
            found = arm.request("generate", prompts=[[1]] * many, max_tokens=[2] * many, at_once=2)
            kinds = [output["error"].partition(":")[0] for output in found["outputs"]]
            assert kinds[-1] == last
            assert kinds.count("http_429" if fault == "429" else "given_up") >= MAX_FAILED_IN_A_ROW - 1


def test_interrupted_sweep_of_endpoints_goes_on_and_the_report_says_so(two: tuple[Fake, Fake], tmp_path: Path) -> None:
    base, other = two
    out = tmp_path / "r.json"

    def run() -> dict[str, Any]:
        return run_and_show(
            None,
            arms(base, other),
            WORKLOAD,
            SETTINGS,
            baseline="base",
            out=out,
            keep_journal=True,
            endpoint_settings=QUICK,
            load=LoadPlan(parse_levels("concurrency", "2,4"), 2),
        )

    stop = pytest.MonkeyPatch()
    asked: list[str] = []
    real = EndpointArm.request

    def until(self: EndpointArm, op: str, **args: Any) -> Any:
        if "arrival_s" in args:
            asked.append(self.arm.name)
            if len(asked) == 4:
                raise CompareError("the cable was pulled")
        return real(self, op, **args)

    stop.setattr(EndpointArm, "request", until)
    with pytest.raises(CompareError, match=r"the cable was pulled; blocks kept in .*: 27; the same command goes on"):
        run()
    report = run()
    stop.undo()
    # 12 prompts once on each of two arms, and three runs of eight.
    assert report["provenance"]["resumed"]["blocks"] == 24 + 3
    assert "".join(name[0] for name in asked[:3] + asked[4:]) == "boob" * 2
    assert not journal_path(out).exists()
    assert {len(rows) for level in report["load"]["levels"] for rows in level["requests"].values()} == {24}


def test_another_load_is_another_run(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    path = journal_path(out)
    before = {"settings": {"load": {"kind": "concurrency", "levels": [1, 4], "passes": 4}}}
    path.write_text(
        json.dumps({"schema": "specplug.compare.journal/1", "identity": before, "started_at": "now"}) + "\n"
    )
    with (
        pytest.raises(CompareError, match=r"settings.load.levels is \[1, 4\] there, \[1\] now"),
        open_journal(path, {"settings": {"load": {"kind": "concurrency", "levels": [1], "passes": 4}}}),
    ):
        pass
