"""A real server: separate front-end, engine and worker processes, over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import SCRIPTED, MakeEngine
from models import CHARACTERS
from servers import serving
from vllm import SamplingParams

PROMPT = "abcabcabc"
NUM_TOKENS = 40


@dataclass
class Server:
    """A running `specplug serve`."""

    port: int
    model: str
    log: Path

    def post(self, **body: Any) -> tuple[int, dict[str, Any]]:
        """POST to /v1/completions: status and answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps({"model": self.model, "temperature": 0, **body}).encode(),
            {"content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def metrics(self) -> dict[str, float]:
        """Metric with labels -> value."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}


@pytest.fixture(scope="module")
def answer(make_engine: MakeEngine, tiny_text: str) -> list[int]:
    """What the target says to PROMPT without speculation, past any end of text."""
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    return make_engine(None, tiny_text).tokens([[CHARACTERS.index(c) for c in PROMPT]], params)[0]


@pytest.fixture(scope="module")
def server(tiny_text: str, answer: list[int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves with a proposer that knows the answer, spoils some of it, and every third step returns rubbish."""
    script = [[[CHARACTERS.index(character) for character in PROMPT], answer]]
    speculative = {
        "method": SCRIPTED,
        "num_speculative_tokens": 4,
        "script": script,
        "wrong_every": 5,
        "fault": "out_of_vocabulary",
        "fault_every": 3,
    }
    log = tmp_path_factory.mktemp("server") / "log"
    with serving(tiny_text, log, speculative) as port:
        yield Server(port, tiny_text, log)


def test_served_text_is_the_targets_own_and_counters_reach_metrics(server: Server, answer: list[int]) -> None:
    before = server.metrics()
    status, body = server.post(prompt=PROMPT, max_tokens=NUM_TOKENS, ignore_eos=True, return_token_ids=True)
    assert status == 200, body
    assert body["choices"][0]["token_ids"] == answer
    after = server.metrics()
    label = '{proposer="vllm_specplug.testing.Scripted"}'
    new = {name: value - before.get(name, 0) for name, value in after.items()}
    dropped = 'specplug_drafts_dropped_total{proposer="vllm_specplug.testing.Scripted",reason="bad_id"}'
    assert new[dropped] >= 3
    assert new[f"specplug_propose_steps_total{label}"] >= 10
    accepted = next(value for name, value in new.items() if name.startswith("vllm:spec_decode_num_accepted_tokens_tot"))
    drafted = next(value for name, value in new.items() if name.startswith("vllm:spec_decode_num_draft_tokens_total"))
    assert accepted >= 10
    assert drafted - accepted >= 5
    assert new[f"specplug_draft_tokens_total{label}"] == drafted


def test_what_was_dropped_is_logged_once(server: Server) -> None:
    for _ in range(2):
        server.post(prompt=PROMPT, max_tokens=NUM_TOKENS, ignore_eos=True)
    lines = [line for line in server.log.read_text().splitlines() if "drafts were dropped from there on" in line]
    assert len(lines) == 1
    assert "returned token 128" in lines[0]
    assert "expected 0 to 127" in lines[0]


def test_request_limit_switches_speculation_off_for_one_request(server: Server, answer: list[int]) -> None:
    before = server.metrics()
    status, body = server.post(
        prompt=PROMPT,
        max_tokens=NUM_TOKENS,
        ignore_eos=True,
        return_token_ids=True,
        vllm_xargs={"specplug_max_drafts": 0},
    )
    assert status == 200, body
    assert body["choices"][0]["token_ids"] == answer
    name = 'specplug_draft_tokens_total{proposer="vllm_specplug.testing.Scripted"}'
    assert server.metrics()[name] == before[name]


@pytest.mark.parametrize("value", [-1, 2.5, "many", [1]], ids=str)
def test_bad_request_limit_is_a_clear_400(server: Server, value: Any) -> None:
    status, body = server.post(prompt=PROMPT, max_tokens=4, vllm_xargs={"specplug_max_drafts": value})
    assert status == 400, body
    assert "specplug_max_drafts is" in body["error"]["message"]
    assert "expected a whole number of 0 or more" in body["error"]["message"]


def test_unknown_request_option_is_a_clear_400(server: Server) -> None:
    status, body = server.post(prompt=PROMPT, max_tokens=4, vllm_xargs={"specplug_max_draft": 1})
    assert status == 400, body
    assert "unknown request option 'specplug_max_draft'" in body["error"]["message"]


@pytest.mark.parametrize("parameter", [{"min_p": 0.1}, {"logit_bias": {"5": 1.0}}], ids=["min_p", "logit_bias"])
def test_what_vllm_cannot_verify_is_a_clear_400(server: Server, parameter: dict[str, Any]) -> None:
    """vLLM refuses these with any speculation; they must not be served wrong."""
    status, body = server.post(prompt=PROMPT, max_tokens=4, **{"temperature": 1, **parameter})
    assert status == 400, body
    assert "not yet supported with speculative decoding" in body["error"]["message"]
