"""What a process that died had to say, in one line of a message."""

from __future__ import annotations

import re

_MAX_CHARS = 400


def one_line(text: str) -> str:
    """Collapse white space and cut what is too long for a message."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _MAX_CHARS else flat[: _MAX_CHARS - 4] + " ..."


def last_error_line(log: str) -> str:
    """The last line that looks like an error, else the last line at all."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"(Error|Exception|Killed|Fatal)\b", line)]
    return (errors or lines or ["it printed nothing"])[-1]
