"""A report of three arms as `specplug compare` writes it, with round numbers made up by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NOWHERE = {
    "specplug": "0",
    "vllm": "0",
    "commit": None,
    "argv": [],
    "machine": {},
    "started_at": "2026-01-01T00:00:00+00:00",
}
"""The provenance of runs that nobody made."""


def result(tokens_per_s: float, tpot_ms: float, drafts: bool) -> dict[str, Any]:
    return {
        "prompts": 4,
        "requests": 8,
        "output_tokens": 800,
        "seconds": 800 / tokens_per_s,
        "output_tokens_per_s": tokens_per_s,
        "ttft_ms": {"p50": 50.0, "p90": 60.0, "p99": 70.0},
        "tpot_ms": {"p50": tpot_ms, "p90": 2 * tpot_ms, "p99": 3 * tpot_ms},
        "e2e_ms": {"p50": 1000.0, "p90": 1500.0, "p99": 2000.0},
        "finish_reasons": {"length": 8},
        "tokens_per_forward": 2.0 if drafts else None,
        "acceptance_length": 2.5 if drafts else None,
        "acceptance_rate": 0.5 if drafts else None,
        "acceptance_per_position": [0.75, 0.5, 0.25] if drafts else None,
        "num_drafts": 300 if drafts else None,
        "num_draft_tokens": 900 if drafts else None,
        "num_accepted_tokens": 450 if drafts else None,
        "num_emitted_accepted_tokens": 400 if drafts else None,
    }


def results(tokens_per_s: float, tpot_ms: float, drafts: bool, categories: tuple[str, ...]) -> dict[str, Any]:
    return {
        "overall": result(tokens_per_s, tpot_ms, drafts),
        "categories": {
            name: result(tokens_per_s * (index + 1), tpot_ms / (index + 1), drafts)
            for index, name in enumerate(categories)
        },
    }


def comparison(arm: str, ratio: float, verdict: str, categories: tuple[str, ...]) -> dict[str, Any]:
    part = {
        "prompts": 4,
        "ratio": ratio,
        "ci95": [ratio - 0.1, ratio + 0.1],
        "verdict": verdict,
        "resampled": "prompts",
    }
    return {
        "arm": arm,
        "against": "baseline",
        "metric": "output_tokens_per_s",
        **part,
        "margin": 0.03,
        "categories": {name: dict(part, ratio=ratio + index) for index, name in enumerate(categories)},
        "looping": None,
        "not_looping": part,
    }


def made_report(
    arm: str = "medusa", categories: tuple[str, ...] = ("code", "chat"), target: str = "models/target"
) -> dict[str, Any]:
    """`arm` is twice as fast as the baseline; `no-drafts` speculates, but never drafts, and is slower."""
    compared = [comparison(arm, 2.0, "faster", categories), comparison("no-drafts", 0.8, "slower", categories)]
    theory = {
        "acceptance_rate": 0.5,
        "draft_cost_ratio": 0.1,
        "verify_cost_ratio": 1.2,
        "predicted_speedup": 1.9,
        "measured_speedup": 2.0,
    }
    return {
        "schema": "specplug.compare/1",
        "provenance": {
            "specplug": "0.1.0",
            "vllm": "0.32.0",
            "torch": "2.13.0",
            "python": "3.11.7",
            "commit": "0123456789abcdef",
            "dirty": False,
            "argv": ["specplug", "compare"],
            "machine": {"cpu": "made up", "cores": 2},
            "started_at": "2026-01-01T10:00:00+00:00",
            "duration_s": 60.0,
        },
        "target": target,
        "dtype": "float32",
        "settings": {"max_tokens": 100, "batch_size": 1, "num_passes": 2, "margin": 0.03, "near_tie_tolerance": 0.0},
        "workload": {"name": "made-up", "sha256": "ab" * 32, "prompts": 8, "categories": list(categories)},
        "arms": [
            {"name": "baseline", "speculative_config": None, "engine_args": {}},
            {"name": arm, "speculative_config": {"method": "specplug:medusa"}, "engine_args": {}},
            {"name": "no-drafts", "speculative_config": {"method": "ngram"}, "engine_args": {}},
        ],
        "baseline": "baseline",
        "results": {
            "baseline": results(100.0, 10.0, False, categories),
            arm: results(200.0, 5.0, True, categories),
            "no-drafts": results(80.0, 12.5, False, categories),
        },
        "comparisons": compared,
        "lossless": {
            arm: {"prompts": 8, "identical": 6, "near_ties": 1, "different": 1, "differences": []},
            "no-drafts": {"prompts": 8, "identical": 8, "near_ties": 0, "different": 0, "differences": []},
        },
        "loops": {name: {"prompts": 8, "looping": 0} for name in ("baseline", arm, "no-drafts")},
        "repeats": {
            name: {"last_pass_over_first": 1.0, "prompts_answered_differently": 0}
            for name in ("baseline", arm, "no-drafts")
        },
        "theory": {arm: theory, "no-drafts": dict.fromkeys(theory)},
        "prompts": [{"id": f"{name}-{index}"} for name in categories for index in range(4)],
    }


def write(report: Any, path: Path) -> str:
    path.write_text(json.dumps(report), encoding="utf-8")
    return str(path)
