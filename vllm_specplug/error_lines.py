"""What of longer things fits into one line of an error message."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MAX_CHARS = 400
_NAMED = 3


def one_line(text: str) -> str:
    """Collapse white space and cut what is too long for a message."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _MAX_CHARS else flat[: _MAX_CHARS - 4] + " ..."


def last_error_line(log: str) -> str:
    """The last line that looks like an error, else the last line at all."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"(Error|Exception|Killed|Fatal)\b", line)]
    return (errors or lines or ["it printed nothing"])[-1]


def first_few(names: Iterable[str]) -> str:
    """The first names in alphabetical order, and how many there are more."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return f"{', '.join(ordered[:_NAMED])}{more}"
