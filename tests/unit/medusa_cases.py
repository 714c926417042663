"""Small random heads, and how reading bad ones fails: what the tests of Medusa checkpoints share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from vllm_specplug.errors import ModelError
from vllm_specplug.medusa import checkpoint
from vllm_specplug.medusa.heads import HeadsConfig, MedusaHeads

HIDDEN, VOCAB, HEADS = 6, 11, 3
IDS = [7, 2, 9]


def heads_of(ids: list[int] | None = None, **changes: Any) -> MedusaHeads:
    """Heads with random weights."""
    settings = {"num_heads": HEADS, "hidden_size": HIDDEN, "vocab_size": VOCAB, **changes}
    if ids is not None:
        settings["draft_vocab_size"] = len(ids)
    heads = MedusaHeads(HeadsConfig(**settings), None if ids is None else torch.tensor(ids))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return heads


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        checkpoint.read(path)
    text = str(caught.value)
    assert "\n" not in text
    return text.replace(str(path), "HEADS")
