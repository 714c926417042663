"""A draft that is the target itself is always right: whatever is missing or stale in its KV cache costs acceptance."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import DRAFT, Engine, MakeEngine, SpecCounts, loop_prompt, said
from test_tensor_parallel import needs_two_cores, run
from tiny_draft import tiny_draft
from vllm import SamplingParams

from proposers.draft_model import DraftModelProposer
from vllm_specplug.draft_vocab import FILE, write
from vllm_specplug.proposer import Target

pytestmark = pytest.mark.draft_model

NUM_DRAFTS = 4
PROMPTS = [loop_prompt(start, 6 + start) for start in range(12)]
SMALL_STEPS = {"max_num_batched_tokens": 24, "max_num_seqs": 8, "enable_prefix_caching": False}


def greedy(max_tokens: int = 60, **changes: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=False, **changes)


def right(make_engine: MakeEngine, model: str, num_drafts: int = NUM_DRAFTS, **arguments: Any) -> Engine:
    """An engine whose draft is its target, with nothing in its prefix cache."""
    config = {"method": DRAFT, "num_speculative_tokens": num_drafts, "model": model}
    engine = make_engine(config, **arguments)
    engine.settle()
    engine.llm.reset_prefix_cache()
    engine.use(DraftModelProposer, model=model)
    return engine


def assert_all_accepted(counts: SpecCounts, at_least: int = 50) -> None:
    assert counts.num_rejected_tokens == 0
    assert counts.num_accepted_tokens >= at_least


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("num_drafts", [1, 4, 8])
def test_every_draft_of_200_tokens_is_accepted(
    make_engine: MakeEngine, tiny: str, num_drafts: int, batch_size: int
) -> None:
    prompts = PROMPTS[:batch_size]
    expected = make_engine().generate(prompts, greedy(200))
    engine = right(make_engine, tiny, num_drafts)
    assert said(engine.generate(prompts, greedy(200))) == said(expected)
    # One token from the prompt's own step; each round then gives its drafts and one more, the last what is left.
    rounds = -(-199 // (num_drafts + 1))
    rounds_with_drafts = rounds - (199 % (num_drafts + 1) == 1)  # none where one token is left
    drafted = batch_size * (199 - rounds)
    assert engine.new_counts() == SpecCounts(batch_size * rounds_with_drafts, drafted, drafted)
    assert engine.count("failures") == 0


@pytest.mark.parametrize("arguments", [{}, SMALL_STEPS, {"block_size": 32}], ids=["whole", "chunks", "small_blocks"])
@pytest.mark.parametrize("every", [0, 1, 3])
def test_nothing_is_missing_from_the_drafts_cache(
    make_engine: MakeEngine, tiny: str, arguments: dict[str, Any], every: int
) -> None:
    """Requests that come and go, prompts read in chunks, prompts that end where a block does."""
    prompts = [*PROMPTS[:4], *(loop_prompt(length, length) for length in (31, 32, 33, 63, 64, 65, 96, 128))]
    solo = [make_engine().generate([prompt], greedy())[0] for prompt in prompts]
    engine = right(make_engine, tiny, **arguments)
    answers = engine.staggered(prompts, greedy(), every) if every else engine.generate(prompts, greedy())
    assert said(answers) == said(solo)
    assert_all_accepted(engine.new_counts(), 12 * 40)


def test_a_preempted_request_is_drafted_for_as_before(make_engine: MakeEngine, tiny: str) -> None:
    prompts = [loop_prompt(start, 90 + start) for start in range(8)]
    expected = make_engine().generate(prompts, greedy(100))
    engine = right(make_engine, tiny, num_gpu_blocks_override=24, block_size=32)
    before = engine.metric("num_preemptions")
    assert said(engine.generate(prompts, greedy(100))) == said(expected)
    assert engine.metric("num_preemptions") > before
    counts = engine.new_counts()
    assert_all_accepted(counts, 8 * 70)


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_a_prefix_from_the_cache_is_drafted_from_as_well(make_engine: MakeEngine, tiny: str, noise: float) -> None:
    """vllm#47930: acceptance collapsed where the prompt came out of the prefix cache."""
    draft = tiny_draft(tiny, noise) if noise else tiny
    prompts = [[*loop_prompt(3, 180), *loop_prompt(start, 5)] for start in range(6)]
    others = [[*loop_prompt(3, 180), *loop_prompt(start, 7)] for start in range(6, 12)]
    expected = make_engine(enable_prefix_caching=False).generate([*prompts, *others], greedy())
    config = {"method": DRAFT, "num_speculative_tokens": NUM_DRAFTS, "model": draft}
    engine = make_engine(config, block_size=32, enable_prefix_caching=True)
    engine.llm.reset_prefix_cache()
    engine.new_counts()
    hits = engine.metric("prefix_cache_hits")
    cold, warm = [], []
    for prompt, one in zip(prompts, expected, strict=False):  # one at a time, so that nothing is there already
        engine.llm.reset_prefix_cache()
        assert said(engine.generate([prompt], greedy())) == said([one])
        cold.append(engine.new_counts())
    assert engine.metric("prefix_cache_hits") == hits
    for prompt, one in zip([*prompts, *others], expected, strict=True):
        assert said(engine.generate([prompt], greedy())) == said([one])
        warm.append(engine.new_counts())
    assert engine.metric("prefix_cache_hits") - hits >= 11 * 160
    accepted = [sum(count.num_accepted_tokens for count in counts) for counts in (cold, warm[:6])]
    assert accepted[1] >= 0.95 * accepted[0] >= 50
    if not noise:
        assert sum(count.num_rejected_tokens for count in (*cold, *warm)) == 0


