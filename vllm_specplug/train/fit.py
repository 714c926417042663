"""Training a module: the loop, its checkpoints, and going on after an interruption.

torch brings optimiser, schedule and data loading. A run that was interrupted gives the same weights, bit for bit on a
CPU, as one that was not: a checkpoint holds weights, optimiser and step, and the order of examples depends on seed and
epoch alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from vllm_specplug.atomic import replacing
from vllm_specplug.errors import ConfigError, ModelError

BatchT = TypeVar("BatchT")


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How a module is trained."""

    num_epochs: int = 4
    batch_size: int = 512
    """Examples, or tokens where examples are whole texts."""
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


def fit(
    module: torch.nn.Module,
    batches: Callable[[int], DataLoader[BatchT]],
    loss_of: Callable[[BatchT], Tensor],
    settings: FitSettings,
    identity: Mapping[str, Any],
    checkpoint: Path,
    progress: Callable[[Step], None] = lambda _: None,
) -> None:
    """Train the parameters of `module` that ask for gradients, in place.

    Args:
        module: float32.
        batches: all examples once, in the order of a seed; as many batches for each.
        loss_of: loss of one batch.
        identity: what must be the same for a checkpoint to be gone on from.
        checkpoint: where the state is kept; found there, training goes on from it.
        progress: called after each step; an exception it raises ends the training.
    Raises:
        ConfigError: the checkpoint is of another training, or the loss is not finite.
        ModelError: the checkpoint cannot be written.
    """
    num_batches = len(batches(settings.seed))
    num_steps = settings.num_epochs * num_batches
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay, betas=(0.9, 0.95)
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _warm_then_cosine(num_steps, settings.warmup))
    state = _State(module, optimizer, schedule, identity, checkpoint)
    done = state.resume()
    module.train()
    for epoch in range(done // num_batches, settings.num_epochs):
        for number, batch in enumerate(batches(settings.seed + epoch)):
            step = epoch * num_batches + number + 1
            if step <= done:
                continue
            loss = loss_of(batch)
            if not math.isfinite(loss.item()):
                raise ConfigError(f"the loss of step {step} is {loss.item()}; lower --learning-rate")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            if step % settings.checkpoint_every == 0 or step == num_steps:
                state.save(step)
            progress(Step(step, num_steps, loss.item()))
    module.eval()


def _warm_then_cosine(num_steps: int, warmup: float) -> Callable[[int], float]:
    num_warm = max(1, round(warmup * num_steps))

    def factor(step: int) -> float:
        if step < num_warm:
            return (step + 1) / num_warm
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - num_warm) / max(1, num_steps - num_warm))))

    return factor


@dataclass(frozen=True, slots=True)
class _State:
    """All that a training consists of, and the file it is kept in."""

    module: torch.nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    identity: Mapping[str, Any]
    path: Path

    def save(self, step: int) -> None:
        trained = {name for name, parameter in self.module.named_parameters() if parameter.requires_grad}
        state = {
            "identity": dict(self.identity),
            "step": step,
            "module": {name: value for name, value in self.module.state_dict().items() if name in trained},
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
        }
        try:
            with replacing(self.path) as temporary:
                torch.save(state, temporary)
        except (OSError, RuntimeError) as error:  # torch's writer raises the latter on a full disk
            raise ModelError(
                f"{self.path} cannot be written ({error}); make room, and run again to go on from there"
            ) from error

    def resume(self) -> int:
        """Steps that are done already."""
        if not self.path.exists():
            return 0
        device = next(self.module.parameters()).device
        try:
            found = torch.load(self.path, map_location=device, weights_only=True)
        except Exception as error:  # whatever a damaged file raises
            raise ConfigError(
                f"{self.path} cannot be read ({type(error).__name__}); remove it to train again"
            ) from error
        for part, value in self.identity.items():
            if found["identity"][part] != value:
                raise ConfigError(
                    f"{self.path} is of another training ({part}: {found['identity'][part]}, now {value}); "
                    "remove it to train again, or name another --work folder"
                )
        self.module.load_state_dict(found["module"], strict=False)
        self.optimizer.load_state_dict(found["optimizer"])
        self.schedule.load_state_dict(found["schedule"])
        return int(found["step"])
