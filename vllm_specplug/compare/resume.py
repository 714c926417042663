"""Going on with an interrupted run: what is said about it, before and after. Knows no file format."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vllm_specplug.compare.journal import Journal, journal_path, open_journal
from vllm_specplug.errors import CompareError


@contextlib.contextmanager
def resumable(
    out: str | Path | None, identity: Mapping[str, Any], planned: str, fresh: bool = False
) -> Iterator[Journal | None]:
    """The journal beside a report, for the time of a run; whatever ends the run early says how to go on.

    Args:
        out: where the report goes; None: there is no journal.
        identity: as `identity.before_start` gives it.
        planned: blocks of the whole run, for example '80' or 'at most 80'.
        fresh: forget what an interrupted run has measured.
    Raises:
        CompareError: as `open_journal`.
    """
    if out is None:
        yield None
        return
    with open_journal(journal_path(out), identity, fresh) as journal:
        if journal.num_before:
            done = f"{journal.num_before} of {planned} blocks were measured before"
            print(f"{done} ({journal.path}); going on from there", file=sys.stderr, flush=True)
        try:
            yield journal
        except CompareError as error:
            hint = journal.hint()
            if hint is None:
                raise
            raise CompareError(f"{error}; {hint}") from error
        except KeyboardInterrupt as stop:
            hint = journal.hint()
            if hint is None:
                raise
            raise KeyboardInterrupt(hint) from stop