def test_an_answer_out_of_the_prefix_cache_is_drafted_from_as_well(make_engine: MakeEngine, tiny: str) -> None:
    """A conversation that goes on: the cached blocks hold tokens that were drafts once, accepted or rejected."""
    plain = make_engine(enable_prefix_caching=False)
    engine = right(make_engine, tiny, block_size=32, enable_prefix_caching=True)
    engine.drafter.guard.proposer._draft = misled = Misled(engine.drafter.draft_model, [0, 1, None, 2, 3])
    texts = [loop_prompt(start, 20 + start) for start in range(6)]
    for places, num_turns in (([0, 1, None, 2, 3], 1), ([None], 3)):
        misled.places = places
        for turn in range(num_turns):
            engine.settle()
            engine.new_counts()
            hits = engine.metric("prefix_cache_hits")
            expected = plain.generate(texts, greedy(50))
            assert said(engine.generate(texts, greedy(50))) == said(expected)
            texts = [[*text, *answer.outputs[0].token_ids, turn] for text, answer in zip(texts, expected, strict=True)]
            if misled.places == [None]:
                assert engine.metric("prefix_cache_hits") - hits >= 6 * 32
                assert_all_accepted(engine.new_counts(), 200)


class Misled:
    """A draft model whose token number 0, 1, ... of a round, by turns, is taken for another, and read as that."""

    def __init__(self, model: Any, places: Sequence[int | None]) -> None:
        self._model = model
        self.places = places
        self.num_rounds = 0
        self._column = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def begin(self) -> torch.Tensor:
        self.num_rounds += 1
        self._column = 0
        states: torch.Tensor = self._model.begin()
        return states

    def to_target_ids(self, token_ids: torch.Tensor) -> torch.Tensor:
        is_wrong = self._column == self.places[self.num_rounds % len(self.places)]
        self._column += 1
        return (token_ids + 1) % 32 if is_wrong else token_ids


@pytest.mark.parametrize("places", [[0], [1], [2], [3], [0, 1, 2, 3], [3, None, 0, 2, None, 1]], ids=str)
@pytest.mark.parametrize("batch_size", [1, 5])
def test_rejections_leave_nothing_stale_behind(
    make_engine: MakeEngine, tiny: str, places: list[int | None], batch_size: int
) -> None:
    """mlxcel#1002: the draft's cache was rewound too far after a rejection, and acceptance decayed."""
    prompts = [loop_prompt(start, 6 + start) for start in range(batch_size)]
    expected = make_engine().generate(prompts, greedy(240))
    engine = right(make_engine, tiny)
    misled = Misled(engine.drafter.draft_model, places)
    engine.drafter.guard.proposer._draft = misled
    llm_engine = engine.llm.llm_engine
    for number, prompt in enumerate(prompts):
        llm_engine.add_request(str(number), {"prompt_token_ids": prompt}, greedy(240))
    answers = {}
    while llm_engine.has_unfinished_requests():
        answers |= {output.request_id: output for output in llm_engine.step() if output.finished}
        if misled.num_rounds == 51 and misled.places != [None]:  # drafts of 50 rounds were judged
            counts = engine.new_counts()
            judged = [places[number % len(places)] for number in range(1, 51)]
            assert counts.num_accepted_tokens == batch_size * sum(NUM_DRAFTS if at is None else at for at in judged)
            misled.places = [None]
            llm_engine.step()  # the drafts of the round in between
            engine.new_counts()
    assert said([answers[str(number)] for number in range(batch_size)]) == said(expected)
    assert_all_accepted(engine.new_counts(), 20)


