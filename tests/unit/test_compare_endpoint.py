"""A running endpoint as an arm, over real HTTP: what it is asked, and what is measured of its answers."""

from __future__ import annotations

from typing import Any

import pytest
from endpoint_cases import one_answer, started
from endpoint_server import Fake, counters, fake, no_proxy, ordinary

from vllm_specplug.compare.measure import UNKNOWN_TOKEN

__all__ = ["fake", "no_proxy"]  # fixtures


def test_prompts_go_as_token_ids_and_answers_come_as_token_ids(fake: Fake) -> None:
    output = one_answer(started(fake), (1, 2))
    assert fake.bodies[0]["prompt"] == [1, 2]
    assert output["token_ids"] == [3, 4, 5, 6]
    assert output["finish_reason"] == "length"
    assert 0 < output["ttft_s"] <= output["e2e_s"]


def test_request_is_greedy_counted_and_finds_no_past_of_its_own(fake: Fake) -> None:
    arm = started(fake)
    one_answer(arm)
    one_answer(arm)
    first, second = fake.bodies
    assert first["temperature"] == 0
    assert first["repetition_penalty"] == 1
    assert first["max_tokens"] == 4
    assert first["stream_options"] == {"include_usage": True}
    assert first["cache_salt"] != second["cache_salt"]


def test_chunk_with_two_tokens_is_one_forward(fake: Fake) -> None:
    fake.chunks = lambda prompt, max_tokens: [[1], [2, 3], [4]]
    output = one_answer(started(fake))
    assert output["token_ids"] == [1, 2, 3, 4]
    assert output["num_forwards"] == 3


@pytest.mark.parametrize("change", [{"version": None}, {"owned_by": "proxy"}])
def test_forwards_are_unknown_where_the_server_is_not_known_to_be_vllm(fake: Fake, change: dict[str, Any]) -> None:
    for name, value in change.items():
        setattr(fake, name, value)
    fake.counters = counters(speculating=True)
    arm = started(fake)
    found = arm.request("generate", prompts=[[1, 2]], max_tokens=[4])
    assert found["outputs"][0]["num_forwards"] is None
    assert found["outputs"][0]["token_ids"] == [3, 4, 5, 6]
    assert found["counts"] is None
    assert "cache_salt" not in fake.bodies[0]


def test_line_separator_in_a_text_does_not_end_an_event(fake: Fake) -> None:
    output = one_answer(started(fake), (48,))
    assert output["token_ids"] == [49, 50, 51, 52]
    assert "\u2028" in output["text"]


def test_prompts_of_a_block_are_answered_at_once_and_stay_in_order(fake: Fake) -> None:
    arm = started(fake)
    found = arm.request("generate", prompts=[[10], [20], [30]], max_tokens=[1, 2, 3])
    assert [output["token_ids"] for output in found["outputs"]] == [[11], [21, 22], [31, 32, 33]]
    assert found["seconds"] == max(output["e2e_s"] for output in found["outputs"])


def test_counts_are_those_of_the_block(fake: Fake) -> None:
    fake.counters = counters(speculating=True)
    fake.chunks = lambda prompt, max_tokens: [[1], [2, 3], [4, 5]]
    found = started(fake).request("generate", prompts=[[1], [2]], max_tokens=[5, 5])
    counts = found["counts"]
    assert (counts["num_drafts"], counts["num_draft_tokens"], counts["num_accepted_tokens"]) == (6, 12, 4)
    assert counts["accepted_per_position"] == [4, 0]
    assert (counts["num_steps"], counts["draft_s"]) == (0, 0.0)


def test_counts_are_null_without_speculation_and_where_others_use_the_server(fake: Fake) -> None:
    fake.counters = counters(speculating=False)
    arm = started(fake)
    assert arm.request("generate", prompts=[[1]], max_tokens=[4])["counts"] is None
    fake.counters = counters(speculating=True)

    def meanwhile(prompt: list[int], max_tokens: int) -> list[list[int]]:
        assert fake.counters is not None
        fake.counters["vllm:generation_tokens_total"] += 9  # somebody else's answer
        return ordinary(prompt, max_tokens)

    fake.chunks = meanwhile
    assert arm.request("generate", prompts=[[1]], max_tokens=[4])["counts"] is None


def test_usage_counts_the_tokens_where_no_ids_are_told(fake: Fake) -> None:
    fake.tells_ids = False
    output = one_answer(started(fake))
    assert output["token_ids"] == [UNKNOWN_TOKEN] * 4
    assert output["num_forwards"] is None


def test_ids_count_the_tokens_where_no_usage_is_told(fake: Fake) -> None:
    fake.tells_usage = False
    assert one_answer(started(fake))["token_ids"] == [3, 4, 5, 6]


def test_server_that_refuses_what_is_not_openais_is_asked_without_it(fake: Fake) -> None:
    fake.strict, fake.owned_by = True, "someone"
    output = one_answer(started(fake))
    assert output["token_ids"] == [UNKNOWN_TOKEN] * 4
    assert "return_token_ids" not in fake.bodies[0]


def test_log_probabilities_are_by_token_id_and_missing_ones_are_none(fake: Fake) -> None:
    arm = started(fake)
    found = arm.request("logprobs", prefixes=[[1, 2]], candidates=[[3, 9]])
    assert found == [{"candidates": [0.0, None], "best": 0.0}]
    fake.chunks = lambda prompt, max_tokens: []
    fake.always = "500"
    assert arm.request("logprobs", prefixes=[[1, 2]], candidates=[[3, 9]])[0]["candidates"] == [None, None]


def test_chat_template_of_the_server_makes_the_tokens_else_the_plain_text(fake: Fake) -> None:
    chats = {"p": [{"role": "user", "content": "ab"}]}
    with_template = started(fake).request("tokenize", chats=chats)
    assert with_template == {"p": [ord(character) % 100 for character in "u:ab;"]}
    fake.has_template = False
    assert started(fake).request("tokenize", chats=chats) == {"p": [ord(character) % 100 for character in "ab"]}
