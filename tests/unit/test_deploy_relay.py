"""The passing on of a stream, with an arm and a client in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from deploy.arm import Answer, Arm
from deploy.meters import Meters
from deploy.record import Record, Subject
from deploy.relay import Relay
from deploy.router_settings import Limits

DONE = "data: [DONE]\n\n"
USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


def event(text: str | None, finish: str | None = None) -> str:
    fields: dict[str, Any] = {"id": "x", "choices": [{"text": text, "finish_reason": finish}]}
    if text is None:
        fields = {"id": "x", "choices": [], "usage": USAGE, "system_fingerprint": "fp"}
    return f"data: {json.dumps(fields, separators=(',', ':'))}\n\n"


class Handle:
    def options(self, **options: Any) -> Handle:
        return self


class Items:
    """As Serve's response to a call, with the rest of an answer."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = iter(items)
        self.is_cancelled = False

    async def __anext__(self) -> Any:
        await asyncio.sleep(0)
        item = next(self._items, None)
        if item is None:
            raise StopAsyncIteration
        return item

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    def cancel(self) -> None:
        self.is_cancelled = True


class Case:
    """One stream; the client goes away when it has got `num_parts` of it."""

    def __init__(self, items: Sequence[Any], num_parts: int = 1000, has_usage: bool = False) -> None:
        self.items = items
        self.num_parts = num_parts
        self.has_usage = has_usage
        self.parts: list[str] = []
        self.outcomes: list[dict[str, Any]] = []

    def write(self, line: Mapping[str, Any]) -> None:
        if line["event"] == "outcome":
            self.outcomes.append(dict(line))

    async def run(self, fingerprint: str | None = None) -> None:
        meters = Meters("a")
        handle: Any = Handle()
        arm = Arm("a", "m--a", handle, Limits(), meters)
        arm.fingerprint = fingerprint
        record = Record(Subject("id", "m", "chat", True, None, "r"), self, meters)
        record.exposed("a", "weight", {"a": 1.0})
        self.rest = Items(self.items[1:])
        answer = Answer(arm, self.rest, arm.health.began())
        answer.first = self.items[0]
        relay = Relay(arm, answer, record, {}, 1.0, self.has_usage)

        async def send(message: Any) -> None:
            if len(self.parts) >= self.num_parts:
                raise OSError("the client is gone")
            if message["type"] == "http.response.body" and message["body"]:
                self.parts.append(message["body"].decode())

        async def receive() -> Any:
            await asyncio.sleep(60)

        await relay({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
        assert meters.of("a")["in_flight"] == 0
        self.fingerprint = arm.fingerprint


def run(case: Case, fingerprint: str | None = None) -> None:
    asyncio.run(case.run(fingerprint))


def test_stream_is_passed_on_chunk_by_chunk_without_the_counts_nobody_asked_for() -> None:
    case = Case([event("a"), [event("b", "stop")], event(None), DONE])
    run(case)
    assert case.parts == [event("a"), event("b", "stop"), DONE]
    assert not case.rest.is_cancelled
    (outcome,) = case.outcomes
    assert (outcome["status"], outcome["error"], outcome["num_output_tokens"]) == (200, None, 2)
    assert case.fingerprint == "fp"


def test_client_that_asked_for_counts_gets_them() -> None:
    case = Case([event("a", "stop"), event(None), DONE], has_usage=True)
    run(case, "fp")
    assert case.parts == [event("a", "stop"), event(None), DONE]  # and no fingerprint of ours


def test_fingerprint_that_is_known_goes_back_to_its_place() -> None:
    case = Case([event("a"), event("b", "stop"), event(None), DONE])
    run(case, "fp")
    assert case.parts[0] == event("a")
    assert json.loads(case.parts[1].removeprefix("data: "))["system_fingerprint"] == "fp"


def test_events_that_a_replica_put_together_stay_one_chunk() -> None:
    case = Case([[event("a"), event("b", "stop"), event(None), DONE]])
    run(case)
    assert case.parts == [event("a") + event("b", "stop") + DONE]


def test_stream_without_an_end_gets_one() -> None:
    case = Case([event("a")])
    run(case)
    assert case.parts == [event("a"), DONE]
    assert case.outcomes[0]["status"] == 200


def test_error_of_the_engine_is_the_outcome() -> None:
    error = 'data: {"error": {"message": "why", "type": "T", "code": 500}}\n\n'
    case = Case([event("a"), error, DONE])
    run(case)
    assert case.parts == [event("a"), error, DONE]
    assert [(one["status"], one["error"]) for one in case.outcomes] == [(500, "http_500")]


@pytest.mark.parametrize("num_parts", [0, 1, 2])
def test_client_that_leaves_between_two_chunks_ends_the_request_at_the_arm(num_parts: int) -> None:
    case = Case([event("a"), event("b"), event("c"), DONE], num_parts)
    with pytest.raises(ClientDisconnect):
        run(case)
    assert [(one["status"], one["error"]) for one in case.outcomes] == [(499, "cancelled")]
    assert case.rest.is_cancelled


def test_client_that_leaves_at_the_end_was_answered() -> None:
    """OpenAI's client closes the connection when it has read [DONE]."""
    case = Case([event("a", "stop"), DONE, "data: never\n\n"], num_parts=2)
    with pytest.raises(ClientDisconnect):
        run(case)
    assert [(one["status"], one["error"]) for one in case.outcomes] == [(200, None)]
