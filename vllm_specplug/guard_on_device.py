"""What `Guard` does with an answer, done on the device: for asynchronous steps, in which nobody waits for the host.

The same rules as in `guard`, written over whole tensors. Drafts that are wrong become shorter, here too; what the
engine puts in their place is its business. Knows nothing of vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_specplug.errors import ShapeError
from vllm_specplug.proposer import Drafts, EngineInfo

if TYPE_CHECKING:
    import torch

    from vllm_specplug.deferred_counts import DeferredCounts

#: How far from 1 the sum of a distribution may be.
PROBS_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class CheckedOnDevice:
    """Drafts the engine can verify."""

    token_ids: torch.Tensor
    """[num_reqs, width] int64; inside the vocabulary where there is a draft, anything elsewhere."""
    num_drafts: torch.Tensor
    """[num_reqs] int64."""
    probs: torch.Tensor | None
    """[num_reqs, width, vocab_size] float32; None: unknown for all."""
    num_with_probs: torch.Tensor
    """[num_reqs] int64, columns from the left whose distribution is that of `probs`; the rest are one-hot."""


def check(
    drafts: Drafts,
    limits: torch.Tensor,
    engine: EngineInfo,
    without_probs: torch.Tensor | None,
    counts: DeferredCounts,
) -> CheckedOnDevice:
    """Cut what is malformed and count what was cut.

    Args:
        limits: most drafts of each request, [num_reqs], none above num_speculative_tokens.
        without_probs: [num_reqs] bool, rows whose drafts are one-hot whatever the proposer says; None: no row.
    Raises:
        ShapeError: the answer has the wrong shape or type.
    """
    import torch

    token_ids, said = _tensors(drafts, limits)
    vocab_size, given = engine.vocab_size, token_ids.shape[1]
    said = said.long().clamp(0, given)
    token_ids = token_ids[:, : engine.num_speculative_tokens]
    width = token_ids.shape[1]
    column = torch.arange(width, device=limits.device)
    kept = torch.minimum(said, limits.long())
    drafted = column < kept[:, None]
    num_too_many = (said - kept).sum()
    first_bad = _first(drafted & ((token_ids < 0) | (token_ids >= vocab_size)), width)
    num_bad = (kept - torch.minimum(kept, first_bad)).sum()
    kept = torch.minimum(kept, first_bad)
    token_ids = token_ids.long()
    amounts = {"draft_tokens": kept.sum(), "dropped_too_many": num_too_many, "dropped_bad_id": num_bad}
    with_probs, probs = torch.zeros_like(kept), drafts.probs
    if probs is not None:
        wanted = (len(limits), given, vocab_size)
        if isinstance(probs, torch.Tensor) and tuple(probs.shape) == wanted and probs.is_floating_point():
            probs = probs[:, :width].to(device=limits.device, dtype=torch.float32)
            drawn = probs.gather(2, token_ids.clamp(0, vocab_size - 1)[..., None])[..., 0]
            fine = ((probs.sum(-1) - 1).abs() <= PROBS_TOLERANCE) & (probs.amin(-1) >= 0) & (drawn > 0)
            wrong = ~fine & (column < kept[:, None])
            with_probs = torch.minimum(kept, _first(wrong, width))
            if without_probs is not None:
                with_probs = with_probs.masked_fill(without_probs, 0)
                wrong &= ~without_probs[:, None]
            amounts["dropped_bad_probs"] = wrong.any()
        else:
            probs, amounts["dropped_bad_probs"] = None, torch.ones((), device=limits.device)
    counts.add(**amounts)
    return CheckedOnDevice(token_ids, kept, probs, with_probs)


def _first(where: torch.Tensor, width: int) -> torch.Tensor:
    """Column of the first True of each row, `width` where there is none."""
    if not width:
        return where.new_zeros(len(where)).long()
    return where.int().argmax(1).masked_fill(~where.any(1), width)


def _tensors(drafts: Drafts, limits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    if not isinstance(drafts, Drafts):
        raise ShapeError(f"returned {type(drafts).__name__}, expected vllm_specplug.Drafts")
    token_ids = torch.as_tensor(drafts.token_ids, device=limits.device)
    num_drafts = torch.as_tensor(drafts.num_drafts, device=limits.device)
    for name, found, shape, right in (
        ("token_ids", token_ids, f"[{len(limits)}, width]", token_ids.ndim == 2 and len(token_ids) == len(limits)),
        ("num_drafts", num_drafts, f"[{len(limits)}]", num_drafts.shape == limits.shape),
    ):
        if not right or found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
            raise ShapeError(
                f"returned {name} of shape {tuple(found.shape)} and type {found.dtype}, expected whole numbers of "
                f"shape {shape}"
            )
    return token_ids, num_drafts
