"""Columns that tables have only when they were asked for, the same in a terminal, a page and Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_specplug.compare.cost import cost_note
from vllm_specplug.compare.goodput import goodput_note, goodput_text


def extra_headings(report: Mapping[str, Any]) -> tuple[str, ...]:
    """Headings of what this report was asked for; reports of former versions were asked for nothing."""
    asked = _asked(report)
    return tuple(heading for key, heading in (("slo", "goodput"), ("price", "cost/M tok")) if key in asked)


def extra_cells(report: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[str, ...]:
    """A result's cells under `extra_headings`."""
    asked, cells = _asked(report), []
    if "slo" in asked:
        cells.append(goodput_text(result.get("goodput")))
    if "price" in asked:
        cost = result.get("cost_per_million_tokens")
        cells.append("-" if cost is None else f"{cost:,.3g}" if cost < 100 else f"{cost:,.0f}")
    return tuple(cells)


def extra_notes(report: Mapping[str, Any]) -> list[str]:
    """What the columns mean, a sentence or two each."""
    asked = _asked(report)
    notes = {"slo": goodput_note, "price": cost_note}
    return [notes[key](asked[key]) for key in notes if key in asked]


def _asked(report: Mapping[str, Any]) -> dict[str, str]:
    """As text, by what was asked for."""
    return {key: value for key, value in (report.get("asked") or {}).items() if value is not None}
