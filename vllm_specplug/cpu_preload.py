"""The two shared libraries that vLLM on a CPU wants loaded before anything else.

Intel's OpenMP (libiomp5, from the package intel-openmp) lets the two models of speculative decoding share one pool of
threads; tcmalloc makes allocation cheaper. Both only work through LD_PRELOAD, which is read when a process starts: so
whoever *starts* vLLM calls `cpu_environment`. Neither is needed for correctness: what is not found is left out.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# The smaller one first: the full libtcmalloc adds a profiler that nobody here reads.
_TCMALLOC = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
_LIBRARY_DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
_IOMP = "libiomp5.so"


def preload_libraries() -> list[str]:
    """Absolute paths of libtcmalloc and libiomp5, those of them that this machine has."""
    return [path for path in (_find_tcmalloc(), _find_iomp()) if path is not None]


def cpu_environment(env: Mapping[str, str]) -> dict[str, str]:
    """`env` with LD_PRELOAD extended by `preload_libraries()`; the caller's own entries stay first.

    A library that LD_PRELOAD already names, from whatever directory, is not added again: two copies of an allocator or
    of an OpenMP runtime in one process crash it. For the same reason libiomp5 is not added beside another OpenMP.
    """
    entries = [entry for entry in re.split(r"[:\s]+", env.get("LD_PRELOAD", "")) if entry]
    for path in preload_libraries():
        kinds = ("libtcmalloc",) if "libtcmalloc" in Path(path).name else ("libiomp", "libgomp", "libomp")
        if not any(Path(entry).name.startswith(kinds) for entry in entries):
            entries.append(path)
    return {**env, "LD_PRELOAD": ":".join(entries)} if entries else dict(env)


def _find_tcmalloc() -> str | None:
    cache = _linker_cache()
    for name in _TCMALLOC:
        candidates = [cache.get(name), *(f"{directory}/{name}" for directory in _LIBRARY_DIRECTORIES)]
        found = next((path for path in candidates if path and Path(path).is_file()), None)
        if found:
            return found
    return None


def _find_iomp() -> str | None:
    path = Path(sys.prefix) / "lib" / _IOMP
    return str(path) if path.is_file() else None


def _linker_cache() -> dict[str, str]:
    """Library name to path, from `ldconfig -p`; empty where there is no ldconfig."""
    command = shutil.which("ldconfig") or shutil.which("ldconfig", path="/sbin:/usr/sbin")
    if command is None:
        return {}
    try:
        listing = subprocess.run([command, "-p"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found: dict[str, str] = {}
    for name, details, path in re.findall(r"^\s*(\S+) \(([^)]*)\) => (\S+)$", listing, re.MULTILINE):
        if sys.maxsize > 2**32 and "64" not in details:
            continue  # a 32-bit library beside the 64-bit one
        found.setdefault(name, path)
    return found
