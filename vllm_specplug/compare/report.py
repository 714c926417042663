"""Puts a report together: the object of `report_format` from what was measured. Measures and prints nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from vllm_specplug import theory
from vllm_specplug.compare import lossless, noise, statistics
from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.asked import NOTHING_MORE, Asked
from vllm_specplug.compare.cost import cost_per_million_tokens
from vllm_specplug.compare.failed_requests import Failures, why_undecided
from vllm_specplug.compare.goodput import goodput
from vllm_specplug.compare.intervals import Ratio
from vllm_specplug.compare.load_report import Loaded, build_load
from vllm_specplug.compare.lossless import Difference
from vllm_specplug.compare.measure import UNKNOWN_TOKEN, Block
from vllm_specplug.compare.report_format import SCHEMA
from vllm_specplug.compare.sentences import recommendation
from vllm_specplug.compare.verdicts import Rule, compared, decide
from vllm_specplug.compare.workload import Workload

METRIC = "output_tokens_per_s"


@dataclass(frozen=True, slots=True)
class Measured:
    """All an experiment found out."""

    model: str
    dtype: str
    arms: Sequence[Arm]
    kv_caches: Mapping[str, Mapping[str, Any]]
    """By arm: `num_blocks` that its engine made of the same memory, `block_size` in tokens."""
    baseline: str
    workload: Workload
    blocks: Mapping[str, Sequence[Block]]
    """By arm."""
    differences: Mapping[str, Sequence[Difference]]
    """By arm other than the baseline, judged."""
    num_prompt_tokens: Mapping[str, int]
    """By prompt id."""
    settings: Mapping[str, Any]
    """As JSON; needs seed, margin and near_tie_tolerance."""
    provenance: Mapping[str, Any]
    asked: Asked = NOTHING_MORE
    failures: Mapping[str, Failures] = field(default_factory=dict)
    """By arm, of running endpoints; `blocks` are without what failed."""
    asked_blocks: Mapping[str, Sequence[Block]] = field(default_factory=dict)
    """By arm of which something failed: `blocks` with that, which goodput counts as missed."""
    loaded: Loaded | None = None
    """None: there were no levels of load."""


def build_report(measured: Measured) -> dict[str, Any]:
    """The whole report, valid by `report_format.validate`."""
    arms, baseline = measured.arms, measured.baseline
    others = [arm.name for arm in arms if arm.name != baseline]
    answers = {arm.name: lossless.told_answers(measured.blocks[arm.name]) for arm in arms}
    looping = {
        name: {prompt_id for prompt_id, answer in found.items() if statistics.loops(answer.token_ids)}
        for name, found in answers.items()
    }
    results = {arm.name: _results(measured, arm.name) for arm in arms}
    seed, margin = measured.settings["seed"], measured.settings["margin"]
    floors = {arm.name: noise.noise_floor(measured.blocks[arm.name], seed) for arm in arms}
    too_noisy = noise.too_noisy(floors[baseline], margin)
    rule = Rule(seed, margin, too_noisy is not None)
    comparisons = [_comparison(measured, name, looping[baseline], rule) for name in others]
    report = {
        "schema": SCHEMA,
        "provenance": dict(measured.provenance),
        "target": measured.model,
        "dtype": measured.dtype,
        "settings": dict(measured.settings),
        "asked": measured.asked.as_json(),
        "workload": {
            "name": measured.workload.name,
            "sha256": measured.workload.sha256,
            "prompts": len(measured.workload.prompts),
            "categories": list(measured.workload.categories),
        },
        "arms": [{**asdict(arm), "kv_cache": measured.kv_caches[arm.name]} for arm in arms],
        "baseline": baseline,
        "results": results,
        "comparisons": comparisons,
        "lossless": {name: _lossless(measured, name) for name in others},
        "loops": {arm.name: {"prompts": len(answers[arm.name]), "looping": len(looping[arm.name])} for arm in arms},
        "noise": {name: _noise(floor) for name, floor in floors.items()},
        "too_noisy": too_noisy is not None,
        "too_noisy_reason": too_noisy,
        "repeats": {arm.name: _repeats(measured.blocks[arm.name]) for arm in arms},
        "theory": {
            comparison["arm"]: {
                "acceptance_rate": results[comparison["arm"]]["overall"]["acceptance_rate"],
                **_costs(measured.blocks[comparison["arm"]], measured.blocks[baseline]),
                "measured_speedup": comparison["ratio"],
            }
            for comparison in comparisons
        },
        "prompts": _prompt_rows(measured),
        "load": _load(measured, rule),
    }
    return {**report, "recommendation": recommendation(report)}


def _noise(floor: Ratio | None) -> dict[str, Any] | None:
    return None if floor is None else asdict(floor) | {"ci95": floor.ci95 and list(floor.ci95)}


def _costs(blocks: Sequence[Block], plain: Sequence[Block]) -> dict[str, float | None]:
    """Where a step's time goes, as shares of a step without speculation, and the speed-up that follows from it.

    Prompts are left out of it: a step of decoding gives `tokens_per_forward` tokens and costs the drafts made in it and
    the check of those made before.
    """
    drafts = statistics.total_drafts(blocks)
    plain_s, step_s = statistics.step_seconds(plain), statistics.step_seconds(blocks)
    if drafts is None or not drafts.num_steps or plain_s is None or step_s is None:
        return {"draft_cost_ratio": None, "verify_cost_ratio": None, "predicted_speedup": None}
    draft_s = drafts.draft_s / drafts.num_steps
    answers = [answer for block in blocks for answer in block.answers]
    num_tokens = sum(len(answer.token_ids) - 1 for answer in answers)
    num_forwards = sum(answer.num_forwards - 1 for answer in answers if answer.num_forwards is not None)
    draft, verify = draft_s / plain_s, (step_s - draft_s) / plain_s
    return {
        "draft_cost_ratio": draft,
        "verify_cost_ratio": verify,
        "predicted_speedup": theory.step_speedup(num_tokens / num_forwards, draft, verify),
    }


def _results(measured: Measured, name: str) -> dict[str, Any]:
    blocks = measured.blocks[name]
    asked_blocks = measured.asked_blocks.get(name, blocks)

    def result(part: Sequence[Block], asked_part: Sequence[Block]) -> dict[str, Any]:
        numbers = statistics.summarise(part)
        cost = cost_per_million_tokens(numbers["output_tokens_per_s"], measured.asked.price)
        return {**numbers, "goodput": goodput(asked_part, measured.asked.slo), "cost_per_million_tokens": cost}

    by_category = {
        category: [[block for block in part if block.category == category] for part in (blocks, asked_blocks)]
        for category in measured.workload.categories
    }
    failures = measured.failures.get(name)
    return {
        "overall": result(blocks, asked_blocks),
        # One is missing where none of its prompts was answered.
        "categories": {category: result(*parts) for category, parts in by_category.items() if parts[0]},
        "errors": None if failures is None else failures.as_dict(),
    }


def _comparison(measured: Measured, name: str, looping: Collection[str], rule: Rule) -> dict[str, Any]:
    arm = statistics.prompt_speeds(measured.blocks[name])
    baseline = statistics.prompt_speeds(measured.blocks[measured.baseline])
    baseline = {prompt_id: speed for prompt_id, speed in baseline.items() if prompt_id in arm}
    reason = why_undecided(measured.failures, (name, measured.baseline))
    rule = rule if reason is None else replace(rule, too_noisy=True)

    def part(prompt_ids: Collection[str]) -> dict[str, Any] | None:
        chosen = {key: speed for key, speed in baseline.items() if key in prompt_ids}
        return compared(arm, chosen, rule) if chosen else None

    return {
        "arm": name,
        "against": measured.baseline,
        "metric": METRIC,
        **decide(arm, baseline, rule),
        "undecided_reason": reason,
        "margin": rule.margin,
        "looping": part(looping),
        "not_looping": part(baseline.keys() - set(looping)),
    }


def _lossless(measured: Measured, name: str) -> dict[str, Any] | None:
    told, expected = (lossless.told_answers(measured.blocks[arm]) for arm in (name, measured.baseline))
    if not told or not expected:
        return None  # an endpoint that does not tell token ids
    differences = measured.differences[name]
    return {
        **lossless.tally(len(told.keys() & expected), differences),
        "tolerance": measured.settings["near_tie_tolerance"],
        "differences": [asdict(difference) for difference in differences],
    }


def _repeats(blocks: Sequence[Block]) -> dict[str, Any]:
    """How much an arm differs from itself between its first and last pass: the noise of the experiment."""
    last = max(block.pass_index for block in blocks)
    speeds = [
        statistics.overall_speed(statistics.prompt_speeds([block for block in blocks if block.pass_index == index]))
        for index in (0, last)
    ]
    return {
        "last_pass_over_first": speeds[1] / speeds[0] if last > 0 else None,
        "prompts_answered_differently": lossless.num_unstable(blocks),
    }


def _load(measured: Measured, rule: Rule) -> dict[str, Any] | None:
    if measured.loaded is None:
        return None
    categories = {prompt.id: prompt.category for prompt in measured.workload.prompts}
    return build_load(measured.loaded, measured.baseline, categories, measured.asked, rule)


def _prompt_rows(measured: Measured) -> list[dict[str, Any]]:
    """One row per prompt: all that is needed to compute the rest again. Equal answers are written once."""
    rows: dict[str, dict[str, Any]] = {
        prompt.id: {
            "id": prompt.id,
            "category": prompt.category,
            "prompt_tokens": measured.num_prompt_tokens[prompt.id],
            "output_token_ids": [],
            "arms": {arm.name: [] for arm in measured.arms},
        }
        for prompt in measured.workload.prompts
    }
    told = lossless.told_answers(measured.blocks[measured.baseline])
    for prompt_id, row in rows.items():
        answer = told.get(prompt_id)  # None: the baseline failed, or does not tell token ids
        row["output_token_ids"] = None if answer is None else list(answer.token_ids)
        row["repeated_4gram_share"] = None if answer is None else statistics.repeated_share(answer.token_ids)
    for name, blocks in measured.blocks.items():
        for block in blocks:
            counts = asdict(block.drafts) if block.drafts is not None and len(block.answers) == 1 else None
            for answer in block.answers:
                same = answer.prompt_id in told and answer.token_ids == told[answer.prompt_id].token_ids
                told_here = UNKNOWN_TOKEN not in answer.token_ids
                rows[answer.prompt_id]["arms"][name].append(
                    {
                        "pass": answer.pass_index,
                        "output_tokens": len(answer.token_ids),
                        "seconds": block.seconds / len(block.answers),
                        "ttft_s": answer.ttft_s,
                        "e2e_s": answer.e2e_s,
                        "num_forwards": answer.num_forwards,
                        "finish_reason": answer.finish_reason,
                        "drafts": counts,
                        "output_token_ids": list(answer.token_ids) if told_here and not same else None,
                    }
                )
    return list(rows.values())
