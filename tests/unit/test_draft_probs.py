"""What neural drafters draw from, and how distributions of one step are handed over."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vllm_specplug.draft_probs import StepProbs, tempered
from vllm_specplug.testing import engine_of


def test_tempered_is_softmax_of_logits_over_temperature() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]] * 3)
    found = tempered(logits, torch.tensor([0.0, 1.0, 0.5]))
    assert found[0].tolist() == [0, 0, 1]
    torch.testing.assert_close(found[1], torch.tensor([1.0, np.e, np.e**2]) / (1 + np.e + np.e**2))
    torch.testing.assert_close(found[2], torch.tensor([1.0, np.e**2, np.e**4]) / (1 + np.e**2 + np.e**4))


def test_logits_in_16_bits_and_infinite_ones_give_distributions() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf], [3e4, 1.0, 2.0]], dtype=torch.bfloat16)
    found = tempered(logits, torch.tensor([1.0, 1e-5]))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(-1), torch.ones(2))
    assert found[0, 2] == 0
    assert found[1].tolist() == [1, 0, 0]


@pytest.mark.parametrize("token_ids", [None, [6, 0, 3]])
def test_distributions_stand_at_the_targets_tokens_and_nowhere_else(token_ids: list[int] | None) -> None:
    room = StepProbs(engine_of(vocab_size=8, max_num_reqs=4, num_speculative_tokens=3))
    ids = None if token_ids is None else torch.tensor(token_ids)
    room.over_vocabulary([torch.full((4, 3), 9.0)] * 3, None)  # of an earlier, larger step nothing is left
    columns = [torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]]), torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.5, 0.25]])]
    found = room.over_vocabulary(columns, ids)
    assert found.shape == (2, 2, 8)
    expected = torch.zeros((2, 2, 8))
    for column, probs in enumerate(columns):
        for place, token in enumerate(token_ids or [0, 1, 2]):
            expected[:, column, token] = probs[:, place]
    assert torch.equal(found, expected)
