"""One proposer in one worker process: what it keeps of its requests, whichever model runner drives it.

The runners translate: `runner_v1` and `runner_v2` know where a step's numbers lie in theirs. What is the same for both
stands here: the guard and its counts, each request's limits, generators, and that tensor-parallel ranks agree.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vllm_specplug.bridge import kernel_scan, logs, seeds
from vllm_specplug.bridge.config import engine_info, proposer_spec
from vllm_specplug.bridge.requests import parse_max_drafts
from vllm_specplug.bridge.target import VllmTarget
from vllm_specplug.guard import Checked, Guard
from vllm_specplug.metrics import Counts, counts_for_worker

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What does not change while a request runs."""

    max_drafts: int
    max_total_tokens: int
    min_total_tokens: int
    seed: int | None
    is_greedy: bool
    is_structured: bool


class Drafter:
    """One proposer in one worker process."""

    def __init__(self, vllm_config: VllmConfig) -> None:
        """
        Raises:
            ConfigError: the proposer refuses its options.
        """
        from vllm.distributed.parallel_state import get_tp_group

        logs.join_vllm()
        spec = proposer_spec(vllm_config.speculative_config)
        assert spec is not None, "vLLM made our drafter for a configuration that is not ours"
        self._ranks = get_tp_group()
        self.engine = engine_info(vllm_config, self._ranks.rank_in_group)
        proposer_class = spec.proposer_class()
        proposer = proposer_class(spec.parsed_options(), self.engine)
        self.capabilities = proposer.capabilities
        # Drafts that are token ids alone count on one rank only. Probabilities are used by the sampler of every rank,
        # and each rank runs its part of a draft model.
        drafts_everywhere = self.capabilities.gives_probs or self.capabilities.runs_draft_model
        self._drafts_here = self.engine.tp_rank == 0 or drafts_everywhere
        self.draft_model: Any = None
        """vLLM's drafter that runs the draft model, where there is one; has the `max_model_len` of that."""
        self._said_too_long = False
        # One rank counts for all, or /metrics would show each draft once per rank.
        counts = counts_for_worker(spec.name) if self.engine.tp_rank == 0 else Counts(spec.name)
        self.guard = Guard(spec.name, proposer, self.engine, counts)
        self._limits: dict[str, RequestLimits] = {}
        self._num_steps = 0

    def load(self, target: torch.nn.Module) -> None:
        """Get ready to draft; the target's weights are there."""
        self.guard.proposer.load(VllmTarget(target, self.engine.vocab_size, self.draft_model))
        kernel_scan.survive()  # the proposer may have loaded numba

    @property
    def num_tracked_requests(self) -> int:
        """Requests this drafter keeps state for; 0 once all have ended."""
        return len(self._limits)

    def forget(self, req_ids: Sequence[str]) -> None:
        """Drop what is kept of requests that ended or were preempted."""
        gone = [req_id for req_id in req_ids if self._limits.pop(req_id, None) is not None]
        if gone:
            self.guard.forget(gone)

    def note(self, req_id: str, params: Any, num_prompt_tokens: int) -> RequestLimits:
        """Take down what a new request allows.

        Args:
            params: its vLLM SamplingParams.
        """
        # Some callers reach the engine without the front-end's check; a bad value must not end the engine.
        try:
            asked = parse_max_drafts(params.extra_args)
        except ValueError as error:
            logger.warning("request %s: %s; it is served without speculation", req_id, error)
            asked = 0
        most = self.engine.num_speculative_tokens
        total = self.engine.max_model_len
        if params.max_tokens is not None:
            total = min(total, num_prompt_tokens + params.max_tokens)
        if self.draft_model is not None and total > self.draft_model.max_model_len:
            total = self.draft_model.max_model_len
        noted = RequestLimits(
            max_drafts=most if asked is None else min(asked, most),
            max_total_tokens=total,
            min_total_tokens=num_prompt_tokens + params.min_tokens if params.min_tokens else 0,
            seed=params.seed,
            is_greedy=params.temperature == 0,
            is_structured=params.structured_outputs is not None,
        )
        self._limits[req_id] = noted
        return noted

    def leave_behind(self, req_ids: Sequence[str], num_tokens: np.ndarray, limits: list[RequestLimits]) -> None:
        """Stop drafting for requests that have become longer than the draft model may be; count each once.

        Args:
            num_tokens: [num_reqs].
            limits: of each request, changed in place.
        """
        if self.draft_model is None:
            return
        draft_max_len = self.draft_model.max_model_len
        for row in np.flatnonzero(num_tokens >= draft_max_len):
            if not limits[row].max_drafts:
                continue
            self._limits[req_ids[row]] = limits[row] = replace(limits[row], max_drafts=0)
            self.guard.counts.add("withheld")
            if not self._said_too_long:
                self._said_too_long = True
                logger.warning(
                    "request %s is longer than the draft model may be (%d tokens) and goes on without drafts "
                    "(counted in specplug_drafts_withheld_total, said once)",
                    req_ids[row],
                    draft_max_len,
                )

    def generators(
        self, limits: Sequence[RequestLimits], places: Sequence[Sequence[int]], drafting: Collection[int]
    ) -> dict[str, Any]:
        """The fields `generator` and `generators` of this step's `DraftBatch`.

        Args:
            places: for each request, numbers that never come twice for it, and are the same on all ranks.
            drafting: rows that may draft.
        """
        if not self.capabilities.gives_probs:
            return {}
        device = self.engine.device
        return {
            "generator": seeds.seeded(device, "step", self.engine.seed, self._num_steps),
            "generators": {
                row: seeds.seeded(device, "request", limit.seed, *places[row])
                for row, limit in enumerate(limits)
                if limit.seed is not None and row in drafting
            },
        }

    def agree(self, checked: Checked) -> Checked:
        """Use draft probabilities only where every tensor-parallel rank has the same ones.

        Each rank runs the rejection sampler; on different q they would emit different tokens and part for good. A rank
        whose proposer failed has none. One-hot drafts are exact whatever their origin, so on any difference all ranks
        go on without q.
        """
        if not self.capabilities.gives_probs or self.engine.tp_size == 1:
            return checked
        mine = 0
        if checked.probs is not None:
            mine = checksum(checked.token_ids, checked.probs)
        bounds = torch.tensor([mine, -mine])
        torch.distributed.all_reduce(bounds, torch.distributed.ReduceOp.MAX, group=self._ranks.cpu_group)
        if int(bounds[0]) == -int(bounds[1]):
            return checked
        self.guard.counts.add("dropped_ranks_differ")
        return Checked(checked.token_ids, None)


def checksum(token_ids: Sequence[Sequence[int]], probs: torch.Tensor) -> int:
    """A number above 0 that differs when any drafted token, or any bit of its distribution, does.

    Args:
        token_ids: drafts of each request.
        probs: [num_reqs, width, vocab_size] float32; columns without a draft do not count.
    """
    places = [(row, column) for row, tokens in enumerate(token_ids) for column in range(len(tokens))]
    kept = probs[torch.tensor(places, device=probs.device).T.unbind()].contiguous()
    bits = kept.view(torch.int32).flatten().long()
    weights = torch.arange(1, 2 * len(bits), 2, device=bits.device)  # odd, so that no bit falls out of the wrapping sum
    return zlib.crc32(f"{int((bits * weights).sum())} {token_ids}".encode()) + 1
