"""What becomes of a report: tables, gates and files. The same for a new one and for one that was read."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from vllm_specplug.compare.gate import Gate, Outcome, check_gates
from vllm_specplug.compare.gate_syntax import EXAMPLE
from vllm_specplug.compare.junit import render_junit
from vllm_specplug.compare.markdown import render_markdown
from vllm_specplug.compare.page import render_page
from vllm_specplug.compare.report_format import check_writable, write_text
from vllm_specplug.compare.terminal import print_report
from vllm_specplug.errors import CompareError


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a report goes besides the terminal; None: not there."""

    html: str | Path | None = None
    markdown: str | Path | None = None
    junit: str | Path | None = None
    as_json: bool = False
    """One JSON line last on stdout; everything else then goes to stderr."""

    def check(self) -> None:
        """Refuse files that cannot be written, before hours are spent on what goes into them.

        Raises:
            CompareError: naming the file.
        """
        for path in (self.html, self.markdown, self.junit):
            if path:
                check_writable(path)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that all commands with reports share, but for --html and --json."""
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="GATE",
        help=f"exit code 1 when this holds, 2 when it cannot be told, as '{EXAMPLE}', 'medusa.ratio.low < 1.1', "
        "'medusa.lossless.different > 0' or 'medusa.verdict == \"slower\"'; may be repeated",
    )
    parser.add_argument("--markdown", metavar="FILE", help="write it as Markdown, for a pull request")
    parser.add_argument("--junit", metavar="FILE", help="write gates and losslessness as JUnit XML")


def show_report(report: Mapping[str, Any], gates: Sequence[Gate], outputs: Outputs) -> None:
    """Hold the gates, write the files, print the tables.

    Raises:
        CompareError: a file cannot be written.
    """
    outcomes = check_gates(gates, report)
    put_out(
        outputs,
        outcomes,
        tables=lambda file: print_report(report, file),
        html=lambda: render_page(report),
        markdown=lambda: render_markdown(report, outcomes),
        junit=lambda: render_junit(report, outcomes),
        value=report,
    )


def put_out(
    outputs: Outputs,
    outcomes: Sequence[Outcome],
    *,
    tables: Callable[[TextIO], None],
    html: Callable[[], str],
    markdown: Callable[[], str],
    junit: Callable[[], str],
    value: Mapping[str, Any],
) -> None:
    """Write the files that are asked for, then print: whoever reads stdout may leave before its end.

    Args:
        outcomes: a line for each follows the tables.
        tables: prints them.
        value: what goes out as JSON.
    Raises:
        CompareError: a file cannot be written, or the value holds what JSON cannot (NaN).
    """
    messages = sys.stderr if outputs.as_json else sys.stdout
    try:
        for path, text in ((outputs.html, html), (outputs.markdown, markdown), (outputs.junit, junit)):
            if path:
                write_text(text(), path)
    finally:  # also where a disk is full: hours may have gone into what is shown
        tables(messages)
        for outcome in outcomes:
            print(outcome.line, file=messages)
    if outputs.as_json:
        _print_json(value, outcomes)


def _print_json(value: Mapping[str, Any], outcomes: Sequence[Outcome]) -> None:
    """The last line, for programs; `gates` is there only when there are any."""
    gates = {"gates": [outcome.as_dict() for outcome in outcomes]} if outcomes else {}
    try:
        line = json.dumps({**value, **gates}, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise CompareError(f"the report cannot be printed as JSON: {error}") from error
    print(line)
