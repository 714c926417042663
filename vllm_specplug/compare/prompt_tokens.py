"""The tokens of every prompt, found before anything is measured: chat template, answers to earlier turns, lengths.

Knows the protocol of `worker`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest

from vllm_specplug.compare.measure import Engine
from vllm_specplug.compare.prompt import Message, Prompt
from vllm_specplug.errors import CompareError
from vllm_specplug.progress import Progress

NUM_CHECKED = 4
"""Prompts that `check_same_tokens` looks at: the shortest and the longest ones."""


def find_tokens(
    engine: Engine,
    prompts: Sequence[Prompt],
    max_tokens: int,
    max_model_len: int,
    batch_size: int,
    progress: Progress,
) -> dict[str, list[int]]:
    """Token ids of each prompt in the chat template of the engine's model.

    A later turn of a conversation holds the turns before it and what `engine`, that of the baseline, answers to them:
    all arms get the same prompt, also where one would have answered otherwise. These answers are given here, once and
    greedily, and are not measured.

    Args:
        prompts: a turn comes after the one it follows.
        max_tokens: output tokens of an answer at most, where the prompt has no limit of its own.
        max_model_len: shortest of all arms, in tokens.
        batch_size: prompts answered at once.
        progress: told how many of these answers are there.
    Returns:
        By prompt id, in the order of the prompts.
    Raises:
        CompareError: the template refuses a prompt, or one does not fit into the model with its answer.
    """
    followed = {prompt.follows for prompt in prompts}
    num_answers = sum(prompt.id in followed for prompt in prompts)
    chats: dict[str, tuple[Message, ...]] = {}
    token_ids: dict[str, list[int]] = {}
    answers: dict[str, str] = {}
    turn = [prompt for prompt in prompts if prompt.follows is None]
    while turn:
        for prompt in turn:
            chats[prompt.id] = prompt.messages()
            if prompt.follows is not None:
                answer = Message("assistant", answers[prompt.follows])
                chats[prompt.id] = (*chats[prompt.follows], answer, *prompt.messages())
        as_json = {prompt.id: [asdict(message) for message in chats[prompt.id]] for prompt in turn}
        token_ids |= engine.request("tokenize", chats=as_json)
        _check_lengths(turn, token_ids, max_tokens, max_model_len)
        to_answer = [prompt for prompt in turn if prompt.id in followed]
        for start in range(0, len(to_answer), batch_size):
            # In words: the bar and its time left are those of the measurement.
            progress(f"answering turns that others follow, {len(answers)} of {num_answers}", 0, 0)
            batch = to_answer[start : start + batch_size]
            texts = _answers(engine, batch, token_ids, max_tokens)
            answers |= {prompt.id: text for prompt, text in zip(batch, texts, strict=True)}
        turn = [prompt for prompt in prompts if prompt.follows in {answered.id for answered in to_answer}]
    return {prompt.id: token_ids[prompt.id] for prompt in prompts}


def check_same_tokens(
    engines: Mapping[str, Engine], prompts: Sequence[Prompt], token_ids: Mapping[str, Sequence[int]], baseline: str
) -> None:
    """Refuse arms whose tokenizer or chat template makes other tokens of the same messages than the baseline's.

    Args:
        engines: by arm name.
        token_ids: the baseline's, by prompt id.
    Raises:
        CompareError: naming the prompt and both arms' tokens where they part.
    """
    first_turns = sorted((prompt for prompt in prompts if prompt.follows is None), key=lambda prompt: len(prompt.text))
    some = {prompt.id: prompt for prompt in (*first_turns[:1], *first_turns[-NUM_CHECKED + 1 :])}
    chats = {name: [asdict(message) for message in prompt.messages()] for name, prompt in some.items()}
    for name, engine in engines.items():
        found = {} if name == baseline else engine.request("tokenize", chats=chats)
        for prompt_id, tokens in found.items():
            expected = list(token_ids[prompt_id])
            if tokens != expected:
                pairs = enumerate(zip_longest(expected, tokens))
                place = next(index for index, (ours, theirs) in pairs if ours != theirs)
                shown = slice(max(0, place - 2), place + 3)
                raise CompareError(
                    f"arms {baseline!r} and {name!r} make different tokens of prompt {prompt_id!r}: at token {place} "
                    f"of {len(expected)} and {len(tokens)}, {expected[shown]} and {tokens[shown]}; serve models with "
                    "the same tokenizer and chat template"
                )


def _answers(
    engine: Engine, prompts: Sequence[Prompt], token_ids: Mapping[str, Sequence[int]], max_tokens: int
) -> list[str]:
    found = engine.request(
        "generate",
        prompts=[list(token_ids[prompt.id]) for prompt in prompts],
        max_tokens=[prompt.output_limit(max_tokens) for prompt in prompts],
    )
    told = [output["text"] for output in found["outputs"] if "text" in output]
    if len(told) == len(prompts):  # endpoints answer in words
        return told
    texts: list[str] = engine.request("detokenize", answers=[output["token_ids"] for output in found["outputs"]])
    return texts


def _check_lengths(
    prompts: Sequence[Prompt], token_ids: Mapping[str, Sequence[int]], max_tokens: int, max_model_len: int
) -> None:
    longest = max(prompts, key=lambda prompt: len(token_ids[prompt.id]) + prompt.output_limit(max_tokens))
    num_tokens, output_limit = len(token_ids[longest.id]), longest.output_limit(max_tokens)
    if num_tokens + output_limit > max_model_len:
        limit = "--max-tokens" if longest.max_tokens is None else "its 'max_tokens'"
        raise CompareError(
            f"prompt {longest.id!r} has {num_tokens} tokens; with {output_limit} output tokens it does not fit into a "
            f"model length of {max_model_len}: lower {limit}, raise --max-model-len or leave it out"
        )
