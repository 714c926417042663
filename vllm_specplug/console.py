"""What tables are printed on: a terminal, or a file or pipe of a width of its own."""

from __future__ import annotations

from typing import TextIO

from rich import console

PLAIN_WIDTH = 120
"""Columns where no terminal says how many there are."""


class Console(console.Console):
    """Rich's, but a reader that has gone is for the command line to handle, as it is for `print`."""

    def on_broken_pipe(self) -> None:
        """Called while the error is handled; rich's own ends the process here, with exit code 1."""
        raise


def report_console(file: TextIO | None = None) -> Console:
    """A console for wide tables, with the sentences around them left as they are."""
    made = Console(file=file, highlight=False)
    if not made.is_terminal:
        made.width = PLAIN_WIDTH
    return made
