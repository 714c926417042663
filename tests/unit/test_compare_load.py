"""Order of the runs under load, what is thrown away, and interrupted sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vllm_specplug.compare.levels import LoadPlan, parse_levels
from vllm_specplug.compare.load import WARM_UP_TOKENS, arrivals_s, in_front_of, measure_load, num_runs, total_weight
from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.compare.resume import resumable

PROMPTS = tuple(Prompt(f"p{index}", "xy"[index % 2], "", max_tokens=5 if index == 0 else None) for index in range(6))
TOKENS = {prompt.id: [index] for index, prompt in enumerate(PROMPTS)}
PLAN = LoadPlan(parse_levels("concurrency", "1,3"), 4)


class Arms:
    """Engines that note every call; call number `stop_at` ends with Ctrl-C."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.stop_at = stop_at

    def arm(self, name: str) -> Any:
        arms = self

        class OneArm:
            def request(self, op: str, **args: Any) -> Any:
                assert op == "generate"
                if len(arms.calls) == arms.stop_at:
                    raise KeyboardInterrupt
                arms.calls.append((name, args))
                times = args.get("arrival_s") or [0.0] * len(args["prompts"])
                outputs = [
                    {
                        "token_ids": prompt,
                        "num_forwards": 1,
                        "ttft_s": 0.1,
                        "e2e_s": 0.2,
                        "finish_reason": "stop",
                        "arrival_s": came,
                        "sent_s": came + 0.01,
                    }
                    for prompt, came in zip(args["prompts"], times, strict=True)
                ]
                return {"seconds": len(arms.calls) / 3, "outputs": outputs, "counts": None, "num_preemptions": 2}

        return OneArm()

    @property
    def runs(self) -> list[tuple[str, dict[str, Any]]]:
        return [(name, args) for name, args in self.calls if "arrival_s" in args]

    @property
    def warm_ups(self) -> list[tuple[str, dict[str, Any]]]:
        return [(name, args) for name, args in self.calls if "arrival_s" not in args]

    def measured(self, plan: LoadPlan = PLAN, **more: Any) -> Any:
        engines = {name: self.arm(name) for name in "AB"}
        how = {"progress": lambda *_: None, **more}
        return measure_load(engines, plan, PROMPTS, TOKENS, 24, 7, **how)


def test_arms_run_a_b_b_a_under_each_level_and_every_prompt_once_a_run() -> None:
    arms = Arms()
    found = arms.measured()
    assert "".join(name for name, _ in arms.runs) == "ABBAABBA" * 2
    assert [args["at_once"] for _, args in arms.runs] == [1] * 8 + [3] * 8
    assert {name: [run.pass_index for run in runs] for name, runs in found["at_3"].items()} == {
        "A": [0, 1, 2, 3],
        "B": [0, 1, 2, 3],
    }
    for level, by_arm in found.items():
        for runs in by_arm.values():
            for run in runs:
                assert sorted(answer.prompt_id for answer in run.answers) == [prompt.id for prompt in PROMPTS]
                assert (run.level, run.category, run.num_preemptions) == (level, "", 2)
                # Each answer is that of its prompt.
                assert all(answer.token_ids == tuple(TOKENS[answer.prompt_id]) for answer in run.answers)


def test_all_arms_get_the_same_prompts_at_the_same_times_and_their_own_limits() -> None:
    arms = Arms()
    arms.measured(LoadPlan(parse_levels("request_rate", "2,8"), 2))
    asked: dict[str, list[Any]] = {"A": [], "B": []}
    for name, args in arms.runs:
        asked[name].append((args["prompts"], args["arrival_s"], args["at_once"], args["max_tokens"]))
        assert [limit for prompt, limit in zip(args["prompts"], args["max_tokens"], strict=True) if prompt == [0]] == [
            5
        ]
    assert sorted(map(str, asked["A"])) == sorted(map(str, asked["B"]))
    assert [args["at_once"] for _, args in arms.runs] == [None] * 8


def test_warm_up_of_each_arm_and_level_is_as_many_at_once_as_the_level_and_is_thrown_away() -> None:
    arms = Arms()
    found = arms.measured()
    assert [(name, len(args["prompts"])) for name, args in arms.warm_ups] == [("A", 1), ("B", 1), ("A", 3), ("B", 3)]
    assert {limit for _, args in arms.warm_ups for limit in args["max_tokens"]} == {5, WARM_UP_TOKENS}
    assert sum(len(runs) for by_arm in found.values() for runs in by_arm.values()) == len(arms.runs) == 16


@pytest.mark.parametrize("stop_at", range(1, 20))
def test_interrupted_sweep_goes_on_in_the_same_order_and_measures_no_run_twice(
    stop_at: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(arms: Arms) -> Any:
        with resumable(tmp_path / "r.json", {"model": "m"}, "16") as journal:
            assert journal is not None
            journal.begin({}, "2026-01-01T00:00:00+00:00")
            return arms.measured(record=journal)

    first, second, never = Arms(stop_at), Arms(), Arms(stop_at=0)
    with pytest.raises(KeyboardInterrupt):
        measured(first)
    found = measured(second)
    assert "".join(name for name, _ in first.runs + second.runs) == "ABBAABBA" * 2
    if first.runs:
        assert f"{len(first.runs)} of 16 blocks were measured before" in capsys.readouterr().err
    assert measured(never) == found  # to the last digit
    assert never.calls == []


def test_progress_counts_what_was_done_before_and_what_comes_behind() -> None:
    """16 runs of 6 prompts: 8 of them one by one, 8 by threes."""
    assert num_runs(PLAN, 2) == 16
    assert total_weight(PLAN, len(PROMPTS), 2) == 8 * 6 + 8 * 2
    told: list[tuple[int, int]] = []

    def note(what: str, done: int, total: int) -> None:
        told.append((done, total))

    blocks = in_front_of(note, 64)
    blocks("A · x", 0, 10)
    blocks("done", 10, 10)
    Arms().measured(progress=note, done=10)
    assert told[:2] == [(0, 74), (10, 74)]
    assert told[-1] == (74, 74)
    assert told == sorted(told)


def test_arrivals_alone_take_so_long() -> None:
    """A log of 30 s, at its own speed and twice that, each twice on each of two arms; a closed loop waits for none."""
    log = [Prompt(f"p{index}", "x", "", arrival_s=100.0 + 15 * index) for index in range(3)]
    assert arrivals_s(LoadPlan(parse_levels("replay", "1,2"), 2), log, 0, 2) == 2 * 2 * (30 + 15)
    assert arrivals_s(PLAN, PROMPTS, 0, 2) == 0
