"""From prompts to tokens: conversations whose later turns wait for the baseline's answers. Without vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from vllm_specplug.compare.prompt import Message, Prompt
from vllm_specplug.compare.prompt_tokens import find_tokens
from vllm_specplug.compare.worker import Worker
from vllm_specplug.errors import CompareError


class Echo:
    """A token is a character. Answers with the last one of the prompt, in capitals, as often as it may."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.limits: list[int] = []

    def request(self, op: str, **args: Any) -> Any:
        return getattr(self, op)(**args)

    def tokenize(self, chats: dict[str, list[dict[str, str]]]) -> dict[str, list[int]]:
        texts = {name: "".join(f"{m['role'][0]}:{m['content']};" for m in chat) for name, chat in chats.items()}
        return {name: [ord(character) for character in text[:-1]] for name, text in texts.items()}

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> dict[str, Any]:
        self.batches.append([read(prompt) for prompt in prompts])
        self.limits += max_tokens
        answers = [[ord(chr(prompt[-1]).upper())] * limit for prompt, limit in zip(prompts, max_tokens, strict=True)]
        return {"outputs": [{"token_ids": answer} for answer in answers]}

    def detokenize(self, answers: list[list[int]]) -> list[str]:
        return [read(answer) for answer in answers]


def read(token_ids: Sequence[int]) -> str:
    return "".join(map(chr, token_ids))


def find(engine: Echo, *prompts: Prompt, max_model_len: int = 100, batch_size: int = 2) -> dict[str, str]:
    found = find_tokens(engine, prompts, 3, max_model_len, batch_size, lambda what, done, total: None)
    return {name: read(token_ids) for name, token_ids in found.items()}


TURNS = (
    Prompt("1.1", "x", "a"),
    Prompt("1.2", "x", "b", follows="1.1"),
    Prompt("1.3", "x", "c", follows="1.2"),
    Prompt("p", "x", "z", before=(Message("system", "s"),)),
    Prompt("2.1", "x", "d", max_tokens=1),
    Prompt("2.2", "x", "e", follows="2.1", max_tokens=1),
)


def test_later_turn_holds_the_turns_before_it_and_the_answers_to_them() -> None:
    found = find(Echo(), *TURNS)
    assert list(found) == ["1.1", "1.2", "1.3", "p", "2.1", "2.2"]
    assert found == {
        "1.1": "u:a",
        "1.2": "u:a;a:AAA;u:b",
        "1.3": "u:a;a:AAA;u:b;a:BBB;u:c",
        "p": "s:s;u:z",
        "2.1": "u:d",
        "2.2": "u:d;a:D;u:e",
    }


def test_only_turns_that_others_follow_are_answered_and_within_their_limits() -> None:
    engine = Echo()
    find(engine, *TURNS)
    assert engine.batches == [["u:a", "u:d"], ["u:a;a:AAA;u:b"]]
    assert engine.limits == [3, 1, 3]
    engine = Echo()
    find(engine, TURNS[0], TURNS[3])
    assert engine.batches == []


def test_turns_are_answered_so_many_at_once() -> None:
    engine, told = Echo(), []
    prompts = [
        prompt
        for name in "abc"
        for prompt in (Prompt(f"{name}.1", "x", name), Prompt(f"{name}.2", "x", "again", follows=f"{name}.1"))
    ]
    find_tokens(engine, prompts, 3, 100, 2, lambda what, done, total: told.append((what, done, total)))
    assert engine.batches == [["u:a", "u:b"], ["u:c"]]
    assert told == [
        ("answering turns that others follow, 0 of 3", 0, 0),
        ("answering turns that others follow, 2 of 3", 0, 0),
    ]


def test_prompt_that_does_not_fit_with_its_own_answer_is_named() -> None:
    long = Prompt("long", "x", "y" * 8)  # 10 tokens, 3 more with the answer
    assert find(Echo(), long, max_model_len=13)
    with pytest.raises(CompareError) as caught:
        find(Echo(), Prompt("short", "x", "y"), long, max_model_len=12)
    assert str(caught.value) == (
        "prompt 'long' has 10 tokens; with 3 output tokens it does not fit into a model length of 12: "
        "lower --max-tokens, raise --max-model-len or leave it out"
    )
    with pytest.raises(CompareError, match=r"'short' has 3 tokens; with 20 output tokens .*: lower its 'max_tokens'"):
        find(Echo(), Prompt("short", "x", "y", max_tokens=20), long, max_model_len=20)


def test_turn_that_grew_too_long_is_named_before_it_is_answered() -> None:
    engine = Echo()
    with pytest.raises(CompareError, match=r"prompt '1\.2' has 13 tokens"):
        find(engine, *TURNS, max_model_len=15)
    assert engine.batches == [["u:a", "u:d"]]


class Tokenizer:
    """A token is a character; refuses system messages as some templates do."""

    def __init__(self, chat_template: str | None) -> None:
        self.chat_template = chat_template

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return read(token_ids)

    def apply_chat_template(self, messages: list[dict[str, str]], **options: bool) -> list[int]:
        assert options == {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
        if messages[0]["role"] == "system":
            raise ValueError("no system messages")
        return self.encode("".join(f"<{message['role']}>{message['content']}" for message in messages) + "<assistant>")


def worker(chat_template: str | None) -> Worker:
    made = Worker()
    made.llm = SimpleNamespace(get_tokenizer=lambda: Tokenizer(chat_template))
    return made


CHAT = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))]


@pytest.mark.parametrize(
    ("template", "expected"), [("yes", "<user>a<assistant>b<user>c<assistant>"), (None, "a\n\nb\n\nc")]
)
def test_conversation_ends_where_its_answer_begins(template: str | None, expected: str) -> None:
    assert worker(template).tokenize({"p": CHAT}) == {"p": [ord(character) for character in expected]}


def test_prompt_that_the_template_refuses_is_named() -> None:
    with pytest.raises(CompareError) as caught:
        worker("yes").tokenize({"fine": CHAT, "bad": [{"role": "system", "content": "x"}, *CHAT]})
    assert str(caught.value) == (
        "prompt 'bad' is refused by the model's tokenizer or chat template (ValueError: no system messages); "
        "change its messages or leave it out"
    )


def test_answer_is_read_without_special_tokens() -> None:
    assert worker("yes").detokenize([[ord("h"), ord("i")], []]) == ["hi", ""]
