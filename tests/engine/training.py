"""Runs of the commands that train a drafter, on a tiny target, small enough for a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ENGINE = {"dtype": "float32", "max_model_len": 256, "num_gpu_blocks_override": 512}


def train(command: str, model: str, out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`specplug train-medusa` or `distill-draft`; the figures are the last line of what it prints."""
    line = [sys.executable, "-m", "vllm_specplug", command, "--model", model, "--out", str(out), "--json"]
    line += ["--tokens", "6000", "--max-tokens", "32", "--draft-vocab", "100", "--epochs", "3"]
    line += ["--engine-args", json.dumps(ENGINE), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(line, capture_output=True, text=True, env=environment, timeout=300, check=False)
