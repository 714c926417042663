"""The exposure log of a staging deployment: reads its JSON lines and puts each request together.

A request's `exposure` says which arm it met and why, again whenever it moved on to another one; its `outcome` how it
ended. Several routers write files of their own, and a request's lines may stand anywhere. Compares nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_specplug.compare.json_checks import (
    Fields,
    check_fields,
    is_count,
    is_flag,
    is_number,
    is_object,
    is_text,
    or_null,
)
from vllm_specplug.errors import CompareError

SCHEMA = "specplug.staging/1"
RANDOMISED = ("weight", "sticky")
"""Reasons that are a draw by the weights, so that arms which met them may be compared."""
REASONS = (*RANDOMISED, "forced", "moved", "shadow")
CANCELLED = "cancelled"
"""Error of a request whose client went away."""


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


@dataclass(frozen=True, slots=True)
class StagedRequest:
    """One request and what became of it."""

    exposure: Exposure
    """The first one. Where it says "moved", the request never met its own arm."""
    arm: str
    """Which it was drawn for, forced or copied to; where that is unknown, which it met."""
    by: str
    """One of REASONS; "moved": it was drawn, but for which arm is unknown."""
    outcome: Outcome | None
    """None: not in the log; it is under way still, or was lost."""

    @property
    def randomised(self) -> bool:
        """Whether a draw by the weights gave it its arm."""
        return self.by in RANDOMISED

    @property
    def moved(self) -> bool:
        """Whether another arm than its own answered it, or its own after it had failed."""
        return self.exposure.by == "moved" or (self.outcome is not None and self.outcome.num_moves > 0)

    @property
    def cancelled(self) -> bool:
        """Whether its client went away, which is no error of an arm."""
        return self.outcome is not None and self.outcome.error == CANCELLED

    @property
    def failed(self) -> bool:
        """Whether its client got an error, or half of an answer."""
        return self.outcome is not None and self.outcome.error is not None and not self.cancelled


@dataclass(frozen=True, slots=True)
class StagingLog:
    """All of a log that is about one model."""

    model: str
    files: tuple[str, ...]
    requests: tuple[StagedRequest, ...]
    """In the order of their first exposures."""
    counts: Mapping[str, int]
    """Of lines, whatever the model: exposures, outcomes, torn, duplicate_exposures, duplicate_outcomes,
    outcomes_without_exposure."""

    @property
    def arms(self) -> list[str]:
        """Every arm that has a weight or met a request."""
        weighted = (arm for request in self.requests for arm in request.exposure.weights)
        return list(dict.fromkeys([*weighted, *(request.arm for request in self.requests)]))


def read_staging_log(paths: Sequence[str | Path], model: str | None = None) -> StagingLog:
    """Read files, and all `*.jsonl` of folders.

    A last line without its end is what a router is writing, or a crash has left: it is counted as torn.

    Args:
        model: the one that is meant; None: there is only one.
    Raises:
        CompareError: a file cannot be read, a line is malformed (naming file and line), no request was drawn by weight,
            or there are several models and none is named.
    """
    files = _files(paths)
    lines = _Lines()
    for file in files:
        lines.read(file)
    models = list(dict.fromkeys(found[0].model for found in lines.exposures.values()))
    if not models:
        raise CompareError(f"{', '.join(map(str, paths))}: no request is exposed to an arm; expected lines of a router")
    if model is None and len(models) > 1:
        raise CompareError(f"the log is about {len(models)} models, {', '.join(models)}; name one with --model")
    chosen = models[0] if model is None else model
    if chosen not in models:
        raise CompareError(f"the log has no requests for the model {chosen!r}; it has {', '.join(models)}")
    requests = [
        _joined(found, lines.outcomes.get(request_id))
        for request_id, found in lines.exposures.items()
        if found[0].model == chosen
    ]
    lines.counts["duplicate_exposures"] = sum(map(_num_duplicates, lines.exposures.values()))
    lines.counts["outcomes_without_exposure"] = sum(name not in lines.exposures for name in lines.outcomes)
    if not any(request.randomised for request in requests):
        raise CompareError(f"no request for {chosen!r} was drawn by weight, so that nothing can be compared")
    return StagingLog(
        chosen,
        tuple(map(str, files)),
        tuple(sorted(requests, key=lambda request: request.exposure.time_s)),
        {name: lines.counts[name] for name in _COUNTS},
    )


def _joined(exposures: Sequence[Exposure], outcome: Outcome | None) -> StagedRequest:
    first = min(exposures, key=lambda exposure: exposure.time_s)
    if first.by != "moved":
        return StagedRequest(first, first.arm, first.by, outcome)
    # Its arm was out. The log does not say which one that was, but where there are two it is the other.
    others = [arm for arm, weight in first.weights.items() if weight > 0 and arm != first.arm]
    if len(others) != 1:
        return StagedRequest(first, first.arm, "moved", outcome)
    return StagedRequest(first, others[0], "weight" if first.unit is None else "sticky", outcome)


def _num_duplicates(exposures: Sequence[Exposure]) -> int:
    """Exposures of one request beyond the first that do not say that it moved on."""
    return max(0, sum(exposure.by != "moved" for exposure in exposures) - 1)


def _files(paths: Sequence[str | Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        inside = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not inside:
            raise CompareError(f"{path} holds no *.jsonl; give the folder that routers write to, or their files")
        found.update({file.resolve(): file for file in inside})
    return list(found.values())


_COUNTS = (
    "exposures",
    "outcomes",
    "torn",
    "duplicate_exposures",
    "duplicate_outcomes",
    "outcomes_without_exposure",
)


def _time(value: Any) -> bool:
    return is_number(value) and value >= 0


def _weights(value: Any) -> bool:
    return is_object(value) and any(value.values()) and all(map(_time, value.values()))


_LINE: Fields = {
    "schema": (lambda value: value == SCHEMA, repr(SCHEMA)),
    "event": (lambda value: value in ("exposure", "outcome"), "'exposure' or 'outcome'"),
    "request_id": (is_text, "a text"),
    "time_s": (_time, "seconds"),
}
_EXPOSURE: Fields = {
    "model": (is_text, "a text"),
    "arm": (is_text, "a text"),
    "by": (lambda value: value in REASONS, "one of " + ", ".join(map(repr, REASONS))),
    "unit": (or_null(is_text), "a text or null"),
    "weights": (_weights, "a number of 0 or more for each arm, not all of them 0"),
    "stream": (is_flag, "true or false"),
}
_OUTCOME: Fields = {
    "status": (is_count, "a count"),
    "error": (or_null(is_text), "a text or null"),
    "ttft_s": (or_null(_time), "seconds or null"),
    "e2e_s": (_time, "seconds"),
    "num_output_tokens": (or_null(is_count), "a count or null"),
    "num_moves": (is_count, "a count"),
}


@dataclass(slots=True)
class _Lines:
    """What the lines of all files say, by request."""

    exposures: dict[str, list[Exposure]] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    weights: dict[tuple[tuple[str, float], ...], Mapping[str, float]] = field(default_factory=dict)
    """The same weights stand in thousands of lines; one copy of them is kept."""

    def read(self, file: Path) -> None:
        for number, line in _lines(file):
            row = _parsed(line)
            if row is None and not line.endswith(b"\n"):
                self.counts["torn"] += 1
                continue
            try:
                if row is None:
                    raise CompareError("not a JSON object; expected one on each line")
                check_fields(row, _LINE, "report")
                check_fields(row, _EXPOSURE if row["event"] == "exposure" else _OUTCOME, "report")
            except CompareError as error:
                raise CompareError(f"{file}:{number}: {error}") from error
            self._take(row)

    def _take(self, row: Mapping[str, Any]) -> None:
        request_id = row["request_id"]
        if row["event"] == "exposure":
            self.counts["exposures"] += 1
            weights = self.weights.setdefault(tuple(row["weights"].items()), row["weights"])
            found = Exposure(**{name: row[name] for name in _EXPOSED} | {"weights": weights})
            self.exposures.setdefault(request_id, []).append(found)
            return
        self.counts["outcomes"] += 1
        self.counts["duplicate_outcomes"] += request_id in self.outcomes
        self.outcomes.setdefault(request_id, Outcome(**{name: row[name] for name in _OUTCOME}))


_EXPOSED = ("time_s", *_EXPOSURE)


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with file.open("rb") as lines:
            yield from ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    except OSError as error:
        raise CompareError(f"cannot read the log {file}: {error.strerror or error}") from error


def _no_number(text: str) -> None:
    raise ValueError(text)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """None: no JSON object (NaN is none)."""
    try:
        row = json.loads(line, parse_constant=_no_number)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
