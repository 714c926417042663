"""What differs between the vLLM releases that the bridge serves, each with the releases named.

Told by what is there, not by comparing numbers, so that a patched release is served too. When a release leaves
`contract.TESTED_VERSIONS`, what is here for it can go.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from vllm_specplug.bridge import patches


def install_platform_kernels() -> None:
    """Bring the platform's replacements of Triton kernels in place, as a worker does when it starts."""
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    register = getattr(current_platform, "register_triton_kernel_overrides", None)
    if register is not None:  # 0.31 and later
        register()
    elif current_platform.is_cpu():
        finish_cpu_kernels()


def finish_cpu_kernels() -> None:
    """Bring the CPU's kernels of speculation in place where the worker has not done so yet. Repeatable.

    0.29 and 0.30: the CPU's model runner replaces kernels at the end of its making, after it made our drafter. And 0.30
    puts those below where nobody looks any more, beside the dispatchers that would launch them, so that no speculation
    of any kind runs on a CPU ("Cannot inspect kernel parameters for function").
    """
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    replace_kernels = getattr(CPUModelRunner, "_postprocess_triton", None)
    if replace_kernels is None:
        return
    replace_kernels(None)
    from vllm.triton_utils import HAS_TRITON
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.spec_decode import utils

    rejection = ("rejection_greedy_sample", "rejection_random_sample", "expand", "sample_recovered_tokens")
    places = [*((rejection_sampler, name) for name in rejection), (utils, "eagle_step_slot_mapping_metadata")]
    for module, name in places if not HAS_TRITON else ():
        dispatcher: Any = getattr(module, f"_{name}", None)
        if inspect.isfunction(getattr(dispatcher, "kernel", None)):  # what is left of a kernel without Triton
            dispatcher.kernel = _CpuKernel(dispatcher.kernel, getattr(cpu_triton_utils, f"_{name}_kernel_impl"))


class _CpuKernel:
    """A function of the CPU in the place of a Triton kernel, whose parameters it has in the same order."""

    def __init__(self, kernel: Callable[..., Any], function: Callable[..., Any]) -> None:
        self.arg_names = list(inspect.signature(kernel).parameters)
        self._function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return lambda **given: self._function(*(given[name] for name in self.arg_names))


def random_rejection() -> tuple[Any, str]:
    """Where sampled drafts are rejected on a CPU: the owner of the function, and its name there.

    0.30 and later: a function of the rejection sampler, which chooses the kernel. 0.29: the kernel itself, which every
    runner that is made puts into the rejection sampler again.
    """
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler

    if hasattr(rejection_sampler, "_rejection_random_sample"):
        return rejection_sampler, "_rejection_random_sample"
    return cpu_triton_utils.rejection_random_sample_kernel, "func"


def unpatched_random_rejection() -> Callable[..., Any]:
    """The same on any device, without our patch, to be called as in 0.30 and later."""
    from vllm.v1.sample import rejection_sampler

    owner, name = random_rejection()
    if owner is rejection_sampler:
        found: Callable[..., Any] = patches.original(getattr(owner, name))
        return found

    def reject(output: Any, ends: Any, drafts: Any, draft_probs: Any, target_probs: Any, *rest: Any) -> Any:
        launch = patches.original(rejection_sampler.rejection_random_sample_kernel[(len(ends),)])
        *same, rates = rest
        flags = {"NO_DRAFT_PROBS": draft_probs is None, "SYNTHETIC_MODE": rates is not None}
        return launch(output, ends, drafts, draft_probs, target_probs, *same, target_probs.shape[1], rates, **flags)

    return reject


def forget_lengths_on_host(metadata: Any) -> None:
    """0.29: attention metadata holds lengths on the host too, the runner's own, and a pass counts them up in place.

    Without them vLLM takes the device's.
    """
    for name in ("_seq_lens_cpu", "_num_computed_tokens_cpu"):
        if hasattr(metadata, name):
            setattr(metadata, name, None)