def noted_drafts(engine: Engine, prompts: Sequence[Sequence[int]], params: Any) -> tuple[Any, dict[Any, list[int]]]:
    """Answers, and what vLLM scheduled to be verified: (text so far) -> drafts."""
    scheduler = engine.llm.llm_engine.engine_core.engine_core.scheduler
    schedule, seen = scheduler.schedule, {}

    def noting(*args: Any, **kwargs: Any) -> Any:
        scheduled = schedule(*args, **kwargs)
        for req_id, drafts in scheduled.scheduled_spec_decode_tokens.items():
            seen[tuple(scheduler.requests[req_id].all_token_ids)] = list(drafts)
        return scheduled

    scheduler.schedule = noting
    try:
        return engine.generate(prompts, params), seen
    finally:
        scheduler.schedule = schedule


def test_drafts_are_those_of_vllms_own_draft_model(make_engine: MakeEngine, tiny: str) -> None:
    """In the same process, where vLLM's own method stays vLLM's own class."""
    from vllm.v1.spec_decode.draft_model import DraftModelProposer as VllmsOwn

    from vllm_specplug.bridge.draft_model import V1DraftModel

    draft = tiny_draft(tiny)
    expected = make_engine().generate(PROMPTS, greedy(100))
    ours = make_engine({"method": DRAFT, "model": draft, "num_speculative_tokens": NUM_DRAFTS})
    theirs = make_engine({"method": "draft_model", "model": draft, "num_speculative_tokens": NUM_DRAFTS})
    assert type(ours.runner.drafter) is V1DraftModel
    assert type(theirs.runner.drafter) is VllmsOwn
    found = []
    for engine in (ours, theirs):
        engine.llm.reset_prefix_cache()
        engine.new_counts()
        answers, drafts = noted_drafts(engine, PROMPTS, greedy(100))
        assert said(answers) == said(expected)
        engine.new_counts().assert_enough()
        found.append(drafts)
    assert found[0].keys() <= found[1].keys()
    # The same tokens; near the end of an answer ours makes no more than it has use for.
    for text, tokens in found[0].items():
        assert tokens == found[1][text][: len(tokens)]
    assert sum(map(len, found[0].values())) > 1000


@needs_two_cores
@pytest.mark.slow
@pytest.mark.parametrize("is_cut", [False, True], ids=["", "cut"])
def test_two_ranks_draft_alike(tiny: str, tmp_path: Path, is_cut: bool) -> None:
    """Each rank runs its part of the draft and verifies with the same q, over rows of an output layer that is split."""
    expected = run(tiny, None)
    draft = tiny_draft(tiny)
    if is_cut:
        draft = shutil.copytree(draft, tmp_path / "draft").as_posix()
        write(Path(draft) / FILE, range(1, 32))
    config = {"method": DRAFT, "num_speculative_tokens": 3, "model": draft, "min_confidence": 0.2}
    report = run(tiny, config)
    assert report["tokens"] == expected["tokens"]
    alone = report["specplug"]["draft_model"]
    assert alone["failures"] == alone["dropped_ranks_differ"] == 0
    assert report["vllm"]["vllm:spec_decode_num_accepted_tokens"] >= 50
    sampled = run(tiny, {**config, "draft_sample_method": "probabilistic"}, temperature=1.0)
    assert [len(tokens) for tokens in sampled["tokens"]] == [40] * 8
    assert sampled["specplug"]["draft_model"]["dropped_ranks_differ"] == 0
    assert sampled["vllm"]["vllm:spec_decode_num_accepted_tokens"] >= 20


def test_target_hands_the_draft_model_out_only_to_who_asked_for_it(make_engine: MakeEngine, tiny: str) -> None:
    class Asks(DraftModelProposer):
        def load(self, target: Target) -> None:
            self.found = target.draft_model
            super().load(target)

    engine = right(make_engine, tiny)
    proposer = engine.use(Asks, model=tiny)
    assert proposer.found is engine.runner.drafter
    assert engine.drafter.draft_model is engine.runner.drafter
    assert make_engine({"method": "specplug:prompt_lookup", "num_speculative_tokens": 4}).drafter.draft_model is None
