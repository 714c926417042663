"""What limits, options and failures of the small-model draft cost: drafts, never text, and nobody else's drafts."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import DRAFT, Engine, MakeEngine, SpecCounts, loop_prompt, said
from test_draft_model import NUM_DRAFTS, PROMPTS, assert_all_accepted, greedy, right
from tiny_draft import tiny_draft

from proposers.draft_model import DraftModelProposer
from vllm_specplug.draft_vocab import FILE
from vllm_specplug.guard import MAX_FAILURES_IN_A_ROW
from vllm_specplug.proposer import DraftBatch, Drafts

pytestmark = pytest.mark.draft_model

DRAFT_LIMIT = 64


class Watched(DraftModelProposer):
    """Notes how much is drafted for each request, what, and how many passes that takes."""

    def load(self, target: Any) -> None:
        super().load(target)
        self.drafted: dict[str, int] = {}
        self.tokens: set[int] = set()
        self.num_passes = 0
        advance = self._draft.advance

        def counting(token_ids: torch.Tensor) -> torch.Tensor:
            self.num_passes += 1
            return advance(token_ids)

        self._draft = type("Counting", (), {"__getattr__": lambda _, name: getattr(target.draft_model, name)})()
        self._draft.advance = counting  # type: ignore[method-assign]

    def propose(self, batch: DraftBatch) -> Drafts:
        drafts = super().propose(batch)
        for req_id, tokens in zip(batch.req_ids, drafts.to_lists(), strict=True):
            number = req_id.partition("-")[0]  # vLLM adds a word of its own to the ids it is given
            self.drafted[number] = self.drafted.get(number, 0) + len(tokens)
            self.tokens.update(tokens)
        return drafts


def limited(make_engine: MakeEngine, model: str, **arguments: Any) -> Engine:
    """An engine whose draft is its target, but reads no more than 64 tokens."""
    config = {"method": DRAFT, "model": model, "num_speculative_tokens": NUM_DRAFTS, "max_model_len": DRAFT_LIMIT}
    engine = make_engine(config, block_size=32, **arguments)
    engine.settle()
    engine.llm.reset_prefix_cache()
    engine.use(Watched, model=model)
    return engine


def test_a_text_beyond_the_drafts_limit_costs_the_others_no_draft(make_engine: MakeEngine, tiny: str) -> None:
    """vllm#58080: one request past the draft's limit made the whole batch draft dummy tokens."""
    prompts = [*(loop_prompt(start, 8) for start in range(4)), loop_prompt(9, 80)]
    expected = make_engine().generate(prompts, greedy(50))
    engine = limited(make_engine, tiny)
    assert said(engine.generate(prompts, greedy(50))) == said(expected)
    drafted = engine.drafter.guard.proposer.drafted
    assert [drafted[number] > 0 for number in sorted(drafted, key=int)] == [True, True, True, True, False]
    assert_all_accepted(engine.new_counts(), 4 * 35)
    assert engine.count("withheld") >= 1
    withheld = engine.count("withheld")
    assert said(engine.generate(prompts[:4], greedy(50))) == said(expected[:4])
    assert engine.count("withheld") - withheld == withheld - 1  # the long one counted once, not at each step


def test_a_text_that_grows_beyond_the_drafts_limit_goes_on_without_drafts(make_engine: MakeEngine, tiny: str) -> None:
    """Each of them at another step, so that some are drafted for while others no longer are."""
    prompts = [loop_prompt(start, 20 + 5 * start) for start in range(9)]
    expected = make_engine().generate(prompts, greedy(150))
    engine = limited(make_engine, tiny)
    assert said(engine.generate(prompts, greedy(150))) == said(expected)
    assert said(engine.staggered(prompts, greedy(150), every=2)) == said(expected)
    assert_all_accepted(engine.new_counts(), 2 * 100)
    assert engine.count("failures") == 0


@pytest.mark.parametrize("length", [80, 59, 62, 63, 64])
def test_passes_beyond_the_drafts_limit_leave_shared_blocks_alone(
    make_engine: MakeEngine, tiny: str, length: int
) -> None:
    """A request at the limit takes part in the others' passes. Its keys must not land in a block of a prefix.

    The long request and the short ones share a block of 32 tokens, out of the prefix cache.
    """
    shared = loop_prompt(3, 33)
    long = [*shared, *loop_prompt(5, length - 33)]
    short = [[*shared, start] for start in range(4)]
    expected = make_engine(enable_prefix_caching=False).generate([long, *short], greedy(24))
    engine = limited(make_engine, tiny, enable_prefix_caching=True)
    assert said(engine.generate(short[:1], greedy(24))) == said(expected[1:2])  # the block is in the cache from here
    for _ in range(2):
        assert said(engine.generate([long, *short], greedy(24))) == said(expected)
        assert_all_accepted(engine.new_counts(), 40)


