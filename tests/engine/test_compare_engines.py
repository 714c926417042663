"""`compare` from end to end on real engines, each in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import LOOKUP, MakeEngine
from vllm import SamplingParams

from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.page import render_page
from vllm_specplug.compare.report_format import read_report, write_report
from vllm_specplug.compare.run import CompareSettings, run_compare
from vllm_specplug.compare.workload import load_workload
from vllm_specplug.errors import CompareError

SETTINGS = CompareSettings(dtype="float32", max_tokens=24, max_model_len=256, enforce_eager=True, kv_cache_gib=0.1)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    lines = [
        {"category": category, "prompt": f"{category} {number}: " + "abc, " * (4 + number)}
        for category in ("first", "second")
        for number in range(3)
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_report_of_real_engines_is_valid_and_lossless_v1(tiny_text: str, prompts: Path, tmp_path: Path) -> None:
    config = {"method": LOOKUP, "num_speculative_tokens": 4}
    report = run_compare(tiny_text, [Arm("prompt_lookup", config)], load_workload(prompts), SETTINGS)
    write_report(report, tmp_path / "report.json")
    assert read_report(tmp_path / "report.json") == json.loads(json.dumps(report))
    lossless = report["lossless"]["prompt_lookup"]
    assert [lossless[key] for key in ("prompts", "identical", "near_ties", "different")] == [6, 6, 0, 0]
    drafted, plain = (report["results"][arm]["overall"] for arm in ("prompt_lookup", "baseline"))
    assert plain["output_tokens"] == drafted["output_tokens"] > 0
    assert drafted["num_draft_tokens"] >= 50
    assert drafted["num_accepted_tokens"] >= drafted["num_emitted_accepted_tokens"] >= 1
    assert plain["acceptance_rate"] is None
    assert plain["tokens_per_forward"] in (None, 1.0)
    page = render_page(report)
    assert "prompt_lookup" in page
    assert "<script src" not in page


def test_all_arms_get_later_turns_behind_the_answers_of_the_baseline_v1(
    tiny_text: str, make_engine: MakeEngine, tmp_path: Path
) -> None:
    """The chat template of the target puts one content behind the other."""
    conversations = {
        str(number): (f"first {number}: " + "abc, " * (3 + number), f"second {number}: " + "abc, " * 3)
        for number in range(3)
    }
    rows = [{"question_id": int(name), "category": "chat", "turns": turns} for name, turns in conversations.items()]
    said = [{"role": "system", "content": "abc, abc, "}, {"role": "user", "content": "abc"}]
    path = tmp_path / "question.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"id": "m", "messages": said, "max_tokens": 3}]))
    arm = Arm("prompt_lookup", {"method": LOOKUP, "num_speculative_tokens": 4, "min_confidence": 0.0})
    report = run_compare(tiny_text, [arm], load_workload(path), SETTINGS)
    assert [report["lossless"]["prompt_lookup"][key] for key in ("prompts", "identical")] == [7, 7]
    drafted = report["results"]["prompt_lookup"]["overall"]
    assert drafted["num_draft_tokens"] > 0

    found = {row["id"]: row for row in report["prompts"]}
    assert list(found) == ["0.1", "0.2", "1.1", "1.2", "2.1", "2.2", "m"]
    assert found["m"]["prompt_tokens"] == len("abc, abc, abc")
    assert {run["output_tokens"] for runs in found["m"]["arms"].values() for run in runs} == {
        len(found["m"]["output_token_ids"])
    }
    assert 1 <= len(found["m"]["output_token_ids"]) <= 3
    plain = make_engine(model=tiny_text)
    tokenizer = plain.llm.get_tokenizer()
    for name, (first, second) in conversations.items():
        answer = tokenizer.decode(found[f"{name}.1"]["output_token_ids"], skip_special_tokens=True)
        prompt = tokenizer.encode(first + answer + second)
        assert found[f"{name}.2"]["prompt_tokens"] == len(prompt)
        params = SamplingParams(temperature=0, max_tokens=SETTINGS.max_tokens, detokenize=False)
        assert plain.tokens([prompt], params) == [found[f"{name}.2"]["output_token_ids"]]


def test_arm_that_cannot_start_is_named_and_nothing_is_left_v1(tiny_text: str, prompts: Path) -> None:
    broken = Arm("broken", {"method": "specplug:prompt_lookup", "num_speculative_tokens": 0})
    with pytest.raises(CompareError, match=r"arm 'broken': .*num_speculative_tokens is 0; expected a whole number"):
        run_compare(tiny_text, [broken], load_workload(prompts), SETTINGS)
