"""The report's `load`: what was found out about every arm under every level. Measures and prints nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_specplug.compare import lossless
from vllm_specplug.compare.asked import Asked
from vllm_specplug.compare.levels import UNITS, LoadPlan
from vllm_specplug.compare.load import Runs
from vllm_specplug.compare.load_results import answered, level_result, request_rows, run_rows
from vllm_specplug.compare.load_verdicts import advice, compare_levels
from vllm_specplug.compare.lossless import Difference
from vllm_specplug.compare.measure import Answer, Block, Engine
from vllm_specplug.compare.verdicts import Rule


@dataclass(frozen=True, slots=True)
class Loaded:
    """All that a load sweep found out."""

    plan: LoadPlan
    runs: Runs
    differences: Mapping[str, Mapping[str, Sequence[Difference]]]
    """By level's name and by arm, the baseline among them, judged: from the baseline's answers without load."""
    reference: Mapping[str, Answer]
    """These answers, by prompt id."""
    max_num_seqs: Mapping[str, int | None]
    """By arm: requests its engine has in a step at most; None: not known."""


def judge_answers(
    engine: Engine,
    runs: Runs,
    reference: Sequence[Block],
    token_ids: Mapping[str, Sequence[int]],
    tolerance: float,
) -> dict[str, dict[str, list[Difference]]]:
    """Where answers under load part from the baseline's without load, and whether rounding explains it.

    Args:
        engine: the baseline's.
        reference: blocks of the baseline.
        token_ids, tolerance: as `lossless.judge`.
    Returns:
        By level's name and by arm, the baseline among them.
    """
    answers = lossless.first_answers(reference)
    return {
        level: {
            name: lossless.judge(
                engine, lossless.find_differences(reference, answered(blocks)), token_ids, answers, tolerance
            )
            for name, blocks in by_arm.items()
        }
        for level, by_arm in runs.items()
    }


def build_load(
    loaded: Loaded, baseline: str, categories: Mapping[str, str], asked: Asked, rule: Rule
) -> dict[str, Any]:
    """The report's `load`, as `load_format` has it.

    Args:
        categories: by prompt id.
        rule: how the run is judged.
    """
    plan, runs = loaded.plan, loaded.runs
    by_arm: dict[str, dict[str, list[Block]]] = {
        name: {level: found[name] for level, found in runs.items()} for name in runs[plan.levels[0].name]
    }
    compared = {
        name: compare_levels(by_level, by_arm[baseline], categories, (name, baseline), rule)
        for name, by_level in by_arm.items()
        if name != baseline
    }
    return {
        "kind": plan.kind,
        "unit": UNITS[plan.kind],
        "passes": plan.num_passes,
        "max_num_seqs": dict(loaded.max_num_seqs),
        "levels": [
            {
                "name": level.name,
                "value": level.number,
                "results": {name: level_result(found, asked) for name, found in runs[level.name].items()},
                "comparisons": [found[level.name] for found in compared.values()],
                "lossless": {name: _lossless(loaded, level.name, name) for name in by_arm},
                "runs": {name: run_rows(found) for name, found in runs[level.name].items()},
                "requests": {name: request_rows(found) for name, found in runs[level.name].items()},
            }
            for level in plan.levels
        ],
        "advice": {
            name: advice(plan, {level: entry["verdict"] for level, entry in found.items()})
            for name, found in compared.items()
        },
    }


def _lossless(loaded: Loaded, level: str, name: str) -> dict[str, Any] | None:
    """As the report's own `lossless`, without the differences; None where token ids are not told."""
    told = lossless.told_answers(answered(loaded.runs[level][name]))
    shared = told.keys() & loaded.reference.keys()
    return lossless.tally(len(shared), loaded.differences[level][name]) if shared else None
