"""Processes that end with whoever started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vllm_specplug import parent, plugin

#: A process that starts a child as vLLM starts its engine, which loads the plugin; prints the child's id and stays.
STARTER = """
import multiprocessing, time

def engine():
    from vllm_specplug.parent import end_with_parent_if_asked
    end_with_parent_if_asked()
    end_with_parent_if_asked()
    time.sleep(600)

if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=engine, daemon=True)
    child.start()
    print(child.pid, flush=True)
    time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def orphan(folder: Path, value: str) -> int:
    """Id of a child whose parent was killed half a second after it started."""
    script = folder / "starter.py"
    script.write_text(STARTER)
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, env={**os.environ, parent.VARIABLE: value}
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    time.sleep(0.5)
    process.kill()
    process.wait()
    process.stdout.close()
    return pid


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_child_ends_with_its_killed_parent_where_that_is_asked_for(tmp_path: Path) -> None:
    pid = orphan(tmp_path, "1")
    deadline = time.monotonic() + 30  # it may still be starting Python
    while is_alive(pid):
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_child_is_left_alone_where_it_is_not_asked_for(tmp_path: Path) -> None:
    pid = orphan(tmp_path, "0")
    time.sleep(3)
    try:
        assert is_alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_process_that_nobody_started_this_way_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(parent.VARIABLE, "1")
    assert multiprocessing.parent_process() is None
    parent.end_with_parent_if_asked()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, None),
        ("specplug", None),
        ("other,specplug", None),
        ("other", "VLLM_PLUGINS='other' leaves us out, so vLLM does not load us; add 'specplug' or unset it"),
        ("", "VLLM_PLUGINS='' leaves us out, so vLLM does not load us; add 'specplug' or unset it"),
    ],
)
def test_filter_of_plugins_is_read_from_the_environment_that_counts(value: str | None, problem: str | None) -> None:
    assert plugin.why_not_loaded({} if value is None else {"VLLM_PLUGINS": value}) == problem


def test_plugin_that_is_not_installed_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "entry_points", lambda group: ())
    found = plugin.why_not_loaded({})
    assert found is not None
    assert found.startswith("vLLM will not find us: no entry point 'specplug' in group vllm.general_plugins; install")
