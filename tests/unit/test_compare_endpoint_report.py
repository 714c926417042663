"""Endpoints in a report: compared, and held against the baseline's answers, as engines of our own are."""

from __future__ import annotations

from endpoint_cases import QUICK, SETTINGS, arm_of, compared
from endpoint_server import MODEL, Fake, counters, no_proxy, ordinary, two

from vllm_specplug.compare.notes import notes
from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.compare.run import run_compare
from vllm_specplug.compare.workload import Workload

__all__ = ["no_proxy", "two"]  # fixtures


def test_endpoints_are_compared_and_lossless_as_engines_are(two: tuple[Fake, Fake]) -> None:
    base, other = two
    base.counters, other.counters = counters(speculating=False), counters(speculating=True)
    other.chunks = lambda prompt, max_tokens: [
        [token for chunk in ordinary(prompt, max_tokens)[start : start + 2] for token in chunk]
        for start in range(0, max_tokens, 2)
    ]
    report = compared(base, other)
    drafted, plain = (report["results"][name]["overall"] for name in ("other", "base"))
    assert drafted["tokens_per_forward"] == 2
    assert drafted["acceptance_rate"] == 0.5
    assert plain["tokens_per_forward"] is None
    assert report["target"] == MODEL
    assert report["provenance"]["vllm"] == "0.32.0"
    assert report["lossless"]["other"]["identical"] == 6
    assert report["results"]["other"]["errors"]["failed"] == 0


def test_different_answers_are_put_before_the_baseline(two: tuple[Fake, Fake]) -> None:
    base, other = two
    other.chunks = lambda prompt, max_tokens: [*ordinary(prompt, max_tokens)[:-1], [7]]
    report = compared(base, other, near_tie_tolerance=0.15)
    assert report["lossless"]["other"]["near_ties"] == 6  # the server gives 7 the second place, 0.1 below
    assert compared(base, other, near_tie_tolerance=0.05)["lossless"]["other"]["different"] == 6


def test_losslessness_is_null_where_token_ids_are_not_told(two: tuple[Fake, Fake]) -> None:
    two[1].tells_ids = False
    report = compared(*two)
    assert report["lossless"]["other"] is None
    assert report["loops"]["other"] == {"prompts": 0, "looping": 0}
    assert "other: not compared with the answers of base: token ids are not told." in notes(report)


def test_later_turn_follows_the_words_of_the_baseline(two: tuple[Fake, Fake]) -> None:
    turns = (Prompt("1.1", "x", "a"), Prompt("1.2", "x", "b", follows="1.1"), Prompt("p", "x", "c"))
    arms = [arm_of(two[0], "base"), arm_of(two[1], "other")]
    shared = Workload("made-up", "0" * 64, turns)
    report = run_compare(None, arms, shared, SETTINGS, baseline="base", endpoint_settings=QUICK)
    first = {row["id"]: row["prompt_tokens"] for row in report["prompts"]}
    assert first["1.2"] == len("u:a;a:......;u:b;")
