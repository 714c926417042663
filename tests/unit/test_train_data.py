"""From the journal to training examples: nothing is shifted, mixed up between answers, or guessed beyond an end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vllm_specplug import ConfigError, DraftBatch, ModelError
from vllm_specplug.testing import batch_of, engine_of
from vllm_specplug.train import answering
from vllm_specplug.train.answers import AnswerSettings, _claim, split
from vllm_specplug.train.data import IGNORED, Answers, batches, frequent_tokens
from vllm_specplug.train.prompts import TrainingPrompt
from vllm_specplug.train.record import HiddenStateRecorder, RecorderOptions, read_contexts, row_type
from vllm_specplug.train.texts import Texts, text_batches

HIDDEN = 4


def journal(*lines: tuple[int, int, int]) -> np.ndarray:
    """Rows of (request, num_tokens, token); the state holds the token."""
    rows = np.zeros(len(lines), row_type(HIDDEN))
    for row, (request, num_tokens, token) in zip(rows, lines, strict=True):
        row["request"], row["num_tokens"], row["token"] = request, num_tokens, token
        row["state"] = torch.full((HIDDEN,), float(token)).bfloat16().view(torch.int16).numpy()
    return rows


def write(path: Path, *lines: tuple[int, int, int]) -> Path:
    """A chunk; in front of an answer whose first token is number n stand n - 1 tokens, all of them n."""
    fronts = {(request, length - 1): np.full(length - 1, length, np.int32) for request, length, _ in lines}
    answering.write_chunk(path, journal(*lines), fronts)
    return path


def answers(folder: Path, *lines: tuple[int, int, int], num_heads: int = 2) -> Answers:
    return Answers([write(folder / "chunk.safetensors", *lines)], num_heads)


def test_examples_are_the_state_the_token_and_what_follows(tmp_path: Path) -> None:
    """Requests 7 (tokens 10 11 12 13) and 3 (tokens 20 21), written in the order of the steps."""
    found = answers(tmp_path, (7, 5, 10), (3, 9, 20), (7, 6, 11), (3, 10, 21), (7, 7, 12), (7, 8, 13))
    batch = next(iter(batches(found, 99)))
    expected = {  # newest token: (tokens read, tokens to guess)
        20: ([20, 21], [21, IGNORED]),
        10: ([10, 11], [11, 12]),
        11: ([11, 12], [12, 13]),
        12: ([12, 13], [13, IGNORED]),
    }
    assert len(found) == len(expected)
    for state, read, labels in zip(batch.states, batch.tokens.tolist(), batch.labels.tolist(), strict=True):
        assert state.tolist() == [float(read[0])] * HIDDEN
        assert (read, labels) == expected[read[0]]


def test_tokens_behind_the_end_of_an_answer_are_never_read(tmp_path: Path) -> None:
    found = answers(tmp_path, (1, 5, 10), (1, 6, 11), (2, 5, 20), (2, 6, 21), num_heads=3)
    batch = next(iter(batches(found, 99)))
    assert sorted(batch.tokens.tolist()) == [[10, 11, 0], [20, 21, 0]]
    assert sorted(batch.labels.tolist()) == [[11, IGNORED, IGNORED], [21, IGNORED, IGNORED]]


def test_an_answer_with_a_gap_is_cut_there(tmp_path: Path) -> None:
    found = answers(tmp_path, (1, 5, 10), (1, 6, 11), (1, 8, 13), (1, 9, 14))
    assert next(iter(batches(found, 99))).labels.tolist() == [[11, IGNORED], [14, IGNORED]]


def test_a_batch_is_the_same_examples_in_any_order(tmp_path: Path) -> None:
    lines = [(request, place, 100 * request + place) for request in range(1, 9) for place in range(2, 12)]
    found = answers(tmp_path, *lines)
    seen = torch.cat([batch.tokens[:, 0] for batch in batches(found, 7, shuffled_by=3)])
    assert len(seen) == len(found) // 7 * 7
    assert len(seen.unique()) == len(seen)
    again = torch.cat([batch.tokens[:, 0] for batch in batches(found, 7, shuffled_by=3)])
    other = torch.cat([batch.tokens[:, 0] for batch in batches(found, 7, shuffled_by=4)])
    assert seen.tolist() == again.tolist() != other.tolist()


def test_frequent_tokens_are_the_commonest_and_say_what_they_cover(tmp_path: Path) -> None:
    tokens = [5, 5, 5, 9, 9, 2, 2, 7]
    found = answers(tmp_path, *((1, place, token) for place, token in enumerate(tokens, start=1)))
    kept, coverage = frequent_tokens(found.tokens, 3)
    assert (kept.tolist(), coverage) == ([2, 5, 9], pytest.approx(7 / 8))
    kept, coverage = frequent_tokens(found.tokens, 100)
    assert (kept.tolist(), coverage) == ([2, 5, 7, 9], 1.0)


def test_nothing_to_learn_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no answers in 1 files"):
        answers(tmp_path)
    with pytest.raises(ModelError, match="raise --max-tokens"):
        answers(tmp_path, (1, 5, 10), (2, 5, 10))


def test_a_half_written_chunk_is_named(tmp_path: Path) -> None:
    answers(tmp_path, (1, 5, 10), (1, 6, 11))
    file = tmp_path / "chunk.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(ModelError, match=r"chunk\.safetensors is damaged .* remove it, and it is made again"):
        Answers([file], 1)


def recorded(texts: list[list[int]], num_new_tokens: int | list[int] = 1) -> DraftBatch:
    states = torch.arange(len(texts) * HIDDEN, dtype=torch.float32).reshape(-1, HIDDEN)
    return replace(batch_of(texts, num_new_tokens=num_new_tokens), hidden_states=states)


def test_a_recorder_writes_what_a_drafter_sees(tmp_path: Path) -> None:
    """Rows that read their prompt are left out; nothing is drafted."""
    recorder = HiddenStateRecorder(RecorderOptions(folder=str(tmp_path)), engine_of(hidden_size=HIDDEN))
    batch = recorded([[1, 2, 3], [4, 5], [6, 7, 8, 9]], [1, 0, 1])
    drafts = recorder.propose(batch)
    assert drafts.to_lists() == [[], [], []]
    rows = np.fromfile(tmp_path / "journal.bin", row_type(HIDDEN))
    assert rows["token"].tolist() == [3, 9]
    assert rows["num_tokens"].tolist() == [3, 4]
    assert len(set(rows["request"].tolist())) == 2
    assert torch.from_numpy(rows["state"].copy()).view(torch.bfloat16).float().tolist() == [
        [0, 1, 2, 3],
        [8, 9, 10, 11],
    ]


def test_a_recorder_writes_what_stands_in_front_of_an_answer_once(tmp_path: Path) -> None:
    """And again behind a gap, as after a preemption: the second part of the answer is an answer of its own."""
    recorder = HiddenStateRecorder(RecorderOptions(folder=str(tmp_path)), engine_of(hidden_size=HIDDEN))
    for text in ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]):
        recorder.propose(recorded([text]))
    recorder.forget(["request-0"])
    rows = np.fromfile(tmp_path / "journal.bin", row_type(HIDDEN))
    contexts = read_contexts(tmp_path / "contexts.bin")
    request = int(rows["request"][0])
    assert {key: list(tokens) for key, tokens in contexts.items()} == {
        (request, 2): [1, 2],
        (request, 5): [1, 2, 3, 4, 5],
    }
    answering.write_chunk(tmp_path / "chunk.safetensors", rows, contexts)
    batch = next(iter(text_batches(Texts([tmp_path / "chunk.safetensors"]), 99)))
    assert batch.token_ids.tolist() == [[1, 2, 3, 4, 0, 0], [1, 2, 3, 4, 5, 6]]
    assert batch.labels.tolist() == [3, 4, 6]


def prompts(count: int) -> list[TrainingPrompt]:
    return [TrainingPrompt(f"prompt {number}", "chat", f"topic {number % 20}") for number in range(count)]


def test_no_topic_is_both_learned_and_held_out() -> None:
    training, held_out = split(prompts(200), seed=0)
    assert {prompt.group for prompt in training}.isdisjoint(prompt.group for prompt in held_out)
    assert len(training) + len(held_out) == 200
    assert len(held_out) == 10  # one topic of twenty
    with pytest.raises(ConfigError, match="2 or more are needed to hold one out"):
        split(prompts(1), seed=0)


def test_answers_of_another_run_are_not_mixed_in(tmp_path: Path) -> None:
    _claim(tmp_path, AnswerSettings("m", 1000), prompts(3))
    _claim(tmp_path, AnswerSettings("m", 2000), prompts(3))  # more tokens of the same
    with pytest.raises(ConfigError, match=r"made with temperature 0\.0, now it is 0\.7; name another --work folder"):
        _claim(tmp_path, AnswerSettings("m", 1000, temperature=0.7), prompts(3))
    edited = [*prompts(2), TrainingPrompt("another", "chat", "topic 2")]
    with pytest.raises(ConfigError, match=r"made with prompts '[0-9a-f]{64}', now it is"):
        _claim(tmp_path, AnswerSettings("m", 1000), edited)


def test_no_secret_of_the_engine_arguments_is_written_down(tmp_path: Path) -> None:
    _claim(tmp_path, AnswerSettings("m", 1, engine_args={"hf_token": "hf_secret", "dtype": "float32"}), prompts(3))
    text = (tmp_path / "answers.json").read_text()
    assert "hf_secret" not in text
    assert '"dtype": "float32"' in text


def test_the_same_answers_give_the_same_chunk_whatever_the_requests_are_called(tmp_path: Path) -> None:
    first = [(1, 5, 10), (1, 6, 11), (2, 5, 20), (2, 6, 21), (3, 5, 10), (3, 6, 12)]
    renamed = [({1: 9, 2: 4, 3: 1}[request], place, token) for request, place, token in reversed(first)]
    for name, lines in (("a", first), ("b", renamed)):
        write(tmp_path / f"{name}.safetensors", *lines)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert answering.num_tokens_of(tmp_path / "a.safetensors") == (6, 0)


def test_a_failed_write_ends_the_recording_instead_of_shifting_its_rows(tmp_path: Path) -> None:
    """A full disk may take half a row; what came behind it would be read as another state."""
    recorder = HiddenStateRecorder(RecorderOptions(folder=str(tmp_path)), engine_of(hidden_size=HIDDEN))
    recorder._files["journal.bin"] = Path("/dev/full").open("wb")  # noqa: SIM115 - the recorder's to close
    with pytest.raises(OSError, match="No space left"):
        recorder.propose(recorded([[1, 2, 3]]))
    recorder._files.clear()
    recorder.propose(recorded([[1, 2, 3]]))
    assert not (tmp_path / "journal.bin").exists()
