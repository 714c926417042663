"""Asynchronous scheduling on the V2 runner: a step is planned before the drafts of the last one are known.

vLLM switches it off on a CPU. Here its platform is asked not to, so that the same code runs as on a GPU, where the
next step is prepared while the device works; what that gains, only a GPU can show.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from conftest import DRAFT, KNOWN, LOOKUP, MEDUSA, SCRIPTED, Engine, MakeEngine, SpecCounts, loop_prompt, said
from small_target import MUTANT_LEVEL, NUM_DRAFTS, NUM_TOKENS, PROMPT, SETTINGS
from statistics_of_samples import ExactTarget, Setting, fits, holm_rejected, many, sample
from tiny_draft import tiny_draft
from tiny_heads import tiny_heads
from vllm import SamplingParams, envs
from vllm.config import SpeculativeConfig
from vllm.engine.arg_utils import EngineArgs

from proposers.medusa import Medusa
from vllm_specplug.bridge import patches
from vllm_specplug.proposer import DraftBatch, Drafts
from vllm_specplug.testing import KnownDistribution

pytestmark = pytest.mark.v2_only


@pytest.fixture(scope="module", autouse=True)
def platform_that_allows_it() -> Iterator[None]:
    from vllm.platforms.cpu import CpuPlatform

    original = CpuPlatform.__dict__["check_and_update_config"]

    def check_and_update_config(cls: Any, config: Any) -> None:
        wanted = config.scheduler_config.async_scheduling
        original.__func__(cls, config)
        config.scheduler_config.async_scheduling = wanted

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    yield
    CpuPlatform.check_and_update_config = original


def greedy(max_tokens: int = 40, **changes: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=False, **changes)


def config_of(method: str, model: str, **changes: Any) -> dict[str, Any]:
    models = {MEDUSA: tiny_heads, DRAFT: tiny_draft}
    options = {"model": models[method](model)} if method in models else {}
    return {"method": method, "num_speculative_tokens": 3, **options, **changes}


def decided(model: str, config: dict[str, Any] | None, **arguments: Any) -> tuple[bool, bool]:
    """Whether vLLM chose V2, and asynchronous scheduling."""
    settings = {"dtype": "float32", "max_model_len": 64, "skip_tokenizer_init": True, "enforce_eager": True}
    made = EngineArgs(model=model, speculative_config=config, **{**settings, **arguments}).create_engine_config()
    return made.use_v2_model_runner, bool(made.scheduler_config.async_scheduling)


@pytest.mark.v2
@pytest.mark.parametrize(
    ("method", "changes", "asynchronous"),
    [
        (LOOKUP, {}, True),
        (MEDUSA, {}, True),
        (DRAFT, {}, True),
        (MEDUSA, {"draft_sample_method": "probabilistic"}, True),
        (DRAFT, {"draft_sample_method": "probabilistic"}, True),
        (MEDUSA, {"min_confidence": 0.1}, False),
        (DRAFT, {"min_confidence": 0.1}, False),
        (SCRIPTED, {}, False),
        ("ngram", {"prompt_lookup_max": 3}, False),
        (None, {}, True),
    ],
)
def test_scheduling_stays_asynchronous_where_nothing_waits_for_the_host(
    tiny: str, monkeypatch: pytest.MonkeyPatch, method: str | None, changes: dict[str, Any], asynchronous: bool
) -> None:
    if method == "ngram" and not hasattr(SpeculativeConfig, "use_ngram"):
        pytest.skip("this vLLM has no n-gram drafts on V2")
    config = None if method is None else config_of(method, tiny, **changes)
    for forced in (True, None):  # None: as most people run it
        monkeypatch.setattr(envs, "VLLM_USE_V2_MODEL_RUNNER", forced, raising=False)
        if method != "ngram" or forced:  # of vLLM's own business
            assert decided(tiny, config) == (True, asynchronous)
            assert decided(tiny, config, async_scheduling=False) == (True, False)
    if method in (LOOKUP, MEDUSA, DRAFT, SCRIPTED):
        monkeypatch.setattr(envs, "VLLM_USE_V2_MODEL_RUNNER", False, raising=False)
        assert decided(tiny, config) == (False, False)


@pytest.mark.v2
def test_asking_for_it_where_the_host_is_needed_is_refused(tiny: str) -> None:
    with pytest.raises(ValueError, match="async scheduling is only supported with"):
        decided(tiny, config_of(SCRIPTED, tiny), async_scheduling=True)


@pytest.fixture(scope="module")
def engine_with(make_engine: MakeEngine) -> Any:
    """engine_with(config, **arguments) -> an engine that schedules asynchronously."""

    def make(config: dict[str, Any] | None, **arguments: Any) -> Engine:
        # The seed tells it from an engine of the same kind that another file has made.
        engine = make_engine(config, **{"seed": 1, **arguments})
        assert engine.llm.llm_engine.vllm_config.scheduler_config.async_scheduling
        assert config is None or engine.drafter.engine.asynchronous
        engine.new_counts()
        return engine

    return make


PROMPTS = [loop_prompt(start, 6 + start) for start in range(6)]


@pytest.mark.v2
@pytest.mark.parametrize("method", [LOOKUP, MEDUSA, DRAFT])
def test_greedy_text_is_the_targets_own(engine_with: Any, make_engine: MakeEngine, tiny: str, method: str) -> None:
    expected = make_engine().generate(PROMPTS, greedy(60))
    engine = engine_with(config_of(method, tiny))
    assert said(engine.staggered(PROMPTS, greedy(60), every=2)) == said(expected)
    engine.new_counts().assert_enough()
    engine.settle()
    assert engine.drafter.num_tracked_requests == 0
    assert engine.count("failures") == engine.count("dropped_bad_id") == 0


@pytest.mark.v2
def test_the_search_waits_for_nothing_and_what_it_does_not_find_is_counted(
    engine_with: Any, make_engine: MakeEngine, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request is verified with three drafts, found ones or the last token again."""
    expected = make_engine().generate(PROMPTS, greedy())
    engine = engine_with(config_of(LOOKUP, tiny))
    before = {slot: engine.count(slot) for slot in ("draft_tokens", "filler")}

    def look(*_: Any) -> Any:
        raise AssertionError("the host was asked for numbers of a step")

    monkeypatch.setattr("vllm_specplug.bridge.batch_v2.StepOnHost._numbers", property(look))
    assert said(engine.generate(PROMPTS, greedy())) == said(expected)
    counts = engine.new_counts()
    engine.settle()
    drafted, filled = (engine.count(slot) - before[slot] for slot in ("draft_tokens", "filler"))
    assert engine.count("failures") == 0
    assert drafted >= 50
    assert filled >= 50
    # A request ends in a step behind which another one was planned already: up to two rounds are never verified.
    assert 0 <= drafted + filled - counts.num_draft_tokens <= 2 * 3 * len(PROMPTS)
    assert counts.num_draft_tokens == 3 * counts.num_drafts


