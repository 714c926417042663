"""Counts travel from worker processes to whoever is scraped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from vllm_specplug import metrics
from vllm_specplug.metrics import FOLDER_VARIABLE, Counts, CountsCollector, counts_for_worker, read_totals

WORKER = """
import os, signal
from vllm_specplug.metrics import counts_for_worker
counts = counts_for_worker("lookup")
counts.add("steps", 3)
counts.add("dropped_bad_id")
counts.add("off")
counts.add("draft_us", 1250)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_counts_reach_another_process_and_survive_their_worker(tmp_path: Path) -> None:
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", WORKER], env={**os.environ, FOLDER_VARIABLE: str(tmp_path)}, check=False
        )
        assert run.returncode == -9
    registry = CollectorRegistry()
    registry.register(CountsCollector(tmp_path))
    text = generate_latest(registry).decode()
    assert 'specplug_propose_steps_total{proposer="lookup"} 6.0' in text
    assert 'specplug_drafts_dropped_total{proposer="lookup",reason="bad_id"} 2.0' in text
    assert 'specplug_drafts_dropped_total{proposer="lookup",reason="too_many"} 0.0' in text
    assert 'specplug_proposer_off{proposer="lookup"} 2.0' in text
    assert 'specplug_draft_seconds_total{proposer="lookup"} 0.0025' in text


def test_one_process_counts_for_several_proposers_apart(tmp_path: Path) -> None:
    first, second = Counts("first", tmp_path), Counts("second", tmp_path)
    first.add("steps", 2)
    second.add("steps", 5)
    assert {name: values["steps"] for name, values in read_totals(tmp_path).items()} == {"first": 2, "second": 5}


def test_worker_without_a_front_end_counts_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    counts = counts_for_worker("lonely")
    counts.add("steps")
    assert counts.value("steps") == 1


def test_front_end_prepares_once_and_cleans_up_at_its_end() -> None:
    code = """
import os
from vllm_specplug import metrics
from prometheus_client import CollectorRegistry
registry = CollectorRegistry()
folder = metrics.prepare_front_end(registry)
assert metrics.prepare_front_end(registry) == folder, "a second folder"
if os.fork() == 0:
    raise SystemExit  # a child that ends must not take the folder along
os.wait()
assert folder.is_dir()
print(folder)
"""
    environment = {key: value for key, value in os.environ.items() if key != FOLDER_VARIABLE}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert not Path(run.stdout.strip()).exists()


def test_multiprocess_mode_uses_prometheus_own_counters(tmp_path: Path) -> None:
    code = """
from vllm_specplug.metrics import counts_for_worker
counts_for_worker("lookup").add("failures", 4)
counts_for_worker("other").add("dropped_bad_rows", 2)
"""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    from prometheus_client import multiprocess

    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, str(tmp_path))
    text = generate_latest(registry).decode()
    assert 'specplug_proposer_failures_total{proposer="lookup"} 4.0' in text
    assert 'specplug_drafts_dropped_total{proposer="other",reason="bad_rows"} 2.0' in text


def test_unfinished_description_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "1-0.tmp").write_text("{")
    assert read_totals(tmp_path) == {}
    assert metrics.DROP_REASONS == ("too_many", "bad_id", "bad_rows", "bad_probs", "ranks_differ")
