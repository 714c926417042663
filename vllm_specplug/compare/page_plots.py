"""The plots of a report's page, each with all it says in words beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from vllm_specplug.compare import plots
from vllm_specplug.compare.cells import percent, ratio_text
from vllm_specplug.compare.page_parts import figure, legend


def ratio_plots(report: Mapping[str, Any]) -> str:
    """Each arm's speed by category."""
    parts = []
    for comparison in report["comparisons"]:
        name = comparison["arm"]
        rows = [("overall", comparison), *comparison["categories"].items()]
        description = "; ".join(f"{label} {ratio_text(row)}, {row['verdict']}" for label, row in rows)
        title = f"Speed of {name} divided by that of {comparison['against']}, by category"
        drawing = plots.dot_and_whisker(rows, title, description)
        caption = (
            f"Mark: ratio to {comparison['against']}; line: 95 % interval. Right of the dashed line is faster. "
            "Arrow: found faster or slower; square: no difference; ring: undecided."
        )
        parts.append(f"<div><h3>{escape(name)}</h3>{figure(drawing, caption)}</div>")
    return f'<div class="plots">{"".join(parts)}</div>'


def acceptance_plot(report: Mapping[str, Any]) -> str:
    """How often drafts are accepted, by their place in a round."""
    colours = arm_colours(report)
    series = [
        (name, colours[name], result["overall"]["acceptance_per_position"])
        for name, result in report["results"].items()
        if result["overall"]["acceptance_per_position"]
    ]
    if not series:
        return "<p>No arm drafted anything.</p>"
    description = "; ".join(f"{name}: {', '.join(percent(share) for share in shares)}" for name, _, shares in series)
    drawing = plots.lines_by_position(series, "Share of drafts accepted at each position", description)
    caption = "Share of draft rounds in which the draft at this position (1 is the first) was accepted."
    return f"{legend((n, c) for n, c, _ in series)}{figure(drawing, caption)}"


def latency_plot(report: Mapping[str, Any]) -> str:
    """How times are spread."""
    return latency_figure({name: result["overall"] for name, result in report["results"].items()}, arm_colours(report))


def latency_figure(results: Mapping[str, Mapping[str, Any]], colours: Mapping[str, int]) -> str:
    """Percentiles of the times of each arm.

    Args:
        results: by arm, with ttft_ms, tpot_ms and e2e_ms.
        colours: their numbers.
    """
    headings = {
        "ttft_ms": "first token (ttft), ms",
        "tpot_ms": "per further token (tpot), ms",
        "e2e_ms": "whole answer (e2e), ms",
    }
    groups = []
    for key, heading in headings.items():
        rows = [(name, colours[name], result[key]) for name, result in results.items() if result[key] is not None]
        if rows:
            groups.append((heading, rows))
    described = [
        f"{heading}: " + "; ".join(f"{name} {_percentile_text(values)}" for name, _, values in rows)
        for heading, rows in groups
    ]
    drawing = plots.latency_bars(groups, "Latency percentiles of each arm", ". ".join(described))
    caption = "p50 (thick), p90 and p99 (thin) of all requests, in that order on the right; shorter is better."
    return figure(drawing, caption)


def _percentile_text(values: Mapping[str, float]) -> str:
    return f"p50 {values['p50']:.1f}, p90 {values['p90']:.1f}, p99 {values['p99']:.1f}"


def arm_colours(report: Mapping[str, Any]) -> dict[str, int]:
    """A colour's number for each arm, 0 for the baseline alone."""
    return colours_of([arm["name"] for arm in report["arms"]])


def colours_of(arms: Sequence[str]) -> dict[str, int]:
    """The same of names, the first being the baseline."""
    others = plots.NUM_COLOURS - 1
    return {name: 1 + (index - 1) % others if index else 0 for index, name in enumerate(arms)}
