"""Sampled text with Medusa's drafts has exactly the target's distribution, and drafts are kept as often as they can be.

See `sampled_drafters` for what the tests together say.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import MEDUSA, Engine, MakeEngine
from sampled_drafters import (
    assert_accepted_as_theory_says,
    assert_found_out,
    assert_seeds_are_exact_and_repeat,
    assert_text_is_the_targets,
)
from small_target import NUM_DRAFTS, PROMPT, SETTINGS, VOCAB_SIZE
from statistics_of_samples import ExactTarget
from tiny_heads import tiny_heads

from proposers.medusa import Medusa
from vllm_specplug.medusa import checkpoint


@pytest.fixture(scope="session")
def heads(eight: str) -> str:
    """Three sequential heads, trained on texts of temperature 1."""
    return tiny_heads(eight, num_heads=NUM_DRAFTS, temperature=1.0)


def engine_of(make_engine: MakeEngine, eight: str, heads: str, method: str, min_confidence: float = 0.0) -> Engine:
    config = {"method": MEDUSA, "model": heads, "num_speculative_tokens": NUM_DRAFTS, "draft_sample_method": method}
    engine = make_engine(config, model=eight, **SETTINGS)
    # Of a former test's proposer nothing is left.
    engine.use(Medusa, model=heads, draft_sample_method=method, min_confidence=min_confidence)
    return engine


@pytest.mark.parametrize(
    ("method", "min_confidence"),
    [
        ("probabilistic", 0.0),
        pytest.param("probabilistic", 0.5, marks=pytest.mark.slow),
        pytest.param("greedy", 0.0, marks=pytest.mark.slow),
    ],
)
def test_sampled_text_has_the_targets_distribution(
    make_engine: MakeEngine, eight: str, heads: str, target: ExactTarget, method: str, min_confidence: float
) -> None:
    engine = engine_of(make_engine, eight, heads, method, min_confidence)
    samples = assert_text_is_the_targets(engine, make_engine(None, model=eight, **SETTINGS), target)
    # Four tokens: one from the prompt's own step, then at most two drafts; without a limit the first round has both.
    drafts_a_round = samples.counts.num_draft_tokens / samples.counts.num_drafts
    assert drafts_a_round < 1.2 if min_confidence else drafts_a_round > 1.2


@pytest.mark.slow
def test_requests_with_seeds_are_exact_and_repeat(
    make_engine: MakeEngine, eight: str, heads: str, target: ExactTarget
) -> None:
    assert_seeds_are_exact_and_repeat(engine_of(make_engine, eight, heads, "probabilistic"), target)


def drafted_q(eight: str, heads: str) -> np.ndarray:
    """q(second token | first), [vocab, vocab], by transformers and the stored heads alone, at temperature 1."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(eight, dtype=torch.float32).eval()
    loaded = checkpoint.build(checkpoint.read(heads), torch.float32)
    loaded.attach(model.model.embed_tokens.weight.data, model.lm_head.weight.data)
    with torch.inference_mode():
        state = model.model(torch.tensor([PROMPT])).last_hidden_state[0, -1]
        embedded = loaded.embed(torch.arange(VOCAB_SIZE))
        assert embedded is not None
        q: np.ndarray = loaded.logits(0, state.expand(VOCAB_SIZE, -1), [embedded]).softmax(-1).double().numpy()
    return q


def test_drafts_are_accepted_as_often_as_theory_says(
    make_engine: MakeEngine, eight: str, heads: str, target: ExactTarget
) -> None:
    engine = engine_of(make_engine, eight, heads, "probabilistic")
    assert_accepted_as_theory_says(engine, target, drafted_q(eight, heads))


class OtherTemperature(Medusa):
    """Draws at the request's temperature and hands over the probabilities of another: a mutant that must fail."""

    def _over_target_vocabulary(self, columns: list[torch.Tensor]) -> torch.Tensor:
        hotter = [probs.sqrt() for probs in columns]
        return super()._over_target_vocabulary([probs / probs.sum(-1, keepdim=True) for probs in hotter])


def test_probabilities_of_another_temperature_are_found_out(
    make_engine: MakeEngine, eight: str, heads: str, target: ExactTarget
) -> None:
    engine = engine_of(make_engine, eight, heads, "probabilistic")
    engine.use(OtherTemperature, model=heads, draft_sample_method="probabilistic")
    assert_found_out(engine, target)
