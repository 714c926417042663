"""Prompt lookup on a real language model in float32: token for token what the model says without it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from conftest import LOOKUP, Engine, MakeEngine
from vllm import SamplingParams

from vllm_specplug.compare.workload import Prompt, load_workload
from vllm_specplug.demo_model import demo_model_path

GREEDY = SamplingParams(temperature=0, max_tokens=32)
CONFIG = {"method": LOOKUP, "num_speculative_tokens": 8, "min_ngram": 1, "max_ngram": 4}


@pytest.fixture(scope="module")
def engines(make_engine: MakeEngine) -> tuple[Engine, Engine]:
    """Without and with prompt lookup."""
    settings = {"model": str(demo_model_path()), "max_model_len": 1024, "kv_cache_memory_bytes": 1 << 28}
    return make_engine(None, **settings), make_engine(CONFIG, **settings)


def assert_identical(engines: tuple[Engine, Engine], prompts: Sequence[Prompt], accepted: int, rejected: int) -> None:
    plain, lookup = engines
    tokenizer = plain.llm.get_tokenizer()
    token_ids = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt.text}], add_generation_prompt=True, return_dict=False
        )
        for prompt in prompts
    ]
    lookup.new_counts()
    expected, found = plain.tokens(token_ids, GREEDY), lookup.tokens(token_ids, GREEDY)
    different = [prompt.id for prompt, ours, theirs in zip(prompts, found, expected, strict=True) if ours != theirs]
    assert different == []
    lookup.new_counts().assert_enough(accepted, rejected)


def test_8_shipped_prompts_are_token_identical_v1(engines: tuple[Engine, Engine]) -> None:
    prompts = load_workload(limit=1).prompts[:8]
    assert_identical(engines, prompts, accepted=50, rejected=50)


@pytest.mark.slow
def test_all_shipped_prompts_are_token_identical_v1(engines: tuple[Engine, Engine]) -> None:
    prompts = load_workload().prompts
    assert len(prompts) == 80
    assert_identical(engines, prompts, accepted=500, rejected=500)
