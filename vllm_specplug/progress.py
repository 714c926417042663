"""How far something long is: a bar on a terminal, now and then a line in a log."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO, TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with (what, done, total); a total of 0: not known yet."""

PLAIN_LINE_EVERY_S = 10.0


@contextlib.contextmanager
def show_progress() -> Iterator[Progress]:
    """A bar with the time left on a terminal, else one plain line every 10 s; on stderr either way."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield PlainProgress(sys.stderr)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def report(what: str, done: int, total: int) -> None:
            if total and bar.tasks[0].total is None:
                # The time left is that of the measurement, not of the start, nor of what was measured before.
                bar.reset(task, total=total, completed=done)
            bar.update(task, description=escape(what), completed=done, total=total or None)

        yield report


class PlainProgress:
    """Progress for logs: a line at most every 10 s, with the time left once it can be told."""

    def __init__(self, file: TextIO, every_s: float = PLAIN_LINE_EVERY_S) -> None:
        self._file = file
        self._every_s = every_s
        self._last_s = float("-inf")
        self._start_s: float | None = None
        self._done_before = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if total and self._start_s is None:
            self._start_s, self._done_before = now, done  # a run that goes on has done some before
        if now - self._last_s < self._every_s and done < max(total, 1):
            return
        self._last_s = now
        if not total:
            print(what, file=self._file, flush=True)
            return
        left = ""
        if self._start_s is not None and done > self._done_before:
            left = f", {(now - self._start_s) / (done - self._done_before) * (total - done):.0f} s left"
        print(f"{done}/{total} {what}{left}", file=self._file, flush=True)
