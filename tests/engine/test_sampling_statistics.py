"""The statistics themselves, on numbers worked out by hand and against vLLM's own top-k and top-p."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from statistics_of_samples import Setting, chi_square, fits, holm_rejected

#: Probabilities 0.1, 0.4, 0.2, 0.3.
LOGITS = np.log([0.1, 0.4, 0.2, 0.3])


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (Setting(), [0.1, 0.4, 0.2, 0.3]),
        (Setting(temperature=0.5), [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
        (Setting(top_k=2), [0, 4 / 7, 0, 3 / 7]),
        (Setting(top_p=0.75), [0, 4 / 9, 2 / 9, 3 / 9]),  # 0.1 goes; 0.1 + 0.2 is more than 0.25, so 0.2 stays
        (Setting(top_p=0.6), [0, 4 / 7, 0, 3 / 7]),
        (Setting(top_p=0.01), [0, 1, 0, 0]),
        (Setting(top_k=3, top_p=0.7), [0, 4 / 7, 0, 3 / 7]),  # of 4/9, 3/9, 2/9 the last holds less than 0.3
        (Setting(top_k=9), [0.1, 0.4, 0.2, 0.3]),
    ],
)
def test_probabilities_are_those_worked_out_by_hand(setting: Setting, expected: list[float]) -> None:
    np.testing.assert_allclose(setting.probabilities(LOGITS), expected, atol=1e-12)


@pytest.mark.parametrize("top_k", [0, 1, 5, 12])
@pytest.mark.parametrize("top_p", [0.3, 0.9, 1.0])
def test_probabilities_are_those_of_vllm(top_k: int, top_p: float) -> None:
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    logits = torch.randn((50, 12), generator=torch.Generator().manual_seed(0))
    cut = apply_top_k_top_p_pytorch(logits / 0.7, torch.full((50,), top_k or 12), torch.full((50,), top_p))
    ours = Setting(0.7, top_p, top_k).probabilities(logits.double().numpy())
    np.testing.assert_allclose(ours, cut.softmax(-1).numpy(), atol=1e-6)


def test_a_token_on_the_edge_of_top_p_is_no_fair_question() -> None:
    with pytest.raises(AssertionError, match="on the edge of top_p"):
        Setting(top_p=0.7).probabilities(LOGITS)


def test_chi_square_pools_small_cells() -> None:
    """100 samples: 50, 44, 3 and 3 expected; the last two become one of 6. (4²/50 + 4²/44 + 0²/6) on 2 degrees."""
    p_value = chi_square(np.array([54, 40, 6, 0]), np.array([0.5, 0.44, 0.03, 0.03]))
    assert p_value == pytest.approx(np.exp(-(16 / 50 + 16 / 44) / 2))


def test_chi_square_pools_small_cells_with_the_smallest_large_one() -> None:
    """2 and 1 expected are too few even together: they join the 40. (3²/57 + 3²/43) on 1 degree of freedom."""
    p_value = chi_square(np.array([60, 36, 4, 0]), np.array([0.57, 0.4, 0.02, 0.01]))
    assert p_value == pytest.approx(math.erfc(math.sqrt((9 / 57 + 9 / 43) / 2)))


def test_an_impossible_token_is_rejected_at_once() -> None:
    assert chi_square(np.array([500, 500, 1]), np.array([0.5, 0.5, 0])) == 0


def test_windows_are_tested_one_by_one() -> None:
    """Fair coins of which the second repeats the first: each is fair alone."""
    tokens = np.array([[0, 0, 0], [1, 1, 0], [0, 0, 1], [1, 1, 1]] * 10)
    found = fits(tokens, np.full((2, 2, 2), 1 / 8), widths=(1, 2))
    assert found["tokens 1 to 1"] == found["tokens 2 to 2"] == found["tokens 2 to 3"] == 1
    assert found["tokens 1 to 2"] < 1e-6


def test_holm_stops_at_the_first_that_fits() -> None:
    """Levels 0.01, 0.015, 0.03 for three hypotheses at 0.03."""
    assert holm_rejected({"a": 0.012, "b": 0.009, "c": 0.5}, 0.03) == ["b: p = 0.009", "a: p = 0.012"]
    assert holm_rejected({"a": 0.016, "b": 0.009, "c": 0.02}, 0.03) == ["b: p = 0.009"]
    assert holm_rejected({"a": 0.02, "b": 0.011, "c": 0.02}, 0.03) == []
