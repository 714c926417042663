"""How many tokens to draft for each request this step.

For now the limits alone decide: what the configuration, the step and the request allow, and what its length limits
leave. A controller that adapts the draft length to what is accepted would stand here. Knows nothing of vLLM.
"""

from __future__ import annotations

import numpy as np

from vllm_specplug.proposer import IntArray


def max_drafts(
    num_tokens: IntArray,
    max_total_tokens: IntArray,
    min_total_tokens: IntArray,
    request_limits: IntArray,
    step_limit: int,
    may_draft: IntArray,
) -> tuple[IntArray, int]:
    """Limits of this step, one for each request.

    A round yields its accepted drafts and one token more, which is free; so a request that may still take r tokens
    has use for r - 1 drafts. More would be verified for nothing and counted as drafted.

    A round must not step over the length from which a request may end: vLLM decides once a step whether stop tokens are
    allowed, by the length before the step (seen in 0.32: `MinTokensLogitsProcessor` in
    vllm/v1/sample/logits_processor/builtin.py), so the token behind accepted drafts would be denied a stop it may have.

    Args:
        num_tokens: [num_reqs], tokens so far.
        max_total_tokens: [num_reqs], where the request ends at the latest.
        min_total_tokens: [num_reqs], from where it may end.
        request_limits: [num_reqs], what each request allows.
        step_limit: what the engine schedules in this step.
        may_draft: [num_reqs], 0 or 1; 0 while a prompt is still being read.
    Returns:
        [num_reqs] int32, and how many requests got 0 only because their length limit is near.
    """
    wanted = np.minimum(request_limits, step_limit) * may_draft
    forbidden = min_total_tokens - num_tokens
    wanted = np.where(forbidden > 0, np.minimum(wanted, forbidden - 1), wanted)
    room = max_total_tokens - num_tokens - 1  # below 0: it has just ended
    limits = np.minimum(wanted, np.maximum(room, 0)).astype(np.int32)
    return limits, int(((wanted > 0) & (room == 0)).sum())
