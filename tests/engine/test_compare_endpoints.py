"""`compare` against real servers: two `specplug serve`, one of them drafting, mixed with an engine of our own."""

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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import LOOKUP

from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.endpoint_address import Endpoint
from vllm_specplug.compare.report_format import read_report, write_report
from vllm_specplug.compare.run import CompareSettings, run_compare
from vllm_specplug.compare.workload import load_workload

SETTINGS = CompareSettings(dtype="float32", max_tokens=48, max_model_len=256, enforce_eager=True, kv_cache_gib=0.1)
DRAFTING = {"method": LOOKUP, "num_speculative_tokens": 4, "min_confidence": 0.0}


@contextmanager
def serving(model: str, log: Path, speculative: dict[str, Any] | None) -> Iterator[str]:
    """A server of the model; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm_specplug", "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--max-model-len", "256", "--enforce-eager", "--max-num-seqs", "8"]
    command += ["--served-model-name", "tiny", "--kv-cache-memory-bytes", str(1 << 26)]
    if speculative is not None:
        command += ["--speculative-config", json.dumps(speculative)]
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"}
    with log.open("w") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink, env=environment, start_new_session=True)
    try:
        _wait_until_healthy(process, port, log)
        yield f"http://127.0.0.1:{port}/v1"
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


@pytest.fixture(scope="module")
def report(tiny_text: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """An offline baseline, an offline arm that drafts, a plain server and one that drafts the same."""
    folder = tmp_path_factory.mktemp("endpoints")
    lines = [
        {"category": category, "prompt": f"{category} {number}: " + "abc, " * (4 + number)}
        for category in ("first", "second")
        for number in range(4)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with ExitStack() as stack:
        plain = stack.enter_context(serving(tiny_text, folder / "plain.log", None))
        drafting = stack.enter_context(serving(tiny_text, folder / "drafting.log", DRAFTING))
        arms = [
            Arm("offline", DRAFTING),
            Arm("plain", endpoint=Endpoint(plain, "tiny")),
            Arm("served", endpoint=Endpoint(drafting, "tiny")),
        ]
        report = run_compare(tiny_text, arms, load_workload(folder / "prompts.jsonl"), SETTINGS)
    write_report(report, folder / "report.json")
    return read_report(folder / "report.json")


@pytest.mark.slow
def test_served_answers_are_those_of_an_engine_of_our_own_v1(report: dict[str, Any]) -> None:
    for name in ("offline", "plain", "served"):
        entry = report["lossless"][name]
        assert [entry[key] for key in ("prompts", "identical", "near_ties", "different")] == [8, 8, 0, 0], name
    assert all(report["results"][name]["errors"]["failed"] == 0 for name in ("plain", "served"))


@pytest.mark.slow
def test_served_arm_drafts_as_the_same_arm_offline_v1(report: dict[str, Any]) -> None:
    served, offline = (report["results"][name]["overall"] for name in ("served", "offline"))
    assert served["num_accepted_tokens"] >= 20
    assert served["num_draft_tokens"] - served["num_accepted_tokens"] >= 20
    # Greedy and alone, so it drafts the same; the server's front-end may put two steps of a fast engine into one chunk.
    for key in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        assert served[key] == offline[key], key
    assert served["tokens_per_forward"] >= offline["tokens_per_forward"] > 1


@pytest.mark.slow
def test_served_arm_without_drafts_has_null_v1(report: dict[str, Any]) -> None:
    plain = report["results"]["plain"]["overall"]
    assert plain["acceptance_rate"] is None
    assert plain["num_drafts"] is None
