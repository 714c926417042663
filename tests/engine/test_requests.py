"""What one request may ask for is honoured beside others that ask for something else, or refused in clear words."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from conftest import (
    LOOKUP,
    METHODS,
    METHODS_ONE_ON_V2,
    SCRIPTED,
    MakeEngine,
    SpecCounts,
    assert_same_logprobs,
    drafting_engine,
    few,
    loop_prompt,
    replay,
    said,
)
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from vllm_specplug.proposer import DraftBatch, Drafts
from vllm_specplug.testing import Scripted

PROMPTS = few([loop_prompt(start, 12 + start) for start in range(12)], on_v2=8)


def greedy(max_tokens: int = 60, **changes: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=False, **changes)


@METHODS
@pytest.mark.parametrize(
    "changes",
    [
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.8},
        {"presence_penalty": 0.7},
        {"frequency_penalty": 0.4},
        {"frequency_penalty": -0.2},
        {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"allowed_token_ids": list(range(0, 32, 2))},
    ],
    ids=str,
)
def test_what_shifts_the_logits_sees_the_drafts_of_its_own_step(
    make_engine: MakeEngine, method: str, changes: dict[str, Any]
) -> None:
    """vllm#22987: texts drifted where repetition_penalty met n-gram drafts."""
    plain = make_engine()
    prompts = [loop_prompt(start, 12 + start) for start in range(32)]
    params = greedy(100, **changes)
    expected = plain.generate(prompts, params)
    assert said(expected) != said(plain.generate(prompts, greedy(100)))  # the parameter matters to these texts
    engine = drafting_engine(make_engine, method, prompts, expected)
    assert said(engine.generate(prompts, params)) == said(expected)
    engine.new_counts().assert_enough()


@METHODS
@pytest.mark.parametrize("changes", [{"top_k": 1}, {"top_p": 1e-6}], ids=str)
def test_sampling_that_leaves_one_token_keeps_the_greedy_text(
    make_engine: MakeEngine, method: str, changes: dict[str, Any]
) -> None:
    """Each of these parameters has to reach the draft tokens too, not only the last token of a round."""
    expected = make_engine().generate(PROMPTS, greedy())
    engine = drafting_engine(make_engine, method, PROMPTS, expected)
    params = SamplingParams(temperature=1, max_tokens=60, detokenize=False, **changes)
    assert said(engine.generate(PROMPTS, params)) == said(expected)
    engine.new_counts().assert_enough()


@METHODS
def test_bad_words_stay_out_of_drafted_text(make_engine: MakeEngine, tiny_text: str, method: str) -> None:
    prompts = [loop_prompt(start, 12 + start, 90) for start in range(24)]
    plain = make_engine(model=tiny_text)
    free = plain.generate(prompts, SamplingParams(temperature=0, max_tokens=100, ignore_eos=True))
    pairs = [pair for one in free for pair in pairwise(one.outputs[0].token_ids) if max(pair) < 96]
    pair = Counter(pairs).most_common(1)[0][0]
    words = ["a", "b", "f", "D", "k", plain.llm.get_tokenizer().decode(pair)]
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True, bad_words=words)
    expected = plain.generate(prompts, params)
    assert said(expected) != said(free)
    assert not any(pair in pairwise(one.outputs[0].token_ids) for one in expected)
    engine = drafting_engine(make_engine, method, prompts, expected, model=tiny_text)
    assert said(engine.generate(prompts, params)) == said(expected)
    engine.new_counts().assert_enough()


@METHODS
def test_logprobs_are_those_of_no_speculation(make_engine: MakeEngine, method: str) -> None:
    """vllm#17876: every log-probability was 0.0."""
    params = greedy(logprobs=3, prompt_logprobs=1)
    expected = make_engine().generate(PROMPTS, params)
    engine = drafting_engine(make_engine, method, PROMPTS, expected)
    answers = engine.generate(PROMPTS, params)
    assert said(answers) == said(expected)
    assert_same_logprobs(answers, expected)
    assert all(len(entry) in (3, 4) for answer in answers for entry in answer.outputs[0].logprobs)
    for answer, one in zip(answers, expected, strict=True):
        assert len(answer.prompt_logprobs) == len(one.prompt_logprobs)
    engine.new_counts().assert_enough()


