"""Sampled text with drafts has exactly the target's distribution on the V2 runner too: chi-square against transformers.

Few samples, since Triton's interpreter takes 20 ms for each; `test_sampling_exact` says more with many, on V1. The
tests of this file together reject a right engine with probability 1 %. `test_asynchronous_v2` has those with fillers.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import DRAFT, KNOWN, LOOKUP, MEDUSA, Engine, MakeEngine
from small_target import MUTANT_LEVEL, NUM_DRAFTS, NUM_TOKENS, PROMPT, SETTINGS
from statistics_of_samples import (
    ExactTarget,
    Setting,
    acceptance_rate,
    fits,
    holm_rejected,
    interval_99,
    many,
    sample,
)
from tiny_draft import tiny_draft
from tiny_heads import tiny_heads

from vllm_specplug.proposer import DraftBatch, Drafts
from vllm_specplug.testing import KnownDistribution

pytestmark = [pytest.mark.v2_only, pytest.mark.slow]

NUM_TESTS = 7
LEVEL = 0.01 / NUM_TESTS
Q = [0.15, 0.25, 0.05, 0.2, 0.05, 0.1, 0.1, 0.1]
CLAIMED_Q = [0.05, 0.1, 0.1, 0.1, 0.25, 0.2, 0.15, 0.05]
HOT, COOL = Setting(), Setting(temperature=0.7, top_p=0.9)
GREEDY = Setting(temperature=0).params(max_tokens=12)


def engine_of(make_engine: MakeEngine, eight: str, config: dict[str, Any] | None) -> Engine:
    config = config and {"num_speculative_tokens": NUM_DRAFTS, **config}
    return make_engine(config, model=eight, **SETTINGS)


def config_of(proposer: str, eight: str) -> dict[str, Any]:
    match proposer:
        case "medusa":
            heads = tiny_heads(eight, num_heads=NUM_DRAFTS, temperature=1.0)
            return {"method": MEDUSA, "model": heads, "draft_sample_method": "probabilistic"}
        case "draft_model":
            return {"method": DRAFT, "model": tiny_draft(eight), "draft_sample_method": "probabilistic"}
        case "prompt_lookup":
            return {"method": LOOKUP}
        case "block_verification":  # which V1 does not have
            return {"method": KNOWN, "q": Q, "rejection_sample_method": "block"}
    return {"method": KNOWN, "q": Q}


@pytest.mark.parametrize(
    ("proposer", "num_samples"),
    [
        ("q_handed_over", 1024),
        ("medusa", 1024),
        ("draft_model", 1024),
        ("prompt_lookup", 1024),
        ("block_verification", 1024),
    ],
)
def test_sampled_text_has_the_targets_distribution(
    make_engine: MakeEngine, eight: str, target: ExactTarget, proposer: str, num_samples: int
) -> None:
    """At two temperatures, beside a greedy request and one that allows no draft."""
    engine = engine_of(make_engine, eight, config_of(proposer, eight))
    settings = {"1": HOT, "0.7, top_p 0.9": COOL}  # those without drafts are too few to be counted
    half = num_samples // 2
    params = {
        "1": many(HOT, half, NUM_TOKENS),
        "0.7, top_p 0.9": many(COOL, half - 32, NUM_TOKENS),
        "1, no drafts": many(HOT, 32, NUM_TOKENS, extra_args={"specplug_max_drafts": 0}),
    }
    samples = sample(engine, PROMPT, params, [(PROMPT[:5], GREEDY)], seed=1)
    assert samples.beside == [engine_of(make_engine, eight, None).tokens([PROMPT[:5]], GREEDY)[0]]
    samples.counts.assert_enough(accepted=100, rejected=100)
    found = {
        f"{name}, {window}": p_value
        for name, setting in settings.items()
        for window, p_value in fits(samples.tokens[name], target.joint(setting), widths=(1, 2)).items()
    }
    print(f"smallest p of {len(found)}: {min(found.values()):.3g}; {samples.counts}")
    assert holm_rejected(found, LEVEL) == []
    assert engine.count("failures") == engine.count("dropped_bad_probs") == 0


def test_a_false_q_is_found_out(make_engine: MakeEngine, eight: str, target: ExactTarget) -> None:
    """A mutant: drafts are drawn from one distribution, and another one is handed over."""
    engine = engine_of(make_engine, eight, config_of("", eight))
    engine.use(KnownDistribution, q=Q, claimed_q=CLAIMED_Q)
    samples = sample(engine, PROMPT, {"": many(HOT, 512, NUM_TOKENS)}, seed=2)
    samples.counts.assert_enough(accepted=100, rejected=100)
    found = fits(samples.tokens[""], target.joint(HOT), widths=(1, 2))
    print(f"mutant: smallest p of {len(found)}: {min(found.values()):.3g}")
    assert min(found.values()) < MUTANT_LEVEL


def test_drafts_from_q_are_accepted_as_often_as_theory_says(
    make_engine: MakeEngine, eight: str, target: ExactTarget
) -> None:
    """With three tokens to go there is one draft for each request, for its second token."""
    engine = engine_of(make_engine, eight, config_of("", eight))
    engine.use(KnownDistribution, q=Q)
    samples = sample(engine, PROMPT, {"": many(HOT, 1024, max_tokens=3)}, seed=3)
    assert samples.counts.num_draft_tokens == samples.counts.num_drafts == 1024
    low, high = interval_99(samples.counts.num_accepted_tokens, 1024)
    assert low <= acceptance_rate(target, HOT, Q) <= high


class ByTurns(KnownDistribution):
    """Drafts 0, 1, 2, ... tokens by turns, whatever they are."""

    num_steps = 0

    def propose(self, batch: DraftBatch) -> Drafts:
        self.num_steps += 1
        drafts = super().propose(batch)
        turn = (torch.arange(batch.num_reqs) + self.num_steps) % (NUM_DRAFTS + 1)
        return Drafts(drafts.token_ids, torch.minimum(torch.as_tensor(drafts.num_drafts), turn).numpy(), drafts.probs)


def test_ragged_drafts_are_exact(make_engine: MakeEngine, eight: str, target: ExactTarget) -> None:
    """In the same step and from step to step; vLLM verifies as many as there are."""
    engine = engine_of(make_engine, eight, config_of("", eight))
    proposer = engine.use(ByTurns, q=Q)
    samples = sample(engine, PROMPT, {"": many(HOT, 1024, NUM_TOKENS)}, seed=4)
    samples.counts.assert_enough(accepted=100, rejected=100)
    assert proposer.num_steps > 4
    assert samples.counts.num_draft_tokens == engine.count("draft_tokens")
    assert engine.count("filler") == 0
    assert holm_rejected(fits(samples.tokens[""], target.joint(HOT), widths=(1, 2)), LEVEL) == []


def test_requests_with_seeds_of_their_own_repeat(make_engine: MakeEngine, eight: str) -> None:
    engine = engine_of(make_engine, eight, config_of("", eight))
    engine.use(KnownDistribution, q=Q)
    some = {"": (64, [HOT.params(12, n=32, seed=first) for first in (0, 32)])}
    first, again = (sample(engine, PROMPT, some, seed=seed).tokens[""] for seed in (5, 6))
    assert (first == again).all()
    assert len({tuple(text) for text in first.tolist()}) > 60