def test_a_short_draft_says_so_at_the_start(make_engine: MakeEngine, tiny: str, log: list[str]) -> None:
    """By its own table of positions; such a position must not be looked up."""
    draft = tiny_draft(tiny, 0.0, max_position_embeddings=96)
    expected = make_engine().generate(PROMPTS, greedy(150))
    config = {"method": DRAFT, "model": draft, "num_speculative_tokens": NUM_DRAFTS}
    engine = make_engine(config)
    assert engine.drafter.draft_model.max_model_len == 96
    assert [line for line in log if "tokens long" in line] == [
        "WARNING specplug: the draft model may be 96 tokens long, the target 256: requests go on without drafts from "
        "there"
    ]
    engine.new_counts()
    assert said(engine.generate(PROMPTS, greedy(150))) == said(expected)
    assert_all_accepted(engine.new_counts(), 300)


@pytest.mark.parametrize(("batch_size", "most"), [(1, 4), (3, 2), (8, 0)])
def test_drafts_follow_the_schedule_by_batch_size(
    make_engine: MakeEngine, tiny: str, batch_size: int, most: int
) -> None:
    """vllm#46399. Where the batch shrinks to one request, nothing is missing in the draft's cache."""
    schedule = {
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 1, 4], [2, 4, 2], [5, 16, 0]],
    }
    prompts = [loop_prompt(start, 9) for start in range(batch_size)]
    params = [greedy(100) for _ in prompts]
    expected = make_engine().generate(prompts, params)
    engine = make_engine({"method": DRAFT, "model": tiny, **schedule})
    engine.new_counts()
    assert said(engine.generate(prompts, params)) == said(expected)
    counts = engine.new_counts()
    assert counts.num_rejected_tokens == 0
    assert counts.num_draft_tokens <= most * counts.num_drafts
    assert counts.num_draft_tokens > (most - 1) * counts.num_drafts or not most
    params = [greedy(60 + 12 * number) for number in range(batch_size)]
    expected = make_engine().generate(prompts, params)
    assert said(engine.generate(prompts, params)) == said(expected)
    assert_all_accepted(engine.new_counts(), 40)


def test_requests_without_drafts_leave_those_beside_them_theirs(make_engine: MakeEngine, tiny: str) -> None:
    expected = make_engine().generate(PROMPTS, greedy(80))
    engine = right(make_engine, tiny)
    engine.use(Watched, model=tiny)
    params = [greedy(80, extra_args={"specplug_max_drafts": number % 3}) for number in range(12)]
    assert said(engine.generate(PROMPTS, params)) == said(expected)
    drafted = engine.drafter.guard.proposer.drafted
    assert [drafted[number] > 0 for number in sorted(drafted, key=int)] == [number % 3 > 0 for number in range(12)]
    assert_all_accepted(engine.new_counts(), 200)


def test_alone_without_drafts_a_request_takes_no_pass_but_the_first(make_engine: MakeEngine, tiny: str) -> None:
    engine = right(make_engine, tiny)
    watched = engine.use(Watched, model=tiny)
    expected = make_engine().generate(PROMPTS[:2], greedy())
    assert said(engine.generate(PROMPTS[:2], greedy(extra_args={"specplug_max_drafts": 0}))) == said(expected)
    assert engine.new_counts() == SpecCounts()
    assert watched.num_passes == 0


class Fails(DraftModelProposer):
    """Raises in chosen steps: before the first pass, behind it, or in the middle of the others."""

    num_steps = 0
    steps: tuple[int, ...] = ()
    where = "before"

    def propose(self, batch: DraftBatch) -> Drafts:
        self.num_steps += 1
        if self.num_steps not in self.steps:
            return super().propose(batch)
        if self.where != "before":
            states = self._draft.begin()
            if self.where == "in_between":
                self._draft.advance(self._logits(states).argmax(-1))
        raise RuntimeError("scripted failure")


@pytest.mark.parametrize("where", ["before", "behind", "in_between"])
def test_a_failure_costs_one_steps_drafts_and_no_key(make_engine: MakeEngine, tiny: str, where: str) -> None:
    """The first pass runs all the same: the keys and values of that step's tokens would be missing for good."""
    expected = make_engine().generate(PROMPTS, greedy(120))
    engine = right(make_engine, tiny, **{"max_num_batched_tokens": 24, "max_num_seqs": 8})
    proposer = engine.use(Fails, model=tiny)
    proposer.where, proposer.steps = where, (1, 2, 5, 6, 7, 20, 31)
    assert said(engine.staggered(PROMPTS, greedy(120))) == said(expected)
    assert engine.count("failures") == 7
    assert_all_accepted(engine.new_counts(), 500)


