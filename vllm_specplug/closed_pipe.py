"""The end of a command whose reader has gone, as in `specplug report FILE | head -3`: quiet, as that of usual tools."""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import TextIO

EXIT_CODE = 128 + signal.SIGPIPE
"""What a shell says of a command that was ended by the signal; Python turns it into BrokenPipeError instead."""


def let_go() -> bool:
    """Give up on standard output and standard error where nobody reads them any more.

    What is still buffered for them goes nowhere; the interpreter would complain of it at its end.

    Returns:
        Whether there was such a one. If not, a BrokenPipeError is another pipe's.
    """
    gone = [stream for stream in (sys.stdout, sys.stderr) if _reader_has_gone(stream)]
    for stream in gone:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    return bool(gone)


def _reader_has_gone(stream: TextIO) -> bool:
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # not a real file, or closed
        return False
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are always told
    return any(event & select.POLLERR for _, event in poll.poll(0))
