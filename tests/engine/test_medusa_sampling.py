"""Sampled text with Medusa's drafts has exactly the target's distribution, and drafts are kept as often as they can be.

The target has 8 tokens, so its distribution of four tokens is known exactly. The chi-square tests of this file together
reject a right engine with probability 1 %; the mutant shows that a wrong one is rejected at p < 1e-6.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import MEDUSA, Engine, MakeEngine
from small_target import MUTANT_LEVEL, NUM_DRAFTS, NUM_TOKENS, PROMPT, SETTINGS, VOCAB_SIZE
from statistics_of_samples import ExactTarget, Setting, chi_square, fits, holm_rejected, interval_99, many, sample
from tiny_heads import tiny_heads

from proposers.medusa import Medusa
from vllm_specplug.medusa import checkpoint

NUM_TESTS = 6
LEVEL = 0.01 / NUM_TESTS
NUM_SAMPLES = 20_480
HOT = Setting(temperature=1.0)


@pytest.fixture(scope="session")
def heads(eight: str) -> str:
    """Three sequential heads, trained on texts of temperature 1."""
    return tiny_heads(eight, num_heads=NUM_DRAFTS, temperature=1.0)


def engine_of(make_engine: MakeEngine, eight: str, heads: str, method: str) -> Engine:
    config = {"method": MEDUSA, "model": heads, "num_speculative_tokens": NUM_DRAFTS, "draft_sample_method": method}
    engine = make_engine(config, model=eight, **SETTINGS)
    engine.use(Medusa, model=heads, draft_sample_method=method)  # of a former test's proposer nothing is left
    return engine


@pytest.mark.parametrize(
    ("method", "min_confidence"),
    [
        ("probabilistic", 0.0),
        pytest.param("probabilistic", 0.5, marks=pytest.mark.slow),
        pytest.param("greedy", 0.0, marks=pytest.mark.slow),
    ],
)
def test_sampled_text_has_the_targets_distribution_v1(
    make_engine: MakeEngine, eight: str, heads: str, target: ExactTarget, method: str, min_confidence: float
) -> None:
    """At temperature 1, beside greedy requests and requests at 0.7 with top_p, which q does not know of."""
    settings = {"1": HOT, "0.7, top_p 0.9": Setting(temperature=0.7, top_p=0.9)}
    params = {
        "1": many(HOT, NUM_SAMPLES, NUM_TOKENS),
        "0.7, top_p 0.9": many(settings["0.7, top_p 0.9"], 8192, NUM_TOKENS),
    }
    greedy = [(PROMPT[: 2 + number % 7], Setting(temperature=0).params(max_tokens=12)) for number in range(24)]
    engine = engine_of(make_engine, eight, heads, method)
    engine.use(Medusa, model=heads, draft_sample_method=method, min_confidence=min_confidence)
    samples = sample(engine, PROMPT, params, greedy, seed=1)
    samples.counts.assert_enough(accepted=1000, rejected=1000)
    assert engine.count("failures") == engine.count("dropped_bad_probs") == 0
    # Four tokens: one from the prompt's own step, then at most two drafts; without a limit the first round has both.
    drafts_a_round = samples.counts.num_draft_tokens / samples.counts.num_drafts
    assert drafts_a_round < 1.2 if min_confidence else drafts_a_round > 1.2
    alone = make_engine(None, model=eight, **SETTINGS)
    assert samples.beside == [alone.tokens([prompt], params)[0] for prompt, params in greedy]
    p_values = {
        f"{name}, {window}": p_value
        for name, setting in settings.items()
        for window, p_value in fits(samples.tokens[name], target.joint(setting)).items()
    }
    print(f"{method}: smallest p of {len(p_values)}: {min(p_values.values()):.3g}")
    assert holm_rejected(p_values, LEVEL) == []


@pytest.mark.slow
def test_requests_with_seeds_are_exact_and_repeat_v1(
    make_engine: MakeEngine, eight: str, heads: str, target: ExactTarget
) -> None:
    engine = engine_of(make_engine, eight, heads, "probabilistic")
    params = [HOT.params(NUM_TOKENS, n=32, seed=first) for first in range(0, NUM_SAMPLES, 32)]
    samples = sample(engine, PROMPT, {"": (NUM_SAMPLES, params)}, seed=2)
    samples.counts.assert_enough(accepted=1000, rejected=1000)
    tokens, joint = samples.tokens[""], target.joint(HOT)
    p_values = fits(tokens, joint)
    first = joint.sum(axis=(1, 2, 3))
    pairs = np.bincount(tokens[0::2, 0] * VOCAB_SIZE + tokens[1::2, 0], minlength=VOCAB_SIZE**2)
    p_values["first tokens of neighbouring seeds"] = chi_square(pairs, np.outer(first, first))
    assert holm_rejected(p_values, LEVEL) == []
    some = {"": (1024, params[:32])}
    again = [sample(engine, PROMPT, some, seed=seed).tokens[""] for seed in (4, 5)]
    np.testing.assert_array_equal(*again)


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


def test_drafts_are_accepted_as_often_as_theory_says_v1(
    make_engine: MakeEngine, eight: str, heads: str, target: ExactTarget
) -> None:
    """sum over x of min(p, q); with three tokens to go there is one draft for each request, for its second token."""
    engine = engine_of(make_engine, eight, heads, "probabilistic")
    samples = sample(engine, PROMPT, {"": many(HOT, NUM_SAMPLES, max_tokens=3)}, seed=3)
    counts = samples.counts
    counts.assert_enough(accepted=1000, rejected=1000)
    assert counts.num_draft_tokens == counts.num_drafts == NUM_SAMPLES
    each = np.minimum(target.following(HOT, 1), drafted_q(eight, heads)).sum(-1)
    expected = float((target.following(HOT, 0) * each).sum())
    low, high = interval_99(counts.num_accepted_tokens, counts.num_drafts)
    print(f"accepted {counts.num_accepted_tokens / counts.num_drafts:.4f}, sum of min(p, q) {expected:.4f}")
    assert low <= expected <= high


class OtherTemperature(Medusa):
    """Draws at the request's temperature and hands over the probabilities of another: a mutant that must fail."""

    def _over_target_vocabulary(self, columns: list[torch.Tensor]) -> torch.Tensor:
        hotter = [probs.sqrt() for probs in columns]
        return super()._over_target_vocabulary([probs / probs.sum(-1, keepdim=True) for probs in hotter])


def test_probabilities_of_another_temperature_are_found_out_v1(
    make_engine: MakeEngine, eight: str, heads: str, target: ExactTarget
) -> None:
    engine = engine_of(make_engine, eight, heads, "probabilistic")
    engine.use(OtherTemperature, model=heads, draft_sample_method="probabilistic")
    samples = sample(engine, PROMPT, {"": many(HOT, NUM_SAMPLES, NUM_TOKENS)}, seed=1)
    samples.counts.assert_enough(accepted=1000, rejected=1000)
    assert min(fits(samples.tokens[""], target.joint(HOT)).values()) < MUTANT_LEVEL
