"""The shipped proposers on a real language model in float32: token for token what the model says without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from conftest import Engine, MakeEngine
from vllm import SamplingParams

from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.compare.workload import load_workload
from vllm_specplug.demo import demo_arms
from vllm_specplug.demo_model import demo_model_path

GREEDY = SamplingParams(temperature=0, max_tokens=32)
NAMES = pytest.mark.parametrize("name", ["prompt_lookup", "medusa", "draft_model"])


def engine_of(make_engine: MakeEngine, config: dict[str, Any] | None) -> Engine:
    return make_engine(config, model=str(demo_model_path()), max_model_len=1024, num_gpu_blocks_override=64)


def assert_identical(
    make_engine: MakeEngine, name: str, prompts: Sequence[Prompt], batch_sizes: Sequence[int], enough: int
) -> None:
    config = next(arm.speculative_config for arm in demo_arms(demo_model_path()) if arm.name == name)
    plain, drafting = engine_of(make_engine, None), engine_of(make_engine, config)
    tokenizer = plain.llm.get_tokenizer()
    token_ids = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt.text}], add_generation_prompt=True, return_dict=False
        )
        for prompt in prompts
    ]
    expected = plain.tokens(token_ids, GREEDY)
    for size in batch_sizes:
        drafting.new_counts()
        found = [
            tokens
            for first in range(0, len(token_ids), size)
            for tokens in drafting.tokens(token_ids[first : first + size], GREEDY)
        ]
        different = [prompt.id for prompt, ours, theirs in zip(prompts, found, expected, strict=True) if ours != theirs]
        assert different == []
        drafting.new_counts().assert_enough(enough, enough)


@NAMES
def test_8_shipped_prompts_are_token_identical_v1(make_engine: MakeEngine, name: str) -> None:
    assert_identical(make_engine, name, load_workload(limit=1).prompts[:8], [8], enough=50)


@NAMES
@pytest.mark.slow
def test_all_shipped_prompts_are_token_identical_v1(make_engine: MakeEngine, name: str) -> None:
    """One at a time and eight at a time, where a prompt is read in the same step as others are answered."""
    prompts = load_workload().prompts
    assert len(prompts) == 80
    assert_identical(make_engine, name, prompts, [1, 8], enough=500)