@METHODS
def test_four_completions_of_a_prompt_are_each_its_own(make_engine: MakeEngine, method: str) -> None:
    params = SamplingParams(n=4, temperature=1, top_k=1, max_tokens=60, detokenize=False)  # one possible text
    expected = make_engine().generate(PROMPTS[:3], params)
    engine = drafting_engine(make_engine, method, PROMPTS[:3], expected)
    answers = engine.generate(PROMPTS[:3], params)
    assert said(answers) == said(expected)
    assert {len(answer.outputs) for answer in answers} == {4}
    engine.new_counts().assert_enough()


@METHODS_ONE_ON_V2
def test_seeds_repeat_and_leave_greedy_requests_alone(make_engine: MakeEngine, method: str) -> None:
    """vllm#9441: parallel requests with different seeds produced gibberish."""
    sampled = [
        SamplingParams(temperature=0.8, seed=100 + number, max_tokens=40, detokenize=False) for number in range(8)
    ]
    params = [greedy(40) if number % 2 else sampled[number] for number in range(8)]
    solo = [make_engine().generate([prompt], greedy(40))[0] for prompt in PROMPTS[:8]]
    engine = drafting_engine(make_engine, method, PROMPTS[:8], solo)

    def run(order: list[int]) -> list[Any]:
        engine.llm.reset_prefix_cache()
        answers = engine.generate([PROMPTS[number] for number in order], [params[number] for number in order])
        return [said(answers)[order.index(number)] for number in range(8)]

    forwards, backwards = list(range(8)), list(range(8))[::-1]
    first, second, third = run(forwards), run(forwards), run(backwards)
    assert first == second
    assert run(backwards) == third
    for number in range(1, 8, 2):
        assert first[number] == third[number] == said(solo)[number]
    engine.new_counts().assert_enough()
    engine.llm.reset_prefix_cache()
    same_prompt = said(engine.generate([PROMPTS[0]] * 8, sampled))
    assert len({str(one) for one in same_prompt}) == 8  # eight seeds, eight texts


class Watched(Scripted):
    """Notes limits and drafts of each request."""

    def propose(self, batch: DraftBatch) -> Drafts:
        drafts = super().propose(batch)
        seen = self.__dict__.setdefault("seen", {})
        for row, req_id in enumerate(batch.req_ids):
            limit, drafted = seen.get(req_id, (0, 0))
            seen[req_id] = (max(limit, int(batch.max_drafts[row])), drafted + int(drafts.num_drafts[row]))
        return drafts


LIMITS: list[Any] = [None, 0, 1, 2, 4, 5, 6, 1000, 3.0, 0.0]


@pytest.mark.v2
def test_each_request_has_its_own_limit(make_engine: MakeEngine) -> None:
    prompts = [loop_prompt(start, 9) for start in range(len(LIMITS))]
    expected = make_engine().generate(prompts, greedy())
    engine = make_engine({"method": SCRIPTED, "num_speculative_tokens": 5})
    script = [[prompt, list(one.outputs[0].token_ids)] for prompt, one in zip(prompts, expected, strict=True)]
    watched = engine.use(Watched, script=script, wrong_every=3)
    params = [greedy(extra_args=None if limit is None else {"specplug_max_drafts": limit}) for limit in LIMITS]
    answers = engine.generate(prompts, params)
    assert said(answers) == said(expected)
    engine.new_counts().assert_enough()
    # vLLM adds a word of its own to the ids it is given.
    seen = {int(req_id.partition("-")[0]): found for req_id, found in watched.seen.items()}
    limits = [seen[number][0] for number in sorted(seen)]
    assert limits == [5, 0, 1, 2, 4, 5, 5, 5, 3, 0]
    assert [drafted > 0 for _, drafted in (seen[number] for number in sorted(seen))] == [limit > 0 for limit in limits]


