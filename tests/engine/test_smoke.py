"""One engine of each kind, so that a broken set-up is seen at once."""

from __future__ import annotations

import pytest
from conftest import LOOKUP, SCRIPTED, MakeEngine, few, loop_prompt, script_of
from vllm import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=40, detokenize=False)
PROMPTS = few([loop_prompt(start, 4 + start) for start in range(12)], on_v2=5)
pytestmark = pytest.mark.v2


def test_scripted_drafts_leave_greedy_text_unchanged(make_engine: MakeEngine) -> None:
    expected = make_engine().tokens(PROMPTS, GREEDY)
    engine = make_engine(
        {"method": SCRIPTED, "num_speculative_tokens": 5, "script": script_of(PROMPTS, expected), "wrong_every": 3}
    )
    engine.new_counts()
    assert engine.tokens(PROMPTS, GREEDY) == expected
    engine.new_counts().assert_enough()


def test_prompt_lookup_leaves_greedy_text_unchanged(make_engine: MakeEngine) -> None:
    expected = make_engine().tokens(PROMPTS, GREEDY)
    engine = make_engine({"method": LOOKUP, "num_speculative_tokens": 4})
    engine.new_counts()
    assert engine.tokens(PROMPTS, GREEDY) == expected
    engine.new_counts().assert_enough(accepted=20)
