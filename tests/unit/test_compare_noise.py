"""An arm against itself, and when a run is too noisy to decide."""

from __future__ import annotations

import pytest

from vllm_specplug.compare.intervals import Ratio
from vllm_specplug.compare.measure import Answer, Block
from vllm_specplug.compare.noise import noise_floor, too_noisy


def passes(*seconds: float, num_prompts: int = 6) -> list[Block]:
    """Blocks of one category, each prompt taking the same time in a pass."""
    return [
        Block("a", index, value, (Answer(f"p{prompt}", index, tuple(range(10)), 10, 0.1, value, "length"),), None)
        for prompt in range(num_prompts)
        for index, value in enumerate(seconds)
    ]


def test_later_passes_are_divided_by_earlier_ones() -> None:
    # 2 + 4 s first, 1 + 2 s later: twice as fast; nothing varies between prompts.
    found = noise_floor(passes(2.0, 4.0, 1.0, 2.0), seed=0)
    assert found is not None
    assert (found.ratio, found.ci95) == (pytest.approx(2.0), pytest.approx((2.0, 2.0)))


def test_middle_pass_belongs_to_neither_half() -> None:
    found = noise_floor(passes(1.0, 50.0, 1.0), seed=0)
    assert found is not None
    assert found.ratio == pytest.approx(1.0)


def test_one_pass_has_no_noise_floor() -> None:
    assert noise_floor(passes(1.0), seed=0) is None


@pytest.mark.parametrize(
    ("itself", "reason"),
    [
        (None, None),
        (Ratio(2.0, None, None), None),  # one prompt: nothing can be said
        (Ratio(1.0, (0.99, 1.01), "prompts"), None),
        (Ratio(1.05, (1.02, 1.08), "prompts"), None),  # excludes 1, by less than the margin
        (
            Ratio(1.05, (1.04, 1.06), "prompts"),
            "measured against itself it is 1.05x (1.04 to 1.06), more than 3 % from 1",
        ),
        (
            Ratio(0.9, (0.85, 0.96), "prompts"),
            "measured against itself it is 0.90x (0.85 to 0.96), more than 3 % from 1",
        ),
        (Ratio(1.0, (0.87, 1.16), "prompts"), None),  # 14 % either way
        (
            Ratio(1.0, (0.8, 1.2), "prompts"),
            "measured against itself it is 1.00x (0.80 to 1.20), uncertain by more than 15 % either way",
        ),
    ],
)
def test_too_noisy_is_shifted_or_wide(itself: Ratio | None, reason: str | None) -> None:
    assert too_noisy(itself, margin=0.03) == reason
