"""A proposer that breaks its promises costs speed: never text, never the engine."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from conftest import SCRIPTED, MakeEngine, SpecCounts, few, loop_prompt, replay, said
from vllm import SamplingParams

from vllm_specplug.guard import MAX_FAILURES_IN_A_ROW
from vllm_specplug.proposer import Capabilities, DraftBatch, Drafts, Proposer
from vllm_specplug.testing import Fault

GREEDY = SamplingParams(temperature=0, max_tokens=60, detokenize=False)
PROMPTS = few([loop_prompt(start, 6 + start) for start in range(8)], on_v2=3)
METHOD = {"method": SCRIPTED, "num_speculative_tokens": 5}

#: Fault -> the counter it ends up in. The first three lose drafts, the others the whole step.
COUNTER = {
    "out_of_vocabulary": "dropped_bad_id",
    "minus_one": "dropped_bad_id",
    "too_many": "dropped_too_many",
    "too_few_rows": "dropped_bad_rows",
    "not_drafts": "dropped_bad_rows",
    "raise": "failures",
    "raise_in_forget": "failures",
    "write": "failures",
    "overwrite": "dropped_too_many",
}
LOSES_THE_STEP = ("too_few_rows", "not_drafts", "raise", "write")
SHORT_ON_V2 = ("minus_one", "raise")


def test_every_fault_has_a_counter() -> None:
    assert set(COUNTER) == set(get_args(Fault))


@pytest.mark.parametrize(
    "fault", [pytest.param(one, marks=[pytest.mark.v2] if one in SHORT_ON_V2 else []) for one in get_args(Fault)]
)
def test_a_fault_now_and_then_costs_no_text_and_drafting_goes_on(make_engine: MakeEngine, fault: Fault) -> None:
    """vllm#47025: a draft of -1 ended the engine."""
    expected = make_engine().generate(PROMPTS, GREEDY)
    engine = make_engine(METHOD)
    replay(engine, PROMPTS, expected, wrong_every=4, fault=fault, fault_every=3)
    for _ in range(2):
        assert said(engine.generate(PROMPTS, GREEDY)) == said(expected)
    engine.new_counts().assert_enough()
    engine.settle()
    assert engine.count(COUNTER[fault]) > 0
    # What makes a draft bad may also make it too long.
    allowed = {COUNTER[fault], "dropped_too_many"} if COUNTER[fault] == "dropped_bad_id" else {COUNTER[fault]}
    assert {slot for slot in {*COUNTER.values()} if engine.count(slot)} <= allowed
    assert engine.count("off") == 0


@pytest.mark.parametrize("fault", get_args(Fault))
def test_a_fault_in_every_step_costs_no_text(make_engine: MakeEngine, fault: Fault, log: list[str]) -> None:
    expected = make_engine().generate(PROMPTS, GREEDY)
    engine = make_engine(METHOD)
    proposer = replay(engine, PROMPTS, expected, wrong_every=4, fault=fault)
    assert said(engine.generate(PROMPTS, GREEDY)) == said(expected)
    counts = engine.new_counts()
    if fault in LOSES_THE_STEP:
        assert counts == SpecCounts()
        assert engine.count(COUNTER[fault]) == MAX_FAILURES_IN_A_ROW
        assert engine.count("off") == 1
        assert proposer.num_steps == MAX_FAILURES_IN_A_ROW  # and not asked again
        assert [line for line in log if "switched off" in line] == [
            "ERROR proposer 'Scripted' failed 5 times in a row and is switched off: this engine goes on without "
            "speculation. Fix the proposer and restart"
        ]
    else:
        assert counts.num_draft_tokens >= 50
        assert engine.count("off") == 0
    assert said(engine.generate(PROMPTS[:1], GREEDY)) == said(expected[:1])


def test_a_failure_names_the_proposer_and_the_error_once(make_engine: MakeEngine, log: list[str]) -> None:
    expected = make_engine().generate(PROMPTS, GREEDY)
    engine = make_engine(METHOD)
    replay(engine, PROMPTS, expected, fault="raise", fault_every=3)
    assert said(engine.generate(PROMPTS, GREEDY)) == said(expected)
    assert engine.count("failures") >= 2
    assert log == [
        "ERROR proposer 'Scripted' failed, nothing was drafted in this step (counted in "
        "specplug_proposer_failures_total): RuntimeError: scripted failure"
    ]


def test_a_proposer_cannot_write_into_the_engines_tokens(make_engine: MakeEngine, log: list[str]) -> None:
    expected = make_engine().generate(PROMPTS, GREEDY)
    engine = make_engine(METHOD)
    replay(engine, PROMPTS, expected, fault="write")
    assert said(engine.generate(PROMPTS, GREEDY)) == said(expected)
    assert "ValueError: assignment destination is read-only" in log[0]


class Odd(Proposer):
    """Answers with drafts that are unusual, but not wrong, or wrong in ways of numpy's."""

    capabilities = Capabilities()
    answer: Any = None

    def propose(self, batch: DraftBatch) -> Drafts:
        return type(self).answer(batch)


@pytest.mark.parametrize(
    ("answer", "counter"),
    [
        (lambda batch: Drafts.none(batch.num_reqs), None),
        (lambda batch: Drafts(np.zeros((batch.num_reqs, 5), np.int64), batch.max_drafts), None),
        (lambda batch: Drafts(np.zeros((batch.num_reqs, 5), np.uint8), batch.max_drafts), None),
        (lambda batch: Drafts(np.zeros((batch.num_reqs, 2), np.int32), batch.max_drafts), None),
        (lambda batch: Drafts(np.zeros((batch.num_reqs, 5), np.int32), -batch.max_drafts), None),
        (lambda batch: Drafts(np.full((batch.num_reqs, 5), 1 << 62), batch.max_drafts), "dropped_bad_id"),
        (lambda batch: Drafts(np.zeros((batch.num_reqs, 5), np.float32), batch.max_drafts), "dropped_bad_rows"),
        (lambda batch: Drafts(np.zeros(batch.num_reqs, np.int32), batch.max_drafts), "dropped_bad_rows"),
        (lambda batch: Drafts([[1]] * batch.num_reqs, [1] * batch.num_reqs), "dropped_too_many"),
        (lambda batch: Drafts(None, None), "dropped_bad_rows"),
        (lambda batch: None, "dropped_bad_rows"),
        (lambda batch: 1 / 0, "failures"),
    ],
)
def test_odd_answers_cost_no_text(make_engine: MakeEngine, answer: Any, counter: str | None) -> None:
    expected = make_engine().generate(PROMPTS[:3], GREEDY)
    engine = make_engine(METHOD)
    Odd.answer = staticmethod(answer)
    engine.use(Odd)
    assert said(engine.generate(PROMPTS[:3], GREEDY)) == said(expected)
    assert {slot for slot in {*COUNTER.values()} if engine.count(slot)} == ({counter} if counter else set())