@pytest.mark.v2
@pytest.mark.draft_model
def test_a_request_is_planned_with_its_own_limit(engine_with: Any, make_engine: MakeEngine, tiny: str) -> None:
    expected = make_engine().generate(PROMPTS, greedy())
    engine = engine_with(config_of(DRAFT, tiny))
    for limit, most in ((0, 0), (1, 1), (2, 2), (7, 3)):
        params = greedy(extra_args={"specplug_max_drafts": limit})
        assert said(engine.generate(PROMPTS, params)) == said(expected)
        counts = engine.new_counts()
        assert counts.num_draft_tokens == most * counts.num_drafts
        assert (counts == SpecCounts()) == (limit == 0)
    limits = [0, 1, 2, 3, 0, 1]
    params = [greedy(extra_args={"specplug_max_drafts": limit}) for limit in limits]
    assert said(engine.generate(PROMPTS, params)) == said(expected)
    engine.settle()
    assert engine.count("filler") == 0  # a draft model has always something to say


def test_a_preempted_request_goes_on(engine_with: Any, make_engine: MakeEngine, tiny: str) -> None:
    prompts = [loop_prompt(start, 90 + start) for start in range(4)]
    expected = make_engine().generate(prompts, greedy(60))
    engine = engine_with(config_of(DRAFT, tiny), num_gpu_blocks_override=14, block_size=32)
    before = engine.metric("num_preemptions")
    assert said(engine.generate(prompts, greedy(60))) == said(expected)
    assert engine.metric("num_preemptions") > before
    engine.new_counts().assert_enough()


