"""`python -m deploy run` in a process of its own: there before the test, and nothing left of it behind it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import processes
import pytest
import yaml

from vllm_specplug import metrics

HERE = Path(__file__).parent

#: An arm whose engine is a stub (stub_engine.py).
STUB = {"env": {"RAYLLM_VLLM_ENGINE_CLS": "stub_engine.StubEngine", "PYTHONPATH": str(HERE)}}


@dataclass
class Run:
    """A running command."""

    process: subprocess.Popen[bytes]
    file: Path
    """Its staging file."""
    log: Path
    """What it says."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self) -> str:
        return self.log.read_text()

    def wait_until_up(self, within_s: float = 540) -> str:
        """The base URL, once all arms are up."""

        def is_up() -> bool:
            assert self.process.poll() is None, f"it ended: {self.said()[-3000:]}"
            return "serving " in self.said()

        processes.eventually(is_up, within_s)
        found = re.search(r"http://\S+/v1", self.said())
        assert found is not None
        return found.group()

    def end(self, number: signal.Signals = signal.SIGTERM, within_s: float = 60) -> int:
        """The exit code after a signal."""
        self.process.send_signal(number)
        return self.process.wait(within_s)


@contextmanager
def running(staging: Mapping[str, Any], folder: Path, **env: str) -> Iterator[Run]:
    """The command on a cluster of its own with two CPUs, for a staging file; no other is found in its folder."""
    file = folder / "staging.yaml"
    file.write_text(yaml.safe_dump({"http": {"port": 0}, "num_routers": 1, **staging}, sort_keys=False))
    ray_folder = tempfile.mkdtemp(prefix="ray-")  # sockets have short paths only
    environment = {**os.environ, "RAY_TMPDIR": ray_folder, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **env}
    for name in ("RAY_ADDRESS", metrics.FOLDER_VARIABLE):  # engines in this process have set the second
        environment.pop(name, None)
    log = folder / "run.log"
    command = [sys.executable, "-m", "deploy", "run", str(file), "--num-cpus", "2"]
    with log.open("w") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env=environment, start_new_session=True)
    try:
        yield Run(process, file, log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                for pid in [*processes.family(process.pid), process.pid]:
                    os.kill(pid, signal.SIGKILL)
                process.wait()
                pytest.fail(f"it did not end: {log.read_text()[-3000:]}")
        shutil.rmtree(ray_folder, ignore_errors=True)


def chat(url: str, model: str, text: str = "hello", timeout_s: float = 60, **more: Any) -> dict[str, Any]:
    """A whole answer."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], **more}
    answer = httpx.post(f"{url}/chat/completions", json=body, timeout=timeout_s)
    assert answer.status_code == 200, answer.text
    return dict(json.loads(answer.text))


def text_of(answer: Mapping[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def wait_for_line(run: Run, text: str, within_s: float) -> str:
    """The first line that it says with a text."""
    processes.eventually(lambda: text in run.said() or run.process.poll() is not None, within_s)
    lines = [line for line in run.said().splitlines() if text in line]
    assert lines, run.said()[-3000:]
    return lines[0]


def seconds_since(started: float) -> float:
    return time.monotonic() - started