def test_a_draft_that_keeps_failing_is_switched_off(make_engine: MakeEngine, tiny: str) -> None:
    expected = make_engine().generate(PROMPTS, greedy())
    engine = right(make_engine, tiny)
    proposer = engine.use(Fails, model=tiny)
    proposer.steps = tuple(range(4, 1000))
    assert said(engine.generate(PROMPTS, greedy())) == said(expected)
    engine.new_counts()
    assert engine.count("failures") == MAX_FAILURES_IN_A_ROW
    assert engine.count("off") == 1
    assert said(engine.generate(PROMPTS, greedy())) == said(expected)
    assert engine.new_counts() == SpecCounts()
    assert proposer.num_steps == 3 + MAX_FAILURES_IN_A_ROW


@pytest.mark.parametrize("batch_size", [1, 8])
def test_doubtful_drafts_end_early_and_keep_the_text(make_engine: MakeEngine, tiny: str, batch_size: int) -> None:
    """One request alone then takes fewer passes of the draft model, too."""
    draft = tiny_draft(tiny)
    expected = make_engine().generate(PROMPTS, greedy())
    engine = make_engine({"method": DRAFT, "num_speculative_tokens": NUM_DRAFTS, "model": draft})
    engine.settle()
    passes, rates, rounds = [], [], []
    for min_confidence in (0.0, 0.5):
        engine.llm.reset_prefix_cache()
        watched = engine.use(Watched, model=draft, min_confidence=min_confidence)
        for start in range(0, len(PROMPTS), batch_size):
            batch = slice(start, start + batch_size)
            assert said(engine.generate(PROMPTS[batch], greedy())) == said(expected[batch])
        counts = engine.new_counts()
        counts.assert_enough(rejected=20)
        passes.append(watched.num_passes)
        rates.append(counts.num_accepted_tokens / counts.num_draft_tokens)
        rounds.append(counts.num_draft_tokens / counts.num_drafts)
    assert rates[1] > rates[0]
    assert rounds[1] < rounds[0] - 0.3
    if batch_size == 1:
        # Every pass that was run gave a token that was drafted: none was run to be thrown away.
        assert watched.num_passes + counts.num_drafts == sum(watched.drafted.values())


def test_a_list_of_tokens_can_stand_in_a_file_or_beside_the_draft(
    make_engine: MakeEngine, tiny: str, tmp_path: Path
) -> None:
    """Nothing else is drafted, and what was left out costs acceptance, not text."""
    expected = make_engine().generate(PROMPTS, greedy())
    engine = right(make_engine, tiny)
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / FILE).write_text(json.dumps(list(range(0, 32, 2))))
    (tmp_path / "list.json").write_text(json.dumps([31, *range(20)]))
    folder, file = str(tmp_path / "draft"), str(tmp_path / "list.json")
    allowed = {
        (tiny, None): set(range(32)),
        (folder, None): set(range(0, 32, 2)),
        (folder, file): {31, *range(20)},
        (tiny, file): {31, *range(20)},
        (folder, "all"): set(range(32)),
    }
    for (model, draft_vocab), tokens in allowed.items():
        watched = engine.use(Watched, model=model, draft_vocab=draft_vocab)
        assert said(engine.generate(PROMPTS, greedy())) == said(expected)
        assert watched.tokens <= tokens
        assert len(watched.tokens) > 0.8 * len(tokens)
        counts = engine.new_counts()
        if len(tokens) == 32:
            assert_all_accepted(counts)
        else:
            counts.assert_enough()
        assert engine.count("failures") == 0


def test_the_start_says_what_the_draft_takes_of_the_cache(make_engine: MakeEngine, tiny: str, log: list[str]) -> None:
    """A draft of one layer beside a target of two: a third."""
    logger = logging.getLogger("vllm_specplug")
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        draft = tiny_draft(tiny, 0.0, num_layers=1)
        engine = make_engine(
            {"method": DRAFT, "num_speculative_tokens": 2, "model": draft}, block_size=32, num_gpu_blocks_override=400
        )
    finally:
        logger.setLevel(level)
    lines = [line for line in log if "KV cache" in line]
    assert lines == [
        "INFO specplug: the draft model takes 33.3% of the KV cache: 400 blocks of 32 tokens, 600 without it, and 0 "
        "MiB of weights"
    ]
    expected = make_engine().generate(PROMPTS, greedy())
    engine.new_counts()
    assert said(engine.generate(PROMPTS, greedy())) == said(expected)
    engine.new_counts().assert_enough(accepted=20)
