"""Draft probabilities as V2's rejection sampler reads them.

It takes logits from before the temperature, at each request's line: what it divides by the temperature and normalises
has to be exactly the q that a draft was drawn from. A token whose q is unknown, and the last token where there is no
draft, is one-hot: its logit is 0, all others are minus infinity.
"""

from __future__ import annotations

import torch

from vllm_specplug.proposer import EngineInfo


def room(engine: EngineInfo, device: torch.device) -> torch.Tensor:
    """[max_num_reqs, num_speculative_tokens, vocab_size] float32: in the model's own dtype q would be rounded."""
    shape = (engine.max_num_reqs, engine.num_speculative_tokens, engine.vocab_size)
    return torch.zeros(shape, dtype=torch.float32, device=device)


def write(
    room: torch.Tensor,
    lines: torch.Tensor,
    token_ids: torch.Tensor,
    probs: torch.Tensor | None,
    num_with_probs: torch.Tensor,
    temperatures: torch.Tensor,
) -> None:
    """Hand over the distributions of a step.

    Args:
        room: see above.
        lines: [num_reqs] int64, of `room`.
        token_ids: [num_reqs, num_speculative_tokens] int64, what will be verified.
        probs: [num_reqs, width, vocab_size] float32; None: unknown for all.
        num_with_probs: [num_reqs], columns from the left of which `probs` holds q.
        temperatures: [num_reqs]; rows of greedy requests (0) are not read by anybody.
    """
    scale = torch.where(temperatures > 0, temperatures, 1.0)[:, None]
    for column in range(room.shape[1]):
        logits = torch.full((len(lines), room.shape[2]), -torch.inf, device=room.device)
        logits.scatter_(1, token_ids[:, column : column + 1], 0.0)
        if probs is not None and column < probs.shape[1]:
            has_q = (num_with_probs > column)[:, None]
            logits = torch.where(has_q, probs[:, column].log() * scale, logits)
        room[lines, column] = logits


def checksum(token_ids: torch.Tensor, probs: torch.Tensor, num_with_probs: torch.Tensor) -> torch.Tensor:
    """A number that differs when any token, or any bit of a distribution that counts, does; found on the device.

    Args:
        token_ids: [num_reqs, num_columns] int64.
        probs: [num_reqs, width, vocab_size] float32.
        num_with_probs: [num_reqs], columns of `probs` that count.
    Returns:
        A scalar int64.
    """

    def weighed(values: torch.Tensor, first: int) -> torch.Tensor:
        # Odd weights, so that no bit falls out of the wrapping sum.
        flat = values.flatten().long()
        return (flat * torch.arange(2 * first + 1, 2 * (first + len(flat)), 2, device=flat.device)).sum()

    total = weighed(token_ids, 0) + weighed(num_with_probs, token_ids.numel())
    for column in range(probs.shape[1]):
        bits = probs[:, column].contiguous().view(torch.int32)
        total += weighed(bits * (num_with_probs > column)[:, None], (column + 1) * probs[:, 0].numel())
    return total
