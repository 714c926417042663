"""Answers bound to a grammar: valid, and the target's own, whatever is drafted."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from conftest import DRAFT, KNOWN, LOOKUP, MEDUSA, SCRIPTED, Engine, MakeEngine, few, loop_prompt, replay, said
from tiny_draft import tiny_draft
from tiny_heads import tiny_heads
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from vllm_specplug.guard import Checked
from vllm_specplug.proposer import DraftBatch
from vllm_specplug.testing import Fault

BACKENDS = pytest.mark.parametrize("backend", ["xgrammar", "guidance"])
BACKENDS_ONE_ON_V2 = pytest.mark.parametrize("backend", [pytest.param("xgrammar", marks=pytest.mark.v2), "guidance"])
SCHEMA = {
    "type": "object",
    "properties": {
        "ok": {"type": "boolean"},
        "colour": {"enum": ["red", "green", "blue"]},
        "numbers": {"type": "array", "items": {"enum": [1, 22, 333]}, "minItems": 6, "maxItems": 9},
    },
    "required": ["ok", "colour", "numbers"],
    "additionalProperties": False,
}
PROMPTS = [loop_prompt(start, 7, 90) for start in range(8)]


def params(**changes: Any) -> SamplingParams:
    settings: dict[str, Any] = {"temperature": 0, "max_tokens": 120, **changes}
    return SamplingParams(structured_outputs=StructuredOutputsParams(json=SCHEMA), **settings)


def arguments(tiny_text: str, backend: str) -> dict[str, Any]:
    return {
        "model": tiny_text,
        "structured_outputs_config": {"backend": backend, "disable_any_whitespace": True},
    }


def check(answers: list[Any]) -> None:
    """Each is what the schema wants, worked out without the grammar libraries."""
    for answer in answers:
        value = json.loads(answer.outputs[0].text)
        assert set(value) == {"ok", "colour", "numbers"}
        assert isinstance(value["ok"], bool)
        assert value["colour"] in ("red", "green", "blue")
        assert 6 <= len(value["numbers"]) <= 9
        assert set(value["numbers"]) <= {1, 22, 333}


def scripted(make_engine: MakeEngine, tiny_text: str, backend: str) -> Engine:
    return make_engine({"method": SCRIPTED, "num_speculative_tokens": 5}, **arguments(tiny_text, backend))


@BACKENDS_ONE_ON_V2
def test_json_is_the_targets_own(make_engine: MakeEngine, tiny_text: str, backend: str) -> None:
    expected = make_engine(**arguments(tiny_text, backend)).generate(PROMPTS, params())
    check(expected)
    engine = scripted(make_engine, tiny_text, backend)
    kinds: list[dict[str, Any]] = [{"wrong_every": 5, "ragged": True}, {"wrong_every": 3}, {"wrong_every": 1}]
    for options in few(kinds, on_v2=1):
        replay(engine, PROMPTS, expected, **options)
        assert said(engine.generate(PROMPTS, params())) == said(expected)
        # Wrong drafts are mostly cut by the grammar, before the target sees them.
        counts = engine.new_counts()
        assert counts.num_accepted_tokens >= (50 if options["wrong_every"] > 1 else 0)
        assert engine.count("draft_tokens") - counts.num_accepted_tokens >= 50


@BACKENDS
def test_json_from_prompt_lookup_is_the_targets_own(make_engine: MakeEngine, tiny_text: str, backend: str) -> None:
    plain = make_engine(**arguments(tiny_text, backend))
    example = plain.llm.get_tokenizer().encode('{"ok":true,"colour":"red","numbers":[1,22,333,1,22]}')
    prompts = [[*example, *prompt] for prompt in PROMPTS]
    expected = plain.generate(prompts, params())
    check(expected)
    engine = make_engine({"method": LOOKUP, "num_speculative_tokens": 4}, **arguments(tiny_text, backend))
    engine.new_counts()
    assert said(engine.generate(prompts, params())) == said(expected)
    engine.new_counts().assert_enough(rejected=10)  # the grammar cuts most of those that are wrong


@BACKENDS
@pytest.mark.parametrize("fault", [None, *get_args(Fault)])
def test_malformed_drafts_end_no_grammar(
    make_engine: MakeEngine, tiny_text: str, backend: str, fault: Fault | None
) -> None:
    """vllm#47025: a draft of -1 overflowed the grammar matcher and ended the engine.

    Answers of both kinds, with a grammar and without, stand in one batch.
    """
    free = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    prompts = [*PROMPTS, *PROMPTS[:4]]
    mixed = [params()] * len(PROMPTS) + [free] * 4
    expected = make_engine(**arguments(tiny_text, backend)).generate(prompts, mixed)
    engine = scripted(make_engine, tiny_text, backend)
    replay(engine, prompts, expected, fault=fault, fault_every=2)
    answers = engine.generate(prompts, mixed)
    check(answers[: len(PROMPTS)])
    assert said(answers) == said(expected)
    assert engine.new_counts().num_accepted_tokens >= 50
    assert engine.count("off") == 0
    check(engine.generate(PROMPTS[:1], params()))


@BACKENDS
def test_sampled_json_is_valid_beside_drafts_with_probabilities(
    make_engine: MakeEngine, tiny_text: str, backend: str
) -> None:
    """vLLM cuts drafts by grammar, so those of a structured answer go over without probabilities; the others' with."""
    q = [1 / 128] * 128
    engine = make_engine({"method": KNOWN, "num_speculative_tokens": 3, "q": q}, **arguments(tiny_text, backend))
    engine.new_counts()
    free = SamplingParams(temperature=1, max_tokens=60, seed=1, ignore_eos=True)
    answers = engine.generate(
        [*PROMPTS, *PROMPTS[:4]],
        [*(params(temperature=1, seed=number, max_tokens=200) for number in range(8)), *[free] * 4],
    )
    check(answers[:8])
    assert {len(answer.outputs[0].token_ids) for answer in answers[8:]} == {60}
    assert engine.count("draft_tokens") > 50
    assert engine.count("dropped_bad_probs") == 0


