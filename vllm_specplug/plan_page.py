"""Speed-up over the number of drafts as one HTML page that needs nothing else, in the style of a report's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from vllm_specplug.compare import page_parts, plots
from vllm_specplug.plan_drafter import Drafter

_TITLE = "Speed-up by number of drafts"
_CAPTION = (
    "Across: drafts a round; up: times the speed of no speculation, which the dashed line is. Mark: the best number of "
    "drafts. Ring: measured, at the mean number of drafts of a round."
)
_HEADER = (
    "drafter",
    "alpha",
    "cost of a draft",
    "checking step",
    "plus per draft",
    "steps that draft",
    "best",
    "gives",
)


def render_plan(drafters: Sequence[Drafter], limit: int) -> str:
    """The page: the plot, then the numbers behind it. All text is escaped.

    Args:
        drafters: at least one.
        limit: largest number of drafts drawn.
    Raises:
        ConfigError: a number is out of range.
    """
    described = "; ".join(f"{drafter.name}: {_best_text(drafter, limit)}" for drafter in drafters)
    drawing = speedup_lines(drafters, limit, _TITLE, described)
    legend = page_parts.legend((drafter.name, _colour(index)) for index, drafter in enumerate(drafters))
    rows = [
        (
            drafter.name,
            f"{drafter.alpha:.3f}",
            f"{drafter.draft_cost:.4f}",
            f"{drafter.verify_cost:.2f}",
            f"{drafter.check_cost:.4f}",
            f"{100 * drafter.share:.0f} %",
            str(drafter.best(limit)),
            f"{drafter.speedup(drafter.best(limit)):.2f}x",
        )
        for drafter in drafters
    ]
    body = (
        f"{legend}{page_parts.figure(drawing, _CAPTION)}\n"
        f"{page_parts.table('What the lines are drawn from; times in steps without speculation', _HEADER, rows)}\n"
        '<p class="soft">Every draft is taken to have the same chance alpha of being accepted once those before it '
        "were, and to cost the same.</p>\n"
    )
    return page_parts.document(_TITLE, "", [page_parts.Section("speed-up", "By drafter", body)])


def speedup_lines(drafters: Sequence[Drafter], limit: int, title: str, description: str) -> str:
    """A line per drafter over 0 to `limit` drafts as SVG, the best marked, and a ring where it was measured."""
    left, top, bottom, right = 48, 10, 220, plots.WIDTH - 16
    curves = [[drafter.speedup(drafts) for drafts in range(limit + 1)] for drafter in drafters]
    points = [
        (drafter.measured.drafts, drafter.measured.speedup)
        if drafter.measured and drafter.measured.speedup is not None
        else None
        for drafter in drafters
    ]
    values = [1.0, *(value for curve in curves for value in curve), *(point[1] for point in points if point)]
    longest = max([limit, 1, *(math.ceil(point[0]) for point in points if point)])
    step = _step(max(values) - min(values))
    first, last = math.floor(min(values) / step), math.ceil(max(values) / step)
    last = max(last, first + 1)

    def x(drafts: float) -> float:
        return left + 10 + (right - left - 20) * drafts / longest

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value / step - first) / (last - first)

    parts = []
    for tick in range(first, last + 1):
        parts.append(
            f'<line class="grid" x1="{left}" x2="{right}" y1="{y(tick * step):.1f}" y2="{y(tick * step):.1f}"/>'
        )
        parts.append(plots.text(left - 6, y(tick * step) + 4, f"{tick * step:.3g}x", "end"))
    parts.append(f'<line class="one" x1="{left}" x2="{right}" y1="{y(1):.1f}" y2="{y(1):.1f}"/>')
    for drafts in range(0, longest + 1, math.ceil(longest / 16)):
        parts.append(plots.text(x(drafts), bottom + 18, str(drafts), "middle"))
    for index, (drafter, curve, point) in enumerate(zip(drafters, curves, points, strict=True)):
        css, best = f"c{_colour(index)}", drafter.best(limit)
        path = " ".join(f"{x(drafts):.1f},{y(value):.1f}" for drafts, value in enumerate(curve))
        parts.append(f'<polyline class="line {css}" points="{path}"/>')
        parts.append(plots.mark(_colour(index), x(best), y(curve[best])))
        if point:
            ring = 'r="5" stroke-width="2" style="fill:var(--bg)"'  # the style sheet would fill it
            parts.append(f'<circle class="{css}" cx="{x(point[0]):.1f}" cy="{y(point[1]):.1f}" {ring}/>')
    return plots.svg(parts, bottom + 28, title, description)


def _best_text(drafter: Drafter, limit: int) -> str:
    best, measured = drafter.best(limit), drafter.measured
    text = f"best {best} drafts, {drafter.speedup(best):.2f}x"
    if measured and measured.speedup is not None:
        text += f", measured {measured.speedup:.2f}x at {measured.drafts:.1f}"
    return text


def _colour(index: int) -> int:
    """Number 0 is the baseline's, which is the dashed line here."""
    return 1 + index % (plots.NUM_COLOURS - 1)


def _step(span: float) -> float:
    """A round distance of grid lines that gives three to eight of them."""
    rough = max(span, 0.05) / 7
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
