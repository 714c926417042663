"""The lines of an exposure log, read one by one: what may stand in them, and what is wrong with one, by file and line.

Knows neither arms that compare nor what a request's lines mean together; that is `staging_log`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_specplug import strict_json
from vllm_specplug.compare.json_checks import (
    FLAG,
    TEXT,
    Field,
    Fields,
    check_fields,
    check_present,
    is_count,
    is_list,
    is_number,
    is_object,
    is_text,
    nullable,
)
from vllm_specplug.errors import CompareError

SCHEMA = "specplug.staging/1"
RANDOMISED = ("weight", "sticky")
"""Reasons that are a draw by the weights, so that arms which met them may be compared."""
REASONS = (*RANDOMISED, "forced", "moved", "shadow")


@dataclass(frozen=True, slots=True)
class Exposure:
    """A request met an arm."""

    time_s: float
    """Unix time."""
    model: str
    """The name that the client asked for."""
    arm: str
    by: str
    """One of REASONS."""
    unit: str | None
    """A hash of the session or user; None: the request named none."""
    weights: Mapping[str, float]
    """Of all arms, as they stood."""
    stream: bool
    out: tuple[str, ...] | None = None
    """Arms that took no traffic, or next to none, when this one was chosen; None: the log does not say."""
    instead_of: str | None = None
    """Where the request moved: the arm that it passed by or left; None: it did not, or the log does not say."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request ended."""

    status: int
    error: str | None
    """In a word; None: it was answered."""
    ttft_s: float | None
    """Until a stream began; None: it was no stream, or never began."""
    e2e_s: float
    num_output_tokens: int | None
    """None: the engine has not said."""
    num_moves: int
    """How often it did not go to, or stay with, the arm it was drawn for."""
    arm: str | None = None
    """Where it ended; None: the log does not say."""


COUNTS = (
    "exposures",
    "outcomes",
    "torn",
    "duplicate_exposures",
    "duplicate_outcomes",
    "outcomes_without_exposure",
)
_MOST_S = 1e11
"""Unix time in seconds, in the year 5138; in milliseconds, of any year since 1973, it is more."""
_MOST = 1e9
"""Of tokens, of seconds that a request takes, and of weights, which routers bound alike."""
_COMPRESSED = {b"\x1f\x8b": "gunzip -k", b"\x28\xb5\x2f\xfd": "unzstd", b"BZh": "bunzip2 -k", b"\xfd7zXZ": "unxz -k"}
"""First bytes, and what unpacks them."""


def _moment(value: Any) -> bool:
    return is_number(value) and 0 <= value <= _MOST_S


def _amount(value: Any) -> bool:
    return is_number(value) and 0 <= value <= _MOST


def _count(value: Any) -> bool:
    return is_count(value) and value <= _MOST


def _name(value: Any) -> bool:
    """Whether a text can be shown in a terminal and a file as it is."""
    return is_text(value) and value != "" and value.isprintable()


def _names(value: Any) -> bool:
    return is_list(value) and all(map(_name, value))


def _weights(value: Any) -> bool:
    return is_object(value) and all(map(_name, value)) and all(map(_amount, value.values())) and any(value.values())


_NAME: Field = (_name, "a printable text")
_SECONDS: Field = (_amount, "seconds")
_LINE: Fields = {
    "schema": (lambda value: value == SCHEMA, repr(SCHEMA)),
    "event": (lambda value: value in ("exposure", "outcome"), "'exposure' or 'outcome'"),
    "request_id": TEXT,
    "time_s": (_moment, "seconds since 1970"),
}
_EXPOSURE: Fields = {
    "model": _NAME,
    "arm": _NAME,
    "by": (lambda value: value in REASONS, "one of " + ", ".join(map(repr, REASONS))),
    "unit": nullable(TEXT),
    "weights": (_weights, "printable names of arms, each with a number from 0 to 1e9, not all of them 0"),
    "stream": FLAG,
}
_OUTCOME: Fields = {
    "status": (_count, "a count"),
    "error": nullable(_NAME),
    "ttft_s": nullable(_SECONDS),
    "e2e_s": _SECONDS,
    "num_output_tokens": nullable((_count, "a count up to 1e9")),
    "num_moves": (_count, "a count"),
}
#: Logs of former versions lack them.
_EXPOSURE_MAY: Fields = {"out": nullable((_names, "a list of arms")), "instead_of": nullable(_NAME)}
_OUTCOME_MAY: Fields = {"arm": nullable(_NAME)}
_EXPOSED = ("time_s", *_EXPOSURE)


@dataclass(slots=True)
class Lines:
    """What the lines of all files say, by request."""

    exposures: dict[str, list[Exposure]] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """Of COUNTS, those that a single line tells."""
    weights: dict[tuple[tuple[str, float], ...], Mapping[str, float]] = field(default_factory=dict)
    """The same weights stand in thousands of lines; one copy of them is kept."""

    def read(self, file: Path) -> None:
        """Take all lines of a file.

        A last line without its end is what a router is writing, or a crash has left: it is counted as torn.

        Raises:
            CompareError: it cannot be read, or a line is malformed, naming file and line.
        """
        for number, line in _lines(file):
            try:
                row = _object(line.rstrip(b"\r\n"))
            except ValueError as error:
                if not line.endswith(b"\n"):
                    self.counts["torn"] += 1
                    continue
                raise CompareError(
                    f"{file}:{number}: not a JSON object ({error}); expected one on each line"
                ) from error
            try:
                _check(row)
            except CompareError as error:
                raise CompareError(f"{file}:{number}: {error}") from error
            self._take(row)

    def _take(self, row: Mapping[str, Any]) -> None:
        request_id = row["request_id"]
        if row["event"] == "exposure":
            self.counts["exposures"] += 1
            weights = self.weights.setdefault(tuple(row["weights"].items()), row["weights"])
            out = row.get("out")
            found = Exposure(
                **{name: row[name] for name in _EXPOSED} | {"weights": weights},
                out=None if out is None else tuple(out),
                instead_of=row.get("instead_of"),
            )
            self.exposures.setdefault(request_id, []).append(found)
            return
        self.counts["outcomes"] += 1
        self.counts["duplicate_outcomes"] += request_id in self.outcomes
        self.outcomes.setdefault(request_id, Outcome(**{name: row[name] for name in _OUTCOME}, arm=row.get("arm")))


def _check(row: Mapping[str, Any]) -> None:
    check_fields(row, _LINE, "report")
    must, may = (_EXPOSURE, _EXPOSURE_MAY) if row["event"] == "exposure" else (_OUTCOME, _OUTCOME_MAY)
    check_fields(row, must, "report")
    check_present(row, may, "report")
    if row["event"] == "outcome" and row["ttft_s"] is not None and row["ttft_s"] > row["e2e_s"]:
        raise CompareError(f"ttft_s is {row['ttft_s']}, expected no more than e2e_s, which is {row['e2e_s']}")


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if number == 1:
                    _check_plain(file, line)
                if line.strip():
                    yield number, line
    except OSError as error:
        raise CompareError(f"cannot read the log {file}: {error.strerror or error}") from error


def _check_plain(file: Path, start: bytes) -> None:
    for magic, command in _COMPRESSED.items():
        if start.startswith(magic):
            raise CompareError(f"{file} is compressed; unpack it first: {command} {file}")


def _object(line: bytes) -> dict[str, Any]:
    """Raises: ValueError: it is something else."""
    row = strict_json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"a {type(row).__name__}")
    return row
