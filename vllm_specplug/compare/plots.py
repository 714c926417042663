"""Plots as inline SVG, drawn from a report. Colours come from the page's style sheet, so they follow light and dark.

Nothing is told by colour alone: arms have marks of their own, verdicts too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH = 400
"""Narrow, so that the text stays readable on a phone; the style sheet caps how wide it is shown."""
_LEFT = 104
_RIGHT = 6
_MAX_LABEL_CHARS = 14
_TICK_WIDTH = 34
"""Room that the number of a tick needs."""
NUM_COLOURS = 6
"""Classes c0 .. c5 of the style sheet, each with a mark of its own; c0 is the baseline's."""

#: Outlines around (0, 0), some 10 across: circle, square, triangle, diamond, triangle upside down, plus.
_MARKS = (
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z",
    "M-4-4h8v8h-8z",
    "M0-5l5 8.5h-10z",
    "M0-5.5l5 5.5l-5 5.5l-5-5.5z",
    "M0 5l5-8.5h-10z",
    "M-1.5-5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
)
#: An arrow to the faster side, one to the slower, a square, and a ring that decides nothing.
_VERDICT_MARKS = {
    "faster": "M-4-5.5l9 5.5l-9 5.5z",
    "slower": "M4-5.5l-9 5.5l9 5.5z",
    "no difference": _MARKS[1],
    "undecided": _MARKS[0],
}


def dot_and_whisker(rows: Sequence[tuple[str, Mapping[str, Any]]], title: str, description: str) -> str:
    """Ratios with their intervals on a logarithmic axis, a row each; the line at 1 means no change.

    Args:
        rows: label and an object with `ratio`, `ci95` and `verdict`.
    """
    values = [1.0]
    for _, row in rows:
        values += [row["ratio"], *(row["ci95"] or ())]
    low, high = min(values) / 1.06, max(values) * 1.06
    row_height, top = 26, 8
    bottom = top + row_height * len(rows)

    def x(value: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT - 50) * math.log(value / low) / math.log(high / low)

    parts = []
    written = [x(1)]
    for tick in ratio_ticks(low, high):
        css = "one" if tick == 1 else "grid"
        parts.append(f'<line class="{css}" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top}" y2="{bottom}"/>')
        if tick == 1 or all(abs(x(tick) - place) >= _TICK_WIDTH for place in written):
            written.append(x(tick))
            parts.append(text(x(tick), bottom + 16, f"{tick:g}x", "middle"))
    for index, (label, row) in enumerate(rows):
        y = top + row_height * (index + 0.5)
        css = verdict_class(row["verdict"])
        parts.append(text(_LEFT - 8, y + 4, _short(label), "end"))
        if row["ci95"] is not None:
            start, end = (x(value) for value in row["ci95"])
            parts.append(f'<line class="whisker {css}" x1="{start:.1f}" x2="{end:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(_path(_VERDICT_MARKS[row["verdict"]], f"mark {css}", x(row["ratio"]), y))
        parts.append(text(WIDTH - _RIGHT, y + 4, f"{row['ratio']:.2f}x", "end"))
    return svg(parts, bottom + 24, title, description)


def lines_by_position(series: Sequence[tuple[str, int, Sequence[float]]], title: str, description: str) -> str:
    """Share of draft rounds in which the draft at each position was accepted, a line per arm.

    Args:
        series: arm, its colour's number, shares in [0, 1] from position 1.
    """
    left, top, bottom = 48, 10, 180
    longest = max(len(shares) for _, _, shares in series)
    right = WIDTH - _RIGHT
    highest = max([0.1, *(share for _, _, shares in series for share in shares)])
    step = 0.05 if highest <= 0.25 else 0.1 if highest <= 0.5 else 0.2
    top_share = step * math.ceil(highest / step - 1e-9)

    def x(position: int) -> float:
        return left + 10 + (right - left - 20) * (position - 1) / max(longest - 1, 1)

    def y(share: float) -> float:
        return bottom - (bottom - top) * share / top_share

    parts = []
    for index in range(round(top_share / step) + 1):
        share = index * step
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y(share):.1f}" y2="{y(share):.1f}"/>')
        parts.append(text(left - 6, y(share) + 4, f"{100 * share:.0f} %", "end"))
    for position in range(1, longest + 1):
        parts.append(text(x(position), bottom + 18, str(position), "middle"))
    for _, colour, shares in series:
        points = [(x(position), y(share)) for position, share in enumerate(shares, start=1)]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline class="line c{colour}" points="{path}"/>')
        parts += [mark(colour, px, py) for px, py in points]
    return svg(parts, bottom + 28, title, description)


