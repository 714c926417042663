"""What one arm did under a level, computed by hand: throughput, waiting, requests in flight, goodput, failures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from load_cases import answer, failed, run_of

from vllm_specplug.compare.asked import Asked
from vllm_specplug.compare.cost import Price
from vllm_specplug.compare.goodput import parse_slo
from vllm_specplug.compare.load_results import answered, level_result, max_in_flight, request_speeds, run_rows
from vllm_specplug.compare.measure import DraftCounts

#: 10 tokens each. p0 and p1 come at 0; p2 comes at 2 s, when p0 is answered; all is answered at 4 s.
THREE = (answer("p0", 0.0, 0.5, 2.0), answer("p1", 0.0, 1.0, 4.0), answer("p2", 2.0, 0.5, 2.0, late_s=0.1))


def test_throughput_is_of_the_runs_and_latency_from_when_a_request_came() -> None:
    """30 tokens in 4 s; times per further token 1.5 / 9, 3 / 9 and 1.5 / 9 s; 8 s of waiting in 4 s."""
    found = level_result([run_of(THREE, 4.0)])
    assert (found["requests"], found["prompts"], found["failed"], found["output_tokens"]) == (3, 3, 0, 30)
    assert found["output_tokens_per_s"] == 7.5
    assert found["requests_per_s"] == 0.75
    assert found["ttft_ms"]["p50"] == pytest.approx(500)
    assert found["e2e_ms"] == {"p50": pytest.approx(2000), "p90": pytest.approx(3600), "p99": pytest.approx(3960)}
    assert found["tpot_ms"]["p50"] == pytest.approx(1500 / 9)
    assert found["late_ms"]["p99"] == pytest.approx(98)  # linear between 0 and 100
    assert found["in_flight"] == {"max": 2, "mean": 2.0}
    assert found["goodput"] is None
    assert found["cost_per_million_tokens"] is None


def test_runs_are_pooled_by_time_and_not_averaged() -> None:
    """30 tokens in 4 s and 30 in 2 s are 60 in 6 s, 10 a second; the mean of 7.5 and 15 would be 11.25."""
    fast = tuple(replace(one, pass_index=1, arrival_s=one.arrival_s / 2, e2e_s=one.e2e_s / 2) for one in THREE)
    found = level_result([run_of(THREE, 4.0), run_of(fast, 2.0)])
    assert found["output_tokens_per_s"] == 10.0
    assert (found["requests"], found["prompts"]) == (6, 3)
    rows = run_rows([run_of(THREE, 4.0), run_of(fast, 2.0)])
    assert [(row["pass"], row["output_tokens_per_s"], row["max_in_flight"]) for row in rows] == [
        (0, 7.5, 2),
        (1, 15.0, 2),
    ]


def test_request_that_comes_when_another_is_answered_is_not_beside_it() -> None:
    one_by_one = [answer("p0", 0.0, 0.1, 1.0), answer("p1", 1.0, 0.1, 1.0), answer("p2", 2.0, 0.1, 1.0)]
    assert max_in_flight(one_by_one) == 1
    assert max_in_flight([*one_by_one, answer("p3", 0.5, 0.1, 2.25)]) == 2
    assert max_in_flight([]) == 0


def test_goodput_and_cost_are_of_the_machine_under_load() -> None:
    """p0 and p2 take less than 3 s: 20 tokens in 4 s. A GPU hour at 9 buys 3600 * 7.5 = 27,000 tokens."""
    found = level_result([run_of(THREE, 4.0)], Asked(parse_slo("e2e_ms<3000"), Price(9.0)))
    assert found["goodput"] == {"share": pytest.approx(2 / 3), "output_tokens_per_s": 5.0}
    assert found["cost_per_million_tokens"] == pytest.approx(9 / 27_000 * 1_000_000)


def test_failed_requests_are_counted_miss_the_slo_and_are_in_no_latency() -> None:
    runs = [run_of((*THREE, failed("p3"), failed("p4", error="http_500: oh")), 4.0)]
    found = level_result(runs, Asked(parse_slo("e2e_ms<3000")))
    assert (found["requests"], found["failed"], found["prompts"]) == (5, 2, 3)
    assert found["errors"]["kinds"] == {"timeout": 1, "http_500": 1}
    assert found["errors"]["first"] == "timeout: no token for 9 s"
    assert found["errors"]["prompts_left_out"] == ["p3", "p4"]  # and not those that ran beside them
    assert found["requests_per_s"] == 0.75
    assert found["e2e_ms"]["p50"] == pytest.approx(2000)
    assert found["goodput"] == {"share": pytest.approx(2 / 5), "output_tokens_per_s": 5.0}


def test_level_under_which_all_failed_has_no_speed_and_no_latency() -> None:
    found = level_result([run_of((failed("p0"), failed("p1")), 0.0)], Asked(parse_slo("e2e_ms<3000"), Price(9.0)))
    assert (found["output_tokens_per_s"], found["requests_per_s"], found["failed"]) == (0.0, 0.0, 2)
    assert found["e2e_ms"] is None
    assert found["goodput"] == {"share": 0.0, "output_tokens_per_s": 0.0}
    assert found["cost_per_million_tokens"] is None


def test_prompt_that_failed_once_is_not_compared_at_all() -> None:
    runs = [run_of(THREE, 4.0), run_of((failed("p0", 1), *(replace(one, pass_index=1) for one in THREE[1:])), 4.0)]
    kept = [(block.pass_index, block.answers[0].prompt_id) for block in answered(runs)]
    assert kept == [(0, "p1"), (0, "p2"), (1, "p1"), (1, "p2")]


def test_speed_of_a_request_counts_from_when_it_came_over_all_runs() -> None:
    later = tuple(replace(one, pass_index=1, e2e_s=3 * one.e2e_s) for one in THREE)
    speeds = request_speeds(answered([run_of(THREE, 4.0), run_of(later, 12.0)]), dict.fromkeys(("p0", "p1", "p2"), "c"))
    assert {name: (speed.output_tokens, speed.seconds) for name, speed in speeds.items()} == {
        "p0": (20, 8.0),
        "p1": (20, 16.0),
        "p2": (20, 8.0),
    }


def test_acceptance_is_that_of_all_runs() -> None:
    """Each answer took 5 steps for 10 tokens; 20 rounds drafted 40 tokens, of which 18 were accepted."""
    drafts = DraftCounts(20, 40, 18, (12, 6))
    found = level_result([run_of(THREE, 4.0, drafts=drafts)])
    assert found["acceptance_rate"] == pytest.approx(18 / 40)
    assert found["acceptance_length"] == pytest.approx(1 + 18 / 20)
    assert found["num_emitted_accepted_tokens"] == 15
    assert found["tokens_per_forward"] == 2.0


def test_chunks_that_cannot_be_steps_give_no_tokens_per_forward() -> None:
    """More tokens came without a chunk of their own, 15, than drafts were accepted, 14: steps were put together."""
    found = level_result([run_of(THREE, 4.0, drafts=DraftCounts(20, 40, 14, (14, 0)))])
    assert found["tokens_per_forward"] is None
    assert found["num_emitted_accepted_tokens"] is None
    assert found["acceptance_rate"] == pytest.approx(14 / 40)
