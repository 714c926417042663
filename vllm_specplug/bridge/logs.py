"""Our log lines beside vLLM's: same place, same format, same level."""

from __future__ import annotations

import logging


def join_vllm() -> None:
    """Let the logger `vllm_specplug` write where vLLM's writes, unless somebody configured it. Repeatable."""
    ours, theirs = logging.getLogger("vllm_specplug"), logging.getLogger("vllm")
    if ours.handlers or not theirs.handlers:
        return
    ours.handlers = list(theirs.handlers)
    ours.setLevel(theirs.level)
    ours.propagate = False
