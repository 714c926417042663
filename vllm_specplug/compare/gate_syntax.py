"""The grammar of a gate, from text to its parts. Knows no arms and no metrics.

gate    = path op side
op      = "<" | "<=" | ">" | ">=" | "==" | "!="
side    = number | [number "*"] path
path    = segment {"." segment}
segment = letters, digits, "_" and "-", or any text in quotes
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import NoReturn

from vllm_specplug.errors import CompareError

EXAMPLE = "medusa.tpot_ms.p50 > 1.05 * baseline"
OPERATORS = ("<", "<=", ">", ">=", "==", "!=")

_SEGMENT = r"""(?:\w[\w-]*|"[^"]*"|'[^']*')"""
#: A number ends where a name would go on: '0.5b' is the beginning of an arm's name.
_TOKEN = re.compile(
    rf"""(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.-]))
    |(?P<path>{_SEGMENT}(?:\.{_SEGMENT})*)
    |(?P<op><=|>=|==|!=|<|>)
    |(?P<star>\*)""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Path:
    """A dotted name."""

    segments: tuple[str, ...]
    """Without their quotes."""
    quoted: bool
    """One text in quotes and nothing else: perhaps not a name at all."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A gate as it was written."""

    left: Path
    op: str
    factor: float | None
    right: Path | float


def split_gate(text: str) -> Parts:
    """Take a gate apart.

    Raises:
        CompareError: it is not of this grammar, naming the column (from 1) and what was expected there.
    """
    tokens = _Tokens(text)
    left = tokens.path("an arm and a metric")
    op = tokens.take("op", f"one of {' '.join(OPERATORS)}")
    factor: float | None = None
    right: Path | float
    if tokens.next_kind == "number":
        right = tokens.number()
        if tokens.next_kind == "star":
            tokens.take("star", "'*'")
            factor, right = right, tokens.path("an arm")
    else:
        right = tokens.path("a number or an arm")
    tokens.end()
    return Parts(left, op, factor, right)


class _Tokens:
    """The tokens of one gate, left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._match: re.Match[str] | None = None
        self._advance()

    @property
    def next_kind(self) -> str | None:
        return None if self._match is None else self._match.lastgroup

    def take(self, kind: str, expected: str) -> str:
        if self._match is None or self._match.lastgroup != kind:
            self._refuse(expected)
        found = self._match.group()
        self._at = self._match.end()
        self._advance()
        return found

    def number(self) -> float:
        at, found = self._at, self.take("number", "a number")
        value = float(found)
        if not math.isfinite(value):
            raise CompareError(f"gate {self._text!r}: {found} at column {at + 1} is too large for a number")
        return value

    def path(self, expected: str) -> Path:
        found = re.findall(_SEGMENT, self.take("path", expected))
        segments = tuple(part[1:-1] if part[0] in "\"'" else part for part in found)
        return Path(segments, quoted=len(found) == 1 and segments[0] != found[0])

    def end(self) -> None:
        if self._at < len(self._text):
            self._refuse("the end; a factor stands in front of its arm")

    def _advance(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        self._match = _TOKEN.match(self._text, self._at)

    def _refuse(self, expected: str) -> NoReturn:
        rest = self._text[self._at :].split(maxsplit=1)
        found = repr(rest[0]) if rest else "nothing"
        raise CompareError(
            f"gate {self._text!r}: found {found} at column {self._at + 1}, expected {expected}; "
            f"write for example {EXAMPLE!r}"
        )
