"""What is read of an arm's stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy import sse


class Model:
    """As pydantic's models, which Ray's arms may send."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.usage = Usage(fields["usage"]) if "usage" in fields else None

    def model_dump_json(self) -> str:
        return json.dumps(self.fields)


class Usage:
    def __init__(self, fields: dict[str, int]) -> None:
        self.fields = fields

    def model_dump(self) -> dict[str, int]:
        return self.fields


def event(fields: dict[str, Any]) -> str:
    return f"data: {json.dumps(fields, separators=(',', ':'))}\n\n"


USAGE = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
LAST = {"id": "x", "choices": [], "usage": USAGE, "system_fingerprint": "fp"}


@pytest.mark.parametrize("item", [event({"a": 1}), [event({"a": 1})], {"a": 1}, [{"a": 1}], [Model({"a": 1})]])
def test_item_of_any_kind_is_the_same_event(item: Any) -> None:
    assert [json.loads(text.removeprefix("data: ")) for text in sse.events(item)] == [{"a": 1}]
    assert all(text.endswith("\n\n") for text in sse.events(item))


def test_usage_is_found_in_the_event_without_choices_alone() -> None:
    assert sse.usage_of(event(LAST)) == LAST
    assert sse.usage_of(event({"choices": [{"text": "x"}], "usage": USAGE})) is None
    assert sse.usage_of(event({"choices": []})) is None
    assert sse.usage_of("data: [DONE]\n\n") is None


@given(st.text())
def test_no_text_is_taken_for_usage_an_end_or_an_error(text: str) -> None:
    chunk = event({"choices": [{"delta": {"content": text + '"choices":[]"finish_reason":"' + text}}]})
    assert sse.usage_of(chunk) is None
    assert sse.error_of(chunk) is None
    assert sse.with_fingerprint(chunk, "fp") == chunk


@pytest.mark.parametrize(
    "item",
    [
        {"error": {"code": 400}},
        [{"error": {"code": 400}}],
        event({"error": {"code": 400}}),
        [event({"error": {"code": 400}})],
        'data: {"error": {"code": 400}}\n\n',
    ],
)
def test_errors_of_any_kind_are_found(item: Any) -> None:
    assert sse.error_of(item) == {"code": 400}


@pytest.mark.parametrize("item", [event({"choices": []}), {"choices": []}, [], ["data: [DONE]\n\n"], Model({})])
def test_other_items_are_no_errors(item: Any) -> None:
    assert sse.error_of(item) is None


def test_fingerprint_goes_into_the_event_that_ends_a_choice() -> None:
    ends = {"id": "x", "choices": [{"text": "a", "finish_reason": "stop"}]}
    goes_on = {"id": "x", "choices": [{"text": "a", "finish_reason": None}]}
    found = json.loads(sse.with_fingerprint(event(ends), 'f"p').removeprefix("data: "))
    assert found == ends | {"system_fingerprint": 'f"p'}
    assert sse.with_fingerprint(event(goes_on), "fp") == event(goes_on)
    has_one = event(ends | {"system_fingerprint": "own"})
    assert sse.with_fingerprint(has_one, "fp") == has_one


@pytest.mark.parametrize("item", [{"usage": USAGE}, Model({"usage": USAGE})])
def test_usage_of_an_answer_that_is_not_streamed(item: Any) -> None:
    assert sse.usage_of_object(item) == USAGE
    assert json.loads(sse.json_of(item)) == {"usage": USAGE}
    assert sse.usage_of_object({}) == {}
