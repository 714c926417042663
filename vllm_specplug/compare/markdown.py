"""A report as Markdown, fit for a comment on a pull request (GitHub's dialect)."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vllm_specplug.compare.cells import number, percent, ratio_text
from vllm_specplug.compare.extra_columns import extra_cells, extra_headings
from vllm_specplug.compare.gate import Outcome
from vllm_specplug.compare.load_show import LoadTable, load_tables
from vllm_specplug.compare.notes import notes
from vllm_specplug.compare.page_tables import provenance_rows
from vllm_specplug.compare.sentences import sentences

_MARKS = {"passed": "passed", "failed": "**failed**", "error": "**cannot be told**"}


def render_markdown(report: Mapping[str, Any], outcomes: Sequence[Outcome] = ()) -> str:
    """Verdicts, gates, tables and notes; how it was measured is folded away. All text is escaped."""
    parts = [
        f"### Speculative decoding on {escape(Path(report['target']).name)}",
        f"**{escape(' '.join(sentences(report)))}**",
        bullets(_verdict(comparison, report["lossless"][comparison["arm"]]) for comparison in report["comparisons"]),
        *([gate_table(outcomes)] if outcomes else []),
        _overall(report),
        _by_category(report),
        *_extras_by_category(report),
        *map(_load, load_tables(report) if report.get("load") else ()),
        "**Before you believe it**",
        bullets(map(escape, notes(report))),
        folded("How it was measured", provenance_rows(report)),
    ]
    return "\n\n".join(parts) + "\n"


def _verdict(comparison: Mapping[str, Any], answers: Mapping[str, Any] | None) -> str:
    name, against = escape(comparison["arm"]), escape(comparison["against"])
    speed = f"**{name}** against {against}: **{comparison['verdict']}**, {ratio_text(comparison)}"
    if answers is None:
        return speed
    return (
        f"{speed}; {answers['identical']} of {answers['prompts']} answers identical, "
        f"{answers['near_ties']} near ties, {answers['different']} different"
    )


def gate_table(outcomes: Sequence[Outcome]) -> str:
    """What became of each gate."""
    rows = [(escape(outcome.gate.text), _MARKS[outcome.state], escape(outcome.detail)) for outcome in outcomes]
    return table(("fail if", "gate", "measured"), rows, num_texts=3)


def _overall(report: Mapping[str, Any]) -> str:
    comparisons = {comparison["arm"]: comparison for comparison in report["comparisons"]}
    rows = []
    for name, results in report["results"].items():
        overall, comparison = results["overall"], comparisons.get(name)
        rows.append(
            (
                escape(name),
                number(overall["output_tokens_per_s"], 1),
                ratio_text(comparison),
                "-" if comparison is None else comparison["verdict"],
                number(overall["tokens_per_forward"]),
                number(overall["acceptance_length"]),
                percent(overall["acceptance_rate"]),
                *extra_cells(report, overall),
            )
        )
    header = ("arm", "tokens/s", "ratio (95 %)", "verdict", "tokens/forward", "acc. length", "acc. rate")
    return table((*header, *extra_headings(report)), rows)


def _by_category(report: Mapping[str, Any]) -> str:
    comparisons = report["comparisons"]
    names = dict.fromkeys(category for comparison in comparisons for category in comparison["categories"])
    rows = [
        (escape(name), *(ratio_text(comparison["categories"].get(name)) for comparison in comparisons))
        for name in names
    ]
    return table(("category", *(escape(comparison["arm"]) for comparison in comparisons)), rows)


def _extras_by_category(report: Mapping[str, Any]) -> list[str]:
    """A table for each measure that was asked for, with all arms."""
    results = report["results"]
    names = dict.fromkeys(name for result in results.values() for name in result["categories"])
    tables = []
    for index, heading in enumerate(extra_headings(report)):
        rows = [
            (escape(name), *(extra_cells(report, result["categories"][name])[index] for result in results.values()))
            for name in names
        ]
        tables.append(table((f"{heading} by category", *map(escape, results)), rows))
    return tables


def _load(found: LoadTable) -> str:
    """A row for each level and arm."""
    rows = [tuple(map(escape, row)) for row in found.rows]
    return f"**{escape(found.title)}**\n\n{table(found.header, rows, num_texts=2)}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], num_texts: int = 1) -> str:
    """A table of cells that are Markdown already; the columns behind the first `num_texts` are aligned to the right."""
    ruler = ["---" if column < num_texts else "---:" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ruler, *rows))


def bullets(lines: Iterable[str]) -> str:
    """A list of lines that are Markdown already."""
    return "\n".join(f"- {line}" for line in lines)


def folded(summary: str, rows: Iterable[tuple[str, str]]) -> str:
    """Names and values behind a heading to click on, as they are: to be copied."""
    text = "\n".join(f"{name}: {value}" for name, value in rows)
    # A fence is closed by one at least as long, so ours is longer than any in the text.
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"<details><summary>{html.escape(summary)}</summary>\n\n{fence}text\n{text}\n{fence}\n\n</details>"


def escape(text: str) -> str:
    """Make Markdown show a text as it is, on one line, in a table too; nobody is mentioned by it."""
    flat = html.escape(" ".join(text.split()), quote=False)
    flat = re.sub(r"([\\`*\[\]|~])", r"\\\1", flat)
    flat = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", flat)  # within a word it means nothing
    return re.sub(r"([@#])(?=\w)", "\\1\N{ZERO WIDTH SPACE}", flat)
