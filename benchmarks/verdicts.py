"""How often verdicts are wrong, and how often they find a slowdown, from real runs of an arm against itself.

    specplug compare --model MODEL --aa --out aa-1.json        # ten times or so; then
    python -m benchmarks.verdicts --reports aa-*.json

Each report must hold an arm with the baseline's own configuration (`--aa` adds one). Experiments are made of them in
two ways, since each sees what the other does not:

mixed    every prompt's two times come from a run drawn at random, arms as they were measured: an arm that is
         favoured by its place in the order shows. Noise that lasts over several prompts does not.
flipped  all prompts of one run, the two arms swapped in random blocks of prompts that follow each other: noise that
         lasts shows. A place in the order adds to it, but with --block 1 cancels.

For a planted slowdown the second arm's seconds are multiplied by 1 + it. One JSON line comes last.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from vllm_specplug.compare.intervals import paired_tables
from vllm_specplug.compare.report_format import read_report
from vllm_specplug.compare.statistics import PromptSpeed
from vllm_specplug.compare.tests_of_difference import holm, t_test
from vllm_specplug.compare.verdicts import ALPHA, Rule, compared, decide
from vllm_specplug.errors import CompareError

Run: TypeAlias = dict[str, tuple[PromptSpeed, PromptSpeed]]
"""By prompt id, in the order of the workload: what the arm and the baseline needed."""
Experiment: TypeAlias = tuple[dict[str, PromptSpeed], dict[str, PromptSpeed]]
DECIDED = ("faster", "slower")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", nargs="+", required=True, metavar="FILE")
    parser.add_argument("--experiments", type=int, default=1000, metavar="N", help="of each way (%(default)s)")
    parser.add_argument("--slowdown", type=float, default=0.1, metavar="S", help="planted (%(default)s)")
    parser.add_argument("--per-category", type=int, metavar="N", help="prompts drawn of each category (all)")
    parser.add_argument("--block", type=int, default=4, metavar="N", help="prompts swapped together (%(default)s)")
    parser.add_argument("--resamples", type=int, default=999, metavar="N", help="of each bootstrap (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    reports = [read_report(path) for path in args.reports]
    found = measure(reports, args.experiments, args.slowdown, args.per_category, args.block, args.resamples, args.seed)
    for way in ("mixed", "flipped"):
        rates = found[way]
        print(
            f"{way}: false verdicts {100 * rates['false']:.1f} %, in some category {100 * rates['false_category']:.1f} "
            f"%; {100 * args.slowdown:g} % slowdown found in {100 * rates['found']:.1f} %, prompts to decide "
            f"{rates['prompts_to_decide']}"
        )
    print(json.dumps(found))


def measure(
    reports: Sequence[Mapping[str, Any]],
    num_experiments: int,
    slowdown: float,
    per_category: int | None = None,
    block: int = 4,
    num_resamples: int = 999,
    seed: int = 0,
) -> dict[str, Any]:
    """Rates over the experiments of both ways, and what the runs themselves said.

    Returns:
        mixed, flipped: `false` (overall verdict faster or slower though nothing differs), `false_category` (any
        category's), `verdicts` (counts), `prompts_to_decide` (median where undecided), `found` (slowdown seen).
        false_verdicts, found: the worse of the two. as_measured: verdicts of the runs as they were.
    """
    runs = [run for report in reports for run in twins(report)]
    rng = np.random.default_rng(seed)
    margin = float(reports[0]["settings"]["margin"])
    ways: dict[str, Callable[[], Experiment]] = {
        "mixed": lambda: mixed(runs, per_category, rng),
        "flipped": lambda: flipped(runs, per_category, block, rng),
    }
    rules = [Rule(seed + index, margin, num_resamples=num_resamples) for index in range(num_experiments)]
    results = {way: _rates(draw, slowdown, rules) for way, draw in ways.items()}
    return {
        "reports": len(reports),
        "runs": len(runs),
        "experiments": num_experiments,
        "prompts": len(ways["mixed"]()[0]),
        "slowdown": slowdown,
        **results,
        "false_verdicts": max(rates["false"] for rates in results.values()),
        "found": min(rates["found"] for rates in results.values()),
        "as_measured": dict(Counter(decide(*_split(run), Rule(seed, margin))["verdict"] for run in runs)),
        "too_noisy": sum(bool(report.get("too_noisy")) for report in reports),
    }


def _rates(draw: Callable[[], Experiment], slowdown: float, rules: Sequence[Rule]) -> dict[str, Any]:
    verdicts: Counter[str] = Counter()
    needed: list[int] = []
    false_category = slower = 0
    for rule in rules:
        arm, baseline = draw()
        result = compared(arm, baseline, rule)
        verdicts[result["verdict"]] += 1
        if result.get("prompts_to_decide"):
            needed.append(result["prompts_to_decide"])
        false_category += _any_category(arm, baseline, rule)
        slowed = {key: replace(speed, seconds=speed.seconds * (1 + slowdown)) for key, speed in arm.items()}
        slower += compared(slowed, baseline, rule)["verdict"] == "slower"
    return {
        "false": sum(verdicts[word] for word in DECIDED) / len(rules),
        "false_category": false_category / len(rules),
        "verdicts": dict(verdicts),
        "prompts_to_decide": statistics.median(needed) if needed else None,
        "found": slower / len(rules),
    }


def _any_category(arm: Mapping[str, PromptSpeed], baseline: Mapping[str, PromptSpeed], rule: Rule) -> bool:
    """Whether any category's verdict is faster or slower; bootstraps are only made where the test lets it be."""
    tables = paired_tables(arm, baseline)
    p_values = holm({category: t_test([table]) for category, table in tables.items()}).values()
    if not any(p_value is not None and p_value <= ALPHA for p_value in p_values):
        return False
    return any(part["verdict"] in DECIDED for part in decide(arm, baseline, rule)["categories"].values())


def twins(report: Mapping[str, Any]) -> list[Run]:
    """The times of the baseline and of each arm configured like it.

    Raises:
        CompareError: there is no such arm.
    """
    configs = {arm["name"]: (arm["speculative_config"], arm.get("engine_args") or {}) for arm in report["arms"]}
    baseline = report["baseline"]
    names = [name for name, config in configs.items() if name != baseline and config == configs[baseline]]
    if not names:
        raise CompareError(
            f"the report started at {report['provenance']['started_at']} has no arm configured like its baseline "
            f"{baseline!r}; arms: {', '.join(configs)}. Make one with specplug compare --aa"
        )
    return [{row["id"]: (_speed(row, name), _speed(row, baseline)) for row in report["prompts"]} for name in names]


def _speed(row: Mapping[str, Any], arm: str) -> PromptSpeed:
    passes = row["arms"][arm]
    tokens, seconds = (sum(one[key] for one in passes) for key in ("output_tokens", "seconds"))
    return PromptSpeed(row["category"], tokens, seconds)


def mixed(runs: Sequence[Run], per_category: int | None, rng: np.random.Generator) -> Experiment:
    """Each prompt that all runs have, from a run drawn at random, arms as measured."""
    shared = [key for key in runs[0] if all(key in run for run in runs)]
    chosen = _chosen({key: runs[0][key] for key in shared}, per_category, rng)
    return _split({key: runs[int(rng.integers(len(runs)))][key] for key in chosen})


def flipped(runs: Sequence[Run], per_category: int | None, block: int, rng: np.random.Generator) -> Experiment:
    """The prompts of a run drawn at random, arms swapped or not in blocks of prompts that follow each other."""
    run = runs[int(rng.integers(len(runs)))]
    chosen = _chosen(run, per_category, rng)
    offset = int(rng.integers(block))
    swap = rng.integers(0, 2, len(chosen) // block + 2).astype(bool)
    pairs = {key: run[key][::-1] if swap[(index + offset) // block] else run[key] for index, key in enumerate(chosen)}
    return _split(pairs)


def _chosen(run: Mapping[str, Any], per_category: int | None, rng: np.random.Generator) -> list[str]:
    """Ids of at most `per_category` prompts of each category, in the order of the run."""
    if per_category is None:
        return list(run)
    members: dict[str, list[str]] = {}
    for key, (speed, _) in run.items():
        members.setdefault(speed.category, []).append(key)
    kept = {key for keys in members.values() for key in rng.permutation(keys)[:per_category]}
    return [key for key in run if key in kept]


def _split(pairs: Mapping[str, tuple[PromptSpeed, ...]]) -> Experiment:
    return {key: pair[0] for key, pair in pairs.items()}, {key: pair[1] for key, pair in pairs.items()}


if __name__ == "__main__":
    main()
