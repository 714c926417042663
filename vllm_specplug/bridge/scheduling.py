"""Each request's own limit of drafts under asynchronous scheduling.

vLLM then plans the next step before the drafts of this one are known, with the same number for every request. A
request that allows fewer (`specplug_max_drafts`) would have the rest verified for nothing, so it is planned with its
own number. Unnecessary once vLLM has a limit for each request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm_specplug.bridge import patches
from vllm_specplug.bridge.config import proposer_spec
from vllm_specplug.bridge.requests import limit_of


def install() -> Callable[[], None]:
    """Heed the limits in this process, for our configurations only. Repeatable.

    Returns:
        A function that undoes it.
    """
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    return patches.wrap(AsyncScheduler, "_update_after_schedule", _update_after_schedule)


def _update_after_schedule(original: Callable[..., None]) -> Callable[..., None]:
    def _update_after_schedule(self: Any, scheduler_output: Any) -> None:
        original(self, scheduler_output)
        if proposer_spec(self.vllm_config.speculative_config) is None:
            return
        for req_id in scheduler_output.num_scheduled_tokens:
            request = self.requests[req_id]
            limit = limit_of(request.sampling_params)
            if limit is not None and len(request.spec_token_ids) > limit:
                request.spec_token_ids = request.spec_token_ids[:limit]

    return _update_after_schedule
