"""Requests join, are preempted, aborted and end: no state stays behind, and a proposer always sees its own rows."""

from __future__ import annotations

import gc
from typing import Any

import psutil
import pytest
from conftest import (
    DRAFT,
    LOOKUP,
    MEDUSA,
    METHODS,
    METHODS_ONE_ON_V2,
    SCRIPTED,
    Engine,
    MakeEngine,
    drafting_engine,
    few,
    loop_prompt,
    replay,
    said,
)
from tiny_draft import tiny_draft
from tiny_heads import tiny_heads
from vllm import SamplingParams

from vllm_specplug.proposer import Capabilities, DraftBatch, Drafts, Target
from vllm_specplug.testing import Scripted


def greedy(max_tokens: int = 60, **changes: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=False, **changes)


@METHODS_ONE_ON_V2
def test_a_preempted_request_goes_on_as_if_nothing_had_been(make_engine: MakeEngine, method: str) -> None:
    """vllm#31944: a preempted request resumed with stale drafts."""
    prompts = few([loop_prompt(start, 90 + start) for start in range(8)], on_v2=4)
    expected = make_engine().generate(prompts, greedy(100))
    tiny_cache = {"num_gpu_blocks_override": 3 * len(prompts), "block_size": 32}  # half of what is needed
    engine = drafting_engine(make_engine, method, prompts, expected, **tiny_cache)
    before = engine.metric("num_preemptions")
    assert said(engine.generate(prompts, greedy(100))) == said(expected)
    assert engine.metric("num_preemptions") > before
    engine.new_counts().assert_enough()
    engine.settle()
    assert engine.drafter.num_tracked_requests == 0


@METHODS
def test_requests_whose_cache_is_taken_away_go_on_as_before(make_engine: MakeEngine, method: str) -> None:
    """All running requests are preempted at once in the middle of their drafts, as before a weight update."""
    prompts = [loop_prompt(start, 20 + start) for start in range(6)]
    expected = make_engine().generate(prompts, greedy())
    engine = drafting_engine(make_engine, method, prompts, expected)
    llm_engine = engine.llm.llm_engine
    for number, prompt in enumerate(prompts):
        llm_engine.add_request(str(number), {"prompt_token_ids": prompt}, greedy())
    answers = {}
    for step in range(1000):
        if step in (3, 7):
            assert llm_engine.reset_prefix_cache(reset_running_requests=True)
        answers |= {output.request_id: output for output in llm_engine.step() if output.finished}
        if not llm_engine.has_unfinished_requests():
            break
    assert said([answers[str(number)] for number in range(len(prompts))]) == said(expected)
    engine.new_counts().assert_enough()


@METHODS
def test_an_abort_in_the_middle_leaves_the_others_and_the_state_alone(make_engine: MakeEngine, method: str) -> None:
    prompts = [loop_prompt(start, 10 + start) for start in range(10)]
    expected = make_engine().generate(prompts, greedy(100))
    engine = drafting_engine(make_engine, method, prompts, expected)
    llm_engine = engine.llm.llm_engine
    for number, prompt in enumerate(prompts):
        llm_engine.add_request(str(number), {"prompt_token_ids": prompt}, greedy(100))
    answers = {}
    step = 0
    while llm_engine.has_unfinished_requests():
        if step < 10 and step % 2 == 0:
            llm_engine.abort_request([str(step)])  # 0, 2, 4, 6, 8
        answers |= {output.request_id: output for output in llm_engine.step() if output.finished}
        step += 1
    kept = range(1, 10, 2)
    assert said([answers[str(number)] for number in kept]) == said([expected[number] for number in kept])
    engine.new_counts().assert_enough()
    engine.settle()
    assert engine.drafter.num_tracked_requests == 0


def drive(engine: Engine, num_requests: int, vocab_size: int = 32) -> int:
    """Short requests, up to 16 at a time: every fifth is aborted, every third drafts nothing. Returns peak state."""
    llm_engine = engine.llm.llm_engine
    begun, running, most = 0, [], 0
    while begun < num_requests or running:
        while begun < num_requests and len(running) < 16:
            extra = {"specplug_max_drafts": 0} if begun % 3 == 0 else None
            params = greedy(4 + begun % 13, extra_args=extra)
            llm_engine.add_request(f"r{begun}", {"prompt_token_ids": loop_prompt(begun, 3 + begun % 11)}, params)
            running.append(f"r{begun}")
            begun += 1
        for req_id in [one for one in running if int(one[1:]) % 5 == 4][:2]:
            llm_engine.abort_request([req_id])
            running.remove(req_id)
        for output in llm_engine.step():
            if output.finished:
                running.remove(output.request_id)
        most = max(most, engine.drafter.num_tracked_requests)
    engine.settle()
    return most


def state_size(engine: Engine) -> int:
    proposer = engine.drafter.guard.proposer
    own = getattr(proposer, "num_requests", getattr(proposer, "num_tracked_requests", 0))  # neural ones keep no state
    return int(own + engine.drafter.num_tracked_requests)


