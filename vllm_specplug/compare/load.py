"""The load sweep: which arm runs when under which level. Knows the protocol of `worker`, computes no statistics.

All engines are alive, one works at a time. A run is all prompts once, on one arm, under one level. Under each level the
arms run in order and then in reverse order (A B B A), each pair of passes anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from vllm_specplug.compare.levels import UNITS, Level, LoadPlan, Schedule, schedule
from vllm_specplug.compare.measure import Block, Engine, Record, block_of
from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.progress import Progress

WARM_UP_TOKENS = 16
OPEN_WARM_UP_REQUESTS = 8
"""At once before the first run of an open loop, which may come to have any number in flight."""

Runs = dict[str, dict[str, list[Block]]]
"""By level's name and by arm, in the order they ran."""


def measure_load(
    engines: Mapping[str, Engine],
    plan: LoadPlan,
    prompts: Sequence[Prompt],
    token_ids: Mapping[str, Sequence[int]],
    max_tokens: int,
    seed: int,
    progress: Progress,
    record: Record | None = None,
    done: int = 0,
) -> Runs:
    """Run every arm under every level, `plan.num_passes` times.

    Before the first run of a level each arm answers as many requests at once as the level will hold, which is thrown
    away.

    Args:
        engines: by arm name, in order.
        token_ids: by prompt id.
        max_tokens: output tokens of an answer at most, where the prompt has no limit of its own.
        seed: of the order of the prompts and the times they come; both are the same for all arms.
        progress: told how much is done, in units of `weight`.
        record: what it knows is not measured again, what is new it gets as soon as it is measured.
        done: what was done before, for `progress`.
    """
    total = done + total_weight(plan, len(prompts), len(engines))
    runs: Runs = {}
    for level in plan.levels:
        runs[level.name] = {name: [] for name in engines}
        warm: set[str] = set()
        for pass_index in range(plan.num_passes):
            planned = schedule(level, prompts, seed, pass_index)
            names = list(engines)
            for name in names if pass_index % 2 == 0 else reversed(names):
                run = None if record is None else record.recall(name, planned.prompts, pass_index, level.name)
                if run is None:
                    progress(f"{name} · {level.shown} {UNITS[level.kind]}", done, total)
                    if name not in warm:
                        _warm_up(engines[name], level, prompts, token_ids, max_tokens)
                        warm.add(name)
                    run = _run(engines[name], level, planned, token_ids, max_tokens, pass_index)
                    if record is not None:
                        record.add(name, run)
                runs[level.name][name].append(run)
                done += weight(level, len(prompts))
    progress("done", done, total)
    return runs


def weight(level: Level, num_prompts: int) -> int:
    """How long a run takes, very roughly, in answers one after the other."""
    return num_prompts if level.at_once is None else math.ceil(num_prompts / level.at_once)


def total_weight(plan: LoadPlan, num_prompts: int, num_arms: int) -> int:
    """Of all runs of all arms."""
    return plan.num_passes * num_arms * sum(weight(level, num_prompts) for level in plan.levels)


def num_runs(plan: LoadPlan, num_arms: int) -> int:
    """Runs of all arms."""
    return plan.num_passes * num_arms * len(plan.levels)


def arrivals_s(plan: LoadPlan, prompts: Sequence[Prompt], seed: int, num_arms: int) -> float:
    """Seconds that all runs take at least, because their last requests do not come earlier."""
    passes = range(plan.num_passes)
    return num_arms * sum(
        schedule(level, prompts, seed, index).arrival_s[-1] for level in plan.levels for index in passes
    )


def in_front_of(progress: Progress, remaining: int) -> Progress:
    """Tell `progress` what is done of blocks behind which `remaining` more comes."""

    def told(what: str, done: int, total: int) -> None:
        if what != "done":
            progress(what, done, total + remaining if total else 0)

    return told


def _warm_up(
    engine: Engine, level: Level, prompts: Sequence[Prompt], token_ids: Mapping[str, Sequence[int]], max_tokens: int
) -> None:
    some = prompts[: level.at_once or OPEN_WARM_UP_REQUESTS]
    engine.request(
        "generate",
        prompts=[list(token_ids[prompt.id]) for prompt in some],
        max_tokens=[min(prompt.output_limit(max_tokens), WARM_UP_TOKENS) for prompt in some],
    )


def _run(
    engine: Engine,
    level: Level,
    planned: Schedule,
    token_ids: Mapping[str, Sequence[int]],
    max_tokens: int,
    pass_index: int,
) -> Block:
    raw = engine.request(
        "generate",
        prompts=[list(token_ids[prompt.id]) for prompt in planned.prompts],
        max_tokens=[prompt.output_limit(max_tokens) for prompt in planned.prompts],
        arrival_s=list(planned.arrival_s),
        at_once=planned.at_once,
    )
    return block_of(raw, planned.prompts, pass_index, level.name)
