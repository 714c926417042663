"""The small-model draft on vLLM's V2 runner: vLLM's own speculator, driven pass by pass from our proposer.

vLLM's `StandaloneARSpeculator` loads the second model, gives its layers a part of the paged KV cache and prepares the
first pass of a step; `V2DraftModel` is that class with the loop over passes taken out, so that a proposer decides what
is sampled, and which rows of the output layer are computed. Unnecessary once vLLM's draft models take a class of their
own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.attn_utils import build_slot_mappings_by_layer
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

from vllm_specplug.bridge.draft_outputs import DraftOutputs, describe_share
from vllm_specplug.bridge.drafter_v2 import V2Drafter

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)


class V2DraftModel(DraftOutputs, StandaloneARSpeculator):
    """vLLM's speculator and the `DraftModel` of our proposer in one."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        """
        Raises:
            ConfigError: the proposer refuses its options.
        """
        super().__init__(vllm_config, device)
        self.specplug = V2Drafter(vllm_config, device)
        self.specplug.draft_model = self
        # The draft's own limit, which may be lower than the target's: positions beyond would end the engine.
        self.max_model_len = self.draft_max_seq_len = self.draft_model_config.max_model_len
        self._draft_vocab_size = self.draft_model_config.get_vocab_size()
        self._num_outputs = min(self._draft_vocab_size, vllm_config.model_config.get_vocab_size())
        self.vocab_size = self._num_outputs  # of `DraftModel`
        self._first_pass: Callable[[], torch.Tensor] | None = None
        self._advance: Callable[[torch.Tensor], torch.Tensor] | None = None
        self._states: torch.Tensor | None = None

    # What vLLM calls.

    @property
    def draft_logits(self) -> torch.Tensor | None:
        """What vLLM's rejection sampler reads q from; None: drafts are one-hot."""
        return self.specplug.draft_logits

    @draft_logits.setter
    def draft_logits(self, value: torch.Tensor | None) -> None:
        assert value is None, "vLLM's own room for logits; our configurations do not ask for it"

    def load_model(self, target_model: torch.nn.Module) -> None:
        """Load the draft model, then our proposer, which may read it."""
        super().load_model(target_model)
        self.specplug.load(target_model)

    def set_attn(self, model_state: Any, kv_cache_config: Any, *rest: Any) -> None:
        """Also says what the draft takes of the KV cache."""
        super().set_attn(model_state, kv_cache_config, *rest)
        block_size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        layers = self.draft_attn_layer_names
        logger.info("specplug: %s", describe_share(kv_cache_config, layers, block_size, self.model))

    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: torch.Tensor,
        aux_hidden_states: Any,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        last_sampled: torch.Tensor,
        next_prefill_tokens: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        *rest: Any,
        dp_sync_state: Any = None,
        dummy_run: bool = False,
        num_speculative_tokens: int | None = None,
        **more: Any,
    ) -> torch.Tensor:
        """See vLLM's BaseSpeculator."""
        if dummy_run:  # of a batch that is nobody's: its passes show what memory they take
            dummy: torch.Tensor = super().propose(
                input_batch,
                attn_metadata,
                slot_mappings,
                last_hidden_states,
                aux_hidden_states,
                num_sampled,
                num_rejected,
                last_sampled,
                next_prefill_tokens,
                temperature,
                seeds,
                *rest,
                dp_sync_state=dp_sync_state,
                dummy_run=True,
                **more,
            )
            return dummy
        across_ranks = None if dp_sync_state is None else dp_sync_state.num_tokens_across_dp
        self._copy_request_inputs(input_batch.num_reqs, input_batch.idx_mapping, temperature, seeds)
        self._prepare(input_batch, num_rejected, last_sampled, across_ranks)
        drafts = self.specplug.step(
            input_batch,
            last_hidden_states,
            num_sampled,
            num_rejected,
            last_sampled,
            temperature,
            num_speculative_tokens,
        )
        if self._first_pass is not None and not self.specplug.guard.off:
            self.begin()  # nobody did: keys and values of this step's tokens would be missing for good
        return drafts

    def sample_draft(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """vLLM samples here at the end of a pass; ours keeps the states, for whoever asked for the pass."""
        if self._first_pass is None:
            sampled: torch.Tensor = super().sample_draft(hidden_states, *args, **kwargs)
            return sampled
        self._states = hidden_states
        return hidden_states.new_zeros(len(hidden_states), dtype=torch.int64)

    def _run_model(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        # Tokens that a draft with fewer rows of padding does not have; nobody should see them.
        known = input_ids.clamp(max=self._draft_vocab_size - 1)
        states: torch.Tensor = super()._run_model(known, *args, **kwargs)
        return states

    # What our proposer calls: `vllm_specplug.proposer.DraftModel`.

    def begin(self) -> torch.Tensor:
        """See `DraftModel`."""
        assert self._first_pass is not None, "begin() was called twice in one step"
        states = self._first_pass()
        self._first_pass = None
        return states

    def advance(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See `DraftModel`."""
        assert self._first_pass is None, "begin() comes first"
        assert self._advance is not None, "begin() comes first"
        return self._advance(token_ids)

    def _prepare(
        self,
        input_batch: Any,
        num_rejected: torch.Tensor,
        last_sampled: torch.Tensor,
        across_ranks: torch.Tensor | None,
    ) -> None:
        """Note what the passes of this step read; they run when asked for."""
        num_reqs = input_batch.num_reqs
        num_passes = 0

        def first_pass() -> torch.Tensor:
            self._prefill(input_batch, num_rejected, last_sampled, num_reqs, False, across_ranks)
            assert self._states is not None, "vLLM's first pass ends in sample_draft"
            states, self._states = self._states, None
            # From here on a pass reads one token of each request, the first one behind the newest.
            buffers, limit = self.input_buffers, self.max_model_len
            buffers.positions[:num_reqs] = self.expanded_positions[self.last_token_indices[:num_reqs]]
            seq_lens = input_batch.seq_lens[:num_reqs] - num_rejected.int() + 1
            buffers.seq_lens[:num_reqs] = seq_lens.clamp(max=limit)
            buffers.query_start_loc[: num_reqs + 1] = self.arange_gpu[: num_reqs + 1]
            return states

        def advance(token_ids: torch.Tensor) -> torch.Tensor:
            nonlocal num_passes
            num_passes += 1
            buffers, limit = self.input_buffers, self.max_model_len
            positions, seq_lens = buffers.positions[:num_reqs], buffers.seq_lens[:num_reqs]
            buffers.input_ids[:num_reqs] = token_ids
            positions.add_(1).clamp_(max=limit - 1)
            seq_lens.add_(1).clamp_(max=limit)
            starts = buffers.query_start_loc[: num_reqs + 1]
            slots = self.block_tables.compute_slot_mappings(input_batch.idx_mapping, starts, positions, num_reqs)
            metadata = self._build_uniform_attn_metadata(
                batch_desc=BatchExecutionDescriptor(
                    cg_mode=CUDAGraphMode.NONE, num_tokens=num_reqs, num_reqs=num_reqs, uniform_token_count=1
                ),
                num_reqs=num_reqs,
                num_query_per_req=1,
                seq_lens_cpu_upper_bound=input_batch.seq_lens_cpu_upper_bound,
                step=num_passes + 1,  # with the newest token, which the first pass read
            )
            by_layer = build_slot_mappings_by_layer(slots, self.kv_cache_config)
            return self._run_model(buffers.input_ids[:num_reqs], positions, metadata, by_layer, across_ranks)

        self._first_pass, self._advance = first_pass, advance
