"""A vLLM whose symbol was renamed: the server ends at once, says which one, and has loaded nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.models import tiny_llama
from vllm_specplug.cpu_preload import cpu_environment

SERVE = """
import sys
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

renamed = sys.argv.pop(1)
method = getattr(GPUModelRunner, renamed)
delattr(GPUModelRunner, renamed)
setattr(GPUModelRunner, renamed + "_of_another_name", method)

from vllm_specplug.cli import main

sys.exit(main(["serve", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("renamed", ["_update_states", "propose_draft_token_ids"])
def test_server_ends_before_weights_load_and_names_the_symbol_v1(tmp_path: Path, renamed: str) -> None:
    model = tiny_llama(tmp_path / "model")
    arguments = ["--port", "0", "--max-model-len", "64", "--dtype", "float32", "--skip-tokenizer-init"]
    arguments += ["--speculative-config", '{"method": "specplug:prompt_lookup", "num_speculative_tokens": 4}']
    run = subprocess.run(
        [sys.executable, "-c", SERVE, renamed, str(model), *arguments],
        env=cpu_environment(os.environ),  # what `specplug serve` would begin again for, without our renaming
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 2, run.stderr[-3000:]
    last = run.stderr.splitlines()[-1]
    assert re.match(r"(\(APIServer pid=\d+\) )?specplug: error: vLLM ", last)  # 0.30 names its process in front
    assert f"vllm.v1.worker.gpu_model_runner:GPUModelRunner.{renamed} is missing" in last
    for sign in ("Loading safetensors", "Starting to load model", "EngineCore", "Started server"):
        assert sign not in run.stdout + run.stderr
