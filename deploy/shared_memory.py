"""Shared memory that ended processes left in /dev/shm.

vLLM's processes talk through segments that Python's resource tracker removes when their maker ends. Ray ends whatever a
replica started by SIGKILL, trackers too, so with bad luck a segment outlives everybody who knew it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

from deploy.cluster import descendants

_FOLDER = "/dev/shm/"


@contextlib.contextmanager
def swept() -> Iterator[Segments]:
    """At the end of the block, remove the segments noted in it that nobody uses any more.

    Meant to be left after all processes of ours have ended.
    """
    segments = Segments()
    try:
        yield segments
    finally:
        segments.remove()


class Segments:
    """Segments that processes started by this one have in use."""

    def __init__(self) -> None:
        self._noted: set[str] = set()

    @contextlib.contextmanager
    def noted_at_end(self) -> Iterator[None]:
        """Note what is in use when the block ends, before its processes are ended."""
        try:
            yield
        finally:
            self.note()

    def note(self) -> None:
        """Note what is in use now."""
        for process in descendants():
            self._noted |= _mapped(process)

    def remove(self) -> None:
        """Remove what was noted and is there still, unless some process uses it."""
        left = {path for path in self._noted if Path(path).exists()}
        for process in psutil.process_iter() if left else ():
            left -= _mapped(process)
        for path in left:
            with contextlib.suppress(OSError):
                Path(path).unlink()


def _mapped(process: psutil.Process) -> set[str]:
    """Paths of the segments a process maps; none where it has gone, is another user's, or this is not Linux."""
    # Not psutil's memory_maps, which has the kernel count every page.
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process.pid}/maps").read_text(errors="replace").splitlines()
        return {line[start:] for line in lines if (start := line.find(_FOLDER)) >= 0}
    return set()
