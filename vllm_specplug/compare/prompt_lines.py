"""Lines of a JSONL file as prompts: their shapes and what is wrong with a malformed one. Reads no file.

Three shapes, told apart by their key, may stand in one file:

    {"prompt": "..."}                                           one user message
    {"messages": [{"role": "user", "content": "..."}, ...]}     a conversation up to its last user message
    {"question_id": 1, "turns": ["...", "..."]}                 as Spec-Bench has it: each turn is a prompt of its own
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from vllm_specplug.compare.prompt import ROLES, Message, Prompt
from vllm_specplug.errors import CompareError

SHAPES = ("prompt", "messages", "turns")
DEFAULT_CATEGORY = "all"

_Row = Mapping[str, Any]


def parse_lines(rows: Iterable[tuple[int, _Row]], file: str) -> list[Prompt]:
    """The prompts of all lines, in order; checked against each other too.

    Args:
        rows: number and object of each line.
        file: how errors name it.
    Raises:
        CompareError: a line is malformed, an id comes twice, or arrival times are missing from some lines or go back;
            file:line is named.
    """
    prompts: list[Prompt] = []
    first_line: dict[str, int] = {}
    before: tuple[int, Prompt] | None = None
    for number, row in rows:
        where = f"{file}:{number}"
        for prompt in _parse(row, where, number):
            if prompt.id in first_line:
                raise CompareError(f"{where}: id {prompt.id!r} was used in line {first_line[prompt.id]} already")
            first_line[prompt.id] = number
            if before is not None:
                _check_arrival(prompt, where, *before)
            before = number, prompt
            prompts.append(prompt)
    return prompts


def _parse(row: _Row, where: str, number: int) -> list[Prompt]:
    shapes = [key for key in SHAPES if key in row]
    if not shapes:
        raise CompareError(f"{where}: key 'prompt' is missing; expected 'prompt', 'messages' or 'turns'")
    if len(shapes) > 1:
        raise CompareError(f"{where}: has both {shapes[0]!r} and {shapes[1]!r}; keep one of them")
    category = _text(row.get("category", DEFAULT_CATEGORY), where, "'category'")
    max_tokens = _max_tokens(row, where)
    if "turns" in row:
        return _turns(row, where, category, max_tokens)
    name = row.get("id", f"line-{number}")
    if not isinstance(name, str) or not name:
        raise CompareError(f"{where}: 'id' must be a text that is not empty, found {reprlib.repr(name)}")
    if "messages" in row:
        messages = _messages(row["messages"], where)
    else:
        messages = [Message("user", _text(row["prompt"], where, "'prompt'"))]
    *before, last = messages
    return [Prompt(name, category, last.content, tuple(before), None, max_tokens, _arrival(row, where))]


def _messages(value: Any, where: str) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise CompareError(f"{where}: 'messages' must be a list that is not empty, found {reprlib.repr(value)}")
    found: list[Message] = []
    for number, message in enumerate(value, start=1):
        if not isinstance(message, dict):
            raise CompareError(f"{where}: message {number} must be an object, found {reprlib.repr(message)}")
        for key in ("role", "content"):
            if key not in message:
                raise CompareError(f"{where}: message {number}: key {key!r} is missing; expected 'role' and 'content'")
        if message["role"] not in ROLES:
            known = ", ".join(ROLES)
            raise CompareError(
                f"{where}: message {number}: 'role' must be one of {known}, found {reprlib.repr(message['role'])}"
            )
        content = _text(message["content"], where, f"message {number}: 'content'")
        found.append(Message(message["role"], content))
    if found[-1].role != "user":
        raise CompareError(
            f"{where}: the last message has the role {found[-1].role!r}, expected 'user': it is what gets answered"
        )
    return found


def _turns(row: _Row, where: str, category: str, max_tokens: int | None) -> list[Prompt]:
    turns = row["turns"]
    if not isinstance(turns, list) or not turns:
        raise CompareError(f"{where}: 'turns' must be a list that is not empty, found {reprlib.repr(turns)}")
    if "question_id" not in row:
        raise CompareError(f"{where}: key 'question_id' is missing; expected 'question_id' beside 'turns'")
    question = row["question_id"]
    if isinstance(question, bool) or not isinstance(question, (int, str)) or question == "":
        raise CompareError(f"{where}: 'question_id' must be a whole number or a text, found {reprlib.repr(question)}")
    if "arrival_s" in row:
        raise CompareError(
            f"{where}: 'arrival_s' beside 'turns', of which a later one cannot arrive before an answer; "
            "write a line with 'messages' for each turn"
        )
    prompts: list[Prompt] = []
    for number, turn in enumerate(turns, start=1):
        text = _text(turn, where, f"turn {number}")
        follows = prompts[-1].id if prompts else None
        prompts.append(Prompt(f"{question}.{number}", category, text, (), follows, max_tokens))
    return prompts


def _text(value: Any, where: str, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise CompareError(f"{where}: {what} must be a text that is not empty, found {reprlib.repr(value)}")
    return value


def _max_tokens(row: _Row, where: str) -> int | None:
    if "max_tokens" not in row:
        return None
    value = row["max_tokens"]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CompareError(f"{where}: 'max_tokens' must be a whole number of 1 or more, found {reprlib.repr(value)}")
    return value


def _arrival(row: _Row, where: str) -> float | None:
    if "arrival_s" not in row:
        return None
    value = row["arrival_s"]
    # The upper end refuses NaN and infinity, which JSON as Python reads it may hold, and whole numbers no float holds.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= sys.float_info.max:
        raise CompareError(f"{where}: 'arrival_s' must be a number of seconds, 0 or more, found {reprlib.repr(value)}")
    return float(value)


def _check_arrival(prompt: Prompt, where: str, line_before: int, before: Prompt) -> None:
    if prompt.arrival_s is None and before.arrival_s is None:
        return
    if prompt.arrival_s is None:
        raise CompareError(f"{where}: 'arrival_s' is missing, but line {line_before} has it; all lines have it or none")
    if before.arrival_s is None:
        raise CompareError(f"{where}: has 'arrival_s', but line {line_before} has none; all lines have it or none")
    if prompt.arrival_s < before.arrival_s:
        raise CompareError(
            f"{where}: 'arrival_s' is {prompt.arrival_s}, less than the {before.arrival_s} of line {line_before}; "
            "sort the lines by it"
        )
