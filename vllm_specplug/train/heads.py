"""Training a set of heads: all at once, each from the true tokens in front of it, by cross-entropy."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vllm_specplug.medusa.heads import MedusaHeads
from vllm_specplug.train.data import IGNORED, Answers, Batch, batches
from vllm_specplug.train.fit import FitSettings, Step, fit


def fit_heads(
    heads: MedusaHeads,
    answers: Answers,
    settings: FitSettings,
    checkpoint: Path,
    progress: Callable[[Step], None] = lambda _: None,
) -> None:
    """Train `heads` in place.

    Args:
        heads: attached to the target's tensors, float32.
        answers: what they learn from.
        checkpoint, progress: as in `fit`, and so are the errors raised.
    """
    device = next(heads.parameters()).device
    loss = functools.partial(loss_of, heads, rows=_rows_of_target_ids(heads), device=device)
    fit(
        heads,
        lambda seed: batches(answers, settings.batch_size, shuffled_by=seed),
        loss,
        settings,
        identity_of(heads, answers, settings),
        checkpoint,
        progress,
    )


def loss_of(heads: MedusaHeads, batch: Batch, rows: Tensor | None, device: torch.device) -> Tensor:
    """Mean cross-entropy over the heads; a head whose tokens are all unknown counts as 0.

    Args:
        rows: [vocab_size], output row of each of the target's tokens, IGNORED where it has none; None: the same.
    """
    labels = batch.labels.to(device)
    if rows is not None:
        labels = torch.where(labels == IGNORED, IGNORED, rows[labels.clamp(min=0)])
    losses = []
    for logits, wanted in zip(heads(batch.states.to(device), batch.tokens.to(device)), labels.unbind(1), strict=True):
        known = (wanted != IGNORED).sum().clamp(min=1)
        losses.append(functional.cross_entropy(logits.float(), wanted, ignore_index=IGNORED, reduction="sum") / known)
    return torch.stack(losses).mean()


def _rows_of_target_ids(heads: MedusaHeads) -> Tensor | None:
    ids = heads.draft_token_ids
    if ids is None:
        return None
    rows = torch.full((heads.config.vocab_size,), IGNORED, device=ids.device)
    rows[ids] = torch.arange(len(ids), device=ids.device)
    return rows


def identity_of(heads: MedusaHeads, answers: Answers, settings: FitSettings) -> dict[str, Any]:
    """What must be the same for a checkpoint to be gone on from."""
    ids = heads.draft_token_ids
    return {
        "heads": heads.config.model_dump(),
        "settings": asdict(settings),
        "answers": answers.digest,
        "draft_token_ids": None if ids is None else hashlib.sha256(ids.cpu().numpy().tobytes()).hexdigest(),
    }
