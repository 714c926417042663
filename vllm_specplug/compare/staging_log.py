"""The exposure log of a staging deployment: puts each request together from its lines. Compares nothing.

A request's `exposure` says which arm it met and why, again whenever it moved on to another one; its `outcome` how it
ended. Several routers write files of their own, and a request's lines may stand anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_specplug.compare.staging_lines import COUNTS, RANDOMISED, Exposure, Lines, Outcome
from vllm_specplug.errors import CompareError

CANCELLED = "cancelled"
"""Error of a request whose client went away."""


@dataclass(frozen=True, slots=True)
class StagedRequest:
    """One request and what became of it."""

    exposure: Exposure
    """Its draw. Where it says "moved", the draw is not in the log: the first one that is."""
    arm: str
    """Which it was drawn for, forced or copied to; where that is unknown, which it met."""
    by: str
    """One of REASONS; "moved": it was drawn, but for which arm is unknown."""
    outcome: Outcome | None
    """None: not in the log; it is under way still, or was lost."""

    @property
    def stand_in(self) -> str | None:
        """Another arm than its own that it ended with; None: there was none, or the log does not say."""
        found = self.outcome.arm if self.outcome is not None and self.moved else None
        return None if found == self.arm else found

    def was_out(self, *arms: str) -> bool:
        """Whether one of these arms was out when it was drawn; False where the log does not say."""
        return not set(arms).isdisjoint(self.exposure.out or ())

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
    lines = Lines()
    for file in files:
        lines.read(file)
    models = list(dict.fromkeys(found[0].model for found in lines.exposures.values()))
    if not models:
        torn = lines.counts["torn"]
        passed = f" ({torn} last lines without their end were passed over)" if torn else ""
        where = ", ".join(map(str, paths))
        raise CompareError(f"{where}: no request is exposed to an arm{passed}; expected lines of a router")
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
        {name: lines.counts[name] for name in COUNTS},
    )


def _joined(exposures: Sequence[Exposure], outcome: Outcome | None) -> StagedRequest:
    # Not the earliest line: a clock may go backwards between the draw and the move.
    draws = [exposure for exposure in exposures if exposure.by != "moved"]
    first = min(draws or exposures, key=lambda exposure: exposure.time_s)
    if draws:
        return StagedRequest(first, first.arm, first.by, outcome)
    own = _own_arm(first, len(exposures), outcome)
    if own is None:
        return StagedRequest(first, first.arm, "moved", outcome)
    return StagedRequest(first, own, "weight" if first.unit is None else "sticky", outcome)


def _own_arm(moved: Exposure, num_exposures: int, outcome: Outcome | None) -> str | None:
    """The arm of a request whose draw is not in the log, from the first line that says it moved; None: unknown."""
    all_moves_there = outcome is not None and outcome.num_moves == num_exposures
    if moved.instead_of is not None and all_moves_there:
        return moved.instead_of if moved.instead_of != moved.arm else None  # within an arm forced ones move too
    # Where there are two arms it is the other one.
    others = [arm for arm, weight in moved.weights.items() if weight > 0 and arm != moved.arm]
    return others[0] if len(others) == 1 and moved.instead_of in (None, *others) else None


def _num_duplicates(exposures: Sequence[Exposure]) -> int:
    """Exposures of one request beyond the first that do not say that it moved on."""
    return max(0, sum(exposure.by != "moved" for exposure in exposures) - 1)


def _files(paths: Sequence[str | Path]) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        inside = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not inside:
            raise CompareError(f"{path} holds no *.jsonl; give the folder that routers write to, or their files")
        changed = sorted(path.glob("*.jsonl.*")) if path.is_dir() else []
        if changed:  # without them an arm's hours could be missing
            raise CompareError(
                f"{path} also holds {changed[0].name}, which is not read; unpack or rename it so that it ends in "
                ".jsonl, or give the files that are meant"
            )
        found.update({file.resolve(): file for file in inside})
    return list(found.values())
