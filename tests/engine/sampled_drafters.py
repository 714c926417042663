"""What every drafter that hands probabilities over is asked of: on the target of 8 tokens, at temperature 1.

A file of tests that uses these together rejects a right engine with probability 1 % (`LEVEL` is its share for one of
its NUM_TESTS chi-square tests); the mutant shows that a wrong one is rejected at p < 1e-6.
"""

from __future__ import annotations

import numpy as np
from conftest import Engine
from small_target import MUTANT_LEVEL, NUM_TOKENS, PROMPT, VOCAB_SIZE
from statistics_of_samples import (
    ExactTarget,
    Floats,
    Samples,
    Setting,
    chi_square,
    fits,
    holm_rejected,
    interval_99,
    many,
    sample,
)

NUM_TESTS = 6
LEVEL = 0.01 / NUM_TESTS
NUM_SAMPLES = 20_480
HOT = Setting(temperature=1.0)


def assert_text_is_the_targets(engine: Engine, alone: Engine, target: ExactTarget) -> Samples:
    """At temperature 1, beside greedy requests and requests at 0.7 with top_p, which q does not know of.

    Args:
        alone: an engine without speculation.
    """
    settings = {"1": HOT, "0.7, top_p 0.9": Setting(temperature=0.7, top_p=0.9)}
    params = {
        "1": many(HOT, NUM_SAMPLES, NUM_TOKENS),
        "0.7, top_p 0.9": many(settings["0.7, top_p 0.9"], 8192, NUM_TOKENS),
    }
    greedy = [(PROMPT[: 2 + number % 7], Setting(temperature=0).params(max_tokens=12)) for number in range(24)]
    samples = sample(engine, PROMPT, params, greedy, seed=1)
    samples.counts.assert_enough(accepted=1000, rejected=1000)
    assert engine.count("failures") == engine.count("dropped_bad_probs") == engine.count("dropped_bad_id") == 0
    assert samples.beside == [alone.tokens([prompt], params)[0] for prompt, params in greedy]
    p_values = {
        f"{name}, {window}": p_value
        for name, setting in settings.items()
        for window, p_value in fits(samples.tokens[name], target.joint(setting)).items()
    }
    accepted = samples.counts.num_accepted_tokens / samples.counts.num_draft_tokens
    print(f"smallest p of {len(p_values)}: {min(p_values.values()):.3g}; {accepted:.3f} accepted")
    assert holm_rejected(p_values, LEVEL) == []
    return samples


def assert_seeds_are_exact_and_repeat(engine: Engine, target: ExactTarget) -> None:
    """Requests with a seed each; the first tokens of neighbouring seeds are independent."""
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


def assert_accepted_as_theory_says(engine: Engine, target: ExactTarget, q: Floats) -> None:
    """sum over x of min(p, q); with three tokens to go there is one draft for each request, for its second token.

    Args:
        q: what that is drawn from, by the first token, [vocab_size, vocab_size]; found without the engine.
    """
    samples = sample(engine, PROMPT, {"": many(HOT, NUM_SAMPLES, max_tokens=3)}, seed=3)
    counts = samples.counts
    counts.assert_enough(accepted=1000, rejected=1000)
    assert counts.num_draft_tokens == counts.num_drafts == NUM_SAMPLES
    each = np.minimum(target.following(HOT, 1), q).sum(-1)
    expected = float((target.following(HOT, 0) * each).sum())
    low, high = interval_99(counts.num_accepted_tokens, counts.num_drafts)
    print(f"accepted {counts.num_accepted_tokens / counts.num_drafts:.4f}, sum of min(p, q) {expected:.4f}")
    assert low <= expected <= high


def assert_found_out(engine: Engine, target: ExactTarget) -> None:
    """An engine whose drafter lies about its probabilities fails the same test."""
    samples = sample(engine, PROMPT, {"": many(HOT, NUM_SAMPLES, NUM_TOKENS)}, seed=1)
    samples.counts.assert_enough(accepted=1000, rejected=1000)
    assert min(fits(samples.tokens[""], target.joint(HOT)).values()) < MUTANT_LEVEL
