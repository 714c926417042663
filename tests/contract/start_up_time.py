"""Prints, as one JSON list, what loading the plugin adds to a start of vLLM, in seconds of CPU time, cold each time.

CPU time, because another program on the machine would lengthen the rest; forks, because importing vLLM takes far longer
than what is measured.
"""

from __future__ import annotations

import json
import os
import time

import vllm.engine.arg_utils  # noqa: F401  (what asks for the plugins has imported it)

NUM_TRIES = 5


def load() -> float:
    """What vLLM does with the entry point."""
    started = time.process_time()
    from vllm_specplug.plugin import register

    register()
    return time.process_time() - started


def in_a_fork() -> float:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, json.dumps(load()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found = float(pipe.read())
    os.waitpid(child, 0)
    return found


if __name__ == "__main__":
    print(json.dumps([in_a_fork() for _ in range(NUM_TRIES)]))