@pytest.mark.parametrize("method", [pytest.param(SCRIPTED, marks=pytest.mark.v2), LOOKUP])
def test_zero_means_no_draft_at_all(make_engine: MakeEngine, method: str) -> None:
    params = greedy(extra_args={"specplug_max_drafts": 0})
    expected = make_engine().generate(PROMPTS, greedy())
    engine = make_engine({"method": method, "num_speculative_tokens": 4})
    if method == SCRIPTED:
        replay(engine, PROMPTS, expected)
    engine.llm.reset_prefix_cache()  # a prompt of which one token is left is padded by vLLM
    engine.new_counts()
    drafted = engine.count("draft_tokens")
    assert said(engine.generate(PROMPTS, params)) == said(expected)
    assert engine.new_counts() == SpecCounts()
    assert engine.count("draft_tokens") == drafted


@pytest.mark.parametrize(
    ("extra_args", "text"),
    [
        ({"specplug_max_drafts": -1}, "specplug_max_drafts is -1; expected a whole number of 0 or more"),
        ({"specplug_max_drafts": True}, "specplug_max_drafts is True; expected a whole number of 0 or more"),
        ({"specplug_max_drafts": "4"}, "specplug_max_drafts is '4'; expected a whole number of 0 or more"),
        ({"specplug_max_drafts": 1.5}, "specplug_max_drafts is 1.5; expected a whole number of 0 or more"),
        ({"specplug_max_drafts": float("nan")}, "specplug_max_drafts is nan; expected a whole number of 0 or more"),
        ({"specplug_max_drafts": float("inf")}, "specplug_max_drafts is inf; expected a whole number of 0 or more"),
        ({"specplug_max_drafts": [4]}, "specplug_max_drafts is [4]; expected a whole number of 0 or more"),
    ],
)
def test_a_bad_limit_is_refused_before_the_engine_sees_it(
    make_engine: MakeEngine, extra_args: dict[str, Any], text: str
) -> None:
    engine = make_engine({"method": LOOKUP, "num_speculative_tokens": 4})
    with pytest.raises(VLLMValidationError) as error:
        engine.generate(PROMPTS[:1], greedy(extra_args=extra_args))
    assert str(error.value).startswith(f"{text} (0: no speculation for this request)")
    assert engine.generate(PROMPTS[:1], greedy(5))[0].outputs[0].finish_reason == "length"


def test_a_misspelt_option_of_ours_is_refused_and_others_are_left_alone(make_engine: MakeEngine) -> None:
    engine = make_engine({"method": LOOKUP, "num_speculative_tokens": 4})
    with pytest.raises(VLLMValidationError) as error:
        engine.generate(PROMPTS[:1], greedy(extra_args={"specplug_max_draft": 3}))
    assert str(error.value).startswith(
        "unknown request option 'specplug_max_draft'; vllm-specplug knows 'specplug_max_drafts' (a whole number of 0 "
        "or more)"
    )
    engine.generate(PROMPTS[:1], greedy(5, extra_args={"somebody_elses": object()}))


def test_the_limit_is_nobodys_business_without_our_proposer(make_engine: MakeEngine) -> None:
    make_engine().generate(PROMPTS[:1], greedy(5, extra_args={"specplug_max_drafts": "nonsense"}))


@pytest.mark.parametrize("changes", [{"min_p": 0.1}, {"logit_bias": {3: 1.0}}], ids=str)
def test_what_vllm_cannot_verify_is_refused(make_engine: MakeEngine, changes: dict[str, Any]) -> None:
    engine = make_engine({"method": LOOKUP, "num_speculative_tokens": 4})
    with pytest.raises(
        VLLMValidationError, match=r"min_p and logit_bias .* not yet supported with speculative decoding"
    ):
        engine.generate(PROMPTS[:1], SamplingParams(temperature=1, max_tokens=5, detokenize=False, **changes))
    assert engine.generate(PROMPTS[:1], greedy(5))[0].outputs[0].finish_reason == "length"
