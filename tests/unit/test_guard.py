"""Whatever a proposer answers, the engine only sees drafts it can verify, and the operator sees what was cut."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest
import torch

from vllm_specplug import Capabilities, DraftBatch, Drafts, Proposer, ProposerOptions
from vllm_specplug.guard import MAX_FAILURES_IN_A_ROW, Guard
from vllm_specplug.metrics import Counts
from vllm_specplug.testing import batch_of, engine_of

VOCAB = 4


class Says(Proposer):
    """Answers with what a test made."""

    capabilities = Capabilities(gives_probs=True)

    def __init__(self, answer: Callable[[DraftBatch], Any]) -> None:
        super().__init__(ProposerOptions(), engine_of(vocab_size=VOCAB))
        self.answer = answer

    def propose(self, batch: DraftBatch) -> Drafts:
        drafts: Drafts = self.answer(batch)
        return drafts

    def forget(self, req_ids: Collection[str]) -> None:
        raise RuntimeError("cannot forget")


def guard_of(answer: Callable[[DraftBatch], Any]) -> Guard:
    proposer = Says(answer)
    return Guard("says", proposer, proposer.engine, Counts("says"))


def counted(guard: Guard) -> dict[str, int]:
    """Counts that are not 0, besides steps and draft_tokens."""
    slots = ("failures", "off", *(f"dropped_{r}" for r in ("too_many", "bad_id", "bad_rows", "bad_probs")))
    return {slot: guard.counts.value(slot) for slot in slots if guard.counts.value(slot)}


BATCH = batch_of([[0, 1], [2]], max_drafts=[3, 2])


def test_good_drafts_pass_unchanged() -> None:
    guard = guard_of(lambda batch: Drafts.from_lists([[1, 2, 3], []]))
    assert guard.propose(BATCH).token_ids == [[1, 2, 3], []]
    assert counted(guard) == {}
    assert guard.counts.value("draft_tokens") == 3


def test_surplus_is_dropped_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    guard = guard_of(lambda batch: Drafts.from_lists([[1, 2, 3, 0], [1, 1, 1, 1]]))
    with caplog.at_level(logging.WARNING, "vllm_specplug"):
        assert guard.propose(BATCH).token_ids == [[1, 2, 3], [1, 1]]
        guard.propose(BATCH)
    assert counted(guard) == {"dropped_too_many": 6}
    assert [record.getMessage() for record in caplog.records] == [
        "proposer 'says' returned 4 tokens for request 0, at most 3 were asked for; the last 1 were dropped "
        "(counted in specplug_drafts_dropped_total, said once)"
    ]


@pytest.mark.parametrize("bad", [-1, VOCAB, 1 << 30])
def test_drafts_are_cut_at_the_first_id_outside_the_vocabulary(bad: int, caplog: pytest.LogCaptureFixture) -> None:
    guard = guard_of(lambda batch: Drafts.from_lists([[1, bad, 2], [3, 3]]))
    with caplog.at_level(logging.WARNING, "vllm_specplug"):
        assert guard.propose(BATCH).token_ids == [[1], [3, 3]]
    assert counted(guard) == {"dropped_bad_id": 2}
    assert f"returned token {bad} for request 0, expected 0 to 3" in caplog.text


def test_request_that_may_not_draft_gets_none() -> None:
    guard = guard_of(lambda batch: Drafts.from_lists([[1], [1]]))
    assert guard.propose(batch_of([[0], [0]], max_drafts=[0, 1])).token_ids == [[], [1]]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ([[1], [2]], "returned list, expected vllm_specplug.Drafts"),
        (None, "returned NoneType, expected vllm_specplug.Drafts"),
        (Drafts.from_lists([[1]]), "returned token_ids of shape (1, 1) and type int32"),
        (Drafts(np.zeros((2, 1), np.float32), np.ones(2, np.int32)), "type float32, expected whole numbers"),
        (Drafts(np.zeros((2, 1), np.int32), np.ones(3, np.int32)), "returned num_drafts of shape (3,)"),
        (Drafts(np.zeros(2, np.int32), np.ones(2, np.int32)), "returned token_ids of shape (2,)"),
    ],
)
def test_malformed_answer_drafts_nothing(answer: Any, text: str, caplog: pytest.LogCaptureFixture) -> None:
    guard = guard_of(lambda batch: answer)
    with caplog.at_level(logging.ERROR, "vllm_specplug"):
        assert guard.propose(BATCH).token_ids == [[], []]
    assert counted(guard) == {"dropped_bad_rows": 1}
    assert text in caplog.text


def test_exception_costs_one_step_and_repeated_ones_switch_off(caplog: pytest.LogCaptureFixture) -> None:
    def fail(batch: DraftBatch) -> Drafts:
        raise ValueError("broken")

    guard = guard_of(fail)
    with caplog.at_level(logging.ERROR, "vllm_specplug"):
        for step in range(MAX_FAILURES_IN_A_ROW + 3):
            assert guard.propose(BATCH).token_ids == [[], []]
            assert guard.off == (step + 1 >= MAX_FAILURES_IN_A_ROW)
    assert counted(guard) == {"failures": MAX_FAILURES_IN_A_ROW, "off": 1}
    assert len(caplog.records) == 2  # the first failure with its traceback, and the switching off
    assert "failed 5 times in a row and is switched off" in caplog.text


def test_success_between_failures_keeps_a_proposer_on() -> None:
    calls = iter(range(100))

    def sometimes(batch: DraftBatch) -> Drafts:
        if next(calls) % 3:
            raise ValueError("broken")
        return Drafts.none(2)

    guard = guard_of(sometimes)
    for _ in range(60):
        guard.propose(BATCH)
    assert not guard.off
    assert counted(guard) == {"failures": 40}


def test_failure_to_forget_is_counted_and_goes_no_further() -> None:
    guard = guard_of(lambda batch: Drafts.none(2))
    guard.forget(["0"])
    assert counted(guard) == {"failures": 1}


def uniform(rows: int, width: int) -> torch.Tensor:
    return torch.full((rows, width, VOCAB), 1 / VOCAB)


def test_probabilities_pass_unchanged() -> None:
    guard = guard_of(lambda batch: Drafts.from_lists([[1, 2], [3]], uniform(2, 2)))
    probs = guard.propose(BATCH).probs
    assert probs is not None
    assert torch.equal(probs, uniform(2, 2))


def test_tokens_before_a_cut_keep_their_distribution() -> None:
    """Dropping it because of what was drawn later would make its use depend on the value drawn now."""
    guard = guard_of(lambda batch: Drafts.from_lists([[1, 9], [3, 2]], uniform(2, 2)))
    checked = guard.propose(BATCH)
    assert checked.token_ids == [[1], [3, 2]]
    assert checked.probs is not None
    assert torch.equal(checked.probs, uniform(2, 2))


def test_rows_that_may_not_have_probabilities_go_over_as_one_hot() -> None:
    original = uniform(2, 2)
    guard = guard_of(lambda batch: Drafts.from_lists([[1, 2], [3]], original))
    probs = guard.propose(BATCH, without_probs={0}).probs
    assert probs is not None
    assert probs[0].tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]
    assert torch.equal(probs[1, 0], uniform(1, 1)[0, 0])
    assert torch.equal(original, uniform(2, 2)), "the proposer's own tensor was written into"


def test_no_probabilities_where_no_row_may_have_them() -> None:
    guard = guard_of(lambda batch: Drafts.from_lists([[1], [3]], uniform(2, 1)))
    assert guard.propose(BATCH, without_probs={0, 1}).probs is None
    assert counted(guard) == {}


def spoilt(**changes: float) -> torch.Tensor:
    probs = uniform(2, 1)
    probs[1, 0] = torch.tensor([changes.get(f"p{token}", 1 / VOCAB) for token in range(VOCAB)])
    return probs


@pytest.mark.parametrize(
    "probs",
    [
        uniform(1, 1),
        uniform(2, 2),
        uniform(2, 1)[..., :3],
        torch.ones(2, 1, VOCAB, dtype=torch.int64),
        np.full((2, 1, VOCAB), 0.25),
    ],
    ids=["rows", "width", "vocabulary", "integers", "numpy"],
)
def test_probabilities_of_another_shape_are_dropped_and_drafts_kept(probs: Any) -> None:
    guard = guard_of(lambda batch: Drafts.from_lists([[1], [3]], probs))
    checked = guard.propose(BATCH)
    assert checked.token_ids == [[1], [3]]
    assert checked.probs is None
    assert counted(guard) == {"dropped_bad_probs": 1}


@pytest.mark.parametrize(
    "probs",
    [spoilt(p0=0.5), spoilt(p0=-0.25, p1=0.75), spoilt(p0=float("nan")), spoilt(p0=0.5, p3=0.0)],
    ids=["sum", "negative", "nan", "impossible token"],
)
def test_row_that_is_no_distribution_goes_over_as_one_hot(probs: torch.Tensor) -> None:
    guard = guard_of(lambda batch: Drafts.from_lists([[1], [3]], probs))
    checked = guard.propose(BATCH)
    assert checked.token_ids == [[1], [3]]
    assert checked.probs is not None
    assert torch.equal(checked.probs[0], uniform(1, 1)[0])
    assert checked.probs[1, 0].tolist() == [0, 0, 0, 1]
    assert counted(guard) == {"dropped_bad_probs": 1}


def test_more_drafts_than_columns_are_as_many_as_columns() -> None:
    guard = guard_of(lambda batch: Drafts(np.array([[1, 2], [3, 0]]), np.array([3, -1])))
    assert guard.propose(BATCH).token_ids == [[1, 2], []]
    assert counted(guard) == {}


def test_an_interrupt_is_not_swallowed() -> None:
    def interrupted(batch: DraftBatch) -> Drafts:
        raise KeyboardInterrupt

    guard = guard_of(interrupted)
    with pytest.raises(KeyboardInterrupt):
        guard.propose(BATCH)
    assert counted(guard) == {}


def test_limits_hold_against_a_proposer_that_writes_into_the_batch() -> None:
    def overwrite(batch: DraftBatch) -> Drafts:
        batch.max_drafts[:] = 99
        return Drafts.from_lists([[1] * 9, [1] * 9])

    guard = guard_of(overwrite)
    assert guard.propose(batch_of([[0], [0]], max_drafts=[3, 2])).token_ids == [[1] * 3, [1] * 2]
    assert counted(guard) == {"dropped_too_many": 13}


def test_proposer_that_exits_costs_one_step() -> None:
    def leave(batch: DraftBatch) -> Drafts:
        raise SystemExit(3)

    guard = guard_of(leave)
    assert guard.propose(BATCH).token_ids == [[], []]
    assert counted(guard) == {"failures": 1}
