"""A step of the V2 runner as a batch: the right tokens in the right rows, fetched only when looked at."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vllm_specplug.bridge.batch_v2 import HostTokens, StepOnHost, StepTensors, V2Batch

RECENT = 3


class Line:
    """V2's buffer of token histories, in which requests lie in lines of their own."""

    def __init__(self, num_lines: int = 5, max_model_len: int = 40) -> None:
        self.buffer = torch.full((num_lines, max_model_len), -9, dtype=torch.int32)
        self.host = HostTokens(self.buffer, RECENT)

    def batch(self, texts: dict[int, list[int]], num_sampled: list[int]) -> V2Batch:
        """One step, `texts` by line in the order of the batch."""
        lines = list(texts)
        for line, text in texts.items():
            self.buffer[line, : len(text)] = torch.tensor(text, dtype=torch.int32)
        step = StepTensors(
            lines=np.array(lines, np.int32),
            index=torch.tensor(lines),
            num_sampled=torch.tensor(num_sampled, dtype=torch.int32),
            num_tokens=torch.tensor([len(text) for text in texts.values()], dtype=torch.int32),
            newest=torch.tensor([text[-1] for text in texts.values()]),
            token_ids=self.buffer,
            longest=40,
        )
        self.step = StepOnHost(step, self.host, lambda num_tokens, num_new: num_new * 2)
        return V2Batch([f"r{line}" for line in lines], step, self.step)


def test_rows_are_requests_whatever_line_they_lie_in() -> None:
    batch = Line().batch({4: [1, 2, 3], 0: [7], 2: [5, 6]}, [1, 0, 2])
    assert batch.num_reqs == 3
    assert [batch.tokens(row).tolist() for row in range(3)] == [[1, 2, 3], [7], [5, 6]]
    assert [row[:count].tolist() for row, count in zip(batch.token_ids, batch.num_tokens, strict=True)] == [
        [1, 2, 3],
        [7],
        [5, 6],
    ]
    buffer, lines = batch.token_buffer()
    assert [buffer[line, :count].tolist() for line, count in zip(lines, batch.num_tokens, strict=True)] == [
        [1, 2, 3],
        [7],
        [5, 6],
    ]
    assert batch.num_new_tokens.tolist() == [1, 0, 2]
    assert batch.max_drafts.tolist() == [2, 0, 4]
    assert batch.width == 4
    assert list(batch.drafting_rows()) == [0, 2]
    assert batch.newest_tokens("cpu").tolist() == [3, 7, 6]


def test_histories_follow_requests_that_grow_move_and_end() -> None:
    """Steps that nobody looked at, more new tokens than are fetched along, and a line that gets another request."""
    random = np.random.default_rng(0)
    lines = Line()
    texts = {line: random.integers(0, 9, 4).tolist() for line in range(5)}
    for step in range(60):
        order = random.permutation(5)[: random.integers(1, 6)].tolist()
        for line in order:
            if len(texts[line]) > 30:
                lines.host.forget(line)
                texts[line] = random.integers(0, 9, 3).tolist()
            texts[line] += random.integers(0, 9, random.integers(1, 5)).tolist()
        batch = lines.batch({line: texts[line] for line in order}, [1] * len(order))
        if step % 3 != 1:
            assert [batch.tokens(row).tolist() for row in range(len(order))] == [texts[line] for line in order]


def test_nothing_is_fetched_before_somebody_looks() -> None:
    lines = Line()
    batch = lines.batch({1: [1, 2]}, [1])
    assert batch.req_ids == ["r1"]
    batch.newest_tokens("cpu")
    assert "_numbers" not in vars(lines.step)
    assert lines.host.num_recent == 0
    assert batch.max_drafts.tolist() == [2]
    assert lines.host.num_recent == 0  # of numbers, not of tokens
    batch.tokens(0)
    assert lines.host.num_recent == RECENT


def test_a_proposer_cannot_write_into_histories() -> None:
    batch = Line().batch({1: [1, 2]}, [1])
    for array in (batch.token_ids, batch.tokens(0), batch.token_buffer()[0]):
        with pytest.raises(ValueError, match="read-only"):
            array[..., 0] = 0
