"""Training a set of heads: the loop, its checkpoints, and going on after an interruption.

All heads learn at once, each from the true tokens in front of it, by cross-entropy. torch brings optimiser, schedule
and data loading. A run that was interrupted gives the same weights, bit for bit on a CPU, as one that was not: a
checkpoint holds weights, optimiser and step, and the order of examples depends on seed and epoch alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vllm_specplug.atomic import replacing
from vllm_specplug.errors import ConfigError, ModelError
from vllm_specplug.medusa.heads import MedusaHeads
from vllm_specplug.train.data import IGNORED, Answers, Batch, batches


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How heads are trained."""

    num_epochs: int = 4
    batch_size: int = 512
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: float = 0.03
    """Share of the steps in which the learning rate rises; then it falls along a cosine."""
    seed: int = 0
    checkpoint_every: int = 200
    """Steps."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step, for whoever shows progress."""

    number: int
    num_steps: int
    loss: float
    """Mean over the heads."""


def fit(
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
        checkpoint: where the state is kept; found there, training goes on from it.
        progress: called after each step; an exception it raises ends the training.
    Raises:
        ConfigError: the checkpoint is of another training, or the loss is not finite.
        ModelError: the checkpoint cannot be written.
    """
    device = next(heads.parameters()).device
    num_batches = len(batches(answers, settings.batch_size, shuffled_by=0))
    num_steps = settings.num_epochs * num_batches
    optimizer = torch.optim.AdamW(
        heads.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, betas=(0.9, 0.95)
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _warm_then_cosine(num_steps, settings.warmup))
    rows = _rows_of_target_ids(heads)
    identity = identity_of(heads, answers, settings)
    done = _resume(checkpoint, heads, optimizer, schedule, identity)
    heads.train()
    for epoch in range(done // num_batches, settings.num_epochs):
        for number, batch in enumerate(batches(answers, settings.batch_size, settings.seed + epoch)):
            step = epoch * num_batches + number + 1
            if step <= done:
                continue
            loss = loss_of(heads, batch, rows, device)
            if not math.isfinite(loss.item()):
                raise ConfigError(f"the loss of step {step} is {loss.item()}; lower --learning-rate")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % settings.checkpoint_every == 0 or step == num_steps:
                _save(checkpoint, heads, optimizer, schedule, identity, step)
            progress(Step(step, num_steps, loss.item()))
    heads.eval()


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


def _warm_then_cosine(num_steps: int, warmup: float) -> Callable[[int], float]:
    num_warm = max(1, round(warmup * num_steps))

    def factor(step: int) -> float:
        if step < num_warm:
            return (step + 1) / num_warm
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - num_warm) / max(1, num_steps - num_warm))))

    return factor


def identity_of(heads: MedusaHeads, answers: Answers, settings: FitSettings) -> dict[str, Any]:
    """What must be the same for a checkpoint to be gone on from."""
    ids = heads.draft_token_ids
    return {
        "heads": heads.config.model_dump(),
        "settings": asdict(settings),
        "answers": answers.digest,
        "draft_token_ids": None if ids is None else hashlib.sha256(ids.cpu().numpy().tobytes()).hexdigest(),
    }


def _save(
    path: Path,
    heads: MedusaHeads,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    identity: Mapping[str, Any],
    step: int,
) -> None:
    state = {
        "identity": dict(identity),
        "step": step,
        "heads": heads.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
    }
    try:
        with replacing(path) as temporary:
            torch.save(state, temporary)
    except (OSError, RuntimeError) as error:  # torch's writer raises the latter on a full disk
        raise ModelError(f"{path} cannot be written ({error}); make room, and run again to go on from there") from error


def _resume(
    path: Path,
    heads: MedusaHeads,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    identity: Mapping[str, Any],
) -> int:
    """Steps that are done already."""
    if not path.exists():
        return 0
    try:
        found = torch.load(path, map_location=next(heads.parameters()).device, weights_only=True)
    except Exception as error:  # whatever a damaged file raises
        raise ConfigError(f"{path} cannot be read ({type(error).__name__}); remove it to train again") from error
    for part, value in identity.items():
        if found["identity"][part] != value:
            raise ConfigError(
                f"{path} is of another training ({part}: {found['identity'][part]}, now {value}); "
                "remove it to train again, or name another --work folder"
            )
    heads.load_state_dict(found["heads"])
    optimizer.load_state_dict(found["optimizer"])
    schedule.load_state_dict(found["schedule"])
    return int(found["step"])
