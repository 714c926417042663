"""Order of runs, losslessness triage and failing children, without vLLM."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vllm_specplug.compare import engine as engine_module
from vllm_specplug.compare import lossless
from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.engine import EngineProcess, running
from vllm_specplug.compare.measure import MAX_WARM_UP_ROUNDS, Answer, Block, measure, measure_within, warm_up
from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.compare.settings import CompareSettings
from vllm_specplug.compare.start import engine_arguments
from vllm_specplug.compare.worker import _gained
from vllm_specplug.compare.workload import Workload
from vllm_specplug.error_lines import last_error_line
from vllm_specplug.errors import CompareError


class FakeEngine:
    """Answers every prompt with two tokens; notes who was asked, in one list for all engines."""

    def __init__(self, name: str, calls: list[str], seconds: Iterator[float] | None = None) -> None:
        self.name, self.calls, self.seconds = name, calls, seconds

    def request(self, op: str, **args: Any) -> Any:
        assert op == "generate"
        self.calls.append(self.name)
        output = {"token_ids": [1, 2], "num_forwards": 1, "ttft_s": 0.1, "e2e_s": 0.2, "finish_reason": "stop"}
        seconds = 0.2 if self.seconds is None else next(self.seconds)
        return {"seconds": seconds, "outputs": [output] * len(args["prompts"]), "counts": None}


def run_measure(arms: str, blocks: list[list[Prompt]], num_passes: int = 2) -> tuple[list[str], dict[str, list[Block]]]:
    calls: list[str] = []
    engines = {name: FakeEngine(name, calls) for name in arms}
    token_ids = {prompt.id: [5] for block in blocks for prompt in block}
    return calls, measure(engines, blocks, token_ids, 8, num_passes, lambda what, done, total: None)


def test_arms_run_a_b_b_a_for_each_prompt() -> None:
    calls, _ = run_measure("AB", [[Prompt("p", "x", "")], [Prompt("q", "x", "")]])
    assert "".join(calls) == "ABBA" + "BAAB"
    calls, _ = run_measure("ABC", [[Prompt("p", "x", "")]])
    assert "".join(calls) == "ABCCBA"


def test_with_one_pass_no_arm_always_goes_first() -> None:
    prompts = [[Prompt(name, "x", "")] for name in "pqrs"]
    calls, _ = run_measure("AB", prompts, num_passes=1)
    assert "".join(calls) == "AB" + "BA" + "AB" + "BA"


def test_prompt_with_a_limit_of_its_own_is_answered_within_it() -> None:
    limits: list[list[int]] = []

    class Noting(FakeEngine):
        def request(self, op: str, **args: Any) -> Any:
            limits.append(args["max_tokens"])
            return super().request(op, **args)

    prompts = [Prompt("p", "x", ""), Prompt("q", "x", "", max_tokens=1)]
    measure({"A": Noting("A", [])}, [prompts], {"p": [5], "q": [6]}, 8, 1, lambda what, done, total: None)
    warm_up(Noting("A", []), [[5], [6]], 8)
    assert limits == [[8, 1], *[[8]] * 4]


def test_every_answer_is_written_down_once() -> None:
    _, blocks = run_measure("AB", [[Prompt("p", "x", ""), Prompt("q", "x", "")]])
    found = [(answer.prompt_id, answer.pass_index) for block in blocks["B"] for answer in block.answers]
    assert found == [("p", 0), ("q", 0), ("p", 1), ("q", 1)]
    assert blocks["A"][0].answers[0].num_emitted_accepted_tokens == 1


@pytest.mark.parametrize(
    ("seconds", "rounds"),
    [([9.0, 1.0, 1.0, 9.0], 3), ([5.0, 5.0, 5.0], 2), ([6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.1], MAX_WARM_UP_ROUNDS)],
)
def test_warm_up_goes_on_until_it_gets_no_faster(seconds: list[float], rounds: int) -> None:
    each = (value / 2 for value in seconds for _ in range(2))
    assert warm_up(FakeEngine("A", [], each), [[1], [1, 2]], 8) == rounds


def test_counters_give_what_was_gained() -> None:
    before = {"num_drafts": 2, "accepted_per_position": [2, 1]}
    assert _gained(before, {"num_drafts": 5, "accepted_per_position": [4, 1]}) == {
        "num_drafts": 3,
        "accepted_per_position": [2, 0],
    }
    assert _gained(None, None) is None


def block(*token_ids: tuple[int, ...], pass_index: int = 0) -> Block:
    answers = tuple(
        Answer(f"p{index}", pass_index, ids, len(ids), 0.1, 0.2, "stop") for index, ids in enumerate(token_ids)
    )
    return Block("x", pass_index, 1.0, answers, None)


def test_first_difference_is_found_also_at_an_end() -> None:
    assert lossless.first_difference("p", [1, 2, 3], [1, 2, 3]) is None
    assert lossless.first_difference("p", [1, 2, 3], [1, 9, 3]) == lossless.Difference("p", 1, 2, 9)
    assert lossless.first_difference("p", [1, 2, 3], [1, 2]) == lossless.Difference("p", 2, 3, None)


class Oracle:
    """Knows log-probabilities by candidate pair; notes the prefixes it was asked for."""

    def __init__(self, known: dict[tuple[int, int], tuple[float | None, float | None, float]]) -> None:
        self.known = known
        self.prefixes: list[list[int]] = []

    def request(self, op: str, **args: Any) -> Any:
        assert op == "logprobs"
        self.prefixes += args["prefixes"]
        answers = []
        for pair in args["candidates"]:
            expected, found, best = self.known[tuple(pair)]
            answers.append({"candidates": [expected, found], "best": best})
        return answers


def test_difference_is_a_near_tie_only_within_the_tolerance_of_the_best() -> None:
    baseline = [block((1, 2, 3), (1, 2, 4), (1, 2, 5), (1, 2, 6), (7,))]
    arm = [block((1, 2, 13), (1, 2, 14), (1, 2, 15), (1, 2, 16), (7,))]
    oracle = Oracle(
        {
            (3, 13): (-1.17, -1.20, -1.17),  # tie
            (4, 14): (-1.17, -1.27, -1.17),  # 0.10 apart
            (5, 15): (-4.00, -4.01, -1.00),  # close to each other, far from the best
            (6, 16): (-1.00, None, -1.00),  # not even among the top tokens
        }
    )
    found = lossless.find_differences(baseline, arm)
    prompts = {f"p{index}": [50 + index] for index in range(5)}
    judged = lossless.judge(oracle, found, prompts, lossless.first_answers(baseline), 0.05)
    assert [difference.near_tie for difference in judged] == [True, False, False, False]
    assert oracle.prefixes == [[50, 1, 2], [51, 1, 2], [52, 1, 2], [53, 1, 2]]
    assert judged[0].gap == pytest.approx(0.03)
    assert lossless.tally(5, judged) == {"prompts": 5, "identical": 1, "near_ties": 1, "different": 3}


def test_missing_end_is_different_without_asking() -> None:
    judged = lossless.judge(Oracle({}), [lossless.Difference("p", 2, 3, None)], {}, {}, 0.05)
    assert [difference.near_tie for difference in judged] == [False]


def test_a_later_pass_is_checked_too() -> None:
    baseline = [block((1, 2)), block((1, 2), pass_index=1)]
    arm = [block((1, 2)), block((1, 3), pass_index=1)]
    assert lossless.find_differences(baseline, arm) == [lossless.Difference("p0", 1, 2, 3)]
    assert (lossless.num_unstable(baseline), lossless.num_unstable(arm)) == (0, 1)


def test_float32_allows_no_ties() -> None:
    assert lossless.default_tolerance("float32") == 0
    assert lossless.default_tolerance("bfloat16") == 0.05


def test_engine_arguments_of_an_arm_win() -> None:
    settings = CompareSettings(dtype="float32", max_model_len=512, kv_cache_gib=0.5)
    arm = Arm("a", {"method": "ngram"}, {"max_model_len": 256})
    assert engine_arguments(arm, settings, 2, cpu=True) == {
        "dtype": "float32",
        "seed": 0,
        "enforce_eager": False,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "max_model_len": 256,
        "kv_cache_memory_bytes": 1 << 29,
        "speculative_config": {"method": "ngram"},
    }
    assert engine_arguments(arm, settings, 2, cpu=False)["gpu_memory_utilization"] == pytest.approx(0.45)


def test_settings_that_measure_nothing_are_refused() -> None:
    with pytest.raises(CompareError, match="--passes is 0, expected 1 or more"):
        CompareSettings(num_passes=0)
    for seed in (-1, 2**32):
        with pytest.raises(CompareError, match=f"--seed is {seed}, expected 0 to 4294967295"):
            CompareSettings(seed=seed)


def fake_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str) -> None:
    """Let children run `source` instead of the worker."""
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\n{source}\n")
    script.chmod(0o755)
    monkeypatch.setattr(engine_module.sys, "executable", str(script))
    monkeypatch.setattr(engine_module.tempfile, "tempdir", str(tmp_path))


def test_dead_engine_is_named_with_its_last_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = "import sys; sys.stdin.readline(); sys.stderr.write('ValueError: no such model\\nbye\\n'); sys.exit(3)"
    fake_worker(monkeypatch, tmp_path, source)
    with pytest.raises(CompareError) as caught, running([Arm("mine")]) as (process,):
        process.request("start")
    message = str(caught.value)
    assert message.startswith("arm 'mine': its engine ended with code 3: ValueError: no such model; full log: ")
    assert Path(message.rpartition(": ")[2]).read_text().endswith("bye\n")


def test_killed_engine_is_named_and_the_others_are_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = "import os, sys; sys.stdin.readline(); os.kill(os.getpid(), 9)"
    fake_worker(monkeypatch, tmp_path, source)
    processes: list[EngineProcess] = []
    with running([Arm("a"), Arm("b")]) as engines:
        processes += engines
        with pytest.raises(CompareError, match="arm 'a': its engine was ended by SIGKILL: it printed nothing"):
            engines[0].request("start")
    assert all(process._process.poll() is not None for process in processes)


def test_refusal_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = 'input(); print(\'{"error": "ValidationError: 1 error\\\\n  method: unknown"}\', flush=True); input()'
    fake_worker(monkeypatch, tmp_path, source)
    with (
        pytest.raises(CompareError, match=r"^arm 'a': ValidationError: 1 error method: unknown; full log: "),
        running([Arm("a")]) as (process,),
    ):
        process.request("start")


def test_silent_engine_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_worker(monkeypatch, tmp_path, "import time; time.sleep(60)")
    with running([Arm("a")]) as (process,):
        process.timeout_s = 0.1
        with pytest.raises(CompareError, match=r"arm 'a' gave no answer for 0\.1 s"):
            process.request("start")


def test_last_error_line_prefers_errors() -> None:
    assert last_error_line("ok\nRuntimeError: x\nat exit\n") == "RuntimeError: x"
    assert last_error_line("one\ntwo\n") == "two"
    assert last_error_line("") == "it printed nothing"


def test_rounds_deal_out_one_block_of_each_category() -> None:
    prompts = tuple(Prompt(name, name[0], name) for name in ("a1", "a2", "a3", "b1", "c1", "c2"))
    rounds = Workload("w", "0", prompts).rounds(1)
    assert [[block[0].id for block in turn] for turn in rounds] == [["a1", "b1", "c1"], ["a2", "c2"], ["a3"]]


@pytest.mark.parametrize(("budget_s", "expected"), [(0.0, 1), (2.5, 2), (100.0, 5)])
def test_budget_limits_rounds_and_never_cuts_one_short(
    budget_s: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))  # one second passes between two looks
    monkeypatch.setattr("vllm_specplug.compare.measure.time.perf_counter", lambda: float(next(clock)) / 2)
    prompts = tuple(Prompt(f"{category}{number}", category, "") for category in "ab" for number in range(5))
    seen: list[tuple[int, int]] = []

    class Instant:
        def request(self, op: str, **args: Any) -> Any:
            output = {"token_ids": [1], "num_forwards": 1, "ttft_s": 0.1, "e2e_s": 0.1, "finish_reason": "length"}
            return {"seconds": 0.1, "outputs": [output for _ in args["prompts"]], "counts": None}

    blocks = measure_within(
        budget_s,
        {"baseline": Instant(), "other": Instant()},
        Workload("w", "0", prompts).rounds(1),
        {prompt.id: [1] for prompt in prompts},
        8,
        2,
        lambda what, done, total: seen.append((done, total)),
    )
    assert {len(found) for found in blocks.values()} == {expected * 2 * 2}
    assert seen[-1] == (expected * 8, expected * 8)


def test_run_of_many_prompts_may_take_longer_and_as_long_as_they_come(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_worker(monkeypatch, tmp_path, "import time; time.sleep(60)")
    monkeypatch.setattr(engine_module, "_PROMPT_TIMEOUT_S", 0.1)
    process = EngineProcess(Arm("a"), tmp_path, timeout_s=0.25)
    with pytest.raises(CompareError, match=r"^arm 'a' gave no answer for 0\.75 s; full log: "):
        process.request("generate", prompts=[[1], [2]], max_tokens=[1, 1], arrival_s=[0.0, 0.3])
    process.close()
