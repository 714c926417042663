"""Runs under load with times made up by hand, and a small report of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from report_cases import NOWHERE

from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.asked import NOTHING_MORE, Asked
from vllm_specplug.compare.levels import LoadPlan, parse_levels
from vllm_specplug.compare.load_report import Loaded
from vllm_specplug.compare.measure import Answer, Block, DraftCounts
from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.compare.report import Measured, build_report
from vllm_specplug.compare.workload import Workload

NUM_PROMPTS = 8
PROMPTS = tuple(Prompt(f"p{index}", "c", "text") for index in range(NUM_PROMPTS))
TOKENS = tuple(range(1, 11))
"""Of every answer: no two are the same, so that none loops."""


def answer(
    prompt: str, arrival_s: float, ttft_s: float, e2e_s: float, pass_index: int = 0, late_s: float = 0.0
) -> Answer:
    """Ten tokens in five steps."""
    return Answer(
        prompt, pass_index, TOKENS, 5, ttft_s, e2e_s, "length", arrival_s=arrival_s, sent_s=arrival_s + late_s
    )


def failed(prompt: str, pass_index: int = 0, error: str = "timeout: no token for 9 s") -> Answer:
    return Answer(prompt, pass_index, (), None, 0.0, 0.0, None, error)


def run_of(answers: Sequence[Answer], seconds: float, level: str = "at_2", drafts: DraftCounts | None = None) -> Block:
    return Block("", answers[0].pass_index, seconds, tuple(answers), drafts, level, 0)


def runs_taking(
    seconds: Sequence[Sequence[float]], level: str = "at_2", drafts: DraftCounts | None = None
) -> list[Block]:
    """Two requests at once, each pair begun when the one before has ended.

    Args:
        seconds: of each request by pass and prompt; both of a pair end with the slower.
    """
    runs = []
    for pass_index, row in enumerate(seconds):
        answers, start = [], 0.0
        for place in range(0, len(row), 2):
            pair = row[place : place + 2]
            answers += [answer(f"p{place + index}", start, one / 4, one, pass_index) for index, one in enumerate(pair)]
            start += max(pair)
        runs.append(run_of(answers, start, level, drafts))
    return runs


def steady(factor: float, num_passes: int = 4, wobble: float = 0.0) -> list[list[float]]:
    """Times of all prompts, `factor` times 1.0, 1.1, ... s; odd prompts and passes are off by `wobble` either way."""
    return [
        [factor * (1 + 0.1 * place) * (1 + wobble * (-1) ** (place + index)) for place in range(NUM_PROMPTS)]
        for index in range(num_passes)
    ]


def report_under_load(
    factors: Mapping[str, Sequence[float]],
    kind: Any = "concurrency",
    levels: str = "2,4",
    num_passes: int = 4,
    asked: Asked = NOTHING_MORE,
) -> dict[str, Any]:
    """A valid report of a baseline and others under levels of load.

    Args:
        factors: by arm other than the baseline, time over the baseline's under each level.
    """
    plan = LoadPlan(parse_levels(kind, levels), num_passes)
    names = ["baseline", *factors]
    drafts = DraftCounts(40, 80, 50, (30, 20))
    runs = {
        level.name: {
            name: runs_taking(
                steady(
                    1.0 if name == "baseline" else factors[name][index], num_passes, 0.0 if name == "baseline" else 0.01
                ),
                level.name,
                None if name == "baseline" else drafts,
            )
            for name in names
        }
        for index, level in enumerate(plan.levels)
    }
    blocks = {
        name: [
            Block("c", index, 2.0, (Answer(prompt.id, index, TOKENS, 5, 0.1, 2.0, "length"),), None)
            for prompt in PROMPTS
            for index in range(2)
        ]
        for name in names
    }
    reference = {found.answers[0].prompt_id: found.answers[0] for found in blocks["baseline"] if not found.pass_index}
    return build_report(
        Measured(
            model="m",
            dtype="float32",
            arms=[Arm(name, None if name == "baseline" else {"method": name}) for name in names],
            kv_caches={name: {"num_blocks": 9, "block_size": 16} for name in names},
            baseline="baseline",
            workload=Workload("made-up", "0" * 64, PROMPTS),
            blocks=blocks,
            differences={name: [] for name in factors},
            num_prompt_tokens={prompt.id: 5 for prompt in PROMPTS},
            settings={
                "seed": 0,
                "margin": 0.03,
                "near_tie_tolerance": 0.0,
                "max_tokens": 10,
                "batch_size": 1,
                "num_passes": 2,
                "load": plan.as_json(),
            },
            provenance=NOWHERE,
            asked=asked,
            loaded=Loaded(
                plan,
                runs,
                {level: {name: [] for name in names} for level in runs},
                reference,
                dict.fromkeys(names, 3),
            ),
        )
    )
