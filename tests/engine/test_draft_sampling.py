"""Sampled text with a small model's drafts has exactly the target's distribution; drafts are kept as theory says.

The draft is a noisy copy of a target of 8 tokens. See `sampled_drafters` for what the tests together say.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DRAFT, Engine, MakeEngine
from sampled_drafters import (
    HOT,
    assert_accepted_as_theory_says,
    assert_found_out,
    assert_seeds_are_exact_and_repeat,
    assert_text_is_the_targets,
)
from small_target import NUM_DRAFTS, PROMPT, SETTINGS, VOCAB_SIZE
from statistics_of_samples import ExactTarget
from tiny_draft import tiny_draft

from proposers.draft_model import DraftModelProposer
from vllm_specplug.bridge import draft_config
from vllm_specplug.proposer import DraftBatch, Drafts

NOISE = 0.5
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
def test_sampled_text_has_the_targets_distribution(
    make_engine: MakeEngine,
    eight: str,
    draft: str,
    cut: str,
    target: ExactTarget,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
) -> None:
    options: dict[str, Any] = {"cut": {"draft_vocab": cut}, "min_confidence": {"min_confidence": 0.4}}.get(case, {})
    if case == "padded":  # loud rows, which would often be drawn
        monkeypatch.setattr(draft_config, "_check_vocabularies", lambda *_: None)  # it compares tokenizers
        draft = tiny_draft(eight, NOISE, vocab_size=16)
    method = "greedy" if case == "greedy" else "probabilistic"
    engine = engine_of(make_engine, eight, draft, method, **options)
    samples = assert_text_is_the_targets(engine, make_engine(None, model=eight, **SETTINGS), target)
    # Four tokens: one from the prompt's own step, then at most two drafts; without a limit the first round has both.
    drafts_a_round = samples.counts.num_draft_tokens / samples.counts.num_drafts
    assert drafts_a_round < 1.5 if case == "min_confidence" else drafts_a_round > 1.2


@pytest.mark.slow
def test_requests_with_seeds_are_exact_and_repeat(
    make_engine: MakeEngine, eight: str, draft: str, target: ExactTarget
) -> None:
    assert_seeds_are_exact_and_repeat(engine_of(make_engine, eight, draft, "probabilistic"), target)


@pytest.mark.parametrize("is_cut", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "cut"])
def test_drafts_are_accepted_as_often_as_theory_says(
    make_engine: MakeEngine, eight: str, draft: str, cut: str, target: ExactTarget, is_cut: bool
) -> None:
    engine = engine_of(make_engine, eight, draft, "probabilistic", **({"draft_vocab": cut} if is_cut else {}))
    q = ExactTarget(draft, PROMPT, 2).following(HOT, 1)  # by transformers and the stored draft alone
    if is_cut:
        q = np.where(np.isin(np.arange(VOCAB_SIZE), CUT), q, 0)
        q /= q.sum(-1, keepdims=True)
    assert_accepted_as_theory_says(engine, target, q)


class OtherTemperature(DraftModelProposer):
    """Draws at the request's temperature and hands over the probabilities of another: a mutant that must fail."""

    def propose(self, batch: DraftBatch) -> Drafts:
        drafts = super().propose(batch)
        if drafts.probs is None:
            return drafts
        hotter = drafts.probs.sqrt()
        return replace(drafts, probs=hotter / hotter.sum(-1, keepdim=True))


def test_probabilities_of_another_temperature_are_found_out(
    make_engine: MakeEngine, eight: str, draft: str, target: ExactTarget
) -> None:
    engine = engine_of(make_engine, eight, draft, "probabilistic")
    engine.use(OtherTemperature, model=draft, draft_sample_method="probabilistic")
    assert_found_out(engine, target)
