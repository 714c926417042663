"""Outputs of a draft model that vLLM loaded, as a proposer asks for them: `vllm_specplug.proposer.DraftModel` in part.

The same for both model runners, whose drafters run its passes each in their own way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vllm_specplug.bridge.target import VllmTarget


class DraftOutputs:
    """Mixed into vLLM's drafter, which brings `model` and, for a draft with another tokenizer, `vocab_mapping`."""

    model: Any
    vocab_mapping: Any = None
    _draft_vocab_size: int
    """Rows of its output layer that are tokens."""
    _num_outputs: int
    """... that are tokens of the target too."""

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """See `DraftModel`."""
        logits: torch.Tensor = self.model.compute_logits(states)
        if self.vocab_mapping is not None:
            constrained: torch.Tensor = self.vocab_mapping.constrain_draft_logits(logits)
            return constrained
        return logits[:, : self._num_outputs]

    def logits_of(self, token_ids: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """See `DraftModel`."""
        rows = VllmTarget(self.model, self._draft_vocab_size).output_embeddings(token_ids).contiguous()
        processor = getattr(self.model, "logits_processor", None)
        scale, soft_cap = getattr(processor, "scale", 1.0), getattr(processor, "soft_cap", None)

        def logits(states: torch.Tensor) -> torch.Tensor:
            found = torch.nn.functional.linear(states, rows)
            if soft_cap is not None:
                found = torch.tanh(found / soft_cap) * soft_cap
            return found if scale == 1.0 else found * scale

        return logits

    def to_target_ids(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See `DraftModel`."""
        if self.vocab_mapping is None:
            return token_ids
        mapped: torch.Tensor = self.vocab_mapping.map_draft_to_target_ids(token_ids)
        return mapped


def describe_share(kv_cache_config: Any, draft_layers: set[str], block_size: int, model: torch.nn.Module) -> str:
    """What the draft takes of the KV cache and of memory, in words for the log.

    Args:
        draft_layers: names of its attention layers.
    """
    sizes = {"draft": 0, "target": 0}
    for group in kv_cache_config.kv_cache_groups:
        for name in group.layer_names:
            by_layer = getattr(group.kv_cache_spec, "kv_cache_specs", None)
            spec = by_layer[name] if by_layer else group.kv_cache_spec
            sizes["draft" if name in draft_layers else "target"] += spec.page_size_bytes
    share = sizes["draft"] / sum(sizes.values())
    num_blocks = kv_cache_config.num_blocks
    mebibytes = sum(parameter.nbytes for parameter in model.parameters()) / 2**20
    return (
        f"the draft model takes {100 * share:.1f}% of the KV cache: {num_blocks} blocks of {block_size} tokens, "
        f"{round(num_blocks / (1 - share))} without it, and {mebibytes:.0f} MiB of weights"
    )
