"""What training needs of the target: tensors its recorder wrote down (see `record.HiddenStateRecorder.load`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from vllm_specplug.errors import ModelError
from vllm_specplug.medusa.heads import HeadsConfig, MedusaHeads


@dataclass(frozen=True, slots=True)
class TargetTensors:
    """Of one target."""

    input_embeddings: Tensor
    """[vocab_size, hidden_size]."""
    output_embeddings: Tensor
    """[vocab_size, hidden_size]; the same tensor where they are tied."""

    @classmethod
    def load(cls, path: Path) -> TargetTensors:
        """Read the recorder's file.

        Raises:
            ModelError: it is missing or damaged.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                embeddings = file.get_tensor("input_embeddings").float()
                tied = "output_embeddings" not in file.keys()  # noqa: SIM118 - it is no dict
                output = embeddings if tied else file.get_tensor("output_embeddings").float()
                return cls(embeddings, output)
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"{path} cannot be read ({error}); remove its folder to record the target again"
            ) from error

    def new_heads(self, config: HeadsConfig, draft_token_ids: Tensor | None) -> MedusaHeads:
        """Untrained heads for this target, attached to it; output layers of their own begin as the target's."""
        heads = MedusaHeads(config, draft_token_ids)
        rows = self.output_embeddings if draft_token_ids is None else self.output_embeddings[draft_token_ids]
        heads.attach(self.input_embeddings, rows)
        for layer in (heads.output, *(head.output for head in heads.heads)):
            if layer is not None:
                layer.weight.data.copy_(rows)
        return heads


def num_weights(model: str) -> int | None:
    """Weights that a step of a target reads, from its configuration alone.

    Returns:
        None where it cannot be told from that: an architecture that transformers does not know, experts of which a step
        reads some, quantised weights.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(model)
        with torch.device("meta"):
            built = AutoModelForCausalLM.from_config(config)
    except Exception:  # whatever an unknown architecture raises
        return None
    if getattr(config, "quantization_config", None) or any("expert" in name for name, _ in built.named_parameters()):
        return None
    count: int = sum(parameter.numel() for parameter in built.parameters())
    embeddings, output = built.get_input_embeddings().weight, built.get_output_embeddings()
    tied = output is None or output.weight is embeddings
    return count if tied else count - embeddings.numel()  # of a table a step reads one row for each token
