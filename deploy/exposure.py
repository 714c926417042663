"""The exposure log: which arm each request met and how it ended, as JSON lines for `specplug compare`.

Lines are queued, and a thread writes them, so that a slow disk delays no request; a line that finds the queue full is
dropped and counted. Each router has files of its own, `<router>-000001.jsonl` and on: the highest number is being
written, the oldest is removed when there are too many. A file ends with a whole line at any time.

Knows files; what is in a line is `deploy/record.py`'s.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.router_settings import ExposureLog
from vllm_specplug.errors import DeployError

logger = logging.getLogger(__name__)

_MOST_AT_ONCE = 1000
_CLOSE_TIMEOUT_S = 10.0


class ExposureWriter:
    """Appends lines to one router's files.

    Attributes:
        num_written: lines on disk.
        num_dropped: lines that found the queue full or could not be written.
    """

    def __init__(self, settings: ExposureLog, router: str) -> None:
        """Make the folder.

        Raises:
            DeployError: nothing can be written there.
        """
        self.num_written = 0
        self.num_dropped = 0
        self._directory = Path(settings.directory).expanduser()
        self._router = router
        self._max_bytes = int(settings.max_file_mb * 1e6)
        self._max_files = settings.max_files
        self._number = 0
        self._file = -1
        self._size = 0
        self._is_broken = False
        self._lines: queue.Queue[bytes | None] = queue.Queue(settings.max_queued)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._open_next()
        except OSError as error:
            raise DeployError(
                f"router.exposure.directory is {settings.directory!r}: {error.strerror or error}; expected a folder "
                "that can be written to"
            ) from error
        self._thread = threading.Thread(target=self._run, name="exposure log", daemon=True)
        self._thread.start()

    def write(self, line: Mapping[str, Any]) -> None:
        """Queue one line; never waits."""
        try:
            self._lines.put_nowait(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except queue.Full:
            self.num_dropped += 1

    def close(self) -> None:
        """Write what is queued and end the thread; safe to repeat."""
        try:
            self._lines.put(None, timeout=_CLOSE_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch = [self._lines.get()]
            while len(batch) < _MOST_AT_ONCE and not self._lines.empty():
                batch.append(self._lines.get())
            lines = [line for line in batch if line is not None]
            is_open = len(lines) == len(batch)
            if lines:
                self._append(lines)
        if self._file >= 0:
            os.close(self._file)

    def _append(self, lines: list[bytes]) -> None:
        content = b"".join(lines)
        try:
            if self._file < 0 or (self._size and self._size + len(content) > self._max_bytes):
                self._open_next()
            self._write_whole(content)
        except OSError as error:
            self.num_dropped += len(lines)
            if not self._is_broken:  # once, not for each line of a full disk
                logger.error("exposure log in %s: %s; lines are dropped and counted", self._directory, error)
            self._is_broken = True
            return
        self._is_broken = False
        self._size += len(content)
        self.num_written += len(lines)

    def _write_whole(self, content: bytes) -> None:
        """All or nothing: what a full disk cut off would spoil the line after it as well."""
        num_bytes = os.write(self._file, content)
        if num_bytes < len(content):
            os.ftruncate(self._file, self._size)
            raise OSError(f"only {num_bytes} of {len(content)} bytes could be written")

    def _open_next(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        self._file = os.open(self._path(self._number + 1), flags, 0o640)
        self._number += 1
        self._size = 0
        self._path(self._number - self._max_files).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._directory / f"{self._router}-{number:06}.jsonl"