@pytest.mark.parametrize("method", [SCRIPTED, LOOKUP, MEDUSA, DRAFT])
@pytest.mark.parametrize("num_requests", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_state_and_memory_go_back_when_requests_end(
    make_engine: MakeEngine, tiny: str, method: str, num_requests: int
) -> None:
    """vllm#15506: memory grew while speculation was switched off for part of the requests."""
    options = {}
    if method in (MEDUSA, DRAFT):
        model = tiny_heads(tiny) if method == MEDUSA else tiny_draft(tiny)
        options = {"model": model, "draft_sample_method": "probabilistic"}
    engine = make_engine({"method": method, "num_speculative_tokens": 4, **options})
    if method == SCRIPTED:  # the texts are not what the target says: most drafts are wrong
        engine.use(Scripted, script=[[loop_prompt(start, 3), loop_prompt(start + 3, 40)] for start in range(32)])
    assert drive(engine, num_requests) >= 8
    assert state_size(engine) == 0
    assert engine.new_counts().num_draft_tokens >= 50
    if method == LOOKUP:
        assert engine.drafter.guard.proposer.num_bytes == 0
    sizes = []
    for _ in range(4 if num_requests > 1000 else 2):
        gc.collect()
        sizes.append(psutil.Process().memory_info().rss)
        drive(engine, num_requests)
        assert state_size(engine) == 0
    assert sizes[-1] - sizes[1] < 8 << 20 if num_requests > 1000 else sizes[-1] - sizes[0] < 16 << 20


class ReadsHiddenStates(Scripted):
    """Compares the target's own guess from the hidden state it is given with the token that came of it."""

    capabilities = Capabilities(reads_hidden_states=True)

    def load(self, target: Target) -> None:
        self.target = target
        self.right: dict[int, int] = {}
        self.wrong: list[str] = []

    def propose(self, batch: DraftBatch) -> Drafts:
        assert batch.hidden_states is not None
        assert batch.hidden_states.shape == (batch.num_reqs, self.engine.hidden_size)
        rows = list(batch.drafting_rows())
        if rows:
            best = self.target.module.compute_logits(batch.hidden_states[rows]).argmax(-1).tolist()
            for row, token in zip(rows, best, strict=True):
                new = int(batch.num_new_tokens[row])
                if token == batch.tokens(row)[-1]:
                    self.right[new] = self.right.get(new, 0) + 1
                else:
                    self.wrong.append(f"request {batch.req_ids[row]}, {new} new tokens")
        return super().propose(batch)


@pytest.mark.parametrize(
    "arguments",
    [{}, {"max_num_batched_tokens": 24, "max_num_seqs": 8, "enable_prefix_caching": False}],
    ids=["whole_prompts", "chunks"],
)
@pytest.mark.parametrize("ragged", [False, True])
def test_hidden_states_are_those_of_the_last_accepted_token(
    make_engine: MakeEngine, arguments: dict[str, Any], ragged: bool
) -> None:
    """Over prompts read in chunks, drafts of mixed number, rejections at every place, and steps without drafts."""
    prompts = [loop_prompt(start, 7 + start * 9 % 80) for start in range(12)]
    expected = make_engine().generate(prompts, greedy())
    engine = make_engine({"method": SCRIPTED, "num_speculative_tokens": 5}, **arguments)
    script = [[prompt, list(one.outputs[0].token_ids)] for prompt, one in zip(prompts, expected, strict=True)]
    # A prompt whose text the proposer does not know is never drafted for, beside others that are.
    proposer = engine.use(ReadsHiddenStates, script=script[:-2], wrong_every=7, ragged=ragged)
    assert said(engine.staggered(prompts, greedy(), every=2)) == said(expected)
    engine.new_counts().assert_enough()
    assert proposer.wrong == []
    assert set(proposer.right) == {1, 2, 3, 4, 5, 6}  # after rejections at each place and none
    assert sum(proposer.right.values()) >= 200


@pytest.mark.v2
def test_forget_is_told_of_every_request_once(make_engine: MakeEngine) -> None:
    prompts = [loop_prompt(start, 6) for start in range(5)]
    expected = make_engine().generate(prompts, greedy(20))
    engine = make_engine({"method": SCRIPTED, "num_speculative_tokens": 5})
    engine.settle()
    proposer = replay(engine, prompts, expected)
    forgotten: list[str] = []
    proposer.forget = forgotten.extend
    engine.generate(prompts, greedy(20))
    engine.settle()
    assert len(forgotten) == len(set(forgotten)) == 5


def test_a_request_id_used_again_starts_afresh(make_engine: MakeEngine) -> None:
    prompts = [loop_prompt(start, 12) for start in range(4)]
    expected = make_engine().generate(prompts, greedy(40))
    engine = make_engine({"method": SCRIPTED, "num_speculative_tokens": 5})
    replay(engine, prompts, expected, wrong_every=5)
    llm_engine = engine.llm.llm_engine
    for prompt, one in zip(prompts, expected, strict=True):
        llm_engine.add_request("again", {"prompt_token_ids": prompt}, greedy(40))
        finished = []
        while llm_engine.has_unfinished_requests():
            finished += [output for output in llm_engine.step() if output.finished]
        assert said(finished) == said([one])
    assert engine.new_counts().num_accepted_tokens >= 50
