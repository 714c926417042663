"""JSON that somebody else wrote, read so that no value in it surprises the reader later.

Python's own reader takes `NaN` and `Infinity`, makes infinity of 1e999, gives integers that no float holds, and answers
deep nesting with an exception of its own kind. Here all of these are errors in the text.
"""

from __future__ import annotations

import json
import math
from typing import Any

_MAX_DIGITS = 300
"""Integers of more have no float."""


def loads(text: str | bytes) -> Any:
    """The value that a text holds.

    Raises:
        ValueError: it is not JSON (`json.JSONDecodeError`), not Unicode, nested too deep, or holds a number that is
            none or too large.
    """
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite, parse_int=_of_few_digits)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{_short(text)} is too large for a number")
    return value


def _of_few_digits(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"{_short(text)} is too large for a number")
    return int(text)


def _short(text: str) -> str:
    return text if len(text) <= 20 else f"{text[:17]}..."
