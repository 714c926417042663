"""The target's embeddings and output layer, out of vLLM's model and whole again where ranks share them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_specplug.errors import ModelError

if TYPE_CHECKING:
    import torch

    from vllm_specplug.proposer import DraftModel


class VllmTarget:
    """vLLM's target model as `vllm_specplug.proposer.Target`."""

    def __init__(self, module: torch.nn.Module, vocab_size: int, draft_model: DraftModel | None = None) -> None:
        """
        Args:
            module: the model of vLLM's runner, weights loaded.
            vocab_size: rows that are tokens; vLLM pads the layers beyond.
            draft_model: the second model, where there is one.
        """
        self._module = module
        self._vocab_size = vocab_size
        self._draft_model = draft_model

    @property
    def module(self) -> torch.nn.Module:
        """vLLM's model."""
        return self._module

    @property
    def draft_model(self) -> DraftModel | None:
        """See `Target`."""
        return self._draft_model

    def input_embeddings(self) -> torch.Tensor:
        """See `Target`."""
        return self._whole(self._input_layer())

    def output_embeddings(self, token_ids: torch.Tensor | None = None) -> torch.Tensor:
        """See `Target`."""
        layer = self._output_layer()
        return self._whole(layer) if token_ids is None else self._rows(layer, token_ids)

    def _language_model(self) -> Any:
        find = getattr(self._module, "get_language_model", None)
        return self._module if find is None else find()

    def _input_layer(self) -> Any:
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

        for layer in self._language_model().modules():
            if isinstance(layer, VocabParallelEmbedding) and not isinstance(layer, ParallelLMHead):
                return layer
        raise ModelError(
            f"{type(self._module).__name__} has no token embeddings that vLLM shards; choose another proposer"
        )

    def _output_layer(self) -> Any:
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        language_model = self._language_model()
        for owner in (language_model, self._module):  # a wrapper may own it
            layer = getattr(owner, "lm_head", None)
            if layer is not None:
                return layer
        for layer in self._module.modules():  # under another name
            if isinstance(layer, ParallelLMHead):
                return layer
        if getattr(getattr(language_model, "config", None), "tie_word_embeddings", False):
            return self._input_layer()
        raise ModelError(
            f"{type(self._module).__name__} has no output layer that vLLM shards; use heads with an output layer of "
            "their own, or choose another proposer"
        )

    def _whole(self, layer: Any) -> torch.Tensor:
        import torch

        weight = self._weight(layer)
        if layer.tp_size == 1:
            return weight[: self._vocab_size]
        return self._rows(layer, torch.arange(self._vocab_size, device=weight.device))

    def _rows(self, layer: Any, token_ids: torch.Tensor) -> torch.Tensor:
        from vllm.distributed import tensor_model_parallel_all_reduce

        weight = self._weight(layer)
        ids = token_ids.to(weight.device)
        if layer.tp_size == 1:
            return weight[ids]
        first, last = layer.shard_indices.org_vocab_start_index, layer.shard_indices.org_vocab_end_index
        here = (ids >= first) & (ids < last)
        rows = weight.new_zeros((len(ids), weight.shape[1]))
        rows[here] = weight[ids[here] - first]
        return tensor_model_parallel_all_reduce(rows)

    def _weight(self, layer: Any) -> torch.Tensor:
        weight = getattr(layer, "weight", None)
        if weight is None or weight.ndim != 2 or not weight.is_floating_point() or weight.element_size() < 2:
            raise ModelError(
                f"the {type(layer).__name__} of {type(self._module).__name__} is quantised, so its rows cannot be "
                "read; use independent heads with an output layer of their own, or a target that keeps embeddings and "
                "output layer in 16 bits"
            )
        return weight.detach()
