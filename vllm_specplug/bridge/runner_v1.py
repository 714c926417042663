"""Our proposers on vLLM's V1 model runner.

`V1Drafter` is what vLLM's `custom_class` method makes in each worker. vLLM hands such a drafter token ids only, so the
runner's own step is wrapped: for our drafter alone it also gets hidden states, sampling parameters and request ids,
and may hand draft probabilities to the rejection sampler. Unnecessary once vLLM's `custom_class` hook passes these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vllm_specplug import control
from vllm_specplug.bridge import contract, patches, sampling
from vllm_specplug.bridge.drafter import Drafter, RequestLimits
from vllm_specplug.errors import ContractError
from vllm_specplug.guard import Checked
from vllm_specplug.proposer import DraftBatch

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class V1Drafter(Drafter):
    """A drafter driven by vLLM's V1 model runner."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        """
        Raises:
            ContractError: this vLLM's runner lacks what we rely on.
            ConfigError: the proposer refuses its options.
        """
        contract.require(contract.V1)
        super().__init__(vllm_config)
        install()
        sampling.mend(self.engine.device)

    def load_model(self, target: torch.nn.Module) -> None:
        """vLLM calls it once the target's weights are there."""
        self.load(target)

    def propose(self, *args: Any, **kwargs: Any) -> Any:
        """What vLLM's unwrapped runner would call; reaching it means that our hook is not in place."""
        raise ContractError(
            "this model runner does not go through GPUModelRunner.propose_draft_token_ids, so the proposer would never "
            "be asked; run on a platform whose runner derives from vLLM's GPUModelRunner"
        )

    def step(
        self,
        runner: Any,
        sampled_token_ids: Sequence[Sequence[int]],
        sampling_metadata: Any,
        sample_hidden_states: torch.Tensor,
        num_draft_tokens: Sequence[int] | None,
        step_limit: int,
    ) -> Checked:
        """Draft for the requests of the runner's present batch.

        Args:
            runner: vLLM's GPUModelRunner, after its bookkeeping of this step.
            sampled_token_ids: tokens accepted in this step, by row; none while a prompt is being read.
            sampling_metadata: vLLM's, of this step.
            sample_hidden_states: [sum of (num_draft_tokens + 1), hidden_size].
            num_draft_tokens: drafts verified in this step, by row; None: none for any row.
            step_limit: drafts a request that vLLM will schedule.
        """
        input_batch = runner.input_batch
        req_ids = list(input_batch.req_ids)
        num_reqs = len(req_ids)
        self._num_steps += 1
        limits = [self._limits.get(req_id) or self._note_of(runner, req_id) for req_id in req_ids]
        num_tokens = input_batch.num_tokens_no_spec[:num_reqs].astype(np.int32)
        self.leave_behind(req_ids, num_tokens, limits)
        num_new_tokens = np.fromiter(map(len, sampled_token_ids), np.int32, num_reqs)
        max_drafts, num_withheld = control.max_drafts(
            num_tokens,
            np.fromiter((limit.max_total_tokens for limit in limits), np.int32, num_reqs),
            np.fromiter((limit.min_total_tokens for limit in limits), np.int32, num_reqs),
            np.fromiter((limit.max_drafts for limit in limits), np.int32, num_reqs),
            step_limit,
            (num_new_tokens > 0).astype(np.int32),
        )
        if num_withheld:
            self.guard.counts.add("withheld", num_withheld)
        if not self._drafts_here:  # with synchronous scheduling vLLM takes token ids from the first rank
            return Checked([[] for _ in req_ids], None)
        token_ids = input_batch.token_ids_cpu[:num_reqs]
        token_ids.flags.writeable = False  # of this view: a proposer must not write into vLLM's buffer
        hidden_states = None
        if self.capabilities.reads_hidden_states:
            hidden_states = _last_accepted(sample_hidden_states, num_new_tokens, num_draft_tokens)
        batch = DraftBatch(
            req_ids=req_ids,
            token_ids=token_ids,
            num_tokens=num_tokens,
            num_new_tokens=num_new_tokens,
            max_drafts=max_drafts,
            # Copies: what a proposer writes must not reach the sampler.
            temperatures=None if sampling_metadata.all_greedy else sampling_metadata.temperature[:num_reqs].clone(),
            hidden_states=hidden_states,
            **self.generators(limits, [(int(count),) for count in num_tokens], set(np.flatnonzero(max_drafts))),
        )
        checked = self.guard.propose(batch, {row for row, limit in enumerate(limits) if limit.is_structured})
        return self.agree(checked)

    def _note_of(self, runner: Any, req_id: str) -> RequestLimits:
        request = runner.requests[req_id]
        return self.note(req_id, request.sampling_params, request.num_prompt_tokens)


