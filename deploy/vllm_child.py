"""`vllm serve` as a child process that ends with whoever started it; `vllm_server` is on the other end.

Started as `python -m deploy.vllm_child ARGUMENTS...`, in a session of its own, with a pipe as standard input. When that
closes, because the parent closed it or is gone, the child and all that it started are killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def main() -> None:
    """Does not return before the server ends."""
    threading.Thread(target=_end_with_input, args=(os.dup(0),), daemon=True).start()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    from vllm_specplug.cli import main as specplug

    sys.exit(specplug(["serve", *sys.argv[1:]]))


def _end_with_input(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
