"""Whether an arm is faster than the baseline under a level of load, and up to which level. Needs no engine.

What decides is the speed a user sees: output tokens a second of a request, from when it came to its last token.
Requests of one run share the machine, so a run that was slow by chance is slow for all of them: it has to be known how
much a prompt varies, and how much a run does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vllm_specplug.compare.failed_requests import why_undecided
from vllm_specplug.compare.intervals import compare, paired_tables
from vllm_specplug.compare.levels import UNITS, LoadPlan
from vllm_specplug.compare.load_results import answered, load_failures, request_speeds
from vllm_specplug.compare.measure import Block
from vllm_specplug.compare.statistics import overall_speed
from vllm_specplug.compare.tests_of_difference import Uncertain, holm, log_ratio
from vllm_specplug.compare.verdicts import Rule, verdict

METRIC = "request_tokens_per_s"
MIN_PASSES = 4
"""Runs of each arm below which nothing is said of how much a run varies, and so no verdict given."""


def compare_levels(
    arm: Mapping[str, Sequence[Block]],
    baseline: Mapping[str, Sequence[Block]],
    categories: Mapping[str, str],
    names: tuple[str, str],
    rule: Rule,
) -> dict[str, dict[str, Any]]:
    """The report's comparisons of an arm with the baseline, by level; *faster* and *slower* hold jointly over levels.

    Args:
        arm, baseline: runs by level's name.
        categories: by prompt id.
        names: of the arm and of the baseline.
    """
    found = {level: _compare(runs, baseline[level], categories, names, rule) for level, runs in arm.items()}
    adjusted = holm({level: entry["p_value"] for level, entry in found.items()})
    for level, entry in found.items():
        entry["p_holm"] = adjusted[level]
        stays_open = rule.too_noisy or entry["undecided_reason"] is not None
        judged = verdict(entry["ci95"] and tuple(entry["ci95"]), rule.margin, adjusted[level])
        entry["verdict"] = "undecided" if stays_open else judged
        if entry["verdict"] != "undecided":
            entry["more_would_help"] = None
    return found


def _compare(
    arm: Sequence[Block], baseline: Sequence[Block], categories: Mapping[str, str], names: tuple[str, str], rule: Rule
) -> dict[str, Any]:
    both = [answered(runs) for runs in (arm, baseline)]
    shared = set.intersection(*({block.answers[0].prompt_id for block in blocks} for blocks in both))
    ours, theirs = ([block for block in blocks if block.answers[0].prompt_id in shared] for blocks in both)
    entry: dict[str, Any] = {
        "arm": names[0],
        "against": names[1],
        "metric": METRIC,
        "prompts": len(shared),
        "passes": len({run.pass_index for run in arm}),
        **dict.fromkeys(("ratio", "ci95", "ci95_prompts", "ci95_passes", "p_value")),
        "more_would_help": None,
        "throughput": _throughput(arm, baseline),
        "undecided_reason": why_undecided(dict(zip(names, map(load_failures, (arm, baseline)), strict=True)), names),
    }
    if not shared:
        reason = f"no prompt was answered by both {names[0]} and {names[1]} in every run"
        return entry | {"undecided_reason": entry["undecided_reason"] or reason}
    fast, slow = (request_speeds(blocks, categories) for blocks in (ours, theirs))
    over_prompts = compare(fast, slow, rule.seed, rule.num_resamples)
    entry |= {"ratio": over_prompts.ratio, "ci95_prompts": over_prompts.ci95 and list(over_prompts.ci95)}
    value = math.log(over_prompts.ratio)
    of_prompts, of_passes = log_ratio(list(paired_tables(fast, slow).values())), _of_passes(ours, theirs, categories)
    if of_passes is not None:
        half = of_passes.half_width()
        entry["ci95_passes"] = [math.exp(value - half), math.exp(value + half)]
    if of_prompts is None or of_passes is None or over_prompts.ci95 is None:
        reason = f"fewer than {MIN_PASSES} passes" if of_passes is None else "too few prompts for an interval"
        return entry | {"undecided_reason": entry["undecided_reason"] or reason}
    low, high = (math.log(end) - value for end in over_prompts.ci95)
    return entry | {
        # Two reasons to vary, so two errors, which add in squares.
        "ci95": [math.exp(value + sign * math.hypot(end, half)) for sign, end in ((-1, low), (1, high))],
        "p_value": of_prompts.and_also(of_passes).p_value(),
        "more_would_help": "passes" if half > of_prompts.half_width() else "prompts",
    }


def _of_passes(ours: Sequence[Block], theirs: Sequence[Block], categories: Mapping[str, str]) -> Uncertain | None:
    """How much the ratio varies from pass to pass; None with too few of them."""
    logs = []
    for index in sorted({block.pass_index for block in ours}):
        arm, baseline = (
            overall_speed(request_speeds([block for block in blocks if block.pass_index == index], categories))
            for blocks in (ours, theirs)
        )
        logs.append(math.log(arm / baseline))
    return _mean(logs)


def _throughput(arm: Sequence[Block], baseline: Sequence[Block]) -> dict[str, Any]:
    """Output tokens a second of the whole machine, paired by pass; `ci95` by Student's t over the passes."""
    speeds = [_tokens_per_s(runs) for runs in (arm, baseline)]
    if not all(speed for by_pass in speeds for speed in by_pass):
        return {"ratio": None, "ci95": None}  # a run in which all failed
    logs = [math.log(ours / theirs) for ours, theirs in zip(*speeds, strict=True)]
    value, found = float(np.mean(logs)), _mean(logs)
    half = None if found is None else found.half_width()
    ends = None if half is None else [math.exp(value - half), math.exp(value + half)]
    return {"ratio": math.exp(value), "ci95": ends}


def _tokens_per_s(runs: Sequence[Block]) -> list[float]:
    """Of each run, in the order of the passes."""
    ordered = sorted(runs, key=lambda run: run.pass_index)
    tokens = [sum(len(answer.token_ids) for answer in run.answers) for run in ordered]
    return [count / run.seconds if run.seconds else 0.0 for count, run in zip(tokens, ordered, strict=True)]


def _mean(logs: Sequence[float]) -> Uncertain | None:
    if len(logs) < MIN_PASSES:
        return None
    return Uncertain(float(np.mean(logs)), float(np.std(logs, ddof=1)) / math.sqrt(len(logs)), len(logs) - 1.0)


def advice(plan: LoadPlan, verdicts: Mapping[str, str]) -> dict[str, Any]:
    """Up to which load an arm pays, from its verdicts alone.

    Args:
        verdicts: by level's name.
    Returns:
        faster_up_to: the highest level such that it and all below were found faster; slower_from: the lowest such that
        it and all above were found slower; null: there is none. Both as `Level.number`; `unit` in words.
    """
    faster_up_to = slower_from = None
    for level in plan.levels:
        if verdicts[level.name] != "faster":
            break
        faster_up_to = level.number
    for level in reversed(plan.levels):
        if verdicts[level.name] != "slower":
            break
        slower_from = level.number
    return {"faster_up_to": faster_up_to, "slower_from": slower_from, "unit": UNITS[plan.kind]}
