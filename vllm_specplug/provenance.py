"""Where and with what a file of ours was made: commit and machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

_PACKAGE_ROOT = Path(__file__).resolve().parents[1]


def commit() -> tuple[str | None, bool | None]:
    """Commit of the source this package runs from and whether tracked files were changed; None where git cannot say."""
    head = _git("rev-parse", "HEAD")
    # An installed package may lie inside somebody else's repository (.venv): that commit would say nothing of us.
    ours = _git("ls-files", "--error-unmatch", str(Path(__file__).resolve()))
    if head is None or ours is None:
        return None, None
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return head, None if changes is None else bool(changes)


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(_PACKAGE_ROOT), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def machine() -> dict[str, Any]:
    """Processor, cores this process may use, memory in GiB; nothing that names the host or its owner."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found.group(1).strip() if found else platform.processor() or "unknown"


def _memory_gib() -> float | None:
    info = Path("/proc/meminfo")
    found = re.search(r"^MemTotal:\s*(\d+) kB", info.read_text(), re.MULTILINE) if info.exists() else None
    return round(int(found.group(1)) / 2**20, 1) if found else None
