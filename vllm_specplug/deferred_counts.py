"""Counts that the device knows first, brought to the host without waiting for it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from vllm_specplug.metrics import Counts

if TYPE_CHECKING:
    import torch


class DeferredCounts:
    """Adds to a proposer's counts a step or two after the fact, when the copy has arrived."""

    def __init__(self, counts: Counts, device: str) -> None:
        self._counts = counts
        self._device = device
        self._under_way: deque[tuple[tuple[str, ...], torch.Tensor, torch.Event | None]] = deque()

    def add(self, **amounts: torch.Tensor) -> None:
        """Count `amounts` (scalars on the device) under slots of `Counts`."""
        import torch

        together = torch.stack([amount.to(torch.int64) for amount in amounts.values()])
        if together.device.type == "cpu":
            self._arrived(tuple(amounts), together)
            return
        copy = torch.empty(len(together), dtype=torch.int64, pin_memory=True)
        copy.copy_(together, non_blocking=True)
        event = torch.Event(self._device)
        event.record()
        self._under_way.append((tuple(amounts), copy, event))
        while self._under_way and (first := self._under_way[0])[2] is not None and first[2].query():
            self._arrived(*self._under_way.popleft()[:2])

    def _arrived(self, slots: tuple[str, ...], amounts: torch.Tensor) -> None:
        for slot, amount in zip(slots, amounts.tolist(), strict=True):
            if amount:
                self._counts.add(slot, amount)