def _last_accepted(
    sample_hidden_states: torch.Tensor, num_new_tokens: np.ndarray, num_draft_tokens: Sequence[int] | None
) -> torch.Tensor:
    """The target's hidden state at each request's last accepted position.

    A request with d drafts has d + 1 rows; of these, the one its newest token was sampled from is number
    num_new_tokens - 1. A request that is still reading its prompt accepted nothing and gets its first row, which is
    not to be used.

    Args:
        sample_hidden_states: [sum of (num_draft_tokens + 1), hidden_size].
        num_new_tokens: [num_reqs].
        num_draft_tokens: by request; None: no drafts, one row each.
    Returns:
        [num_reqs, hidden_size].
    """
    if num_draft_tokens is None:
        return sample_hidden_states[: len(num_new_tokens)].clone()
    ends = np.cumsum(np.asarray(num_draft_tokens) + 1)
    starts = np.concatenate(([0], ends[:-1]))
    rows = starts + np.maximum(num_new_tokens - 1, 0)
    return sample_hidden_states[torch.from_numpy(rows).to(sample_hidden_states.device)]


def install() -> list[Callable[[], None]]:
    """Wrap the V1 runner in this process; other drafters than ours pass through untouched. Repeatable.

    Returns:
        Functions that undo it.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    return [
        patches.wrap(GPUModelRunner, "propose_draft_token_ids", _propose_draft_token_ids),
        patches.wrap(GPUModelRunner, "_input_fits_in_drafter", _input_fits_in_drafter),
        patches.wrap(GPUModelRunner, "_update_states", _update_states),
    ]


def _ours(runner: Any) -> V1Drafter | None:
    drafter = getattr(runner, "drafter", None)
    drafter = getattr(drafter, "specplug", drafter)  # a draft model stands in front of ours
    return drafter if isinstance(drafter, V1Drafter) else None


def _propose_draft_token_ids(original: Callable[..., Any]) -> Callable[..., Any]:
    def propose_draft_token_ids(
        self: Any,
        scheduler_output: Any,
        sampled_token_ids: Any,
        sampling_metadata: Any,
        hidden_states: Any,
        sample_hidden_states: Any,
        aux_hidden_states: Any,
        spec_decode_metadata: Any,
        common_attn_metadata: Any,
        *rest: Any,
    ) -> Any:
        drafter = _ours(self)
        if drafter is None:
            return original(
                self,
                scheduler_output,
                sampled_token_ids,
                sampling_metadata,
                hidden_states,
                sample_hidden_states,
                aux_hidden_states,
                spec_decode_metadata,
                common_attn_metadata,
                *rest,
            )
        started = time.perf_counter_ns()
        draft_model = drafter.draft_model
        if draft_model is not None:
            draft_model.prepare(self, scheduler_output, sampled_token_ids, spec_decode_metadata, common_attn_metadata)
        checked = drafter.step(
            self,
            sampled_token_ids,
            sampling_metadata,
            sample_hidden_states,
            None if spec_decode_metadata is None else spec_decode_metadata.num_draft_tokens,
            scheduler_output.num_spec_tokens_to_schedule,
        )
        if draft_model is not None:
            draft_model.finish()
        drafter.guard.counts.add("draft_us", (time.perf_counter_ns() - started) // 1000)
        self._draft_probs = checked.probs
        self._draft_prob_req_ids = None if checked.probs is None else list(self.input_batch.req_ids)
        return checked.token_ids

    return propose_draft_token_ids


def _input_fits_in_drafter(original: Callable[..., Any]) -> Callable[..., Any]:
    def _input_fits_in_drafter(self: Any, common_attn_metadata: Any) -> Any:
        # vLLM asks whether the *longest* request has room and otherwise gives the whole batch drafts of token 0,
        # counted as drafted. Our limits are per request.
        if _ours(self) is not None and common_attn_metadata is not None:
            return True
        return original(self, common_attn_metadata)

    return _input_fits_in_drafter


def _update_states(original: Callable[..., Any]) -> Callable[..., Any]:
    def _update_states(self: Any, scheduler_output: Any) -> Any:
        drafter = _ours(self)
        if drafter is not None:
            again = [new.req_id for new in scheduler_output.scheduled_new_reqs if new.req_id in self.requests]
            preempted = scheduler_output.preempted_req_ids or ()
            drafter.forget([*scheduler_output.finished_req_ids, *preempted, *again])
            if again or preempted or scheduler_output.scheduled_cached_reqs.resumed_req_ids:
                # vLLM may schedule placeholders for these, and finds probabilities by request id: those of the step
                # before would be taken for theirs. Drafts without probabilities are exact.
                self._draft_probs = self._draft_prob_req_ids = None
        return original(self, scheduler_output)

    return _update_states
