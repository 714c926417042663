"""Made-up times of prompts, for tests of what is computed from them."""

from __future__ import annotations

import numpy as np

from vllm_specplug.compare.statistics import PromptSpeed

Speeds = dict[str, PromptSpeed]


def speeds(**seconds: list[float]) -> Speeds:
    """100 tokens for each prompt, in the seconds given by category."""
    return {
        f"{category}-{index}": PromptSpeed(category, 100, value)
        for category, values in seconds.items()
        for index, value in enumerate(values)
    }


def experiment(
    rng: np.random.Generator,
    noise: float = 0.1,
    factor: float = 1.0,
    num_categories: int = 8,
    num_prompts: int = 8,
    num_passes: int = 2,
) -> tuple[Speeds, Speeds]:
    """An arm that takes `factor` times the baseline's time, and the baseline.

    A prompt takes 3.8 s, log-normal with sigma 0.35; each pass of it is off by a log-normal factor of sigma `noise`.
    Two busy cores of a shared machine gave 0.085 (first pass against second of `make demo`, 0.12 / sqrt(2)).
    """
    shape = (num_categories, num_prompts)
    base = 3.8 * np.exp(rng.normal(0, 0.35, shape))
    ours, theirs = (base * np.exp(rng.normal(0, noise, (num_passes, *shape))).sum(axis=0) for _ in range(2))
    names = [f"c{index}" for index in range(num_categories)]
    return (
        speeds(**{name: list(map(float, factor * row)) for name, row in zip(names, ours, strict=True)}),
        speeds(**{name: list(map(float, row)) for name, row in zip(names, theirs, strict=True)}),
    )
