"""Real servers for tests: `specplug serve` in a process of its own, up before the test and gone behind it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def serving(model: str, log: Path, speculative: dict[str, Any] | None, *arguments: str) -> Iterator[int]:
    """A healthy server on 127.0.0.1 while the block runs: its port. What it says goes to `log`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm_specplug", "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--max-model-len", "256", "--enforce-eager", "--max-num-seqs", "8"]
    command += ["--kv-cache-memory-bytes", str(1 << 26), *arguments]
    if speculative is not None:
        command += ["--speculative-config", json.dumps(speculative)]
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    with log.open("w") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env=environment, start_new_session=True)
    try:
        _wait_until_healthy(process, port, log)
        yield port
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_healthy(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended: {log.read_text()[-3000:]}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    pytest.fail(f"the server did not come up: {log.read_text()[-3000:]}")
