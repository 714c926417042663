"""Requests that fail while an endpoint is measured: counted by kind, and kept out of what is compared."""

from __future__ import annotations

import pytest
from endpoint_cases import QUICK, SETTINGS, arm_of, compared, one_answer, spoil, started
from endpoint_server import MODEL, Fake, fake, no_proxy, ordinary, serving, two

from vllm_specplug.compare.endpoint import MAX_FAILED_IN_A_ROW
from vllm_specplug.compare.endpoint_address import Endpoint
from vllm_specplug.compare.endpoint_http import Http
from vllm_specplug.compare.notes import notes
from vllm_specplug.compare.page import render_page
from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.compare.report_format import validate
from vllm_specplug.compare.run import run_compare
from vllm_specplug.compare.workload import Workload
from vllm_specplug.errors import CompareError, EndpointError

__all__ = ["fake", "no_proxy", "two"]  # fixtures


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("500", "http_500"),
        ("429", "http_429"),
        ("cut", "stopped"),
        ("ends early", "stopped"),
        ("broken", "malformed"),
        ("error", "server"),
        ("wrong count", "malformed"),
    ],
)
def test_failed_request_is_an_error_of_its_kind_and_the_next_is_answered(fake: Fake, fault: str, kind: str) -> None:
    arm = started(fake)
    fake.faults = [fault]
    output = one_answer(arm)
    assert output["error"].partition(":")[0] == kind
    assert output["token_ids"] == []
    assert one_answer(arm)["token_ids"] == [3, 4, 5, 6]


@pytest.mark.parametrize("fault", ["slow", "silent"])
def test_no_token_for_too_long_is_a_timeout_whatever_else_comes(fake: Fake, fault: str) -> None:
    fake.always = fault
    http = Http(Endpoint(fake.url, MODEL), timeout_s=0.2)
    with pytest.raises(EndpointError, match="--timeout-s") as caught:
        list(http.stream(f"{fake.url}/completions", {"prompt": [1], "max_tokens": 4, "stream": True}))
    assert caught.value.kind == "timeout"


def test_server_that_went_away_is_an_error_of_the_request() -> None:
    with serving(Fake()) as fake:
        arm = started(fake)
    assert one_answer(arm)["error"].partition(":")[0] in ("refused", "stopped")
    assert one_answer(arm)["error"].startswith("refused:")


def test_answer_without_a_token_is_an_error(fake: Fake) -> None:
    arm = started(fake)
    fake.chunks = lambda prompt, max_tokens: [[]]
    assert one_answer(arm)["error"].startswith("no_tokens:")


def test_dead_endpoint_is_not_asked_forever(fake: Fake) -> None:
    arm = started(fake)
    fake.always = "500"
    kinds = [one_answer(arm)["error"].partition(":")[0] for _ in range(MAX_FAILED_IN_A_ROW + 2)]
    assert kinds == ["http_500"] * MAX_FAILED_IN_A_ROW + ["given_up"] * 2
    assert len(fake.bodies) == MAX_FAILED_IN_A_ROW


def test_failed_prompt_is_left_out_of_both_arms_and_said(two: tuple[Fake, Fake]) -> None:
    base, other = two
    spoil(other, "text 12")
    report = compared(base, other, num_prompts=22)
    errors = report["results"]["other"]["errors"]
    assert errors["kinds"] == {"http_500": 2}
    assert (errors["requests"], errors["failed"], errors["prompts_left_out"]) == (44, 2, ["p12"])
    assert report["results"]["other"]["overall"]["prompts"] == 21
    assert report["results"]["base"]["overall"]["prompts"] == 22
    assert report["comparisons"][0]["prompts"] == 21
    assert report["comparisons"][0]["undecided_reason"] is None
    assert report["lossless"]["other"]["prompts"] == report["lossless"]["other"]["identical"] == 21
    said = [line for line in notes(report) if line.startswith("other: 2 of 44 requests failed (http_500 2)")]
    assert "without 1 prompts. The first: http_500: " in said[0]


def test_failed_request_spoils_the_time_of_its_whole_block(two: tuple[Fake, Fake]) -> None:
    base, other = two
    spoil(other, "text 12")
    report = compared(base, other, num_prompts=22, batch_size=2)
    assert report["results"]["other"]["errors"]["prompts_left_out"] == ["p12", "p14"]
    assert report["comparisons"][0]["prompts"] == 20


@pytest.mark.parametrize("culprit", ["base", "other"])
def test_arm_with_over_five_per_cent_of_errors_gets_no_verdict(two: tuple[Fake, Fake], culprit: str) -> None:
    base, other = two
    spoil(base if culprit == "base" else other, "text 11", "text 12", "text 13")
    report = compared(base, other, num_prompts=22)
    comparison = report["comparisons"][0]
    assert comparison["verdict"] == "undecided"
    assert {part["verdict"] for part in comparison["categories"].values()} == {"undecided"}
    reason = f"{culprit}: 6 of 44 requests failed (http_500 6), more than 5 %"
    assert comparison["undecided_reason"] == reason
    assert f"other: undecided, because of {reason}." in notes(report)


def test_category_without_an_answer_is_missing_and_not_zero(two: tuple[Fake, Fake]) -> None:
    base, other = two
    spoil(other, "text 12")
    prompts = [Prompt(f"p{index}", "rare" if index == 12 else "c", f"text {index}") for index in range(16)]
    report = run_compare(
        None,
        [arm_of(base, "base"), arm_of(other, "other")],
        Workload("made-up", "0" * 64, tuple(prompts)),
        SETTINGS,
        baseline="base",
        endpoint_settings=QUICK,
    )
    validate(report)
    assert list(report["results"]["other"]["categories"]) == ["c"]
    assert list(report["comparisons"][0]["categories"]) == ["c"]
    render_page(report)


def test_nothing_left_to_compare_is_an_error(two: tuple[Fake, Fake]) -> None:
    base, other = two
    # The shortest and the longest one warm up; from the first that is measured on all fail.
    texts = ("middle", "short", "the longest")
    dies_at = [ord(character) % 100 for character in "u:middle;"]

    def dying(prompt: list[int], max_tokens: int) -> list[list[int]]:
        other.always = "500" if prompt == dies_at else other.always
        return [[]] if prompt == dies_at else ordinary(prompt, max_tokens)

    other.chunks = dying
    arms = [arm_of(base, "base"), arm_of(other, "other")]
    shared = Workload("made-up", "0" * 64, tuple(Prompt(text, "c", text) for text in texts))
    with pytest.raises(CompareError, match=r"arm 'other': 6 of 6 requests failed .* no prompt is left") as caught:
        run_compare(None, arms, shared, SETTINGS, baseline="base", endpoint_settings=QUICK)
    assert "no_tokens 1, http_500 5" in str(caught.value)
