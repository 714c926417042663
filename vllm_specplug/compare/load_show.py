"""A report's `load` for people: the same rows in a terminal, a page and Markdown, and what to know before believing.

Draws nothing; `plots_load` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_specplug.compare.cells import number, percent, ratio_text
from vllm_specplug.compare.extra_columns import extra_cells, extra_headings

HELD = 0.8
"""Where fewer than this share of the requests at once were in flight on average, a level was not held."""
LATE_SHARE = 0.1
"""Where requests left the client late by more than this share of the time to the first token, it was too slow."""
_SPEED_HEADINGS = ("ratio (95 %)", "verdict", "tok/s", "req/s", "tok/fwd", "acc.rate")


@dataclass(frozen=True, slots=True)
class LoadTable:
    """A row of texts for each level and arm; the first two cells of a row are these."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def load_tables(report: Mapping[str, Any]) -> tuple[LoadTable, LoadTable]:
    """Speeds and verdicts, then latencies."""
    speeds, latencies = [], []
    any_failed = any(result["failed"] for _, _, result in _results(report["load"]))
    for level in report["load"]["levels"]:
        compared = {comparison["arm"]: comparison for comparison in level["comparisons"]}
        for name, result in level["results"].items():
            of = str(level["value"]), name
            speeds.append((*of, *_speed_cells(result, compared.get(name)), *extra_cells(report, result)))
            if any_failed:
                speeds[-1] += (str(result["failed"]),)
            latencies.append((*of, *(_percentiles(result[key]) for key in ("ttft_ms", "tpot_ms", "e2e_ms"))))
    of = "load", "arm"
    header = (*of, *_SPEED_HEADINGS, *extra_headings(report), *(("failed",) if any_failed else ()))
    return (
        LoadTable(f"Under load, by {report['load']['unit']}", header, tuple(speeds)),
        LoadTable("Latency under load, p50 / p90 / p99 in ms", (*of, "ttft", "tpot", "e2e"), tuple(latencies)),
    )


def _speed_cells(result: Mapping[str, Any], comparison: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Under _SPEED_HEADINGS."""
    return (
        "1" if comparison is None else load_ratio(comparison),
        "" if comparison is None else comparison["verdict"],
        number(result["output_tokens_per_s"], 1),
        number(result["requests_per_s"]),
        number(result["tokens_per_forward"]),
        percent(result["acceptance_rate"]),
    )


def load_ratio(comparison: Mapping[str, Any]) -> str:
    """For example '1.42x (1.31 to 1.55)'; '-' where no prompt was answered by both arms."""
    return "-" if comparison["ratio"] is None else ratio_text(comparison)


def load_notes(report: Mapping[str, Any]) -> list[str]:
    """What to know before believing the rows, a sentence each; none without load."""
    if not report.get("load"):
        return []
    return [
        "Under load: ratio of output tokens a second of a request, from when it came to its last token; tok/s and "
        f"req/s are the whole machine's; waiting is in all times; runs of each arm: {report['load']['passes']}.",
        *_not_held(report["load"]),
        *_short_of_room(report["load"]),
        *_late(report),
        *_failures(report["load"]),
        *([] if report.get("too_noisy") else _undecided(report["load"])),
        *_different(report),
    ]


def _percentiles(values: Mapping[str, float] | None) -> str:
    return "-" if values is None else " / ".join(_short(values[key]) for key in ("p50", "p90", "p99"))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _results(load: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Level as '16 requests at once', arm and R."""
    for level in load["levels"]:
        for name, result in level["results"].items():
            yield f"{level['value']} {load['unit']}", name, result


def _not_held(load: Mapping[str, Any]) -> list[str]:
    if load["kind"] != "concurrency":
        return []
    lines = []
    for level in load["levels"]:
        means = [result["in_flight"]["mean"] for result in level["results"].values()]
        if min(means) < HELD * level["value"]:
            lines.append(
                f"At {level['value']} requests at once only {min(means):.1f} were in flight on average: each run ends "
                "with fewer. More prompts would hold the level."
            )
    return lines


def _short_of_room(load: Mapping[str, Any]) -> list[str]:
    lines = []
    most = max(result["in_flight"]["max"] for _, _, result in _results(load))
    for seats in dict.fromkeys(load["max_num_seqs"].values()):
        if seats is not None and seats < most:
            names = ", ".join(name for name, one in load["max_num_seqs"].items() if one == seats)
            lines.append(f"{names}: an engine takes {seats} requests at once (max_num_seqs); beyond that they wait.")
    for what, name, result in _results(load):
        if result["num_preemptions"]:
            lines.append(
                f"{name}: at {what} a request lost its KV cache to others {result['num_preemptions']} times and was "
                "begun again: there is too little of it (--kv-cache-gib on a CPU)."
            )
    return lines


def _late(report: Mapping[str, Any]) -> list[str]:
    """Of endpoints, where this program is the client; an engine of our own takes requests between its steps."""
    lines = []
    served = {arm["name"] for arm in report["arms"] if arm.get("endpoint")}
    for what, name, result in _results(report["load"]):
        if what.startswith("inf "):
            continue  # all at the start, and sent one after the other
        if name in served and result["late_ms"] and result["late_ms"]["p99"] > LATE_SHARE * result["ttft_ms"]["p50"]:
            lines.append(
                f"{name}: at {what} requests were sent up to {result['late_ms']['p99']:.0f} ms late (p99): this "
                "machine is too slow a client for them."
            )
    return lines


def _failures(load: Mapping[str, Any]) -> list[str]:
    lines = []
    for what, name, result in _results(load):
        if result["failed"]:
            kinds = ", ".join(f"{kind} {count}" for kind, count in result["errors"]["kinds"].items())
            lines.append(
                f"{name}: at {what} {result['failed']} of {result['requests']} requests failed ({kinds}); ratios are "
                f"without {len(result['errors']['prompts_left_out'])} prompts. The first: {result['errors']['first']}"
            )
    return lines


def _undecided(load: Mapping[str, Any]) -> list[str]:
    """Why, or what would help, the levels together where it is the same."""
    found: dict[tuple[str, str], list[str]] = {}
    for level in load["levels"]:
        for comparison in level["comparisons"]:
            reason, more = comparison["undecided_reason"], comparison["more_would_help"]
            if reason is not None:
                found.setdefault((comparison["arm"], f"because of {reason}"), []).append(str(level["value"]))
            elif more is not None:
                found.setdefault((comparison["arm"], f"more {more} would tell"), []).append(str(level["value"]))
    return [f"{name}: undecided at {', '.join(levels)} {load['unit']}: {why}." for (name, why), levels in found.items()]


def _different(report: Mapping[str, Any]) -> list[str]:
    lines = []
    load = report["load"]
    for level in load["levels"]:
        for name, entry in level["lossless"].items():
            if entry is not None and entry["different"]:
                lines.append(
                    f"{name}: at {level['value']} {load['unit']} {entry['different']} of {entry['prompts']} answers "
                    f"differ beyond rounding from those of {report['baseline']} without load."
                )
    return lines


def series(report: Mapping[str, Any]) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Comparisons by arm, in the order of the levels."""
    levels = report["load"]["levels"]
    return {name: [_of(level, name) for level in levels] for name in report["load"]["advice"]}


def _of(level: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(entry for entry in level["comparisons"] if entry["arm"] == name)
    return found
