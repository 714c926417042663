"""Our proposers on vLLM's V2 model runner.

V2 knows no drafter from outside; where our configuration asks for one, `V2Speculator` stands where vLLM would put its
own. vLLM gives a speculator no request ids, no sampling parameters and not the target, so the runner's own methods are
wrapped too: they say which requests begin and end. Unnecessary once V2 takes a speculator of one's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from vllm.utils.mem_utils import DeviceMemoryProfiler
from vllm.v1.worker.gpu import model_runner
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from vllm_specplug.bridge import contract, patches
from vllm_specplug.bridge.config import proposer_spec
from vllm_specplug.bridge.drafter_v2 import V2Drafter

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class V2Speculator(BaseSpeculator):
    """What vLLM's V2 runner asks for drafts."""

    supports_mm_inputs = False

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        """
        Raises:
            ConfigError: the proposer refuses its options.
        """
        self.specplug = V2Drafter(vllm_config, device)

    @property
    def draft_logits(self) -> torch.Tensor | None:
        """What vLLM's rejection sampler reads q from; None: drafts are one-hot."""
        return self.specplug.draft_logits

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Drafting is not captured: what a proposer does may differ from step to step."""

    def capture(self) -> None:
        """See `init_cudagraph_manager`."""

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
        dummy_run: bool = False,
        num_speculative_tokens: int | None = None,
        **more: Any,
    ) -> torch.Tensor:
        """See vLLM's BaseSpeculator."""
        if dummy_run:  # of a batch that is nobody's
            num_columns = self.specplug.engine.num_speculative_tokens
            return torch.zeros((input_batch.num_reqs, num_columns), dtype=torch.int64, device=num_sampled.device)
        return self.specplug.step(
            input_batch,
            last_hidden_states,
            num_sampled,
            num_rejected,
            last_sampled,
            temperature,
            num_speculative_tokens,
        )


def install() -> list[Callable[[], None]]:
    """Wrap the V2 runner in this process; other speculators than ours pass through untouched. Repeatable.

    Returns:
        Functions that undo it.
    Raises:
        ContractError: this vLLM's runner lacks what we rely on.
    """
    contract.require(contract.V2)
    return [
        patches.wrap(model_runner, "init_speculator", _init_speculator),
        patches.wrap(GPUModelRunner, "load_model", _load_model),
        patches.wrap(GPUModelRunner, "add_requests", _add_requests),
        patches.wrap(GPUModelRunner, "_remove_request", _remove_request),
        patches.wrap(GPUModelRunner, "take_draft_token_ids", _take_draft_token_ids),
    ]


def _ours(runner: Any) -> V2Drafter | None:
    drafter = getattr(getattr(runner, "speculator", None), "specplug", None)
    return drafter if isinstance(drafter, V2Drafter) else None


def _init_speculator(original: Callable[..., Any]) -> Callable[..., Any]:
    def init_speculator(vllm_config: VllmConfig, device: torch.device, *rest: Any) -> Any:
        if proposer_spec(vllm_config.speculative_config) is None:
            return original(vllm_config, device, *rest)
        if vllm_config.speculative_config.uses_draft_model():
            from vllm_specplug.bridge.draft_model_v2 import V2DraftModel

            return V2DraftModel(vllm_config, device)
        return V2Speculator(vllm_config, device)

    return init_speculator


def _load_model(original: Callable[..., Any]) -> Callable[..., Any]:
    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        drafter = _ours(self)
        if drafter is not None:
            drafter.attach(self.req_states)
        result = original(self, *args, **kwargs)
        if drafter is not None and drafter.draft_model is None:  # vLLM loads a draft model itself
            with DeviceMemoryProfiler() as used:
                drafter.load(self.model)
            self.model_memory_usage += used.consumed_memory  # vLLM plans the KV cache by it
        return result

    return load_model


def _add_requests(original: Callable[..., Any]) -> Callable[..., Any]:
    def add_requests(self: Any, scheduler_output: Any) -> Any:
        result = original(self, scheduler_output)
        drafter = _ours(self)
        if drafter is not None:
            for new in scheduler_output.scheduled_new_reqs:
                drafter.begin(new.req_id, new.sampling_params, new.prompt_len, len(new.prefill_token_ids))
        return result

    return add_requests


def _remove_request(original: Callable[..., Any]) -> Callable[..., Any]:
    def _remove_request(self: Any, req_id: str) -> Any:
        drafter = _ours(self)
        if drafter is not None:
            drafter.end(req_id)
        return original(self, req_id)

    return _remove_request


def _take_draft_token_ids(original: Callable[..., Any]) -> Callable[..., Any]:
    def take_draft_token_ids(self: Any) -> Any:
        found = original(self)
        drafter = _ours(self)
        if drafter is None or found is None or drafter.engine.asynchronous:
            return found
        # vLLM says as many for every request; what is behind a request's own drafts need not be verified.
        found.draft_token_ids = [
            tokens[: drafter.num_drafts(req_id)]
            for req_id, tokens in zip(found.req_ids, found.draft_token_ids, strict=True)
        ]
        return found

    return take_draft_token_ids
