"""Shapes of a line: one user message, a conversation, turns as in Spec-Bench's question.jsonl."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from vllm_specplug.compare.prompt import Message, Prompt
from vllm_specplug.compare.workload import load_workload
from vllm_specplug.errors import CompareError

USER = {"role": "user", "content": "Why?"}
SYSTEM = {"role": "system", "content": "Be brief."}
ASSISTANT = {"role": "assistant", "content": "Because."}


def prompts(tmp_path: Path, *rows: Mapping[str, Any]) -> tuple[Prompt, ...]:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_workload(path).prompts


def test_all_but_the_prompt_may_be_left_out(tmp_path: Path) -> None:
    assert prompts(tmp_path, {"prompt": "Why?"}) == (Prompt("line-1", "all", "Why?"),)


def test_limit_of_a_prompt_is_kept_and_unknown_keys_are_ignored(tmp_path: Path) -> None:
    row = {"prompt": "Why?", "id": "a", "category": "c", "max_tokens": 3, "note": [1], "reference": ["x"]}
    (prompt,) = prompts(tmp_path, row)
    assert prompt == Prompt("a", "c", "Why?", max_tokens=3)
    assert (prompt.output_limit(8), Prompt("b", "c", "Why?").output_limit(8)) == (3, 8)


def test_messages_are_kept_in_order_and_the_last_one_is_answered(tmp_path: Path) -> None:
    (prompt,) = prompts(tmp_path, {"messages": [SYSTEM, USER, ASSISTANT, {**USER, "content": "Sure?", "name": "x"}]})
    before = (Message("system", "Be brief."), Message("user", "Why?"), Message("assistant", "Because."))
    assert prompt == Prompt("line-1", "all", "Sure?", before)
    assert prompt.messages() == (*before, Message("user", "Sure?"))


def test_each_turn_is_a_prompt_that_follows_the_one_before(tmp_path: Path) -> None:
    found = prompts(
        tmp_path,
        {"question_id": 7, "category": "stem", "turns": ["Why?", "Sure?", "Really?"], "max_tokens": 3},
        {"question_id": "q", "turns": ["Who?"]},
    )
    assert found == (
        Prompt("7.1", "stem", "Why?", max_tokens=3),
        Prompt("7.2", "stem", "Sure?", follows="7.1", max_tokens=3),
        Prompt("7.3", "stem", "Really?", follows="7.2", max_tokens=3),
        Prompt("q.1", "all", "Who?"),
    )


def test_limit_never_keeps_a_turn_without_the_one_it_follows(tmp_path: Path) -> None:
    rows = [{"question_id": number, "category": "abc"[number % 3], "turns": ["a", "b"]} for number in range(9)]
    prompts(tmp_path, *rows)
    for limit in range(1, 7):
        kept = load_workload(tmp_path / "p.jsonl", limit=limit).prompts
        ids = [prompt.id for prompt in kept]
        assert len(kept) == 3 * limit
        assert all(prompt.follows is None or prompt.follows in ids[: ids.index(prompt.id)] for prompt in kept)


def test_one_file_may_hold_all_shapes(tmp_path: Path) -> None:
    rows: Sequence[Mapping[str, Any]] = [
        {"prompt": "a"},
        {"messages": [SYSTEM, USER]},
        {"question_id": 1, "turns": ["b", "c"]},
    ]
    assert [prompt.id for prompt in prompts(tmp_path, *rows)] == ["line-1", "line-2", "1.1", "1.2"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "x", "turns": ["x"]}, "has both 'prompt' and 'turns'; keep one of them"),
        ({"prompt": "x", "messages": [USER]}, "has both 'prompt' and 'messages'; keep one of them"),
        ({"prompt": " \n"}, r"'prompt' must be a text that is not empty, found ' \n'"),
        ({"prompt": "x", "category": 3}, "'category' must be a text that is not empty, found 3"),
        ({"prompt": "x", "max_tokens": 0}, "'max_tokens' must be a whole number of 1 or more, found 0"),
        ({"prompt": "x", "max_tokens": True}, "'max_tokens' must be a whole number of 1 or more, found True"),
        ({"prompt": "x", "max_tokens": 2.0}, "'max_tokens' must be a whole number of 1 or more, found 2.0"),
        ({"messages": []}, "'messages' must be a list that is not empty, found []"),
        ({"messages": "Why?"}, "'messages' must be a list that is not empty, found 'Why?'"),
        ({"messages": ["Why?"]}, "message 1 must be an object, found 'Why?'"),
        ({"messages": [USER, {"role": "user"}]}, "message 2: key 'content' is missing; expected 'role' and 'content'"),
        ({"messages": [{"content": "x"}]}, "message 1: key 'role' is missing; expected 'role' and 'content'"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "message 1: 'role' must be one of system, user, assistant, found 'tool'",
        ),
        (
            {"messages": [{"role": ["user"], "content": "x"}]},
            "message 1: 'role' must be one of system, user, assistant, found ['user']",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "message 1: 'content' must be a text that is not empty, found [{'type': 'text'}]",
        ),
        (
            {"messages": [USER, ASSISTANT]},
            "the last message has the role 'assistant', expected 'user': it is what gets answered",
        ),
        ({"question_id": 1, "turns": []}, "'turns' must be a list that is not empty, found []"),
        ({"question_id": 1, "turns": "x"}, "'turns' must be a list that is not empty, found 'x'"),
        ({"question_id": 1, "turns": ["x", ""]}, "turn 2 must be a text that is not empty, found ''"),
        ({"question_id": 1, "turns": ["x", 5]}, "turn 2 must be a text that is not empty, found 5"),
        ({"turns": ["x"]}, "key 'question_id' is missing; expected 'question_id' beside 'turns'"),
        ({"question_id": None, "turns": ["x"]}, "'question_id' must be a whole number or a text, found None"),
        ({"question_id": 1.5, "turns": ["x"]}, "'question_id' must be a whole number or a text, found 1.5"),
        ({"question_id": 0, "turns": ["x"]}, "id '0.1' was used in line 1 already"),
        (
            {"question_id": 1, "turns": ["x"], "arrival_s": 0},
            "'arrival_s' beside 'turns', of which a later one cannot arrive before an answer; write a line with "
            "'messages' for each turn",
        ),
    ],
)
def test_malformed_line_is_named(tmp_path: Path, row: Mapping[str, Any], message: str) -> None:
    with pytest.raises(CompareError) as caught:
        prompts(tmp_path, {"question_id": 0, "turns": ["first"]}, row)
    assert str(caught.value) == f"{tmp_path / 'p.jsonl'}:2: {message}"


def test_error_never_repeats_a_whole_text(tmp_path: Path) -> None:
    with pytest.raises(CompareError) as caught:
        prompts(tmp_path, {"prompt": ["long " * 10_000]})
    assert len(str(caught.value)) < 300
