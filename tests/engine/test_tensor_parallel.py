"""Two tensor-parallel ranks on a CPU: both verify with the same draft probabilities, or with none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import KNOWN
from runners import VARIABLE

from vllm_specplug.proposer import Runner

HERE = Path(__file__).parent
Q = [1.0 / 32] * 32

RUNNERS = pytest.mark.parametrize("runner", ["v1", "v2"])  # of the processes that are started

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks are bound to cores 0 and 1")


def run(
    model: str, speculative_config: dict[str, Any] | None, temperature: float = 0.0, runner: Runner = "v1"
) -> dict[str, Any]:
    path = [HERE, HERE.parent.parent, os.environ.get("PYTHONPATH", "")]
    if runner == "v2":  # under Triton's interpreter, which the workers need too
        path.insert(0, HERE / "v2_in_every_process")
    environment = {
        **os.environ,
        VARIABLE: runner,
        "TRITON_INTERPRET": str(int(runner == "v2")),
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "PYTHONPATH": os.pathsep.join(map(str, path)),
    }
    command = [sys.executable, str(HERE / "two_ranks.py"), model, json.dumps(speculative_config), str(temperature)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{"))  # vLLM logs there too
    report: dict[str, Any] = json.loads(line)
    return report


@pytest.fixture(scope="module")
def expected(tiny: str) -> list[list[int]]:
    tokens: list[list[int]] = run(tiny, None)["tokens"]
    return tokens


@needs_two_cores
@pytest.mark.slow
@RUNNERS
@pytest.mark.parametrize("proposer", [KNOWN, "specplug:two_ranks.FailsOnSecondRank"])
def test_ranks_emit_the_same_tokens(tiny: str, expected: list[list[int]], proposer: str, runner: Runner) -> None:
    """A rank that verifies with other probabilities than its peer parts from it for good; the text shows it."""
    config = {"method": proposer, "num_speculative_tokens": 3, "q": Q}
    report = run(tiny, config, runner=runner)
    assert report["tokens"] == expected
    counts = report["specplug"][proposer.removeprefix("specplug:")]
    if proposer == KNOWN:
        assert counts["dropped_ranks_differ"] == 0
    else:
        assert counts["dropped_ranks_differ"] >= 5
    assert counts["draft_tokens"] == report["vllm"]["vllm:spec_decode_num_draft_tokens"]


@needs_two_cores
@pytest.mark.slow
@RUNNERS
def test_sampling_with_draft_probabilities_ends_on_two_ranks(tiny: str, runner: Runner) -> None:
    """Ranks that part stop with an assertion or hang; 8 sampled answers of full length say that they did not."""
    report = run(tiny, {"method": KNOWN, "num_speculative_tokens": 3, "q": Q}, 1.0, runner)
    assert [len(tokens) for tokens in report["tokens"]] == [40] * 8
    assert report["vllm"]["vllm:spec_decode_num_accepted_tokens"] >= 20
