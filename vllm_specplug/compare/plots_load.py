"""Plots of a load sweep as inline SVG: how much faster an arm is under each load, and what throughput costs in latency.

Drawn as in `plots`: nothing is told by colour alone, and the description holds all that is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_specplug.compare.plots import WIDTH, mark, ratio_ticks, svg, text

_LEFT, _RIGHT, _TOP, _BOTTOM = 56, WIDTH - 12, 12, 210
_DODGE = 9
"""Arms under one level stand side by side, so far apart."""
_HEADROOM = 1.06


def ratio_by_level(
    levels: Sequence[str],
    unit: str,
    series: Sequence[tuple[str, int, Sequence[Mapping[str, Any]]]],
    title: str,
    description: str,
) -> str:
    """Ratios with their intervals on a logarithmic axis, levels side by side; the line at 1 means no change.

    Args:
        levels: labels, the lowest first; spaced evenly, whatever their numbers.
        unit: of the levels, below the axis.
        series: arm, its colour's number, and for each level an object with `ratio` (null: left out) and `ci95`.
    """
    values = [1.0]
    for _, _, entries in series:
        for entry in entries:
            values += [] if entry["ratio"] is None else [entry["ratio"], *(entry["ci95"] or ())]
    low, high = min(values) / _HEADROOM, max(values) * _HEADROOM

    def x(index: int, place: int) -> float:
        step = (_RIGHT - _LEFT) / len(levels)
        return _LEFT + step * (index + 0.5) + _DODGE * (place - (len(series) - 1) / 2)

    def y(ratio: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * math.log(ratio / low) / math.log(high / low)

    parts = []
    for tick in ratio_ticks(low, high):
        css = "one" if tick == 1 else "grid"
        parts.append(f'<line class="{css}" x1="{_LEFT}" x2="{_RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(text(_LEFT - 6, y(tick) + 4, f"{tick:g}x", "end"))
    middle = (len(series) - 1) / 2
    parts += [text(x(index, 0) + _DODGE * middle, _BOTTOM + 18, label, "middle") for index, label in enumerate(levels)]
    parts.append(text((_LEFT + _RIGHT) / 2, _BOTTOM + 38, unit, "middle"))
    for place, (_, colour, entries) in enumerate(series):
        known = [(x(index, place), entry) for index, entry in enumerate(entries) if entry["ratio"] is not None]
        path = " ".join(f"{px:.1f},{y(entry['ratio']):.1f}" for px, entry in known)
        parts.append(f'<polyline class="line c{colour}" points="{path}"/>')
        for px, entry in known:
            if entry["ci95"] is not None:
                bottom, top = (y(end) for end in entry["ci95"])
                parts.append(
                    f'<line class="whisker c{colour}" x1="{px:.1f}" x2="{px:.1f}" y1="{bottom:.1f}" y2="{top:.1f}"/>'
                )
            parts.append(mark(colour, px, y(entry["ratio"])))
    return svg(parts, _BOTTOM + 46, title, description)


def throughput_by_latency(
    series: Sequence[tuple[str, int, Sequence[tuple[str, float, float]]]], title: str, description: str
) -> str:
    """Throughput over latency, a line for each arm through its levels: up and to the left is better.

    Args:
        series: arm, its colour's number, and for each level its label, p50 of the time per further token in ms and
            output tokens a second.
    """
    right = _nice(max(latency for _, _, points in series for _, latency, _ in points))
    top = _nice(max(speed for _, _, points in series for _, _, speed in points))

    def x(latency: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * latency / right

    def y(speed: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * speed / top

    parts = []
    for index in range(5):
        speed, latency = top * index / 4, right * index / 4
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y(speed):.1f}" y2="{y(speed):.1f}"/>')
        parts.append(text(_LEFT - 6, y(speed) + 4, f"{speed:,g}", "end"))
        parts.append(text(x(latency), _BOTTOM + 18, f"{latency:,g}", "middle" if index < 4 else "end"))
    parts.append(text((_LEFT + _RIGHT) / 2, _BOTTOM + 38, "ms per further token (p50)", "middle"))
    for _, colour, points in series:
        path = " ".join(f"{x(latency):.1f},{y(speed):.1f}" for _, latency, speed in points)
        parts.append(f'<polyline class="line c{colour}" points="{path}"/>')
        for label, latency, speed in points:
            parts.append(mark(colour, x(latency), y(speed)))
            parts.append(text(x(latency) + 8, y(speed) - 6, label, "start"))
    return svg(parts, _BOTTOM + 46, title, description)


def _nice(value: float) -> float:
    """The end of an axis of four equal steps of round numbers that holds `value`."""
    scale = 10 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return float(next(step * scale for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10, 12) if step * scale >= value))
