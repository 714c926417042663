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
    """Tokens a greedy round gives with 1, 2, ... drafts, walking each answer round by round: a round begins where the
    last one ended, which is more often at a hard place than at an easy one."""


def evaluate(heads: MedusaHeads, answers: Answers, batch_size: int = 512) -> HeadsQuality:
    """Ask the heads about all examples of `answers`."""
    with torch.inference_mode():
        return _evaluate(heads, answers, batch_size)


def _evaluate(heads: MedusaHeads, answers: Answers, batch_size: int) -> HeadsQuality:
    device = next(heads.parameters()).device
    num_heads = heads.config.num_heads
    known = torch.zeros(num_heads, dtype=torch.int64)
    first, among_five = torch.zeros_like(known), torch.zeros_like(known)
    hits_of: list[torch.Tensor] = []
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
        hits_of.append(right.cpu())
    # Greedy drafts are the tokens that were read here as long as all before were right: no second pass is needed.
    accepted = torch.cat(hits_of).cumprod(dim=1)
    lengths = [rounds_length(accepted[:, : count + 1].sum(dim=1), answers.lengths) for count in range(num_heads)]
    return HeadsQuality(
        len(answers), (first / known.clamp(min=1)).tolist(), (among_five / known.clamp(min=1)).tolist(), lengths
    )


def rounds_length(accepted: torch.Tensor, lengths: torch.Tensor) -> float:
    """Mean tokens of a round.

    Args:
        accepted: [num_examples], drafts accepted in a round that begins there.
        lengths: tokens of each answer; an answer of n tokens has n - 1 examples, one after the other.
    """
    counts = accepted.tolist()
    num_tokens = num_rounds = first = 0
    for length in lengths.tolist():
        place, end = first, first + max(length - 1, 0)
        while place < end:
            num_rounds += 1
            gained = min(counts[place] + 1, end - place)
            num_tokens += gained
            place += gained
        first = end
    return num_tokens / num_rounds
