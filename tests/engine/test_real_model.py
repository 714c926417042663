"""The shipped proposers on a real language model in float32: token for token what the model says without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from conftest import Engine, MakeEngine
from vllm import SamplingParams

from vllm_specplug.compare.workload import Prompt, load_workload
from vllm_specplug.demo import MEDUSA, PROMPT_LOOKUP
from vllm_specplug.demo_model import demo_model_path

GREEDY = SamplingParams(temperature=0, max_tokens=32)
CONFIGS = pytest.mark.parametrize("config", [PROMPT_LOOKUP, MEDUSA], ids=["prompt_lookup", "medusa"])


def engine_of(make_engine: MakeEngine, config: dict[str, Any] | None) -> Engine:
    return make_engine(config, model=str(demo_model_path()), max_model_len=1024, kv_cache_memory_bytes=1 << 28)


def assert_identical(
    make_engine: MakeEngine, config: dict[str, Any], prompts: Sequence[Prompt], batch_sizes: Sequence[int], enough: int
) -> None:
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


@CONFIGS
def test_8_shipped_prompts_are_token_identical_v1(make_engine: MakeEngine, config: dict[str, Any]) -> None:
    assert_identical(make_engine, config, load_workload(limit=1).prompts[:8], [8], enough=50)


@CONFIGS
@pytest.mark.slow
def test_all_shipped_prompts_are_token_identical_v1(make_engine: MakeEngine, config: dict[str, Any]) -> None:
    """One at a time and eight at a time, where a prompt is read in the same step as others are answered."""
    prompts = load_workload().prompts
    assert len(prompts) == 80
    assert_identical(make_engine, config, prompts, [1, 8], enough=500)
