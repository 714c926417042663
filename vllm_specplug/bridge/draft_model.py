"""The small-model draft on vLLM's V1 runner: vLLM's own drafter, driven pass by pass from our proposer.

vLLM's `DraftModelProposer` loads the second model, gives its layers a part of the paged KV cache and prepares each
pass; `V1DraftModel` is that class with the loop over passes taken out, so that a proposer decides when to stop, what to
sample and which rows of the output layer to compute. It is put in vLLM's place where our configuration asks for it,
and only there. Unnecessary once vLLM's draft models take a class of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from vllm.forward_context import set_forward_context
from vllm.v1.spec_decode.draft_model import DraftModelProposer

from vllm_specplug.bridge import patches, versions
from vllm_specplug.bridge.config import proposer_spec
from vllm_specplug.bridge.draft_outputs import DraftOutputs, describe_share
from vllm_specplug.bridge.runner_v1 import V1Drafter

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)


class V1DraftModel(DraftOutputs, DraftModelProposer):
    """vLLM's drafter and the `DraftModel` of our proposer in one."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, runner: Any = None) -> None:
        super().__init__(vllm_config, device, runner)
        # vLLM's preparation keeps positions below this: the draft's own limit, which may be lower than the target's.
        self.max_model_len = self.draft_model_config.max_model_len
        self.specplug = V1Drafter(vllm_config)
        self.specplug.draft_model = self
        self._target_vocab_size: int = vllm_config.model_config.get_vocab_size()
        self._draft_vocab_size = self.draft_model_config.get_vocab_size()
        self._num_outputs = min(self._draft_vocab_size, self._target_vocab_size)
        self._first_pass: Callable[[], torch.Tensor] | None = None
        self._metadata: Any = None
        self._positions: torch.Tensor | None = None
        self._num_passes = 0

    # What vLLM calls.

    def load_model(self, target_model: torch.nn.Module) -> None:
        """Load the draft model, then our proposer, which may read it."""
        super().load_model(target_model)
        self.specplug.load(target_model)

    def initialize_attn_backend(self, kv_cache_config: Any, kernel_block_sizes: list[int] | None = None) -> None:
        """Also says what the draft takes of the KV cache."""
        super().initialize_attn_backend(kv_cache_config, kernel_block_sizes)
        layers = self._draft_attn_layer_names
        logger.info("specplug: %s", describe_share(kv_cache_config, layers, self.block_size, self.model))

    def set_inputs_first_pass(
        self, target_token_ids: torch.Tensor, next_token_ids: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[int, torch.Tensor, Any]:
        """As vLLM's, for a draft that has fewer rows of padding, and for requests longer than it may be."""
        if not self.use_heterogeneous_vocab and self._draft_vocab_size < self._target_vocab_size:
            target_token_ids = target_token_ids.clamp(max=self._draft_vocab_size - 1)
            next_token_ids = next_token_ids.clamp(max=self._draft_vocab_size - 1)
        num_tokens, indices, metadata = super().set_inputs_first_pass(target_token_ids, next_token_ids, *args, **kwargs)
        # Their keys go nowhere already; a position beyond the draft's table would end the engine.
        self.positions[:num_tokens].clamp_(max=self.max_model_len - 1)
        return num_tokens, indices, metadata

    def _raise_if_padded_drafter_batch_disabled(self) -> None:
        """vLLM's loop over passes wants padded batches; ours takes each request as long as it is."""

    def _raise_if_vocab_size_mismatch(self) -> None:
        """Checked in the front-end, by tokenizer: padded rows may differ."""

    # What our proposer calls: `vllm_specplug.proposer.DraftModel`.

    @property
    def vocab_size(self) -> int:
        """See `DraftModel`."""
        return self._num_outputs

    def begin(self) -> torch.Tensor:
        """See `DraftModel`."""
        assert self._first_pass is not None, "begin() was called twice in one step"
        first_pass, self._first_pass = self._first_pass, None
        return first_pass()

    def advance(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See `DraftModel`."""
        num_reqs = len(token_ids)
        mode, padded, across_ranks = self._determine_batch_execution_and_padding(num_reqs)
        assert self._positions is not None, "begin() comes first"
        self._update_positions_dependent_metadata(self._positions, self._metadata, num_reqs, padded, self.block_size)
        # Not what that returns, which is 0 from the draft's limit on: the pass behind would write its keys over those
        # of the text's second token, in a block that other requests may share.
        self._positions = self._positions + 1
        self._num_passes += 1
        if self.vocab_mapping is not None:
            token_ids = self.vocab_mapping.map_target_to_draft_ids(token_ids)
        self.input_ids[:num_reqs] = token_ids
        return self._run(self._metadata, mode, padded, across_ranks, self._get_slot_mapping(padded))[:num_reqs]

    # What the bridge calls.

    def prepare(
        self,
        runner: Any,
        scheduler_output: Any,
        sampled_token_ids: Sequence[Sequence[int]],
        spec_decode_metadata: Any,
        metadata: Any,
    ) -> None:
        """Note what the first pass of this step reads; it runs when asked for.

        Args:
            runner: vLLM's GPUModelRunner, after its bookkeeping of this step.
            sampled_token_ids: tokens accepted in this step, by row.
            spec_decode_metadata: vLLM's, of the drafts verified in this step; None: there were none.
            metadata: vLLM's CommonAttentionMetadata of this step.
        """

        def first_pass() -> torch.Tensor:
            next_token_ids = self.prepare_next_token_ids_cpu(
                sampled_token_ids, runner.requests, runner.input_batch, scheduler_output.num_scheduled_tokens
            )
            common, read = metadata, self.arange[: scheduler_output.total_num_scheduled_tokens]
            if spec_decode_metadata is not None:  # without the drafts that were rejected
                common, read = self.prepare_inputs(metadata, sampled_token_ids, spec_decode_metadata.num_draft_tokens)
            num_tokens, indices, common = self.set_inputs_first_pass(
                target_token_ids=runner.input_ids.gpu[read],
                next_token_ids=next_token_ids,
                target_positions=runner._get_positions(read),
                target_hidden_states=None,
                token_indices_to_sample=None,
                cad=common,
                num_rejected_tokens_gpu=None,
            )
            mode, padded, across_ranks = self._determine_batch_execution_and_padding(num_tokens)
            states = self._run(common, mode, padded, across_ranks, self._get_slot_mapping(padded, common.slot_mapping))
            self._one_token_each(common, indices)
            return states[indices]

        self._first_pass = first_pass
        self._num_passes = 0

    def finish(self) -> None:
        """Run the first pass if nobody did: keys and values of this step's tokens would be missing for good."""
        if self._first_pass is not None and not self.specplug.guard.off:
            self.begin()

    def _one_token_each(self, metadata: Any, indices: torch.Tensor) -> None:
        """From here on a pass reads one token of each request."""
        num_reqs = metadata.batch_size()
        self._positions = self.positions[indices]
        metadata.num_actual_tokens = num_reqs
        metadata.max_query_len = 1
        metadata.query_start_loc = self.arange[: num_reqs + 1]
        metadata.query_start_loc_cpu = torch.arange(num_reqs + 1, dtype=torch.int32)
        if metadata.seq_lens_cpu_upper_bound is not None:  # the runner's own tensor, and one token behind
            metadata.seq_lens_cpu_upper_bound = metadata.seq_lens_cpu_upper_bound + 1
        versions.forget_lengths_on_host(metadata)
        self._metadata = metadata

    def _run(
        self, metadata: Any, mode: Any, num_tokens: int, across_ranks: Any, slot_mapping: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """One forward pass over what stands in the input buffers."""
        _, by_layer = self.build_per_group_and_layer_attn_metadata(metadata, draft_index=self._num_passes)
        inputs, _ = self.build_model_inputs_first_pass(num_tokens, num_tokens, None)
        with set_forward_context(
            by_layer,
            self.vllm_config,
            num_tokens=num_tokens,
            num_tokens_across_dp=across_ranks,
            cudagraph_runtime_mode=mode,
            slot_mapping=slot_mapping,
        ):
            states: torch.Tensor = self.model(**inputs)
            return states


def install() -> Callable[[], None]:
    """Let vLLM make a `V1DraftModel` where our configuration asks for a draft model, in this process. Repeatable.

    Returns:
        A function that undoes it.
    """
    return patches.wrap(DraftModelProposer, "__init__", _become_ours)


def _become_ours(original: Callable[..., None]) -> Callable[..., None]:
    # vLLM makes its class by name and asks `isinstance` of it later, so the object has to be one of a subclass.
    def init(self: Any, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        if type(self) is DraftModelProposer and proposer_spec(vllm_config.speculative_config) is not None:
            self.__class__ = V1DraftModel
            self.__init__(vllm_config, *args, **kwargs)
        else:
            original(self, vllm_config, *args, **kwargs)

    return init