@BACKENDS
@pytest.mark.parametrize("method", ["greedy", "probabilistic"])
@pytest.mark.parametrize("proposer", [MEDUSA, DRAFT])
def test_json_beside_a_neural_drafter_is_the_targets_own(
    make_engine: MakeEngine, tiny_text: str, backend: str, proposer: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows of no grammar: what it drafts for a structured answer goes over without q and is cut by vLLM."""
    prompts = [*PROMPTS, *PROMPTS[:4]]
    free = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    mixed = [params()] * len(PROMPTS) + [free] * 4
    expected = make_engine(**arguments(tiny_text, backend)).generate(prompts, mixed)
    model = tiny_heads(tiny_text) if proposer == MEDUSA else tiny_draft(tiny_text)
    config = {"method": proposer, "num_speculative_tokens": 3, "model": model, "draft_sample_method": method}
    engine = make_engine(config, **arguments(tiny_text, backend))
    engine.new_counts()
    answers = engine.generate(prompts, mixed)
    check(answers[: len(PROMPTS)])
    assert said(answers) == said(expected)
    engine.new_counts().assert_enough(accepted=20, rejected=10)

    checked = engine.drafter.guard.propose
    num_rows = {"structured": 0, "with q": 0}

    def noting(batch: DraftBatch, without_probs: set[int]) -> Checked:
        found = checked(batch, without_probs)
        for row, tokens in enumerate(found.token_ids):
            for column, token in enumerate(tokens if found.probs is not None else ()):
                q = float(found.probs[row, column, token])  # type: ignore[index]
                num_rows["with q"] += row not in without_probs and q < 1
                assert q == 1 or row not in without_probs
            num_rows["structured"] += row in without_probs and len(tokens) > 0
        return found

    monkeypatch.setattr(engine.drafter.guard, "propose", noting)
    hot = SamplingParams(temperature=1, max_tokens=60, ignore_eos=True)
    each = [params(temperature=1, seed=7, max_tokens=200)] * 8 + [free] * 4 + [hot] * 4
    sampled = engine.generate([*prompts, *PROMPTS[4:]], each)
    check(sampled[:8])
    assert said(sampled[8:12]) == said(expected[8:])
    assert num_rows["structured"] >= 50
    assert (num_rows["with q"] >= 50) == (method == "probabilistic")
    assert engine.count("failures") == engine.count("dropped_bad_probs") == 0


@BACKENDS
def test_every_kind_of_grammar_keeps_its_text(make_engine: MakeEngine, tiny_text: str, backend: str) -> None:
    kinds = [
        StructuredOutputsParams(choice=["yes, of course", "no, never", "perhaps"]),
        StructuredOutputsParams(regex=r"[a-f]{12}-[0-9]{12}"),
        StructuredOutputsParams(
            grammar='root ::= "(" ("ab" | "ba") "x" "y" "z" ")" root2\nroot2 ::= "end of it"'
            if backend == "xgrammar"
            else 'start: "(" ("ab" | "ba") "xyz" ")" "end of it"'
        ),
    ]
    prompts = [PROMPTS[number % 8] + [number] for number in range(12)]
    each = [SamplingParams(temperature=0, max_tokens=60, structured_outputs=kinds[number % 3]) for number in range(12)]
    expected = make_engine(**arguments(tiny_text, backend)).generate(prompts, each)
    engine = scripted(make_engine, tiny_text, backend)
    replay(engine, prompts, expected, wrong_every=4)
    assert said(engine.generate(prompts, each)) == said(expected)
    assert engine.new_counts().num_accepted_tokens >= 50
