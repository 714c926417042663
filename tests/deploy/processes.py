"""Processes and ports of a deployment, as the system shows them."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def family(pid: int) -> dict[int, str]:
    """Name of each living descendant of a process."""
    found: dict[int, str] = {}
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return found
    for child in children:
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                found[child.pid] = " ".join(child.cmdline()) or child.name()
        except psutil.NoSuchProcess:
            continue
    return found


def children_named(pid: int, text: str) -> list[int]:
    """Living descendants of a process with a text in their command lines."""
    return [child for child, name in family(pid).items() if text in name]


def is_alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def eventually(condition: Callable[[], bool], within_s: float) -> float:
    """Wait for a condition: the seconds it took."""
    started = time.monotonic()
    while not condition():
        waited = time.monotonic() - started
        assert waited < within_s, f"not within {within_s:g} s"
        time.sleep(0.25)
    return time.monotonic() - started
