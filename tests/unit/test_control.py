"""How many tokens each request may draft."""

from __future__ import annotations

import numpy as np
import pytest

from vllm_specplug.control import max_drafts


def limit(tokens: int, total: int, request: int = 8, step: int = 8, may: int = 1, least: int = 0) -> tuple[int, int]:
    one = [np.array([value], np.int32) for value in (tokens, total, least, request)]
    limits, withheld = max_drafts(*one, step, np.array([may], np.int32))
    assert limits.dtype == np.int32
    return int(limits[0]), withheld


@pytest.mark.parametrize(("left", "expected"), [(20, 8), (9, 8), (8, 7), (3, 2), (2, 1), (1, 0), (0, 0), (-1, 0)])
def test_a_request_with_r_tokens_left_drafts_r_minus_1(left: int, expected: int) -> None:
    assert limit(100, 100 + left) == (expected, int(left == 1))  # with none left it has just ended


def test_smallest_limit_wins() -> None:
    assert limit(10, 100, request=3, step=5) == (3, 0)
    assert limit(10, 100, request=5, step=2) == (2, 0)


def test_request_that_reads_its_prompt_or_wants_none_is_not_withheld() -> None:
    assert limit(99, 100, may=0) == (0, 0)
    assert limit(99, 100, request=0) == (0, 0)
    assert limit(99, 100, step=0) == (0, 0)


@pytest.mark.parametrize(("missing", "expected"), [(20, 8), (9, 8), (5, 4), (2, 1), (1, 0), (0, 8), (-3, 8)])
def test_no_round_steps_over_the_length_from_which_a_text_may_end(missing: int, expected: int) -> None:
    """The last token of a round that begins below that length is at most the last one that may not end it."""
    assert limit(50, 100, least=50 + missing) == (expected, 0)


def test_limits_are_each_requests_own() -> None:
    arrays = [np.array(values, np.int32) for values in ([10, 99, 50], [100, 100, 53], [0, 0, 0], [8, 8, 0])]
    limits, withheld = max_drafts(*arrays, 4, np.array([1, 1, 1], np.int32))
    assert (limits.tolist(), withheld) == ([4, 0, 0], 1)
