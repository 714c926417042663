"""Shared memory of ended processes: removed when nobody uses it, left alone otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.shared_memory import swept

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="segments are files on Linux only")

MAKE = """
import sys
from multiprocessing import resource_tracker, shared_memory

segment = shared_memory.SharedMemory(create=True, size=1 << 16)
resource_tracker.unregister(segment._name, "shared_memory")  # as where the tracker was killed before it could
print(segment._name, flush=True)
sys.stdin.read()
"""


def maker() -> tuple[subprocess.Popen[str], Path]:
    """A process, and the segment it has in use."""
    process = subprocess.Popen([sys.executable, "-c", MAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path("/dev/shm") / process.stdout.readline().strip().lstrip("/")


def test_what_a_killed_process_left_is_removed() -> None:
    process, segment = maker()
    with swept() as segments:
        with segments.noted_at_end():
            assert segment.exists()
        process.kill()
        process.communicate()
        assert segment.exists()
    assert not segment.exists()


def test_what_is_in_use_stays() -> None:
    process, segment = maker()
    try:
        with swept() as segments, segments.noted_at_end():
            pass
        assert segment.exists()
    finally:
        process.kill()
        process.communicate()
        segment.unlink()


def test_segments_of_others_stay(tmp_path: Path) -> None:
    segment = Path("/dev/shm") / f"specplug-test-{tmp_path.name}"
    segment.touch()
    try:
        with swept() as segments, segments.noted_at_end():
            pass
        assert segment.exists()
    finally:
        segment.unlink()
