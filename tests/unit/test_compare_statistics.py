"""Numbers against sums done by hand."""

from __future__ import annotations

import pytest
from speed_cases import speeds

from vllm_specplug.compare import statistics
from vllm_specplug.compare.measure import Answer, Block, DraftCounts
from vllm_specplug.compare.statistics import PromptSpeed


def answer(prompt_id: str, num_tokens: int, num_forwards: int, *, pass_index: int = 0, e2e_s: float = 1.0) -> Answer:
    return Answer(prompt_id, pass_index, tuple(range(num_tokens)), num_forwards, 0.1, e2e_s, "length")


def block(category: str, seconds: float, *answers: Answer, drafts: DraftCounts | None = None) -> Block:
    return Block(category, answers[0].pass_index, seconds, answers, drafts)


def test_numbers_of_a_prompt_alone_by_hand() -> None:
    # One prompt, one pass, one token: no time per further token, no drafts, percentiles all the same.
    result = statistics.summarise([block("a", 0.5, answer("p", 1, 1, e2e_s=0.5))])
    assert (result["prompts"], result["requests"], result["output_tokens"], result["seconds"]) == (1, 1, 1, 0.5)
    assert result["ttft_ms"] == pytest.approx({"p50": 100.0, "p90": 100.0, "p99": 100.0})
    assert result["tpot_ms"] is None
    assert result["e2e_ms"] == pytest.approx({"p50": 500.0, "p90": 500.0, "p99": 500.0})


def test_acceptance_is_pooled_over_blocks_not_averaged() -> None:
    # 1 of 2 and 8 of 8 drafts accepted: 9 of 10, not 75 %. Rounds 1 and 2; position 1: 1 + 2 of 3 rounds.
    blocks = [
        block("a", 1.0, answer("p", 4, 3), drafts=DraftCounts(1, 2, 1, (1, 0, 0, 0))),
        block("b", 1.0, answer("q", 10, 2), drafts=DraftCounts(2, 8, 8, (2, 2, 2, 2))),
    ]
    result = statistics.summarise(blocks)
    assert result["acceptance_rate"] == pytest.approx(9 / 10)
    assert result["acceptance_length"] == pytest.approx(1 + 9 / 3)
    assert result["acceptance_per_position"] == pytest.approx([3 / 3, 2 / 3, 2 / 3, 2 / 3])
    assert result["tokens_per_forward"] == pytest.approx(14 / 5)


def test_drafts_add_up_with_their_times() -> None:
    drafts = DraftCounts(2, 4, 3, (2, 1), num_steps=2, draft_s=0.25)
    assert statistics.total_drafts([block("a", 1.0, answer("p", 5, 2), drafts=drafts)] * 2) == DraftCounts(
        4, 8, 6, (4, 2), num_steps=4, draft_s=0.5
    )
    assert statistics.total_drafts([block("a", 1.0, answer("p", 5, 5))]) is None


def test_a_step_of_decoding_leaves_the_prompts_own_out() -> None:
    # 0.9 s for 4 - 1 steps and 1.9 s for 5 - 1: 2.8 s / 7.
    blocks = [block("a", 1.0, answer("p", 6, 4, e2e_s=1.0)), block("a", 2.0, answer("q", 6, 5, e2e_s=2.0))]
    assert statistics.step_seconds(blocks) == pytest.approx(0.4)
    assert statistics.step_seconds([block("a", 1.0, answer("p", 1, 1))]) is None


def test_speed_of_one_prompt_is_tokens_over_seconds() -> None:
    assert PromptSpeed("a", 30, 1.5).tokens_per_s == pytest.approx(20.0)
    assert statistics.overall_speed(speeds(a=[4.0])) == pytest.approx(25.0)


@pytest.mark.parametrize(
    ("values", "p50", "p90", "p99"),
    [([0.7], 700.0, 700.0, 700.0), ([0.2] * 5, 200.0, 200.0, 200.0), ([0.3, 0.1], 200.0, 280.0, 298.0)],
)
def test_percentiles_of_one_value_ties_and_any_order(values: list[float], p50: float, p90: float, p99: float) -> None:
    assert statistics.percentiles_ms(values) == pytest.approx({"p50": p50, "p90": p90, "p99": p99})


def test_acceptance_numbers_by_hand() -> None:
    # 20 tokens in 8 steps: 12 accepted drafts reached the output. vLLM counted 14, two fell behind the stop.
    drafts = DraftCounts(num_drafts=5, num_draft_tokens=20, num_accepted_tokens=14, accepted_per_position=(5, 4, 3, 2))
    result = statistics.summarise([block("a", 2.0, answer("p", 20, 8), drafts=drafts)])
    assert result["tokens_per_forward"] == pytest.approx(20 / 8)
    assert result["acceptance_length"] == pytest.approx(1 + 14 / 5)
    assert result["acceptance_rate"] == pytest.approx(14 / 20)
    assert result["acceptance_per_position"] == pytest.approx([1.0, 0.8, 0.6, 0.4])
    assert result["num_accepted_tokens"] == 14
    assert result["num_emitted_accepted_tokens"] == 12
    assert result["finish_reasons"] == {"length": 1}
    assert result["output_tokens_per_s"] == pytest.approx(10.0)


