"""Greedy text is the target's own, whatever arrives when and however long it is; drafts are accepted and rejected."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import (
    LOOKUP,
    METHODS,
    METHODS_ONE_ON_V2,
    SCRIPTED,
    MakeEngine,
    SpecCounts,
    drafting_engine,
    few,
    loop_prompt,
    replay,
    said,
    script_of,
)
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from vllm_specplug import DraftBatch, Drafts
from vllm_specplug.testing import Scripted

MAX_MODEL_LEN = 256


def greedy(max_tokens: int = 60, **changes: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=False, **changes)


def phrases(number: int) -> list[int]:
    """A phrase of 4 to 9 tokens, repeated, with another word between the copies."""
    phrase = [(number * 7 + step * step * 3 + step) % 32 for step in range(4 + number % 6)]
    return [*phrase, number % 32, *phrase, (number + 5) % 32, *phrase[: 2 + number % 3]]


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("num_drafts", [1, 4, 8])
def test_repetitive_prompts_keep_their_greedy_text(make_engine: MakeEngine, num_drafts: int, batch_size: int) -> None:
    """vllm#41758: n-gram drafts changed greedy text on repetitive prompts."""
    prompts = [phrases(number) for number in range(30)]
    expected = make_engine().tokens(prompts, greedy(40))
    engine = make_engine({"method": LOOKUP, "num_speculative_tokens": num_drafts})
    engine.new_counts()
    for start in range(0, len(prompts), batch_size):
        batch = slice(start, start + batch_size)
        assert engine.tokens(prompts[batch], greedy(40)) == expected[batch]
    engine.new_counts().assert_enough()


@METHODS_ONE_ON_V2
def test_each_request_keeps_its_solo_text_when_requests_come_and_go(make_engine: MakeEngine, method: str) -> None:
    """vllm#14645: tokens leaked between requests whose order in the batch had changed."""
    prompts = few([loop_prompt(start, 6 + start) if start % 2 else phrases(start) for start in range(12)], on_v2=6)
    plain = make_engine()
    solo = [plain.generate([prompt], greedy())[0] for prompt in prompts]
    engine = drafting_engine(make_engine, method, prompts, solo)
    if method == "scripted":
        replay(engine, prompts, solo, wrong_every=4, ragged=True)
    for every in few((3, 1), on_v2=1):
        assert said(engine.staggered(prompts, greedy(), every)) == said(solo)
    engine.new_counts().assert_enough()


@METHODS
def test_a_prompt_read_in_chunks_changes_nobodys_text(make_engine: MakeEngine, method: str) -> None:
    prompts = [loop_prompt(start, 8) for start in range(4)] + [loop_prompt(start, 90 + start) for start in range(5, 9)]
    solo = [make_engine().generate([prompt], greedy())[0] for prompt in prompts]
    small_steps = {"max_num_batched_tokens": 24, "max_num_seqs": 8, "enable_prefix_caching": False}
    engine = drafting_engine(make_engine, method, prompts, solo, **small_steps)
    assert said(engine.staggered(prompts, greedy(), every=3)) == said(solo)
    assert said(engine.generate(prompts, greedy())) == said(solo)
    engine.new_counts().assert_enough()


@METHODS
def test_a_prefix_from_the_cache_changes_no_text(make_engine: MakeEngine, method: str) -> None:
    """vllm#47930: drafts went bad where the prompt came out of the prefix cache."""
    shared = loop_prompt(3, 140)
    prompts = [[*shared, *loop_prompt(start, 5)] for start in range(4)]
    arguments = {"block_size": 32, "enable_prefix_caching": True}
    expected = make_engine(enable_prefix_caching=False).generate(prompts, greedy())
    engine = drafting_engine(make_engine, method, prompts, expected, **arguments)
    engine.llm.reset_prefix_cache()
    counts: list[SpecCounts] = []
    for _ in range(2):
        hits = engine.metric("prefix_cache_hits")
        assert said(engine.generate(prompts, greedy())) == said(expected)
        counts.append(engine.new_counts())
    assert engine.metric("prefix_cache_hits") - hits >= 4 * 128
    total = SpecCounts(*(sum(values) for values in zip(*(vars(count).values() for count in counts), strict=True)))
    total.assert_enough()
    cold, warm = counts
    assert warm.num_accepted_tokens >= 0.95 * cold.num_accepted_tokens


@pytest.mark.parametrize("window", [(1, 1), (1, 4), (3, 3)])
def test_prompts_as_short_as_the_window_keep_their_text(make_engine: MakeEngine, window: tuple[int, int]) -> None:
    """Also one-token prompts that join a decoding batch, which vLLM pads with drafts of -1."""
    prompts = [loop_prompt(start, length) for start in range(4) for length in range(1, 7)]
    expected = make_engine().generate(prompts, greedy(70))
    options = dict(zip(("min_ngram", "max_ngram"), window, strict=True))
    engine = make_engine({"method": LOOKUP, "num_speculative_tokens": 4, **options})
    engine.new_counts()
    assert said(engine.generate(prompts, greedy(70))) == said(expected)
    assert said(engine.staggered(prompts, greedy(70), every=4)) == said(expected)
    engine.new_counts().assert_enough()


