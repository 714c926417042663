"""The part of a report's page on levels of load: plots and the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_specplug.compare import plots_load
from vllm_specplug.compare.cells import number
from vllm_specplug.compare.load_show import LoadTable, load_ratio, load_tables, series
from vllm_specplug.compare.page_parts import figure, legend, table
from vllm_specplug.compare.page_plots import arm_colours


def load(report: Mapping[str, Any]) -> str:
    """How much faster each arm is under which load, and what throughput costs in latency; HTML."""
    return _ratios(report) + _throughput(report) + "".join(map(_table, load_tables(report)))


def _table(found: LoadTable) -> str:
    # A row is named by its first cell.
    rows = [(f"{level} · {arm}", *rest) for level, arm, *rest in found.rows]
    return table(found.title, ("load · arm", *found.header[2:]), rows)


def _ratios(report: Mapping[str, Any]) -> str:
    load, colours = report["load"], arm_colours(report)
    labels = [str(level["value"]) for level in load["levels"]]
    lines = [(name, colours[name], entries) for name, entries in series(report).items()]
    described = "; ".join(
        f"{name}: "
        + ", ".join(
            f"{label} {load_ratio(entry)}, {entry['verdict']}" for label, entry in zip(labels, entries, strict=True)
        )
        for name, _, entries in lines
    )
    title = f"Speed of each arm divided by that of {report['baseline']}, by {load['unit']}"
    drawing = plots_load.ratio_by_level(labels, load["unit"], lines, title, described)
    caption = (
        f"Output tokens a second of a request, divided by those of {report['baseline']}; line: 95 % interval over "
        "prompts and runs. Above the dashed line is faster."
    )
    return f"<h3>Faster up to which load</h3>{legend((n, c) for n, c, _ in lines)}{figure(drawing, caption)}"


def _throughput(report: Mapping[str, Any]) -> str:
    load, colours = report["load"], arm_colours(report)
    lines = []
    for name in report["results"]:
        results = [(str(level["value"]), level["results"][name]) for level in load["levels"]]
        points = [
            (label, result["tpot_ms"]["p50"], result["output_tokens_per_s"])
            for label, result in results
            if result["tpot_ms"] is not None
        ]
        if points:
            lines.append((name, colours[name], points))
    if not lines:
        return "<p>No answer was longer than a token.</p>"
    described = "; ".join(
        f"{name}: "
        + ", ".join(
            f"{label} {number(speed, 1)} tokens/s at {number(latency, 1)} ms" for label, latency, speed in points
        )
        for name, _, points in lines
    )
    drawing = plots_load.throughput_by_latency(lines, "Throughput over time per token, by load", described)
    caption = (
        f"Output tokens a second of the machine (up) against what a further token takes (right), at the {load['unit']} "
        "beside each mark. Up and to the left is better."
    )
    return f"<h3>What throughput costs in latency</h3>{legend((n, c) for n, c, _ in lines)}{figure(drawing, caption)}"