def test_drafts_behind_a_stop_are_accepted_but_not_emitted() -> None:
    """Five drafts whose third ends the answer: vLLM accepts all five, the user gets three.

    The prompt's step gives one token, the next one 5 + 1, cut to 3: four tokens in two steps, so two came without a
    step of their own. The third draft stands for the target's own token, which fell behind the stop.
    """
    stopped = Answer("p", 0, (7, 8, 9, 2), 2, 0.1, 0.2, "stop")
    drafts = DraftCounts(num_drafts=1, num_draft_tokens=5, num_accepted_tokens=5, accepted_per_position=(1,) * 5)
    result = statistics.summarise([block("a", 1.0, stopped, drafts=drafts)])
    assert result["output_tokens"] == 4
    assert result["num_accepted_tokens"] == 5
    assert result["num_emitted_accepted_tokens"] == 2
    assert result["tokens_per_forward"] == pytest.approx(4 / 2)  # with vLLM's count it would be 4 / (4 - 5)
    assert result["finish_reasons"] == {"stop": 1}


@pytest.mark.parametrize("drafts", [None, DraftCounts(0, 0, 0, (0, 0))])
def test_arm_without_drafts_has_null_not_zero(drafts: DraftCounts | None) -> None:
    result = statistics.summarise([block("a", 2.0, answer("p", 20, 20), drafts=drafts)])
    for key in (
        "tokens_per_forward",
        "acceptance_length",
        "acceptance_rate",
        "acceptance_per_position",
        "num_drafts",
        "num_draft_tokens",
        "num_accepted_tokens",
        "num_emitted_accepted_tokens",
    ):
        assert result[key] is None, key


def test_drafts_that_were_all_rejected_are_zero_not_null() -> None:
    result = statistics.summarise([block("a", 2.0, answer("p", 9, 9), drafts=DraftCounts(3, 12, 0, (0, 0, 0, 0)))])
    assert result["acceptance_rate"] == 0
    assert result["acceptance_length"] == 1
    assert result["tokens_per_forward"] == 1


def test_counts_add_up_over_passes_and_prompts_do_not() -> None:
    drafts = DraftCounts(2, 4, 3, (2, 1))
    blocks = [
        block("a", 1.0, answer("p", 10, 7, pass_index=0), drafts=drafts),
        block("a", 3.0, answer("p", 10, 7, pass_index=1), drafts=drafts),
    ]
    result = statistics.summarise(blocks)
    assert (result["prompts"], result["requests"], result["output_tokens"]) == (1, 2, 20)
    assert result["num_accepted_tokens"] == 6
    assert result["output_tokens_per_s"] == pytest.approx(20 / 4)


def test_overall_speed_weighs_categories_not_prompts() -> None:
    # a: 300 tokens in 3 s = 100/s; b: 100 tokens in 4 s = 25/s; geometric mean 50/s.
    assert statistics.overall_speed(speeds(a=[1.0, 1.0, 1.0], b=[4.0])) == pytest.approx(50.0)


def test_loops_are_repeated_4_grams() -> None:
    assert statistics.repeated_share([1, 2, 3]) == 0
    # 1 2 3 4 1 2 3 4: five 4-grams, the last equals the first.
    assert statistics.repeated_share([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)
    assert statistics.loops([1, 2, 3, 4, 1, 2, 3, 4])
    # A tail of three tokens completes no 4-gram that was there before.
    assert statistics.repeated_share([*range(20), 0, 1, 2]) == 0
    # 3 of 20 4-grams = 15 %, which is not over 15 %.
    assert statistics.repeated_share([*range(17), *range(6)]) == pytest.approx(3 / 20)
    assert not statistics.loops([*range(17), *range(6)])


def test_percentiles_are_in_milliseconds() -> None:
    assert statistics.percentiles_ms([0.1, 0.2, 0.3]) == pytest.approx({"p50": 200.0, "p90": 280.0, "p99": 298.0})
    assert statistics.percentiles_ms([]) is None


def test_time_per_output_token_leaves_the_first_out() -> None:
    # First token after 0.1 s, five more until 1.1 s.
    assert answer("p", 6, 6, e2e_s=1.1).tpot_s == pytest.approx(0.2)
    assert answer("p", 1, 1).tpot_s is None


def test_prompts_sent_together_share_their_time() -> None:
    found = statistics.prompt_speeds([block("a", 3.0, answer("p", 10, 10), answer("q", 20, 20))])
    assert found["p"] == PromptSpeed("a", 10, 1.5)
    assert found["q"] == PromptSpeed("a", 20, 1.5)
