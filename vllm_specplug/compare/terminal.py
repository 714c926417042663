"""A report as tables in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from vllm_specplug.compare.cells import number, percent, ratio_text
from vllm_specplug.compare.extra_columns import extra_cells, extra_headings
from vllm_specplug.compare.load_show import LoadTable, load_tables
from vllm_specplug.compare.notes import notes
from vllm_specplug.compare.power import MAX_PROMPTS, check_effect, prompts_needed
from vllm_specplug.compare.sentences import sentences
from vllm_specplug.console import report_console

_HEADINGS = ("ratio (95 %)", "verdict", "tok/s", "tok/fwd", "acc.len", "acc.rate")
_COLOURS = {"faster": "green", "slower": "red", "no difference": "cyan", "undecided": "yellow"}


def print_report(report: Mapping[str, Any], file: TextIO | None = None) -> None:
    """Print the verdict, an overall table, one per arm by category, and what to know before believing them."""
    console = report_console(file)
    comparisons = {comparison["arm"]: comparison for comparison in report["comparisons"]}
    console.print("[bold]Verdict.[/bold] " + escape(" ".join(sentences(report))))
    console.print(_overall(report, comparisons))
    for name, comparison in comparisons.items():
        console.print(_by_category(report, name, comparison))
    for table in load_tables(report) if report.get("load") else ():
        console.print(_load(table))
    for line in notes(report):
        console.print(escape(line))


def _overall(report: Mapping[str, Any], comparisons: Mapping[str, Any]) -> Table:
    title = f"{report['target']} · {report['dtype']} · {report['workload']['prompts']} prompts"
    table = _table("arm", title)
    for heading in (*_HEADINGS, *extra_headings(report), "same/tie/other"):
        table.add_column(heading, justify="right")
    for name, results in report["results"].items():
        overall, comparison = results["overall"], comparisons.get(name)
        table.add_row(
            escape(name),
            "1" if comparison is None else ratio_text(comparison),
            "" if comparison is None else _verdict(comparison["verdict"]),
            *_speed_cells(overall),
            *extra_cells(report, overall),
            _answers_cell(report["lossless"].get(name)),
        )
    return table


def _by_category(report: Mapping[str, Any], name: str, comparison: Mapping[str, Any]) -> Table:
    table = _table("category", f"{name} by category")
    for heading in (*_HEADINGS, *extra_headings(report)):
        table.add_column(heading, justify="right")
    for category, part in comparison["categories"].items():
        result = report["results"][name]["categories"][category]
        cells = (*_speed_cells(result), *extra_cells(report, result))
        table.add_row(escape(category), ratio_text(part), _verdict(part["verdict"]), *cells)
    return table


def _load(found: LoadTable) -> Table:
    first, second, *rest = found.header
    table = _table(first, found.title)
    table.add_column(second)
    for heading in rest:
        table.add_column(heading, justify="right")
    level = None
    for row in found.rows:
        if level not in (None, row[0]):
            table.add_section()
        cells = [_verdict(cell) if cell in _COLOURS else escape(cell) for cell in row[1:]]
        table.add_row("" if row[0] == level else row[0], *cells)
        level = row[0]
    return table


def _table(first: str, title: str) -> Table:
    return Table(first, title=escape(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _speed_cells(result: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        number(result["output_tokens_per_s"], 1),
        number(result["tokens_per_forward"]),
        number(result["acceptance_length"]),
        percent(result["acceptance_rate"]),
    )


def _verdict(verdict: str) -> str:
    return f"[{_COLOURS[verdict]}]{verdict}[/]"


def _answers_cell(entry: Mapping[str, Any] | None) -> str:
    return "-" if entry is None else f"{entry['identical']}/{entry['near_ties']}/{entry['different']}"


def power_lines(report: Mapping[str, Any], effect: float) -> list[str]:
    """How many prompts would find an effect with 90 % power, a sentence per arm.

    Args:
        effect: change of speed, 0.05 for 5 % faster.
    Raises:
        CompareError: the effect is no change of speed.
    """
    check_effect(effect)
    lines = []
    for comparison in report["comparisons"]:
        categories = comparison["categories"]
        counts = {"over all categories": _needed(comparison, effect, 0.95, len(categories))}
        # The level that Holm asks of the first category to be decided.
        level = 1 - 0.05 / len(categories)
        counts |= {category: _needed(part, effect, level, 1) for category, part in categories.items()}
        found = ", ".join(f"{where} {count}" for where, count in counts.items())
        lines.append(f"{comparison['arm']}: prompts that find {100 * effect:+g} % with 90 % power: {found}.")
    return lines


def _needed(comparison: Mapping[str, Any], effect: float, level: float, num_strata: int) -> str:
    spread = comparison["log_ratio_sd"]
    if spread is None:
        return "unknown"
    needed = prompts_needed(spread, effect, level=level, num_strata=num_strata)
    return f"over {MAX_PROMPTS:,}" if needed is None else f"{needed:,}"
