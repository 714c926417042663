"""Whole texts for a draft model: every answered place once, with its own state, whatever the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vllm_specplug import ModelError
from vllm_specplug.train.texts import Texts, text_batches

HIDDEN = 4


@pytest.fixture
def texts(tmp_path: Path) -> Texts:
    """Forty texts; token 100 t + p stands at place p of text t, and a state holds the token sampled from it."""
    generator = torch.Generator().manual_seed(0)
    fronts = torch.randint(1, 9, (40,), generator=generator)
    lengths = torch.randint(1, 7, (40,), generator=generator)
    contexts, tokens = [], []
    for number, (front, length) in enumerate(zip(fronts.tolist(), lengths.tolist(), strict=True)):
        contexts.append(100 * number + torch.arange(front))
        tokens.append(100 * number + front + torch.arange(length))
    chunk = {
        "contexts": torch.cat(contexts).int(),
        "context_lengths": fronts.int(),
        "tokens": torch.cat(tokens).int(),
        "lengths": lengths.int(),
        "states": torch.cat(tokens)[:, None].expand(-1, HIDDEN).float().contiguous(),
    }
    save_file(chunk, tmp_path / "train-00000.safetensors")
    return Texts([tmp_path / "train-00000.safetensors"])


def test_a_place_is_answered_where_its_next_token_is_the_answers(texts: Texts) -> None:
    for batch in text_batches(texts, 40):
        following = torch.roll(batch.token_ids, -1, dims=1)
        assert torch.equal(following[batch.answered], batch.labels)
        assert torch.equal(batch.states[:, 0], batch.labels.float())


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_every_text_comes_once_and_no_batch_is_too_large(texts: Texts, seed: int | None) -> None:
    batches = list(text_batches(texts, 40, shuffled_by=seed))
    assert sorted(torch.cat([batch.labels for batch in batches]).tolist()) == sorted(texts.tokens.tolist())
    assert max(batch.token_ids.numel() for batch in batches) <= 40
    assert sum(len(batch.token_ids) for batch in batches) == len(texts) == 40


def test_every_seed_gives_as_many_batches_in_another_order(texts: Texts) -> None:
    """Training counts its steps before it begins."""
    seen = [[batch.labels.tolist() for batch in text_batches(texts, 40, shuffled_by=seed)] for seed in range(5)]
    assert len({len(batches) for batches in seen}) == 1
    assert seen[0] != seen[1]
    assert seen[0] == [batch.labels.tolist() for batch in text_batches(texts, 40, shuffled_by=0)]


def test_answers_of_an_older_version_are_refused_by_name(tmp_path: Path) -> None:
    chunk = {"tokens": torch.zeros(2).int(), "lengths": torch.tensor([2]).int(), "states": torch.zeros(2, HIDDEN)}
    save_file(chunk, tmp_path / "train-00000.safetensors")
    with pytest.raises(ModelError, match=r"train-00000\.safetensors holds no contexts, as older versions wrote it"):
        Texts([tmp_path / "train-00000.safetensors"])
