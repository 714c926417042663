"""Sampled text with a small model's drafts has exactly the target's distribution; drafts are kept as theory says.

The draft is a noisy copy of a target of 8 tokens. The chi-square tests of this file together reject a right engine with
probability 1 %; the mutant shows that a wrong one is rejected at p < 1e-6.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DRAFT, Engine, MakeEngine
from small_target import MUTANT_LEVEL, NUM_DRAFTS, NUM_TOKENS, PROMPT, SETTINGS, VOCAB_SIZE
from statistics_of_samples import ExactTarget, Setting, chi_square, fits, holm_rejected, interval_99, many, sample
from tiny_draft import tiny_draft

from proposers.draft_model import DraftModelProposer
from vllm_specplug.bridge import draft_config
from vllm_specplug.proposer import DraftBatch, Drafts

NUM_TESTS = 6
LEVEL = 0.01 / NUM_TESTS
NUM_SAMPLES = 20_480
NOISE = 0.5
HOT = Setting(temperature=1.0)
CUT = [0, 2, 3, 5, 7]


@pytest.fixture(scope="session")
def draft(eight: str) -> str:
    return tiny_draft(eight, NOISE)


@pytest.fixture
def cut(tmp_path: Path) -> str:
    """A list of five of the eight tokens."""
    (tmp_path / "list.json").write_text(json.dumps(CUT))
    return str(tmp_path / "list.json")


def engine_of(make_engine: MakeEngine, eight: str, draft: str, method: str, **options: Any) -> Engine:
    config = {"method": DRAFT, "model": draft, "num_speculative_tokens": NUM_DRAFTS, "draft_sample_method": method}
    engine = make_engine(config, model=eight, **SETTINGS)
    engine.use(DraftModelProposer, model=draft, draft_sample_method=method, **options)
    return engine


@pytest.mark.parametrize(
    "case",
    [
        "probabilistic",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("cut", "min_confidence", "padded", "greedy")),
    ],
)
def test_sampled_text_has_the_targets_distribution_v1(
    make_engine: MakeEngine,
    eight: str,
    draft: str,
    cut: str,
    target: ExactTarget,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
) -> None:
    """At temperature 1, beside greedy requests and requests at 0.7 with top_p, which q does not know of."""
    settings = {"1": HOT, "0.7, top_p 0.9": Setting(temperature=0.7, top_p=0.9)}
    params = {
        "1": many(HOT, NUM_SAMPLES, NUM_TOKENS),
        "0.7, top_p 0.9": many(settings["0.7, top_p 0.9"], 8192, NUM_TOKENS),
    }
    greedy = [(PROMPT[: 2 + number % 7], Setting(temperature=0).params(max_tokens=12)) for number in range(24)]
    options: dict[str, Any] = {"cut": {"draft_vocab": cut}, "min_confidence": {"min_confidence": 0.4}}.get(case, {})
    if case == "padded":  # loud rows, which would often be drawn
        monkeypatch.setattr(draft_config, "_check_vocabularies", lambda *_: None)  # it compares tokenizers
        draft = tiny_draft(eight, NOISE, vocab_size=16)
    method = "greedy" if case == "greedy" else "probabilistic"
    engine = engine_of(make_engine, eight, draft, method, **options)
    samples = sample(engine, PROMPT, params, greedy, seed=1)
    samples.counts.assert_enough(accepted=1000, rejected=1000)
    assert engine.count("failures") == engine.count("dropped_bad_probs") == engine.count("dropped_bad_id") == 0
    # Four tokens: one from the prompt's own step, then at most two drafts; without a limit the first round has both.
    drafts_a_round = samples.counts.num_draft_tokens / samples.counts.num_drafts
    assert drafts_a_round < 1.5 if case == "min_confidence" else drafts_a_round > 1.2
    alone = make_engine(None, model=eight, **SETTINGS)
    assert samples.beside == [alone.tokens([prompt], params)[0] for prompt, params in greedy]
    p_values = {
        f"{name}, {window}": p_value
        for name, setting in settings.items()
        for window, p_value in fits(samples.tokens[name], target.joint(setting)).items()
    }
    accepted = samples.counts.num_accepted_tokens / samples.counts.num_draft_tokens
    print(f"{case}: smallest p of {len(p_values)}: {min(p_values.values()):.3g}; {accepted:.3f} accepted")
    assert holm_rejected(p_values, LEVEL) == []


@pytest.mark.slow
def test_requests_with_seeds_are_exact_and_repeat_v1(
    make_engine: MakeEngine, eight: str, draft: str, target: ExactTarget
) -> None:
    engine = engine_of(make_engine, eight, draft, "probabilistic")
    params = [HOT.params(NUM_TOKENS, n=32, seed=first) for first in range(0, NUM_SAMPLES, 32)]
    samples = sample(engine, PROMPT, {"": (NUM_SAMPLES, params)}, seed=2)
    samples.counts.assert_enough(accepted=1000, rejected=1000)
    tokens, joint = samples.tokens[""], target.joint(HOT)
    p_values = fits(tokens, joint)
    first = joint.sum(axis=(1, 2, 3))
    pairs = np.bincount(tokens[0::2, 0] * VOCAB_SIZE + tokens[1::2, 0], minlength=VOCAB_SIZE**2)
    p_values["first tokens of neighbouring seeds"] = chi_square(pairs, np.outer(first, first))
    print(f"seeds: smallest p of {len(p_values)}: {min(p_values.values()):.3g}")
    assert holm_rejected(p_values, LEVEL) == []
    some = {"": (1024, params[:32])}
    again = [sample(engine, PROMPT, some, seed=seed).tokens[""] for seed in (4, 5)]
    np.testing.assert_array_equal(*again)


@pytest.mark.parametrize("is_cut", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "cut"])
def test_drafts_are_accepted_as_often_as_theory_says_v1(
    make_engine: MakeEngine, eight: str, draft: str, cut: str, target: ExactTarget, is_cut: bool
) -> None:
    """sum over x of min(p, q); with three tokens to go there is one draft for each request, for its second token."""
    engine = engine_of(make_engine, eight, draft, "probabilistic", **({"draft_vocab": cut} if is_cut else {}))
    samples = sample(engine, PROMPT, {"": many(HOT, NUM_SAMPLES, max_tokens=3)}, seed=3)
    counts = samples.counts
    counts.assert_enough(accepted=1000, rejected=1000)
    assert counts.num_draft_tokens == counts.num_drafts == NUM_SAMPLES
    q = ExactTarget(draft, PROMPT, 2).following(HOT, 1)  # by transformers and the stored draft alone
    if is_cut:
        q = np.where(np.isin(np.arange(VOCAB_SIZE), CUT), q, 0)
        q /= q.sum(-1, keepdims=True)
    each = np.minimum(target.following(HOT, 1), q).sum(-1)
    expected = float((target.following(HOT, 0) * each).sum())
    low, high = interval_99(counts.num_accepted_tokens, counts.num_drafts)
    print(f"accepted {counts.num_accepted_tokens / counts.num_drafts:.4f}, sum of min(p, q) {expected:.4f}")
    assert low <= expected <= high


class OtherTemperature(DraftModelProposer):
    """Draws at the request's temperature and hands over the probabilities of another: a mutant that must fail."""

    def propose(self, batch: DraftBatch) -> Drafts:
        drafts = super().propose(batch)
        if drafts.probs is None:
            return drafts
        hotter = drafts.probs.sqrt()
        return replace(drafts, probs=hotter / hotter.sum(-1, keepdim=True))


def test_probabilities_of_another_temperature_are_found_out_v1(
    make_engine: MakeEngine, eight: str, draft: str, target: ExactTarget
) -> None:
    engine = engine_of(make_engine, eight, draft, "probabilistic")
    engine.use(OtherTemperature, model=draft, draft_sample_method="probabilistic")
    samples = sample(engine, PROMPT, {"": many(HOT, NUM_SAMPLES, NUM_TOKENS)}, seed=1)
    samples.counts.assert_enough(accepted=1000, rejected=1000)
    assert min(fits(samples.tokens[""], target.joint(HOT)).values()) < MUTANT_LEVEL
