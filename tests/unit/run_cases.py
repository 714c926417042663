"""Reports of made-up runs of an arm against itself, in the real format."""

from __future__ import annotations

from typing import Any

import numpy as np
from report_cases import NOWHERE

from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.measure import Answer, Block
from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.compare.report import Measured, build_report
from vllm_specplug.compare.workload import Workload


def run_of_itself(
    seed: int,
    *,
    noise: float = 0.1,
    favoured: float = 1.0,
    second_pass: float = 1.0,
    num_passes: int = 2,
    config: Any = None,
) -> dict[str, Any]:
    """A report of 8 categories of 8 prompts; the second arm takes `favoured` times as long.

    Args:
        second_pass: time of the second pass over that of the first.
        config: speculative config of the second arm.
    """
    lengths = 3.8 * np.exp(np.random.default_rng(99).normal(0, 0.35, 64))
    rng = np.random.default_rng(seed)
    prompts = [Prompt(f"p{index}", f"c{index // 8}", "text") for index in range(64)]
    arms = [Arm("baseline"), Arm("baseline_again", config)]

    def blocks(factor: float) -> list[Block]:
        found = []
        for prompt, length in zip(prompts, lengths, strict=True):
            for index in range(num_passes):
                seconds = float(factor * length * second_pass**index * np.exp(rng.normal(0, noise)))
                answer = Answer(prompt.id, index, tuple(range(20)), 20, 0.1, seconds, "length")
                found.append(Block(prompt.category, index, seconds, (answer,), None))
        return found

    return build_report(
        Measured(
            model="m",
            dtype="float32",
            arms=arms,
            kv_caches={arm.name: {"num_blocks": 9, "block_size": 16} for arm in arms},
            baseline="baseline",
            workload=Workload("made-up", "0" * 64, tuple(prompts)),
            blocks={"baseline": blocks(1.0), "baseline_again": blocks(favoured)},
            differences={"baseline_again": []},
            num_prompt_tokens={prompt.id: 5 for prompt in prompts},
            settings={"seed": 0, "margin": 0.03, "near_tie_tolerance": 0.0},
            provenance=NOWHERE,
        )
    )
