"""A report as one HTML page that needs nothing else: no network, no script, plots drawn in place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from vllm_specplug.compare import plots
from vllm_specplug.compare.extra_columns import extra_cells, extra_headings
from vllm_specplug.compare.terminal import imported, notes, number, percent, ratio_text

_STYLE = Path(__file__).with_name("page.css")
_MAX_DIFFERENCES = 20


def render_page(report: Mapping[str, Any]) -> str:
    """The page: verdicts first, then plots, tables, losslessness and how it was measured. All text is escaped."""
    title = f"Speculative decoding on {Path(report['target']).name}"  # the whole path stands under provenance
    body = [
        f"<h1>{escape(title)}</h1>",
        _subtitle(report),
        "<main>",
        _verdicts(report),
        _ratio_plots(report),
        _acceptance_plot(report),
        _latency_plot(report),
        _tables(report),
        _lossless(report),
        _provenance(report),
        "</main>",
    ]
    return document(title, "\n".join(body))


def document(title: str, body: str) -> str:
    """A whole page around `body`, which is HTML already."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE.read_text(encoding='utf-8')}</style>\n</head>\n<body>\n"
        f"{body}\n</body>\n</html>\n"
    )


def _subtitle(report: Mapping[str, Any]) -> str:
    workload, settings = report["workload"], report["settings"]
    if imported(report):
        return (
            f'<p class="soft">{workload["prompts"]} requests, measured by {escape(report["imported_from"])}, '
            f"{escape(report['provenance']['started_at'])}</p>"
        )
    return (
        f'<p class="soft">{workload["prompts"]} prompts of {escape(workload["name"])} in '
        f"{len(workload['categories'])} categories, {escape(report['dtype'])}, greedy, at most "
        f"{settings['max_tokens']} output tokens, {settings['batch_size']} at a time, "
        f"{settings['num_passes']} passes, {escape(report['provenance']['started_at'])}</p>"
    )


def _verdicts(report: Mapping[str, Any]) -> str:
    cards = []
    for comparison in report["comparisons"]:
        lossless = report["lossless"][comparison["arm"]]
        css = _verdict_class(comparison["verdict"])
        cards.append(
            f'<li class="{css}"><strong>{escape(comparison["arm"])}</strong> against '
            f'{escape(comparison["against"])}<span class="ratio">{comparison["ratio"]:.2f}x</span>'
            f'<b class="{css}">{escape(comparison["verdict"])}</b>, {escape(_interval_text(comparison))}<br>'
            f'<span class="soft">{escape(_answers_text(lossless))}</span></li>'
        )
    margin = 100 * report["settings"]["margin"]
    explained = (
        "Ratio of output tokens a second, each category weighing the same. Faster or slower: the interval excludes 1, "
        "and a t test agrees. "
        f"No difference: it lies within {margin:g} % of 1. Undecided: neither; more prompts would tell."
    )
    remarks = "".join(f"<li>{escape(line)}</li>" for line in notes(report))
    return (
        f'<h2>Verdict</h2><ul class="verdicts">{"".join(cards)}</ul>'
        f'<p class="soft">{escape(explained)}</p><h3>Before you believe it</h3><ul>{remarks}</ul>'
    )


