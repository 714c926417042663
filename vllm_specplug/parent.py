"""Processes that end with the process that started them.

A killed parent cannot end its children: an engine goes on waiting for requests that nobody can send, with its memory
and its GPU. Children of our own ask the kernel to be ended. vLLM's engine processes watch their parent where
SPECPLUG_END_WITH_PARENT is 1, as deployments on Ray set it; vLLM's workers watch the engine process themselves.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

VARIABLE = "SPECPLUG_END_WITH_PARENT"

_THREAD = "specplug-end-with-parent"


def end_with_parent() -> None:
    """A killed parent cannot end us, so ask the kernel to (Linux; elsewhere the closed pipe does after the request)."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def end_with_parent_if_asked() -> None:
    """Kill this process as soon as the one that started it is gone. Repeatable.

    Nothing happens without SPECPLUG_END_WITH_PARENT=1, or in a process that `multiprocessing` did not start.
    """
    parent = multiprocessing.parent_process()
    if os.environ.get(VARIABLE) != "1" or parent is None:
        return
    if any(thread.name == _THREAD for thread in threading.enumerate()):
        return
    threading.Thread(target=_end_with, args=(parent,), name=_THREAD, daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    # Not PR_SET_PDEATHSIG: that watches the thread which started us, and a server's threads come and go.
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
