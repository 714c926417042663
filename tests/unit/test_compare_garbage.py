"""Endpoints that answer garbage: a failed request of a named kind, or one line; never a traceback, never a number."""

from __future__ import annotations

import json
from typing import Any

import pytest
from endpoint_server import MODEL, Fake, Handler, no_proxy, serving

from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.endpoint import EndpointArm, EndpointSettings
from vllm_specplug.compare.endpoint_address import Endpoint
from vllm_specplug.compare.endpoint_stream import read_answer
from vllm_specplug.errors import CompareError, EndpointError

__all__ = ["no_proxy"]  # a fixture


def chunk(**choice: Any) -> str:
    return json.dumps({"choices": [choice]})


def usage(count: Any) -> str:
    return json.dumps({"choices": [], "usage": {"completion_tokens": count}})


@pytest.mark.parametrize(
    ("events", "kind", "message"),
    [
        ([chunk(text=5, token_ids=[1])], "malformed", "the text of a chunk is no text: "),
        ([chunk(text={"a": 1})], "malformed", "the text of a chunk is no text: "),
        ([chunk(text="a"), usage(-5)], "malformed", "usage says -5 completion_tokens, expected a count"),
        ([chunk(text="a"), usage(10**9)], "malformed", "usage says 1000000000 tokens, at most 4 were asked for"),
        ([chunk(text="a"), usage(True)], "no_count", "the answer has neither token ids nor usage"),
        ([chunk(text="a"), usage(1.5)], "no_count", "the answer has neither token ids nor usage"),
        ([chunk(text="a", token_ids=[10]), usage(0)], "no_tokens", "the answer has no token"),
        (["null"], "malformed", "a chunk is no object: 'null'"),
        (['"x"'], "malformed", "a chunk is no object: "),
        (["{"], "malformed", "a chunk is no JSON: '{'"),
        (['{"choices": {}}'], "malformed", "a chunk has no list of choices: "),
        (['{"error": [1]}'], "server", "[1]"),
    ],
)
def test_stream_of_garbage_is_a_failed_request(events: list[str], kind: str, message: str) -> None:
    with pytest.raises(EndpointError) as caught:
        read_answer([(1.0, event) for event in events], 0.0, True, 4)
    assert caught.value.kind == kind
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("listed", ["5", '"tiny"', "{}", "null", "[5]", "[{}]"])
def test_list_of_models_that_is_none_is_one_line(listed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(self: Handler) -> None:
        self._send(200, f'{{"data": {listed}}}')

    monkeypatch.setattr(Handler, "do_GET", answer)
    with serving(Fake()) as fake:
        arm = EndpointArm(Arm("staging", endpoint=Endpoint(fake.url, MODEL)), EndpointSettings(timeout_s=20))
        with pytest.raises(
            CompareError, match=r"^arm 'staging': .*/v1/models does not list the model 'tiny'; it lists"
        ):
            arm.request("start")
        arm.close()
