"""Numbers against sums done by hand."""

from __future__ import annotations

import math

import pytest

from vllm_specplug.compare import statistics
from vllm_specplug.compare.measure import Answer, Block, DraftCounts
from vllm_specplug.compare.statistics import PromptSpeed


def answer(prompt_id: str, num_tokens: int, num_forwards: int, *, pass_index: int = 0, e2e_s: float = 1.0) -> Answer:
    return Answer(prompt_id, pass_index, tuple(range(num_tokens)), num_forwards, 0.1, e2e_s, "length")


def block(category: str, seconds: float, *answers: Answer, drafts: DraftCounts | None = None) -> Block:
    return Block(category, answers[0].pass_index, seconds, answers, drafts)


def speeds(**seconds: list[float]) -> dict[str, PromptSpeed]:
    """100 tokens for each prompt, in the seconds given by category."""
    return {
        f"{category}-{index}": PromptSpeed(category, 100, value)
        for category, values in seconds.items()
        for index, value in enumerate(values)
    }


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


def test_ratio_is_the_geometric_mean_of_category_ratios() -> None:
    # a: 4 s against 2 s = 2x; b: 9 s against 18 s = 0.5x; overall 1x although the arm needs more seconds.
    found = statistics.compare(speeds(a=[1.0, 1.0], b=[9.0, 9.0]), speeds(a=[2.0, 2.0], b=[4.5, 4.5]), seed=0)
    assert found.ratio == pytest.approx(1.0)


def test_ratio_agrees_with_overall_speeds() -> None:
    arm, baseline = speeds(a=[1.0, 2.0], b=[3.0, 1.5]), speeds(a=[2.0, 2.5], b=[3.5, 1.0])
    expected = statistics.overall_speed(arm) / statistics.overall_speed(baseline)
    assert statistics.compare(arm, baseline, seed=0).ratio == pytest.approx(expected)


def test_interval_is_the_same_for_the_same_seed_and_holds_the_ratio() -> None:
    baseline = speeds(a=[2.0, 2.2, 1.9, 2.4, 2.1], b=[3.0, 2.8, 3.3, 2.9, 3.1])
    arm = speeds(a=[1.5, 1.8, 1.2, 2.0, 1.7], b=[2.4, 2.5, 2.2, 2.0, 2.6])
    first, again = (statistics.compare(arm, baseline, seed=7) for _ in range(2))
    assert first == again
    assert first.ci95 is not None
    assert first.ci95[0] < first.ratio < first.ci95[1]
    assert first.resampled == "prompts"


def test_interval_is_paired_by_prompt() -> None:
    # Prompts differ tenfold in length, yet every one takes exactly half the time: nothing is uncertain.
    found = statistics.compare(speeds(a=[0.5, 5.0, 1.0, 2.0]), speeds(a=[1.0, 10.0, 2.0, 4.0]), seed=0)
    assert found.ci95 == pytest.approx((2.0, 2.0))


def test_interval_agrees_with_a_bootstrap_written_out() -> None:
    import numpy as np

    rng = np.random.default_rng(3)
    ours, theirs = rng.uniform(1, 2, 40), rng.uniform(1.5, 3, 40)
    found = statistics.compare(speeds(a=list(ours)), speeds(a=list(theirs)), seed=0)
    draws = rng.integers(0, 40, (20_000, 40))
    ratios = theirs[draws].sum(1) / ours[draws].sum(1)
    assert found.ci95 == pytest.approx(tuple(np.percentile(ratios, (2.5, 97.5))), abs=0.03)


def test_tie_is_no_difference() -> None:
    same = speeds(a=[1.0, 2.0, 3.0], b=[3.0, 4.0, 5.0])
    found = statistics.compare(same, same, seed=0)
    assert found.ratio == 1
    assert found.ci95 == (1, 1)
    assert statistics.verdict(found.ci95) == "no difference"


def test_one_prompt_has_a_ratio_but_no_interval() -> None:
    found = statistics.compare(speeds(a=[1.0]), speeds(a=[2.0]), seed=0)
    assert (found.ratio, found.ci95, found.resampled) == (pytest.approx(2.0), None, None)
    assert statistics.verdict(found.ci95) == "undecided"


def test_two_noisy_prompts_decide_nothing() -> None:
    found = statistics.compare(speeds(a=[5.2, 4.0]), speeds(a=[7.9, 4.1]), seed=0)
    assert found.ci95 is None


def test_one_prompt_in_a_category_makes_categories_the_unit() -> None:
    arm, baseline = speeds(a=[1.0], b=[1.0, 1.0]), speeds(a=[2.0], b=[3.0, 3.0])
    found = statistics.compare(arm, baseline, seed=0)
    assert (found.ratio, found.ci95) == (pytest.approx(math.sqrt(2 * 3)), None)
    more = {"c": [1.0], "d": [1.0]}
    found = statistics.compare(speeds(a=[1.0], b=[1.0], **more), speeds(a=[2.0], b=[3.0], c=[4.0], d=[5.0]), seed=0)
    assert found.resampled == "categories"
    assert found.ratio == pytest.approx((2 * 3 * 4 * 5) ** 0.25)
    assert found.ci95 is not None
    assert found.ci95[0] > 1


def test_interval_is_widened_for_few_prompts() -> None:
    # 8 prompts of one category: sqrt(8 / 7) * 2.3646 = 2.5279 standard errors, which is 98.85 % of a normal curve.
    assert statistics.expanded_level(8, 1) == pytest.approx(0.98853, abs=1e-4)
    # Many prompts need no widening.
    assert statistics.expanded_level(100_000, 10) == pytest.approx(0.95, abs=1e-3)


def test_interval_of_eight_prompts_covers_the_truth() -> None:
    import numpy as np

    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(100):
        seconds = rng.uniform(1, 4, 8)
        faster = seconds * np.exp(rng.normal(0, 0.2, 8)) / 1.5
        found = statistics.compare(speeds(a=list(faster)), speeds(a=list(seconds)), seed=0)
        assert found.ci95 is not None
        hits += found.ci95[0] <= 1.5 * math.exp(-0.02) <= found.ci95[1]
    assert hits >= 88  # 95 expected; fewer than 88 with p = 0.0015


@pytest.mark.parametrize(
    ("ci95", "expected"),
    [
        ((1.01, 1.5), "faster"),
        ((1.001, 1.01), "faster"),  # excluding 1 goes before the margin
        ((0.5, 0.99), "slower"),
        ((0.97, 1.03), "no difference"),
        ((1.0, 1.02), "no difference"),
        ((0.96, 1.02), "undecided"),
        ((0.9, 1.2), "undecided"),
        (None, "undecided"),
    ],
)
def test_verdicts(ci95: tuple[float, float] | None, expected: str) -> None:
    assert statistics.verdict(ci95) == expected


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
