"""What heads are worth, on answers they were not trained on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vllm_specplug.medusa.heads import MedusaHeads
from vllm_specplug.train.data import IGNORED, Answers, batches


@dataclass(frozen=True, slots=True)
class HeadsQuality:
    """Figures on held-out answers. The earlier tokens are right, as they are wherever a head's guess counts."""

    num_examples: int
    top1: list[float]
    """By head: how often its first guess is the target's token; a token outside the draft vocabulary is a miss."""
    top5: list[float]
    """... one of its first five."""
    acceptance_length: list[float]
    """Expected tokens of a greedy round with 1, 2, ... drafts: 1 + the drafts accepted before the first miss."""


def evaluate(heads: MedusaHeads, answers: Answers, batch_size: int = 512) -> HeadsQuality:
    """Ask the heads about all examples of `answers`."""
    with torch.inference_mode():
        return _evaluate(heads, answers, batch_size)


def _evaluate(heads: MedusaHeads, answers: Answers, batch_size: int) -> HeadsQuality:
    device = next(heads.parameters()).device
    num_heads = heads.config.num_heads
    known = torch.zeros(num_heads, dtype=torch.int64)
    first, among_five = torch.zeros_like(known), torch.zeros_like(known)
    accepted = torch.zeros(num_heads, dtype=torch.int64)
    for batch in batches(answers, batch_size):
        labels = batch.labels.to(device)
        right = torch.zeros_like(labels, dtype=torch.bool)
        for index, logits in enumerate(heads(batch.states.to(device), batch.tokens.to(device))):
            guesses = heads.target_ids(logits.topk(min(5, logits.shape[-1]), dim=-1).indices)
            hits = guesses == labels[:, index, None]
            right[:, index] = hits[:, 0]
            first[index] += hits[:, 0].sum().cpu()
            among_five[index] += hits.any(dim=1).sum().cpu()
        known += (labels != IGNORED).sum(dim=0).cpu()
        # Greedy drafts are the tokens that were read here as long as all before were right: no second pass is needed.
        accepted += right.cumprod(dim=1).sum(dim=0).cpu()
    lengths = 1 + (accepted / len(answers)).cumsum(0)
    return HeadsQuality(
        len(answers),
        (first / known.clamp(min=1)).tolist(),
        (among_five / known.clamp(min=1)).tolist(),
        lengths.tolist(),
    )
