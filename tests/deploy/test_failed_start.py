"""What cannot start says why, in one line, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import processes
import pytest
from deployments import STUB, running, wait_for_line

pytestmark = pytest.mark.slow  # a Ray cluster for nearly every test: minutes


def stub(**env: str) -> dict[str, object]:
    return {"env": {**STUB["env"], **env}}


def test_engine_that_cannot_start_ends_the_command_with_its_reason(tmp_path: Path) -> None:
    staging = {"model": "tiny", "source": "/none", "arms": {"a": stub(), "b": stub(STUB_FAILS="no such weights")}}
    with running(staging, tmp_path) as run:
        family: dict[int, str] = {}
        while run.process.poll() is None:
            family |= processes.family(run.pid)
            time.sleep(0.5)
        assert run.process.returncode == 2
        assert run.said().splitlines()[-1] == "deploy: error: b: RuntimeError: no such weights"
        assert "b: 1 starting: RuntimeError: no such weights" in run.said()
        assert not [name for pid, name in family.items() if processes.is_alive(pid)]


def test_start_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    arms = {"a": stub(STUB_START_S="600")}
    with running({"model": "tiny", "source": "/none", "arms": arms, "start_timeout_s": 60}, tmp_path) as run:
        assert run.process.wait(240) == 2
        error = run.said().splitlines()[-1]
        assert error.startswith("deploy: error: not up within start_timeout_s, 60 s: wanted a 1 x (1 CPU); still free ")


def test_signal_while_it_starts_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    with running({"model": "tiny", "source": "/none", "arms": {"a": stub(STUB_START_S="600")}}, tmp_path) as run:
        wait_for_line(run, "a: 1 starting", 240)
        family = processes.family(run.pid)
        os.killpg(run.pid, signal.SIGINT)  # as Ctrl-C in a terminal: Ray's own processes get it too
        assert run.process.wait(20) == 130
        assert not [name for pid, name in family.items() if processes.is_alive(pid)]


def test_port_that_is_taken_is_refused_before_anything_starts(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        staging = {"model": "tiny", "source": "/none", "arms": {"a": STUB}, "http": {"port": port}}
        with running(staging, tmp_path) as run:
            assert run.process.wait(120) == 2
            assert run.said() == (
                f"deploy: error: http: cannot listen on 127.0.0.1 port {port} (Address already in use); "
                "set another port, or 0 for any free one\n"
            )