def test_one_token_prompts_that_join_a_batch_keep_their_text(make_engine: MakeEngine) -> None:
    prompts = [[number] for number in range(20)]
    expected = make_engine().generate(prompts, greedy())
    engine = drafting_engine(make_engine, "scripted", prompts, expected)
    assert said(engine.staggered(prompts, greedy(), every=3)) == said(expected)
    engine.new_counts().assert_enough()


@METHODS
def test_the_longest_prompt_is_answered_and_a_longer_one_refused_as_ever(make_engine: MakeEngine, method: str) -> None:
    prompts = [loop_prompt(start, MAX_MODEL_LEN - 1) for start in range(2)]
    plain = make_engine()
    expected = plain.generate(prompts, greedy(None))
    engine = drafting_engine(make_engine, method, prompts, expected)
    assert said(engine.generate(prompts, greedy(None))) == said(expected)
    assert [len(answer.outputs[0].token_ids) for answer in expected] == [1, 1]
    assert engine.new_counts() == SpecCounts()  # nothing may follow the token of the prompt's own step
    for length in (0, MAX_MODEL_LEN):
        texts = []
        for each in (plain, engine):
            with pytest.raises(VLLMValidationError) as error:
                each.generate([loop_prompt(0, length)], greedy())
            texts.append(str(error.value))
        assert texts[0] == texts[1]


def test_all_wrong_drafts_cost_no_token(make_engine: MakeEngine) -> None:
    prompts = [loop_prompt(start, 9) for start in range(4)]
    expected = make_engine().generate(prompts, greedy())
    engine = make_engine({"method": SCRIPTED, "num_speculative_tokens": 5})
    replay(engine, prompts, expected, wrong_every=1)
    assert said(engine.generate(prompts, greedy())) == said(expected)
    counts = engine.new_counts()
    assert counts.num_accepted_tokens == 0
    # 59 rounds after the prompt's own step; the last ones have room for 4, 3, 2, 1 and 0 drafts.
    assert counts == SpecCounts(4 * 58, 4 * (54 * 5 + 4 + 3 + 2 + 1), 0)


@pytest.mark.v2
def test_right_drafts_are_all_accepted(make_engine: MakeEngine) -> None:
    prompts = [loop_prompt(start, 9) for start in range(4)]
    expected = make_engine().generate(prompts, greedy(61))
    engine = make_engine({"method": SCRIPTED, "num_speculative_tokens": 5})
    replay(engine, prompts, expected)
    assert said(engine.generate(prompts, greedy(61))) == said(expected)
    # One token from the prompt's own step, then ten rounds of 5 drafts and one more token.
    assert engine.new_counts() == SpecCounts(4 * 10, 4 * 50, 4 * 50)


def test_the_smallest_allowance_drafts_one_token(make_engine: MakeEngine) -> None:
    """max_tokens 2: the second token needs no draft. 3: one draft, and one token more."""
    prompts = [loop_prompt(start, 9) for start in range(4)]
    expected = make_engine().generate(prompts, greedy(3))
    engine = make_engine({"method": SCRIPTED, "num_speculative_tokens": 5})
    replay(engine, prompts, expected)
    for max_tokens, drafted in ((1, 0), (2, 0), (3, 4)):
        answers = engine.tokens(prompts, greedy(max_tokens))
        assert answers == [list(one.outputs[0].token_ids)[:max_tokens] for one in expected]
        assert engine.new_counts() == SpecCounts(drafted, drafted, drafted)


class NotesWhoReads(Scripted):
    """Notes the limits of requests that are still reading their prompt, and of those that are not."""

    def propose(self, batch: DraftBatch) -> Drafts:
        limits = self.__dict__.setdefault("limits", {True: set(), False: set()})
        for is_reading, limit in zip((batch.num_new_tokens == 0).tolist(), batch.max_drafts.tolist(), strict=True):
            limits[is_reading].add(limit)
        return super().propose(batch)


def test_nothing_is_drafted_for_a_request_that_reads_its_prompt(make_engine: MakeEngine) -> None:
    """Its tokens so far are known, so a draft would look right, and be verified at places that are the prompt's."""
    prompts = [loop_prompt(start, 8) for start in range(4)] + [loop_prompt(start, 90 + start) for start in range(5, 9)]
    expected = make_engine().generate(prompts, greedy())
    small_steps = {"max_num_batched_tokens": 24, "max_num_seqs": 8, "enable_prefix_caching": False}
    engine = make_engine({"method": SCRIPTED, "num_speculative_tokens": 5}, **small_steps)
    texts = [[*prompt, *answer.outputs[0].token_ids] for prompt, answer in zip(prompts, expected, strict=True)]
    script = script_of([text[:4] for text in texts], [text[4:] for text in texts])
    watched = engine.use(NotesWhoReads, script=script)
    assert said(engine.staggered(prompts, greedy(), every=3)) == said(expected)
    assert watched.limits[True] == {0}
    assert max(watched.limits[False]) == 5
