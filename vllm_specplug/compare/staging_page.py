"""The report of a staging log as one HTML page, in the style of a report's. Computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from vllm_specplug.compare import plots
from vllm_specplug.compare.page_parts import Section, document, facts, figure, list_of, table
from vllm_specplug.compare.page_plots import colours_of, latency_figure
from vllm_specplug.compare.staging_sentences import NAMES
from vllm_specplug.compare.staging_show import (
    COMPARED,
    ERRORS_NOTE,
    MEASURED,
    SPEEDS_NOTE,
    SPLIT,
    compared_rows,
    measured_rows,
    provenance_rows,
    split_rows,
    split_text,
    title,
)


def staging_page(report: Mapping[str, Any]) -> str:
    """The page: the verdict first, then plots and tables. All text is escaped."""
    sections = [
        Section("verdict", "Verdict", _verdict(report)),
        Section("speed", "Speed", _speeds(report)),
        Section("latency", "Latency", _latency(report)),
        Section("numbers", "Numbers", _numbers(report)),
        Section("split", "Who met which arm", _split(report)),
        Section("provenance", "How it was measured", facts("Log, versions and settings", provenance_rows(report))),
    ]
    return document(f"{report['model']} in staging", f'<p class="soft">{escape(title(report))}</p>', sections)


def _verdict(report: Mapping[str, Any]) -> str:
    first, *rest = report["recommendation"]["sentences"]
    before = f"<h3>Before you believe it</h3>{list_of(report['remarks'])}" if report["remarks"] else ""
    return (
        f'<p class="first">{escape(first)}</p>{list_of(rest) if rest else ""}<p class="soft">Faster and slower: the '
        "interval of the ratio of speeds excludes 1. It holds however often one looks, and the four verdicts of an arm "
        f"hold together in 95 % of all logs. Users, not requests, are what is counted as independent.</p>{before}"
    )


def _speeds(report: Mapping[str, Any]) -> str:
    parts = []
    for row in report["comparisons"]:
        told = [(key, speed) for key, speed in row["speeds"].items() if speed["ratio"] is not None]
        rows = [(key, speed | {"ci95": speed["interval"]}) for key, speed in told]
        if not rows:
            continue
        described = "; ".join(f"{NAMES[key]} {found['ratio']:.2f}x, {found['verdict']}" for key, found in rows)
        heading = f"Speed of {row['arm']} divided by that of {row['against']}"
        drawing = plots.dot_and_whisker(rows, heading, described)
        caption = (
            f"Mark: ratio to {row['against']}; line: interval for many looks. Right of the dashed line is faster. "
            "Arrow: found faster or slower; square: no difference; ring: undecided."
        )
        parts.append(f"<div><h3>{escape(row['arm'])}</h3>{figure(drawing, caption)}</div>")
    return f'<div class="plots">{"".join(parts)}</div>' if parts else "<p>No arm answered anything.</p>"


def _latency(report: Mapping[str, Any]) -> str:
    results = {arm: result for arm, result in report["results"].items() if result["answered"]}
    return latency_figure(results, colours_of(list(report["results"]))) if results else "<p>No answers.</p>"


def _numbers(report: Mapping[str, Any]) -> str:
    # A row is named by its first cell.
    compared = [(f"{arm} · {speed}", *rest) for arm, speed, *rest in compared_rows(report)]
    parts = [
        table("Arms against the baseline", ("arm · speed", *COMPARED[2:]), compared),
        f'<p class="soft">{escape(SPEEDS_NOTE)} {escape(ERRORS_NOTE)}</p>',
        table("What each arm did; times in ms", MEASURED, measured_rows(report["results"])),
    ]
    for reason, arms in report["apart"].items():
        if arms:
            parts.append(table(f"Not compared: {reason}", MEASURED, measured_rows(arms)))
    return "".join(parts)


def _split(report: Mapping[str, Any]) -> str:
    explained = (
        "Draws by weight: a session or user is drawn once, a request that names neither by itself. Where they do not "
        "fit the weights, no comparison means anything."
    )
    return f"<p>{escape(explained)}</p>" + table(f"Split: {split_text(report)}", SPLIT, split_rows(report))
