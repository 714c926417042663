"""The formulas, against numbers worked out by hand."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from vllm_specplug.errors import ConfigError
from vllm_specplug.theory import acceptance_of, best_drafts, expected_tokens, roofline, speedup, tokens_per_step


@pytest.mark.parametrize(
    ("alpha", "drafts", "tokens"),
    [
        (0, 5, 1),
        (0.5, 0, 1),
        (0.5, 1, 1.5),
        (0.5, 3, 1.875),  # 1 + 1/2 + 1/4 + 1/8
        (0.8, 2, 2.44),
        (1, 0, 1),
        (1, 4, 5),
        (0.25, 0.5, 7 / 6),  # (1 - 1/8) / (3/4)
    ],
)
def test_expected_tokens_sum_the_chances_of_each_prefix(alpha: float, drafts: float, tokens: float) -> None:
    assert expected_tokens(alpha, drafts) == pytest.approx(tokens, rel=1e-14)


def test_expected_tokens_go_smoothly_to_certain_acceptance() -> None:
    assert expected_tokens(math.nextafter(1, 0), 7) == pytest.approx(8, rel=1e-12)


@pytest.mark.parametrize("alpha", [0, 0.001, 0.3, 0.614, 0.99, 1])
@pytest.mark.parametrize("drafts", [0.5, 1, 3.29, 8])
def test_acceptance_inverts_expected_tokens(alpha: float, drafts: float) -> None:
    assert acceptance_of(expected_tokens(alpha, drafts), drafts) == pytest.approx(alpha, abs=1e-12)


def test_steps_without_drafts_give_one_token() -> None:
    assert tokens_per_step(0.5, 3, 0) == 1
    assert tokens_per_step(0.5, 3, 0.4) == pytest.approx(1.35)  # 0.4 * 1.875 + 0.6 * 1


def test_speedup_is_tokens_over_cost() -> None:
    assert speedup(0.5, 3, 0.1) == pytest.approx(1.875 / 1.3)
    assert speedup(0.5, 3, 0.1, 1.2) == pytest.approx(1.875 / 1.5)
    assert speedup(0.5, 3, 0.1, 1.2, 0.5) == pytest.approx((1 + 0.875 / 2) / (1 + 0.5 / 2))


def test_no_drafts_gain_and_cost_nothing() -> None:
    assert speedup(0.5, 0, 0.1, 1.5, 0.5) == 1


@pytest.mark.parametrize(
    ("alpha", "draft_cost", "best"),
    [
        (0.5, 0.15, 2),  # 1, 1.304, 1.346, 1.293
        (0.8, 0.05, 8),  # ... 3.082, 3.092, 3.078
        (0.2, 0.3, 0),  # 1.2 / 1.3 is a loss already
        (1, 0.5, 16),
        (0, 0, 0),  # all equal
        (0.2, 0.2, 0),  # 1.2 / 1.2 gains nothing
        (0.5, 0.5, 0),
    ],
)
def test_best_number_of_drafts_is_the_smallest_that_gains_most(alpha: float, draft_cost: float, best: int) -> None:
    assert best_drafts(alpha, 16, draft_cost) == best


def test_best_number_of_drafts_keeps_to_the_limit() -> None:
    assert best_drafts(0.8, 3, 0.05) == 3
    assert best_drafts(0.8, 0, 0.05) == 0


def test_a_dear_check_takes_the_gain_away() -> None:
    assert best_drafts(0.5, 16, 0.15, 1.4) == 2  # 0.968, 1.029, 1.014
    assert best_drafts(0.5, 16, 0.15, 1.5) == 0  # 0.909, 0.972, 0.962


def test_seventy_billion_weights_on_an_h100() -> None:
    """140 GB at 3.35 TB/s are 42 ms, 140 GFLOP at 989 TFLOP/s are 0.14 ms: 295 tokens for one."""
    step = roofline(70e9, 2, 3.35e12, 989e12)
    assert step.memory_s == pytest.approx(0.042, abs=0.0005)
    assert step.compute_s == pytest.approx(0.00014, abs=0.000005)
    assert step.bound == "memory"
    assert step.balance == pytest.approx(295.2, abs=0.05)


def test_a_step_is_bound_by_compute_beyond_its_balance() -> None:
    bounds = [roofline(70e9, 2, 3.35e12, 989e12, tokens).bound for tokens in (295, 296)]
    assert bounds == ["memory", "compute"]


def test_kv_cache_adds_to_reading_alone() -> None:
    plain, with_kv = roofline(1e9, 2, 1e12, 1e14), roofline(1e9, 2, 1e12, 1e14, kv_bytes=1e9)
    assert (plain.memory_s, with_kv.memory_s) == (pytest.approx(0.002), pytest.approx(0.003))
    assert plain.compute_s == with_kv.compute_s
    assert with_kv.balance == pytest.approx(150)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_tokens(1.2, 3), "alpha is 1.2; expected 0 to 1; give the chance that one draft is accepted"),
        (lambda: expected_tokens(math.nan, 3), "alpha is nan; expected 0 to 1; give the chance that one draft is"),
        (lambda: expected_tokens(-0.1, 3), "alpha is -0.1; expected 0 to 1"),
        (lambda: expected_tokens(1.0000001, 3), "alpha is 1.0000001; expected 0 to 1"),
        (lambda: expected_tokens(0.5, -1), "drafts is -1; expected 0 to 1e+06; give drafts a round"),
        (lambda: expected_tokens(0.5, math.inf), "drafts is inf; expected 0 to 1e+06"),
        (lambda: acceptance_of(1, 0), "drafts is 0; expected a number above 0; rounds without drafts say nothing"),
        (lambda: acceptance_of(4.5, 3), "tokens is 4.5; expected 1 to 4; give 1 + accepted drafts a round"),
        (lambda: acceptance_of(0.9, 3), "tokens is 0.9; expected 1 to 4"),
        (lambda: tokens_per_step(0.5, 3, 1.5), "share is 1.5; expected 0 to 1; give steps that hold drafts / all"),
        (lambda: speedup(0.5, 3, -0.1), "draft_cost is -0.1; expected 0 to 1e+06; give seconds of one draft"),
        (lambda: speedup(0.5, 0, math.inf), "draft_cost is inf; expected 0 to 1e+06"),
        (lambda: speedup(0.5, 3, 0.1, 0), "verify_cost is 0; expected 0.01 to 1e+06; give seconds of a step with"),
        (lambda: best_drafts(0.5, -1, 0.1), "limit is -1; expected 0 to 1e+06; give the largest number of drafts"),
        (lambda: roofline(70, 2, 1e12, 1e14), "params is 70; expected 1000 to 1e+18; give a count, as 70e9 for 70"),
        (lambda: roofline(7e9, 0, 1e12, 1e14), "bytes_per_param is 0; expected 0.01 to 1000; give bytes of one"),
        (lambda: roofline(7e9, 2, 3.35, 1e14), "bandwidth is 3.35; expected 1e+06 to 1e+24; give bytes a second"),
        (lambda: roofline(7e9, 2, 1e12, 989), "flops is 989; expected 1e+06 to 1e+24; give FLOP/s, as 989e12"),
        (lambda: roofline(7e9, 2, 1e12, 1e14, 0), "tokens is 0; expected 1 to 1e+09; give tokens in one step"),
        (lambda: roofline(7e9, 2, 1e12, 1e14, 10**400), "tokens is a number of 401 digits; expected 1 to 1e+09; give"),
        (lambda: roofline(7e9, 2, 1e12, 1e14, 1, -1), "kv_bytes is -1; expected 0 to 1e+18; give bytes of the KV"),
    ],
)
def test_bad_number_is_named_with_its_range_and_a_remedy(call, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_theory_needs_neither_vllm_nor_torch() -> None:
    code = "import sys; import vllm_specplug.theory; sys.exit('vllm' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
