"""An answer that is judged on the device loses what it would lose on the host, and is counted the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vllm_specplug import Capabilities, DraftBatch, Drafts, Proposer, ProposerOptions
from vllm_specplug.guard import MAX_FAILURES_IN_A_ROW, Guard
from vllm_specplug.metrics import Counts
from vllm_specplug.proposer import OnDevice
from vllm_specplug.testing import batch_of, engine_of

VOCAB = 4


class Says(Proposer):
    """Answers with what a test made."""

    capabilities = Capabilities(gives_probs=True, stays_on_device=True)

    def __init__(self, answer: Callable[[DraftBatch], Any]) -> None:
        super().__init__(ProposerOptions(), engine_of(vocab_size=VOCAB, num_speculative_tokens=3))
        self.answer = answer

    def propose(self, batch: DraftBatch) -> Drafts:
        drafts: Drafts = self.answer(batch)
        return drafts


def guard_of(answer: Callable[[DraftBatch], Any]) -> Guard:
    proposer = Says(answer)
    return Guard("says", proposer, proposer.engine, Counts("says"))


def asynchronous(texts: list[list[int]], max_drafts: list[int]) -> DraftBatch:
    batch = batch_of(texts, max_drafts=max_drafts)
    on_device = OnDevice(
        torch.tensor(batch.token_ids),
        torch.arange(len(texts)),
        torch.tensor(batch.num_tokens),
        int(batch.num_tokens.max()),
        torch.tensor(batch.max_drafts),
    )
    return DraftBatch(
        batch.req_ids, batch.token_ids, batch.num_tokens, batch.num_new_tokens, batch.max_drafts, on_device=on_device
    )


BATCH = asynchronous([[0, 1], [2]], [3, 2])


def counted(guard: Guard) -> dict[str, int]:
    slots = (
        "failures",
        "off",
        "draft_tokens",
        *(f"dropped_{r}" for r in ("too_many", "bad_id", "bad_rows", "bad_probs")),
    )
    return {slot: guard.counts.value(slot) for slot in slots if guard.counts.value(slot)}


def kept(guard: Guard, without_probs: list[bool] | None = None) -> tuple[list[list[int]], list[int]]:
    """Drafts of each request, and of how many q goes over."""
    checked = guard.propose_on_device(BATCH, None if without_probs is None else torch.tensor(without_probs))
    assert checked is not None
    rows = [row[:count] for row, count in zip(checked.token_ids.tolist(), checked.num_drafts.tolist(), strict=True)]
    return rows, checked.num_with_probs.tolist()


def probs_of(*rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows)


EVEN = [0.25] * VOCAB


@pytest.mark.parametrize(
    "answer",
    [
        [[1, 2, 3], []],
        [[1, 2, 3, 0], [1, 1, 1, 1]],
        [[1] * 9, [-1] * 9],
        [[1, -1, 2], [3, 3]],
        [[1, VOCAB, 2], [-7, 3]],
        [[], []],
    ],
    ids=str,
)
@pytest.mark.parametrize("as_tensors", [False, True])
def test_the_same_is_kept_and_counted_as_on_the_host(answer: list[list[int]], as_tensors: bool) -> None:
    drafts = Drafts.from_lists(answer)
    host = guard_of(lambda batch: drafts)
    expected = host.propose(BATCH).token_ids
    if as_tensors:
        drafts = Drafts(torch.tensor(drafts.token_ids), torch.tensor(drafts.num_drafts))
    device = guard_of(lambda batch: drafts)
    assert kept(device) == (expected, [0, 0])
    assert counted(device) == counted(host)


def test_q_goes_over_up_to_the_first_token_it_cannot_have_been() -> None:
    """Row 0: the second distribution does not hold the token drawn; row 1: negative, though it sums to 1."""
    probs = probs_of([EVEN, [1.0, 0, 0, 0], EVEN], [EVEN, [2.0, -1.0, 0, 0], EVEN])
    guard = guard_of(lambda batch: Drafts.from_lists([[1, 2, 3], [1, 0]], probs))
    assert kept(guard) == ([[1, 2, 3], [1, 0]], [1, 1])
    assert counted(guard) == {"draft_tokens": 5, "dropped_bad_probs": 1}


@pytest.mark.parametrize("bad", [float("nan"), 0.5, 1e9])
def test_what_is_no_distribution_is_not_handed_over(bad: float) -> None:
    probs = probs_of([EVEN, [bad] * VOCAB, EVEN], [EVEN, EVEN, EVEN])
    guard = guard_of(lambda batch: Drafts.from_lists([[1, 2, 3], [1, 0]], probs))
    assert kept(guard)[1] == [1, 2]
    assert counted(guard)["dropped_bad_probs"] == 1


def test_rubbish_behind_the_drafts_is_nobodys_fault() -> None:
    probs = probs_of([EVEN, EVEN, EVEN], [EVEN, [0.0] * VOCAB, [-1.0] * VOCAB])
    guard = guard_of(lambda batch: Drafts.from_lists([[1, 2, 3], [1]], probs))
    assert kept(guard) == ([[1, 2, 3], [1]], [3, 1])
    assert "dropped_bad_probs" not in counted(guard)


def test_more_columns_than_anybody_asked_for_are_cut_off() -> None:
    probs = torch.full((2, 5, VOCAB), 0.25)
    guard = guard_of(lambda batch: Drafts.from_lists([[1, 2, 3, 0, 1], [1, 0]], probs))
    checked = guard.propose_on_device(BATCH)
    assert checked is not None
    assert checked.probs is not None
    assert (tuple(checked.token_ids.shape), tuple(checked.probs.shape)) == ((2, 3), (2, 3, VOCAB))
    assert checked.num_with_probs.tolist() == [3, 2]
    assert counted(guard) == {"draft_tokens": 5, "dropped_too_many": 2}


def test_a_structured_request_gets_no_q() -> None:
    probs = probs_of([EVEN] * 3, [EVEN] * 3)
    guard = guard_of(lambda batch: Drafts.from_lists([[1, 2, 3], [1, 0]], probs))
    assert kept(guard, [True, False]) == ([[1, 2, 3], [1, 0]], [0, 2])


@pytest.mark.parametrize(
    "probs", [torch.zeros(2, 3, VOCAB + 1), torch.zeros(2, 3), "none", torch.zeros(2, 3, VOCAB).int()]
)
def test_probabilities_of_another_shape_are_left_out(probs: Any) -> None:
    guard = guard_of(lambda batch: Drafts.from_lists([[1, 2, 3], [1, 0]], probs))
    assert kept(guard) == ([[1, 2, 3], [1, 0]], [0, 0])
    assert counted(guard) == {"draft_tokens": 5, "dropped_bad_probs": 1}


@pytest.mark.parametrize(
    "answer",
    [
        [[1], [2]],
        None,
        Drafts.from_lists([[1]]),
        Drafts(torch.zeros(2, 1), torch.ones(2, dtype=torch.int32)),
        Drafts(np.zeros((2, 1), np.int32), np.ones(3, np.int32)),
        Drafts(torch.zeros(2, 1, dtype=torch.bool), torch.ones(2, dtype=torch.int32)),
    ],
    ids=["lists", "none", "one_row", "floats", "three_counts", "booleans"],
)
def test_a_malformed_answer_drafts_nothing(answer: Any) -> None:
    guard = guard_of(lambda batch: answer)
    assert guard.propose_on_device(BATCH) is None
    assert counted(guard) == {"dropped_bad_rows": 1}


def test_exceptions_switch_it_off() -> None:
    guard = guard_of(lambda batch: 1 / 0)
    for _ in range(MAX_FAILURES_IN_A_ROW + 2):
        assert guard.propose_on_device(BATCH) is None
    assert counted(guard) == {"failures": MAX_FAILURES_IN_A_ROW, "off": 1}
