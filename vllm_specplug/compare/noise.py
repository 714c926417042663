"""What a run says of its own noise: an arm against itself, and whether that is too much to believe any verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vllm_specplug.compare.intervals import Ratio, compare
from vllm_specplug.compare.measure import Block
from vllm_specplug.compare.statistics import prompt_speeds

MAX_HALF_WIDTH_MARGINS = 5
"""Half-width of the interval of an arm against itself, in margins, beyond which a run is too noisy.

Half the passes against the other half spread by sqrt(2) more than all passes of one arm against all of another. At 5
margins of 3 % noise alone gives a comparison an interval of 15 % / sqrt(2) = 10.6 % either way: a change of 10 %, which
a run ought to find, drowns in it.
"""


def noise_floor(blocks: Sequence[Block], seed: int) -> Ratio | None:
    """Speed of an arm's later passes over that of its earlier ones, as if they were two arms; None with one pass.

    The truth is 1. The middle one of an odd number of passes belongs to neither half.
    """
    passes = sorted({block.pass_index for block in blocks})
    half = len(passes) // 2
    if not half:
        return None
    early, late = set(passes[:half]), set(passes[-half:])
    return compare(
        prompt_speeds([block for block in blocks if block.pass_index in late]),
        prompt_speeds([block for block in blocks if block.pass_index in early]),
        seed,
    )


def too_noisy(itself: Ratio | None, margin: float) -> str | None:
    """Why a run with this A/A ratio decides nothing, None where it may.

    Either the arm has changed (its interval lies beyond the margin), or it varies so much that 10 % would drown.
    Without an interval nothing can be said, and nothing is held against the run.
    """
    if itself is None or itself.ci95 is None:
        return None
    low, high = itself.ci95
    found = f"{itself.ratio:.2f}x ({low:.2f} to {high:.2f})"
    if low > 1 + margin or high < 1 - margin:
        return f"measured against itself it is {found}, more than {100 * margin:g} % from 1"
    allowed = MAX_HALF_WIDTH_MARGINS * margin
    if math.log(high / low) / 2 > allowed:
        return f"measured against itself it is {found}, uncertain by more than {100 * allowed:g} % either way"
    return None
