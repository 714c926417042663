"""A report from files of `vllm bench serve`, an arm each. Measures nothing.

Speed is output tokens for each second that a request took, as its user sees it: how many tokens the server gave in all
hangs on how many requests were sent, and one run gives one number of that, without any interval.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from vllm_specplug import __version__
from vllm_specplug.compare.asked import NOTHING_MORE, Asked
from vllm_specplug.compare.cost import cost_per_million_tokens
from vllm_specplug.compare.goodput import Slo
from vllm_specplug.compare.report import METRIC
from vllm_specplug.compare.report_format import SCHEMA
from vllm_specplug.compare.sentences import recommendation
from vllm_specplug.compare.statistics import PromptSpeed, acceptance, percentiles_ms
from vllm_specplug.compare.unpaired import Request, compare_samples
from vllm_specplug.compare.verdicts import Rule, decide, verdict
from vllm_specplug.compare.vllm_bench import MADE_BY, BenchResult, read_bench_result
from vllm_specplug.compare.vllm_bench_arms import BenchArm, bench_arm, incomparable, remarks, same_prompts
from vllm_specplug.errors import CompareError

CATEGORY = "all"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def parse_bench_arms(texts: Sequence[str]) -> dict[str, BenchResult]:
    """Read 'name=file' of the command line, two or more; the first is the baseline.

    Raises:
        CompareError: one reads otherwise, a name is used twice, there is only one, or a file is malformed.
    """
    pairs = [text.partition("=") for text in texts]
    for text, (name, separator, path) in zip(texts, pairs, strict=True):
        if not separator or not path or not _NAME.fullmatch(name):
            raise CompareError(f"{text!r} is not NAME=FILE; expected for example 'baseline=plain.json'")
    names = [name for name, _, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise CompareError(f"arm name {name!r} is used {names.count(name)} times; names must differ")
    if len(names) < 2:
        raise CompareError("--from-vllm-bench got one file; give two or more, the baseline first")
    return {name: read_bench_result(path) for name, _, path in pairs}


def bench_report(
    results: Mapping[str, BenchResult],
    asked: Asked = NOTHING_MORE,
    *,
    argv: Sequence[str] = (),
    seed: int = 0,
    margin: float = 0.03,
) -> dict[str, Any]:
    """The report of some files, valid by `report_format.validate`.

    Where `same_prompts` holds, requests are paired by their place in the file; else two samples are compared.

    Args:
        results: by arm; the first is the baseline.
    Raises:
        CompareError: an arm has no answered request, naming the file, or two that are paired have none in common.
    """
    arms = [bench_arm(name, result) for name, result in results.items()]
    baseline, others = arms[0], arms[1:]
    rule = Rule(seed, margin)
    names = [arm.name for arm in arms]
    traffic = baseline.result.traffic
    comparisons = [_comparison(arm, baseline, rule) for arm in others]
    report = {
        "schema": SCHEMA,
        "imported_from": MADE_BY,
        "provenance": {
            "specplug": __version__,
            "vllm": "not in the files",
            "commit": None,
            "argv": list(argv),
            "machine": {},
            "started_at": _moment(max(arm.result.date for arm in arms)),
            "duration_s": sum(arm.result.duration_s for arm in arms),
        },
        "target": str(traffic["model_id"]),
        "dtype": "unknown dtype",
        "settings": {
            "max_tokens": max(request.output_tokens for arm in arms for request in arm.answered.values()),
            "batch_size": traffic["max_concurrency"],
            "num_passes": 1,
            "seed": seed,
            "margin": margin,
            "near_tie_tolerance": 0.0,
            **{key: traffic[key] for key in ("request_rate", "burstiness", "max_concurrency")},
        },
        "asked": asked.as_json(),
        "workload": {
            "name": "vllm bench serve",
            "sha256": _sha256([request.prompt_tokens for request in baseline.result.requests]),
            "prompts": len(baseline.result.requests),
            "categories": [CATEGORY],
        },
        "arms": [
            {
                "name": arm.name,
                "speculative_config": None,
                "engine_args": {},
                "kv_cache": None,
                "file": arm.result.path,
                "sha256": arm.result.sha256,
            }
            for arm in arms
        ],
        "baseline": baseline.name,
        "results": {arm.name: _results(arm, asked) for arm in arms},
        "comparisons": comparisons,
        "lossless": {arm.name: _lossless(arm, baseline) for arm in others},
        "loops": {name: {"prompts": 0, "looping": 0} for name in names},
        "noise": dict.fromkeys(names),
        "too_noisy": False,
        "too_noisy_reason": None,
        "repeats": {name: {"last_pass_over_first": None, "prompts_answered_differently": 0} for name in names},
        "theory": {
            comparison["arm"]: {
                "acceptance_rate": None,
                "draft_cost_ratio": None,
                "verify_cost_ratio": None,
                "predicted_speedup": None,
                "measured_speedup": comparison["ratio"],
            }
            for comparison in comparisons
        },
        "remarks": remarks(arms),
        "prompts": [],
    }
    return {**report, "recommendation": recommendation(report)}


def _results(arm: BenchArm, asked: Asked) -> dict[str, Any]:
    """R of an arm; all requests are of one category."""
    requests = list(arm.answered.values())
    tokens, seconds = sum(request.output_tokens for request in requests), sum(request.e2e_s for request in requests)
    numbers = {
        "prompts": len(requests),
        "requests": len(requests),
        "failed": len(arm.result.requests) - len(requests),
        "output_tokens": tokens,
        "seconds": seconds,
        "output_tokens_per_s": tokens / seconds,
        "throughput_tokens_per_s": tokens / arm.result.duration_s,
        "ttft_ms": percentiles_ms([request.ttft_s for request in requests]),
        "tpot_ms": percentiles_ms([request.tpot_s for request in requests if request.tpot_s is not None]),
        "e2e_ms": percentiles_ms([request.e2e_s for request in requests]),
        "goodput": None if asked.slo is None else _goodput(arm, asked.slo),
        # Of the server's whole output: here requests share it.
        "cost_per_million_tokens": cost_per_million_tokens(tokens / arm.result.duration_s, asked.price),
    }
    result = {**numbers, **acceptance((), None), **(arm.result.acceptance or {})}
    return {"overall": result, "categories": {CATEGORY: result}}


def _goodput(arm: BenchArm, slo: Slo) -> dict[str, float]:
    """A request that failed meets nothing; tokens are those of a second of the whole run."""
    good = [r for r in arm.answered.values() if slo.met_by(r.ttft_s, r.tpot_s, r.e2e_s)]
    return {
        "share": len(good) / len(arm.result.requests),
        "output_tokens_per_s": sum(request.output_tokens for request in good) / arm.result.duration_s,
    }


def _comparison(arm: BenchArm, baseline: BenchArm, rule: Rule) -> dict[str, Any]:
    paired = same_prompts(arm.result, baseline.result)
    found = _paired(arm, baseline, rule) if paired else _unpaired(arm, baseline, rule)
    return {
        "arm": arm.name,
        "against": baseline.name,
        "metric": METRIC,
        **found,
        "paired": paired,
        "incomparable": "; ".join(incomparable(arm, baseline)) or None,
        "margin": rule.margin,
        "looping": None,
        "not_looping": None,
    }


def _paired(arm: BenchArm, baseline: BenchArm, rule: Rule) -> dict[str, Any]:
    both = [index for index in baseline.answered if index in arm.answered]
    if not both:
        raise CompareError(
            f"{arm.result.path} and {baseline.result.path} have no request that both answered; measure them again"
        )
    speeds = [
        {
            str(index): PromptSpeed(CATEGORY, one.answered[index].output_tokens, one.answered[index].e2e_s)
            for index in both
        }
        for one in (arm, baseline)
    ]
    return decide(speeds[0], speeds[1], rule)


def _unpaired(arm: BenchArm, baseline: BenchArm, rule: Rule) -> dict[str, Any]:
    samples = [
        [Request(request.output_tokens, request.e2e_s) for request in one.answered.values()] for one in (arm, baseline)
    ]
    found = compare_samples(samples[0], samples[1], rule.seed, rule.num_resamples)
    entry = {
        "prompts": min(found.clusters),
        "ratio": found.ratio,
        "ci95": None if found.ci95 is None else list(found.ci95),
        "p_value": found.mann_whitney_p,
        "resampled": None if found.ci95 is None else "requests",
        "verdict": verdict(found.ci95, rule.margin, found.mann_whitney_p),
        "wilcoxon": None,
        "log_ratio_sd": None,
    }
    return {**entry, "categories": {CATEGORY: entry}}


def _lossless(arm: BenchArm, baseline: BenchArm) -> dict[str, Any] | None:
    """Texts of the same prompts, as they are; None where the prompts are not the same."""
    if not same_prompts(arm.result, baseline.result):
        return None
    both = [index for index in baseline.answered if index in arm.answered]
    identical = sum(arm.answered[index].text == baseline.answered[index].text for index in both)
    return {
        "prompts": len(both),
        "identical": identical,
        "near_ties": 0,
        "different": len(both) - identical,
        "differences": [],
    }


def _moment(date: str) -> str:
    """vLLM's local time as ISO 8601; what reads otherwise becomes the beginning of time, so that it sorts first."""
    try:
        return datetime.strptime(date, "%Y%m%d-%H%M%S").isoformat()
    except ValueError:
        return datetime.fromtimestamp(0, UTC).isoformat()


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
