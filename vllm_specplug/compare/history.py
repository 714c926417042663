"""Reports over time: a row for each, and what changed between the last two. Prints nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from vllm_specplug.compare.cells import number, percent, ratio_text
from vllm_specplug.errors import CompareError

HEADER = ("started", "specplug", "vllm", "commit", "arm", "ratio (95 %)", "verdict", "tok/s", "acc.rate")
NUM_HASH_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One report and where it was read."""

    path: str
    report: Mapping[str, Any]

    @property
    def started_at(self) -> datetime:
        """Raises CompareError where the report's is no date and time."""
        text = self.report["provenance"]["started_at"]
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise CompareError(
                f"{self.path}: provenance.started_at is {text!r}, expected as 2026-01-31T12:00:00+00:00"
            ) from error
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def in_order(entries: Sequence[Entry]) -> list[Entry]:
    """Oldest first.

    Raises:
        CompareError: a report's `started_at` is no date and time.
    """
    return sorted(entries, key=lambda entry: entry.started_at)


def rows(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """For programs: one object per report and arm that was compared."""
    return [_row(entry, comparison) for entry in entries for comparison in entry.report["comparisons"]]


def _row(entry: Entry, comparison: Mapping[str, Any]) -> dict[str, Any]:
    report, provenance = entry.report, entry.report["provenance"]
    overall = report["results"][comparison["arm"]]["overall"]
    return {
        "file": entry.path,
        "started_at": provenance["started_at"],
        "specplug": provenance["specplug"],
        "vllm": provenance["vllm"],
        "commit": provenance["commit"],
        "dirty": provenance.get("dirty"),
        "arm": comparison["arm"],
        "against": comparison["against"],
        "ratio": comparison["ratio"],
        "ci95": comparison["ci95"],
        "verdict": comparison["verdict"],
        "output_tokens_per_s": overall["output_tokens_per_s"],
        "acceptance_rate": overall["acceptance_rate"],
    }


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row for people, under HEADER."""
    commit = (row["commit"] or "-")[:NUM_HASH_DIGITS]
    return (
        row["started_at"][:16].replace("T", " "),
        row["specplug"],
        row["vllm"],
        commit + ("+" if row["dirty"] else ""),
        row["arm"],
        ratio_text(row),
        row["verdict"],
        number(row["output_tokens_per_s"], 1),
        percent(row["acceptance_rate"]),
    )


def incomparable(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Why numbers of two reports cannot be put side by side, a line each; none: they can."""
    pairs = _pairs("", *({key: report[key] for key in ("target", "dtype", "baseline")} for report in (before, after)))
    pairs |= _pairs("prompts: ", *(_workload(report) for report in (before, after)))
    pairs |= _pairs("setting ", before["settings"], after["settings"])
    pairs |= _pairs("machine: ", before["provenance"]["machine"], after["provenance"]["machine"])
    lines = [_arrow(name, *pair) for name, pair in pairs.items()]
    ids = [{row["id"] for row in report.get("prompts", [])} for report in (before, after)]
    if not lines and ids[0] != ids[1]:
        lines.append(f"prompts: {len(ids[0] ^ ids[1])} are in one of the two only")
    old, new = _arms(before), _arms(after)
    both = [{name: arms[name] for name in old if name in new} for arms in (old, new)]
    return lines + [_arrow(name, *pair) for name, pair in _pairs("arm ", *both).items()]


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What is different between two reports, a line each: versions, arms, verdicts, ratios, answers."""
    versions = _pairs("", *(_versions(report) for report in (before, after)))
    lines = [_arrow(name, *pair) for name, pair in versions.items()]
    old = {comparison["arm"]: comparison for comparison in before["comparisons"]}
    new = {comparison["arm"]: comparison for comparison in after["comparisons"]}
    lines += [f"{name}: was not in the report before" for name in new if name not in old]
    lines += [f"{name}: is no longer there" for name in old if name not in new]
    for name in new:
        if name in old:
            lines += _arm_changes(name, old[name], new[name])
            found = [report["lossless"][name] for report in (before, after)]
            different = [None if entry is None else entry["different"] for entry in found]
            if different[0] != different[1]:
                lines.append(f"{name}: answers that differ beyond rounding: {different[0]} -> {different[1]}")
    return lines


def _arm_changes(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    ratios = f"{ratio_text(old)} -> {ratio_text(new)}"
    if old["verdict"] != new["verdict"]:
        return [f"{name}: verdict {old['verdict']} -> {new['verdict']}, {ratios}"]
    if old["ci95"] and new["ci95"] and (old["ci95"][1] < new["ci95"][0] or new["ci95"][1] < old["ci95"][0]):
        return [f"{name}: still {new['verdict']}, but the intervals do not overlap: {ratios}"]
    return []


def _versions(report: Mapping[str, Any]) -> dict[str, Any]:
    provenance = report["provenance"]
    versions = {key: provenance.get(key) for key in ("specplug", "vllm", "torch", "python")}
    return versions | {"commit": provenance["commit"] and provenance["commit"][:NUM_HASH_DIGITS]}


def _workload(report: Mapping[str, Any]) -> dict[str, Any]:
    workload = report["workload"]
    return {
        "name": workload["name"],
        "sha256 of the file": workload["sha256"][:NUM_HASH_DIGITS],
        "number": workload["prompts"],
        "categories": ", ".join(workload["categories"]),
    }


def _arms(report: Mapping[str, Any]) -> dict[str, Any]:
    """Configurations as text, by name."""
    return {
        arm["name"]: json.dumps(arm.get("endpoint") or [arm["speculative_config"], arm.get("engine_args") or {}])
        for arm in report["arms"]
    }


def _pairs(prefix: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs, by name; None stands for what one of them does not have."""
    pairs = {f"{prefix}{key}": (before.get(key), after.get(key)) for key in {**before, **after}}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def _arrow(name: str, old: Any, new: Any) -> str:
    return f"{name}: {'none' if old is None else old} -> {'none' if new is None else new}"