def _answers_text(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "answers not compared"
    text = f"{entry['identical']} of {entry['prompts']} answers identical, {entry['near_ties']} near ties"
    return text + f", {entry['different']} different"


def _interval_text(comparison: Mapping[str, Any]) -> str:
    if comparison["ci95"] is None:
        return "too few prompts for an interval"
    low, high = comparison["ci95"]
    return f"95 % interval {low:.2f} to {high:.2f}"


def _ratio_plots(report: Mapping[str, Any]) -> str:
    parts = ["<h2>Speed by category</h2>"]
    for comparison in report["comparisons"]:
        name = comparison["arm"]
        rows = [("overall", comparison), *comparison["categories"].items()]
        description = "; ".join(f"{label} {ratio_text(row)}, {row['verdict']}" for label, row in rows)
        title = f"Speed of {name} divided by that of {comparison['against']}, by category"
        drawing = plots.dot_and_whisker(rows, title, description)
        caption = f"Dot: ratio to {comparison['against']}; line: 95 % interval. Right of the dashed line is faster."
        parts.append(f"<h3>{escape(name)}</h3>{figure(drawing, caption)}")
    return "".join(parts)


def _acceptance_plot(report: Mapping[str, Any]) -> str:
    colours = _colours(report)
    series = [
        (name, colours[name], result["overall"]["acceptance_per_position"])
        for name, result in report["results"].items()
        if result["overall"]["acceptance_per_position"]
    ]
    if not series:
        return "<h2>Acceptance by position</h2><p>No arm drafted anything.</p>"
    description = "; ".join(f"{name}: {', '.join(percent(share) for share in shares)}" for name, _, shares in series)
    drawing = plots.lines_by_position(series, "Share of drafts accepted at each position", description)
    caption = "Share of draft rounds in which the draft at this position (1 is the first) was accepted."
    return f"<h2>Acceptance by position</h2>{legend((n, c) for n, c, _ in series)}{figure(drawing, caption)}"


def _latency_plot(report: Mapping[str, Any]) -> str:
    colours = _colours(report)
    headings = {
        "ttft_ms": "first token (ttft), ms",
        "tpot_ms": "per further token (tpot), ms",
        "e2e_ms": "whole answer (e2e), ms",
    }
    groups = []
    for key, heading in headings.items():
        rows = [
            (name, colours[name], result["overall"][key])
            for name, result in report["results"].items()
            if result["overall"][key] is not None
        ]
        if rows:
            groups.append((heading, rows))
    described = [
        f"{heading}: " + "; ".join(f"{name} {_percentile_text(values)}" for name, _, values in rows)
        for heading, rows in groups
    ]
    drawing = plots.latency_bars(groups, "Latency percentiles of each arm", ". ".join(described))
    caption = "p50 (thick), p90 and p99 (thin) of all requests, in that order on the right; shorter is better."
    return f"<h2>Latency</h2>{figure(drawing, caption)}"


def _percentile_text(values: Mapping[str, float]) -> str:
    return f"p50 {values['p50']:.1f}, p90 {values['p90']:.1f}, p99 {values['p99']:.1f}"


def _tables(report: Mapping[str, Any]) -> str:
    comparisons = {comparison["arm"]: comparison for comparison in report["comparisons"]}
    usual = ("tokens/s", "ratio (95 %)", "verdict", "tokens/forward", "acc. length", "acc. rate")
    header = (*usual, *extra_headings(report))
    rows = [
        (name, *_cells(report, result["overall"], comparisons.get(name))) for name, result in report["results"].items()
    ]
    parts = ["<h2>Numbers</h2>", table("All arms over all categories", ("arm", *header), rows)]
    for name, comparison in comparisons.items():
        categories = report["results"][name]["categories"]
        rows = [
            (category, *_cells(report, result, comparison["categories"].get(category)))
            for category, result in categories.items()
        ]
        parts.append(table(f"{name} by category", ("category", *header), rows))
    parts.append(
        '<p class="soft">Tokens/forward: output tokens for each step of the target, the fairest measure of a drafter '
        "apart from time. Acceptance length: 1 + accepted drafts for each step that held drafts. "
        "Acceptance rate: accepted / drafted.</p>"
    )
    return "".join(parts)


def _cells(
    report: Mapping[str, Any], result: Mapping[str, Any], comparison: Mapping[str, Any] | None
) -> tuple[str, ...]:
    return (
        number(result["output_tokens_per_s"], 1),
        ratio_text(comparison),
        "-" if comparison is None else comparison["verdict"],
        number(result["tokens_per_forward"]),
        number(result["acceptance_length"]),
        percent(result["acceptance_rate"]),
        *extra_cells(report, result),
    )


def _lossless(report: Mapping[str, Any]) -> str:
    tolerance = report["settings"]["near_tie_tolerance"]
    explained = (
        "Every answer is compared with the baseline's, token for token. Where they part, a near tie means that "
        f"both tokens lie within {tolerance:g} of the baseline's most probable one in log-probability, so that "
        "rounding decides; anything else counts as different."
    )
    if imported(report):
        explained = "Texts are compared as they are. Whether rounding explains a difference cannot be told from texts."
    rows = [
        (name, *(str(entry[key]) for key in ("prompts", "identical", "near_ties", "different")))
        for name, entry in report["lossless"].items()
        if entry is not None
    ]
    parts = [
        "<h2>Same answers?</h2>",
        f"<p>{explained}</p>",
        table("Answers compared with the baseline's", ("arm", "prompts", "identical", "near ties", "different"), rows),
    ]
    for name, entry in report["lossless"].items():
        if entry is None:
            continue
        shown = sorted(entry["differences"], key=lambda difference: difference["near_tie"])[:_MAX_DIFFERENCES]
        if shown:
            cells = [
                (
                    difference["prompt_id"],
                    str(difference["position"]),
                    _token(difference["baseline_token"]),
                    _token(difference["arm_token"]),
                    number(difference["gap"], 3),
                    "near tie" if difference["near_tie"] else "different",
                )
                for difference in shown
            ]
            header = ("prompt", "position", "baseline token", "arm token", "gap", "judged")
            parts.append(table(f"First differences of {name}, at most {_MAX_DIFFERENCES}", header, cells))
    return "".join(parts)


def _token(token: int | None) -> str:
    return "(end)" if token is None else str(token)


def provenance_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of versions, machine and settings; not escaped."""
    provenance, machine = report["provenance"], report["provenance"]["machine"]
    commit = provenance["commit"] or "unknown"
    return [
        ("vllm-specplug", f"{provenance['specplug']}, commit {commit}{', changed' if provenance.get('dirty') else ''}"),
        ("target", str(report["target"])),
        ("vLLM, torch, Python", ", ".join(str(provenance.get(key, "-")) for key in ("vllm", "torch", "python"))),
        ("machine", ", ".join(f"{key} {value}" for key, value in machine.items())),
        ("took", f"{provenance.get('duration_s', '-')} s"),
        ("command", " ".join(map(str, provenance["argv"])) or "-"),
        ("prompts", f"{report['workload']['name']}, sha256 {report['workload']['sha256']}"),
        ("settings", json.dumps(report["settings"])),
        *((f"arm {arm['name']}", json.dumps(_arm_config(arm))) for arm in report["arms"]),
    ]


def _provenance(report: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td class="free"><code>{escape(value)}</code></td></tr>'
        for key, value in provenance_rows(report)
    )
    how = (
        "All engines were alive at once and one worked at a time; for each prompt the arms ran in order, then in "
        "reverse order. Warm-up runs were thrown away. Prefix caching was off."
    )
    if imported(report):
        how = f"Each arm was measured by {escape(report['imported_from'])}, apart from the others."
    return (
        '<h2>How it was measured</h2><div class="scroll"><table><caption>Versions, machine and settings</caption>'
        f"<tbody>{rows}</tbody></table></div><p>{how}</p>"
    )


def _arm_config(arm: Mapping[str, Any]) -> Any:
    if "file" in arm:  # of a report that was made from other programs' files, which do not say more
        return {"file": arm["file"], "sha256": arm["sha256"]}
    if arm.get("endpoint"):
        return {"endpoint": arm["endpoint"]}
    if arm.get("engine_args"):
        return {"speculative_config": arm["speculative_config"], "engine_args": arm["engine_args"]}
    return arm["speculative_config"]


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls where it is too wide; the first cell of a row names it."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def figure(drawing: str, caption: str) -> str:
    """An SVG drawing and what it shows."""
    return f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"


def legend(entries: Iterable[tuple[str, int]]) -> str:
    """Names and the numbers of their colours."""
    items = "".join(f'<li><i class="c{colour}"></i>{escape(name)}</li>' for name, colour in entries)
    return f'<ul class="legend">{items}</ul>'


def _colours(report: Mapping[str, Any]) -> dict[str, int]:
    """A colour's number for each arm, 0 for the baseline."""
    return {arm["name"]: index % plots.NUM_COLOURS for index, arm in enumerate(report["arms"])}


def _verdict_class(verdict: str) -> str:
    return "v-" + verdict.replace(" ", "-")