def latency_bars(
    groups: Sequence[tuple[str, Sequence[tuple[str, int, Mapping[str, float]]]]], title: str, description: str
) -> str:
    """Latency percentiles: a thick bar to p50, thinner ones to p90 and p99, each group on its own scale.

    Args:
        groups: heading, and for each arm its name, its colour's number and {p50, p90, p99} in ms.
    """
    parts: list[str] = []
    y = 4.0
    label_width = 130.0
    for heading, rows in groups:
        longest = max(values["p99"] for _, _, values in rows) or 1.0
        parts.append(text(0, y + 14, heading, "start", "strong"))
        y += 22
        for name, colour, values in rows:
            parts.append(text(_LEFT - 8, y + 12, _short(name), "end"))
            for key, height in (("p99", 3.0), ("p90", 8.0), ("p50", 14.0)):
                width = (WIDTH - _LEFT - _RIGHT - label_width) * values[key] / longest
                parts.append(
                    f'<rect class="c{colour} {key}" x="{_LEFT}" y="{y + 8 - height / 2:.1f}" '
                    f'width="{width:.1f}" height="{height:g}"/>'
                )
            numbers = " / ".join(_short_number(values[key]) for key in values)
            parts.append(text(WIDTH - _RIGHT, y + 12, numbers, "end"))
            y += 20
        y += 8
    return svg(parts, y, title, description)


def mark(number: int, x: float, y: float) -> str:
    """The mark of an arm, in its colour."""
    return _path(_MARKS[number], f"mark c{number}", x, y)


def mark_alone(number: int) -> str:
    """The same as a drawing of its own, for legends; whoever reads aloud passes over it."""
    return f'<svg class="key" aria-hidden="true" viewBox="-7 -7 14 14">{mark(number, 0, 0)}</svg>'


def _path(outline: str, css: str, x: float, y: float) -> str:
    return f'<path class="{css}" d="{outline}" transform="translate({x:.1f} {y:.1f})"/>'


def verdict_class(verdict: str) -> str:
    """Of the style sheet."""
    return "v-" + verdict.replace(" ", "-")


def ratio_ticks(low: float, high: float) -> list[float]:
    """Round numbers within the range, not too many; 1 is always among them."""
    for ticks in (
        (0.9, 0.95, 1, 1.05, 1.1),
        (0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5),
        (0.5, 0.7, 1, 1.5, 2, 2.5, 3),
    ):
        if low >= ticks[0] * 0.9 and high <= ticks[-1] * 1.1:
            return [float(tick) for tick in ticks if low <= tick <= high]
    return [tick for tick in (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0) if low <= tick <= high]


def _short(label: str) -> str:
    """A label that fits left of the plot; the description holds the whole."""
    return label if len(label) <= _MAX_LABEL_CHARS else label[: _MAX_LABEL_CHARS - 1] + "…"


def _short_number(value: float) -> str:
    """Three digits, thousands as 12.3k."""
    if value >= 9_950:
        return f"{value / 1000:.3g}k"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def text(x: float, y: float, text: str, anchor: str, css: str = "") -> str:
    """Words at a place; `anchor` is the end of them that stands there: start, middle or end."""
    name = f' class="{css}"' if css else ""
    return f'<text{name} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def svg(parts: Sequence[str], height: float, title: str, description: str) -> str:
    """A drawing of WIDTH times `height`, with its title and, for who cannot see it, all it says."""
    return (
        f'<svg role="img" viewBox="0 0 {WIDTH} {height:.0f}"><title>{escape(title)}</title>'
        f"<desc>{escape(description)}</desc>{''.join(parts)}</svg>"
    )
