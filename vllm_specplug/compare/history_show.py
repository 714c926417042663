"""Reports over time for people: tables for a terminal, a page and a pull request. Computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape as escape_html
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from vllm_specplug.compare import history, markdown
from vllm_specplug.compare.gate import Outcome
from vllm_specplug.compare.history import HEADER, Entry
from vllm_specplug.compare.page_parts import Section, document, list_of
from vllm_specplug.compare.page_parts import table as page_table
from vllm_specplug.console import report_console

_TITLE = "Speculative decoding over time"


def print_history(entries: Sequence[Entry], file: TextIO | None = None) -> None:
    """Print a row per report and arm, then what the last two differ in.

    Args:
        entries: two or more, oldest first.
    """
    console = report_console(file)
    table = Table(title=_TITLE, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in HEADER:
        table.add_column(heading)
    for row in history.rows(entries):
        table.add_row(*map(escape, history.cells(row)))
    console.print(table)
    for line in _lines(entries):
        console.print(line, soft_wrap=True, markup=False)


def history_page(entries: Sequence[Entry]) -> str:
    """One HTML page; all text is escaped."""
    rows = [history.cells(row) for row in history.rows(entries)]
    head, *rest = _lines(entries)
    return document(
        _TITLE,
        "",
        [
            Section("reports", "Reports", page_table("A row per report and arm, oldest first", HEADER, rows)),
            Section("changes", "The last two", f"<p>{escape_html(head)}</p>{list_of(rest)}"),
        ],
    )


def history_markdown(entries: Sequence[Entry], outcomes: Sequence[Outcome] = ()) -> str:
    """Markdown; all text is escaped."""
    rows = [tuple(map(markdown.escape, history.cells(row))) for row in history.rows(entries)]
    head, *rest = _lines(entries)
    parts = [
        f"### {_TITLE}",
        *([markdown.gate_table(outcomes)] if outcomes else []),
        markdown.table(HEADER, rows, num_texts=len(HEADER)),
        markdown.escape(head),
        markdown.bullets(map(markdown.escape, rest)),
    ]
    return "\n\n".join(parts) + "\n"


def _lines(entries: Sequence[Entry]) -> list[str]:
    before, after = entries[-2], entries[-1]
    lines = [f"From {before.path} to {after.path}:"]
    lines += [f"NOT COMPARABLE: {line}" for line in history.incomparable(before.report, after.report)]
    lines += history.changes(before.report, after.report)
    return lines if len(lines) > 1 else [*lines, "no verdict, version or setting changed"]
