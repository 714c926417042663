"""A drafter driven by vLLM's V2 model runner: from V2's tensors to a `DraftBatch`, and from drafts to what V2 verifies.

Under synchronous scheduling the host waits for each step anyway: requests may draft different numbers of tokens, and
vLLM is told how many each has (`num_drafts`). Under asynchronous scheduling vLLM has planned the next step before the
drafts are known, with as many for every request: where there is no draft, the last token stands in its place and is
verified for nothing (counted as `filler`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.utils.torch_utils import async_tensor_h2d

from vllm_specplug import control
from vllm_specplug.bridge import draft_logits
from vllm_specplug.bridge.batch_v2 import HostTokens, StepOnHost, StepTensors, V2Batch
from vllm_specplug.bridge.drafter import Drafter, RequestLimits
from vllm_specplug.guard import Checked
from vllm_specplug.guard_on_device import CheckedOnDevice
from vllm_specplug.proposer import IntArray, OnDevice

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class V2Drafter(Drafter):
    """One proposer on the V2 runner."""

    _states: Any
    _tokens: HostTokens

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        """
        Raises:
            ConfigError: the proposer refuses its options.
        """
        super().__init__(vllm_config)
        self._device = device
        self._num_columns = self.engine.num_speculative_tokens
        self._rounds: dict[str, list[int]] = {}
        """Of each request: how many tokens it came with, and rounds since."""
        self._num_drafts: dict[str, int] = {}
        self.draft_logits: torch.Tensor | None = None
        """See `draft_logits`; None: all drafts are one-hot."""

    def attach(self, states: Any) -> None:
        """Read the requests from vLLM's RequestState, which some releases make after the drafter."""
        self._states = states
        self._tokens = HostTokens(states.all_token_ids.gpu, self._num_columns + 1)

    def load(self, target: torch.nn.Module) -> None:
        """Get ready to draft; the target's weights are there."""
        self.draft_logits = draft_logits.room(self.engine, self._device) if self.capabilities.gives_probs else None
        super().load(target)

    def begin(self, req_id: str, params: Any, num_prompt_tokens: int, num_tokens: int) -> None:
        """A request gets a line: a new one, or one that was preempted and comes back with `num_tokens`."""
        self.note(req_id, params, num_prompt_tokens)
        self._rounds[req_id] = [num_tokens, 0]

    def end(self, req_id: str) -> None:
        """A request gives its line back."""
        line = self._states.req_id_to_index.get(req_id)
        if line is not None:
            self._tokens.forget(line)
        self._rounds.pop(req_id, None)
        self.forget([req_id])

    def num_drafts(self, req_id: str) -> int:
        """Tokens drafted for a request in the last step."""
        return self._num_drafts.get(req_id, 0)

    def step(
        self,
        input_batch: Any,
        hidden_states: torch.Tensor,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        last_sampled: torch.Tensor,
        temperature: torch.Tensor,
        step_limit: int | None,
    ) -> torch.Tensor:
        """Draft for the requests of a batch, after vLLM's bookkeeping of the step.

        Args:
            input_batch: vLLM's InputBatch.
            hidden_states: [num_tokens, hidden_size].
            num_sampled, num_rejected: [num_reqs], tokens accepted and drafts rejected in this step.
            last_sampled: [lines, 1] int64.
            temperature: [lines] float32.
            step_limit: drafts a request that vLLM will schedule; None: as many as configured.
        Returns:
            [num_reqs, num_speculative_tokens] int64: drafts, and the last token where there is none.
        """
        started = time.perf_counter_ns()
        self._num_steps += 1
        index, req_ids = input_batch.idx_mapping, list(input_batch.req_ids)
        step = StepTensors(
            lines=input_batch.idx_mapping_np.astype(np.int32),
            index=index,
            num_sampled=num_sampled,
            num_tokens=self._states.total_len.gpu[index],
            newest=last_sampled[index, 0],
            token_ids=self._states.all_token_ids.gpu,
            longest=self._longest(input_batch),
        )
        limits = [self._limits[req_id] for req_id in req_ids]
        all_greedy = all(limit.is_greedy for limit in limits)
        columns = self._num_columns if step_limit is None else step_limit
        checked = None
        if self._drafts_here:
            more = {
                "temperatures": None if all_greedy else temperature[index],
                "hidden_states": self._last_accepted(input_batch, hidden_states, num_rejected),
            }
            ask = self._ask_on_device if self.engine.asynchronous else self._ask
            checked = ask(req_ids, limits, columns, step, more)
        tokens = step.newest[:, None].repeat(1, self._num_columns)
        num_with_probs = torch.zeros_like(step.newest)
        probs = None
        if checked is not None:
            width = checked.token_ids.shape[1]
            drafted = torch.arange(width, device=self._device) < checked.num_drafts[:, None]
            tokens[:, :width] = torch.where(drafted, checked.token_ids, tokens[:, :width])
            num_with_probs, probs = checked.num_with_probs, checked.probs
        if self.engine.tp_size > 1:
            num_with_probs = self._share(tokens, num_with_probs, probs)
        if self.draft_logits is not None and not all_greedy:
            draft_logits.write(self.draft_logits, index, tokens, probs, num_with_probs, temperature[index])
        self.guard.counts.add("draft_us", (time.perf_counter_ns() - started) // 1000)
        return tokens

    def _longest(self, input_batch: Any) -> int:
        """No request of the step is longer, also none that still reads its prompt; known to the host beforehand."""
        # The newest token is not among those that were computed.
        upper_bound = int(input_batch.seq_lens_cpu_upper_bound.max()) + 1
        return min(max(upper_bound, int(input_batch.prefill_len_np.max())), self.engine.max_model_len)

    def _last_accepted(
        self, input_batch: Any, hidden_states: torch.Tensor, num_rejected: torch.Tensor
    ) -> torch.Tensor | None:
        """The target's hidden state at each request's last accepted position, [num_reqs, hidden_size]."""
        if not self.capabilities.reads_hidden_states:
            return None
        ends = input_batch.query_start_loc[1 : input_batch.num_reqs + 1]
        return hidden_states[ends - 1 - num_rejected]

    def _on_host(
        self, req_ids: Sequence[str], limits: list[RequestLimits], columns: int, step: StepTensors
    ) -> StepOnHost:
        def limit_drafts(num_tokens: IntArray, num_new_tokens: IntArray) -> IntArray:
            self.leave_behind(req_ids, num_tokens, limits)
            max_drafts, num_withheld = control.max_drafts(
                num_tokens,
                np.fromiter((limit.max_total_tokens for limit in limits), np.int32, len(limits)),
                # No lower limit: V2 allows stop tokens by the place of each token, not once for a step.
                np.zeros(len(limits), np.int32),
                np.fromiter((limit.max_drafts for limit in limits), np.int32, len(limits)),
                columns,
                (num_new_tokens > 0).astype(np.int32),
            )
            if num_withheld:
                self.guard.counts.add("withheld", num_withheld)
            return max_drafts

        return StepOnHost(step, self._tokens, limit_drafts)

    def _ask(
        self, req_ids: list[str], limits: list[RequestLimits], columns: int, step: StepTensors, more: dict[str, Any]
    ) -> CheckedOnDevice:
        """Of a synchronous step; waits for the device."""
        on_host = self._on_host(req_ids, limits, columns, step)
        places = [(int(count),) for count in on_host.num_tokens]
        drafting = {int(row) for row in np.flatnonzero(on_host.max_drafts)}
        batch = V2Batch(req_ids, step, on_host, **more, **self.generators(limits, places, drafting))
        checked = self.guard.propose(batch, {row for row, limit in enumerate(limits) if limit.is_structured})
        self._num_drafts = {req_id: len(drafts) for req_id, drafts in zip(req_ids, checked.token_ids, strict=True)}
        return self._put(checked)

    def _ask_on_device(
        self, req_ids: list[str], limits: list[RequestLimits], columns: int, step: StepTensors, more: dict[str, Any]
    ) -> CheckedOnDevice | None:
        """Of an asynchronous step; waits for nothing."""
        max_drafts = (step.num_sampled > 0) * columns
        if any(limit.max_drafts < columns for limit in limits):
            most = np.fromiter((limit.max_drafts for limit in limits), np.int32, len(limits))
            max_drafts = torch.minimum(max_drafts, async_tensor_h2d(most, device=self._device))
        if self.draft_model is not None:  # knows nothing of longer requests
            max_drafts = max_drafts * (step.num_tokens < self.draft_model.max_model_len)
        without_probs = None
        if any(limit.is_structured for limit in limits):
            mask = np.fromiter((limit.is_structured for limit in limits), np.bool_, len(limits))
            without_probs = async_tensor_h2d(mask, device=self._device)
        for req_id in req_ids:
            self._rounds[req_id][1] += 1
        places = [self._rounds[req_id] for req_id in req_ids]
        batch = V2Batch(
            req_ids,
            step,
            self._on_host(req_ids, limits, columns, step),
            width=min(columns, max((limit.max_drafts for limit in limits), default=0)),
            on_device=OnDevice(step.token_ids, step.index, step.num_tokens, step.longest, max_drafts.int()),
            **more,
            **self.generators(limits, places, range(len(req_ids))),
        )
        checked = self.guard.propose_on_device(batch, without_probs)
        self.guard.deferred.add(filler=(max_drafts if checked is None else max_drafts - checked.num_drafts).sum())
        return checked

    def _put(self, checked: Checked) -> CheckedOnDevice:
        """Drafts of a synchronous step, on the device."""
        num_drafts = np.array([len(drafts) for drafts in checked.token_ids], np.int64)
        token_ids = np.zeros((len(num_drafts), int(num_drafts.max(initial=0))), np.int64)
        for row, drafts in zip(token_ids, checked.token_ids, strict=True):
            row[: len(drafts)] = drafts
        counts = async_tensor_h2d(num_drafts, device=self._device)
        # `probs` is one-hot already where q is unknown.
        return CheckedOnDevice(
            async_tensor_h2d(token_ids, device=self._device),
            counts,
            checked.probs,
            counts if checked.probs is not None else torch.zeros_like(counts),
        )

    def _share(self, tokens: torch.Tensor, num_with_probs: torch.Tensor, probs: torch.Tensor | None) -> torch.Tensor:
        """Let all tensor-parallel ranks verify the first one's drafts, with q only where all have the same.

        Unlike V1, whose scheduler hands one rank's drafts to all, each rank of V2 verifies what it drafted itself.

        Args:
            tokens: [num_reqs, num_speculative_tokens], overwritten.
        Returns:
            `num_with_probs` of all ranks.
        """
        same: torch.Tensor | None = None
        if self.capabilities.gives_probs:
            mine = tokens.new_zeros(())
            if probs is not None:
                mine = draft_logits.checksum(tokens, probs, num_with_probs)
            bounds = torch.stack([mine, -mine])
            torch.distributed.all_reduce(bounds, torch.distributed.ReduceOp.MAX, group=self._ranks.device_group)
            same = bounds[0] == -bounds[1]
            self.guard.deferred.add(dropped_ranks_differ=~same)
        together = torch.cat([tokens, num_with_probs[:, None]], dim=1)
        self._ranks.broadcast(together, src=0)
        tokens.copy_(together[:, :-1])
        return together[:, -1] if same is None else together[:, -1] * same