class ByTurns(KnownDistribution):
    """Drafts 0, 1, 2, ... tokens by turns, whatever they are; the rest of each row is filled by the bridge."""

    num_steps = 0

    def propose(self, batch: DraftBatch) -> Drafts:
        self.num_steps += 1
        drafts = super().propose(batch)
        turn = (torch.arange(batch.num_reqs) + self.num_steps) % (NUM_DRAFTS + 1)
        return Drafts(drafts.token_ids, torch.minimum(torch.as_tensor(drafts.num_drafts), turn), drafts.probs)


Q = [0.15, 0.25, 0.05, 0.2, 0.05, 0.1, 0.1, 0.1]
HOT = Setting()


def p_values(engine: Engine, target: ExactTarget, num_samples: int, seed: int) -> dict[str, float]:
    samples = sample(engine, PROMPT, {"": many(HOT, num_samples, NUM_TOKENS)}, seed=seed)
    samples.counts.assert_enough(accepted=100, rejected=100)
    found = fits(samples.tokens[""], target.joint(HOT), widths=(1, 2))
    print(f"smallest p of {len(found)}: {min(found.values()):.3g}; {samples.counts}")
    return found


def test_text_beside_fillers_has_the_targets_distribution(engine_with: Any, eight: str, target: ExactTarget) -> None:
    """A filler is judged as one-hot though q of other places is handed over."""
    config = {"method": KNOWN, "num_speculative_tokens": NUM_DRAFTS, "q": Q}
    engine = engine_with(config, model=eight, **SETTINGS)
    engine.use(ByTurns, q=Q)
    assert holm_rejected(p_values(engine, target, 1024, seed=1), 0.005) == []
    engine.settle()
    assert engine.count("filler") >= 500


def test_fillers_judged_by_the_wrong_q_are_found_out(
    engine_with: Any, eight: str, target: ExactTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: the filler is taken for a token that was drawn from q."""
    from vllm_specplug.bridge import draft_logits

    config = {"method": KNOWN, "num_speculative_tokens": NUM_DRAFTS, "q": Q}
    engine = engine_with(config, model=eight, **SETTINGS)
    engine.use(ByTurns, q=Q)
    write = draft_logits.write
    monkeypatch.setattr(
        draft_logits,
        "write",
        lambda room, lines, tokens, probs, count, *rest: write(
            room, lines, tokens, probs, torch.full_like(count, NUM_DRAFTS), *rest
        ),
    )
    assert min(p_values(engine, target, 1024, seed=1).values()) < MUTANT_LEVEL


def test_seeds_repeat(engine_with: Any, tiny: str) -> None:
    engine = engine_with(config_of(MEDUSA, tiny, draft_sample_method="probabilistic"))
    assert isinstance(engine.drafter.guard.proposer, Medusa)
    params = [SamplingParams(temperature=0.8, seed=7 + n, max_tokens=30, detokenize=False) for n in range(4)]
    first, second = (engine.tokens([PROMPTS[0]] * 4, params) for _ in range(2))
    assert first == second
    assert len({tuple(text) for text in first}) == 4
    engine.new_counts()


def test_patches_come_off() -> None:
    """What the process of these tests was given can be taken away again, to the last one."""
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.worker.gpu import model_runner

    from vllm_specplug.bridge import runner_choice, runner_v2, scheduling

    places = [
        (VllmConfig, "__post_init__"),
        (VllmConfig, "_get_v2_model_runner_unsupported_features"),
        (AsyncScheduler, "_update_after_schedule"),
        (model_runner, "init_speculator"),
        (model_runner.GPUModelRunner, "add_requests"),
    ]
    undo = [*runner_v2.install(), *runner_choice.install(), scheduling.install()]
    assert all(patches.is_wrapped(*place) for place in places)
    for each in undo:
        each()
    assert not any(patches.is_wrapped(*place) for place in places)
    runner_v2.install(), runner_choice.install(), scheduling.install()  # the other tests need them
    assert np.all([patches.is_wrapped(*place) for place in places])
