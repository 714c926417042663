"""What all arms of an experiment share. Starts nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vllm_specplug.errors import CompareError

#: How the command line calls settings, for errors.
_FLAGS = {
    "max_tokens": "--max-tokens",
    "batch_size": "--batch-size",
    "num_passes": "--passes",
    "max_model_len": "--max-model-len",
    "kv_cache_gib": "--kv-cache-gib",
    "budget_s": "--budget-s",
}


def check_seed(seed: int) -> None:
    """Refuse what random generators would refuse hours later.

    Raises:
        CompareError: the seed is below 0 or does not fit into 32 bits.
    """
    if not 0 <= seed < 2**32:
        raise CompareError(f"--seed is {seed}, expected 0 to {2**32 - 1}")


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """What all arms share. `Arm.engine_args` may differ from it for one arm."""

    dtype: str = "bfloat16"
    max_tokens: int = 128
    """Output tokens of an answer at most; a prompt's own limit wins."""
    max_model_len: int | None = None
    """None: as vLLM decides."""
    enforce_eager: bool = False
    """No torch.compile: slower steps, a start in seconds."""
    kv_cache_gib: float = 1.0
    """KV cache of each engine on a CPU. On a GPU the engines share 90 % of its memory."""
    batch_size: int = 1
    """Prompts sent at once."""
    num_passes: int = 2
    """Times each arm answers each prompt; an even number cancels drift."""
    budget_s: float | None = None
    """Measure no longer than this (seconds, without start and warm-up), by using fewer prompts of each category."""
    seed: int = 0
    margin: float = 0.03
    """Ratios within 1 -/+ margin count as no difference."""
    near_tie_tolerance: float | None = None
    """Log-probability; None: 0.05, in float32 0."""

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name in ("max_tokens", "batch_size", "num_passes", "max_model_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise CompareError(f"{_FLAGS.get(name, name)} is {value}, expected 1 or more")
        for name in ("kv_cache_gib", "budget_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise CompareError(f"{_FLAGS[name]} is {value}, expected a number above 0")
