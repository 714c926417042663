"""Parts of the V1 bridge that need no engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vllm_specplug.bridge.drafter import checksum
from vllm_specplug.bridge.runner_v1 import _last_accepted


def test_hidden_state_is_that_of_the_last_accepted_position() -> None:
    """Requests with 2, 0 and 3 drafts, of which 1, 0 and 3 were accepted; each accepts one token more."""
    states = torch.arange(8.0)[:, None]  # rows 0 to 2, row 3, rows 4 to 7
    rows = _last_accepted(states, np.array([2, 1, 4], np.int32), [2, 0, 3])
    assert rows[:, 0].tolist() == [1, 3, 7]


def test_hidden_states_of_a_step_without_drafts_are_copied() -> None:
    states = torch.arange(3.0)[:, None]
    rows = _last_accepted(states, np.array([1, 0], np.int32), None)
    rows.zero_()
    assert states[:, 0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("token_ids", "probs"),
    [
        ([[0]], [[[0.5, 0.0, 0.5, 0.0]]]),  # differs off the drawn token only
        ([[1]], [[[0.5, 0.5, 0.0, 0.0]]]),
        ([[0]], [[[0.5, 0.4999, 0.0001, 0.0]]]),
    ],
)
def test_ranks_with_other_drafts_or_other_probabilities_are_told_apart(
    token_ids: list[list[int]], probs: list[list[list[float]]]
) -> None:
    assert checksum([[0]], torch.tensor([[[0.5, 0.5, 0.0, 0.0]]])) != checksum(token_ids, torch.tensor(probs))


def test_columns_without_a_draft_do_not_count() -> None:
    probs = torch.full((2, 2, 4), 0.25)
    other = probs.clone()
    other[1] = 9
    assert checksum([[1, 2], []], probs) == checksum([[1, 2], []], other)
