"""The report: built from made-up measurements, checked, written, read, and shown."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest

from vllm_specplug import atomic
from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.asked import NOTHING_MORE, Asked
from vllm_specplug.compare.lossless import Difference
from vllm_specplug.compare.measure import Answer, Block, DraftCounts
from vllm_specplug.compare.notes import notes
from vllm_specplug.compare.page import render_page
from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.compare.report import Measured, build_report
from vllm_specplug.compare.report_format import read_report, validate, write_report, write_text
from vllm_specplug.compare.terminal import print_report
from vllm_specplug.compare.workload import Workload
from vllm_specplug.errors import CompareError
from vllm_specplug.progress import PlainProgress

TOKENS = 12


def blocks(seconds: float, workload: Workload, num_forwards: int, last_token: int, drafts: bool) -> list[Block]:
    found = []
    for prompt in workload.prompts:
        for pass_index in range(2):
            # Copying answers go round in circles.
            body = [1, 2, 3] * 4 if prompt.category == "copying" else list(range(TOKENS))
            tokens = (*body[:-1], last_token)
            answer = Answer(prompt.id, pass_index, tokens, num_forwards, 0.05, seconds, "stop")
            counts = DraftCounts(4, 16, 8, (4, 2, 1, 1), num_steps=3, draft_s=0.06) if drafts else None
            found.append(Block(prompt.category, pass_index, seconds, (answer,), counts))
    return found


def make_report(drafts: bool = True, evil: str = "arm", asked: Asked = NOTHING_MORE) -> dict[str, Any]:
    names = [(f"{category}-{index}", category) for category in ("copying", "maths") for index in range(3)]
    workload = Workload("made-up", "0" * 64, tuple(Prompt(name, category, "text") for name, category in names))
    return build_report(
        Measured(
            model=f"target {evil}",
            dtype="bfloat16",
            arms=[Arm("baseline"), Arm(evil, {"method": "ngram", "note": evil})],
            kv_caches={
                "baseline": {"num_blocks": 1000, "block_size": 16},
                evil: {"num_blocks": 900, "block_size": 16},
            },
            baseline="baseline",
            workload=workload,
            blocks={
                "baseline": blocks(2.0, workload, TOKENS, 99, drafts=False),
                evil: blocks(1.0, workload, 4, 98, drafts=drafts),
            },
            differences={
                evil: [
                    Difference("copying-0", TOKENS - 1, 99, 98, 0.01, 0.01, near_tie=True),
                    Difference("maths-0", TOKENS - 1, 99, None),
                ]
            },
            num_prompt_tokens=dict.fromkeys((name for name, _ in names), 7),
            settings={
                "seed": 0,
                "margin": 0.03,
                "near_tie_tolerance": 0.05,
                "max_tokens": 16,
                "batch_size": 1,
                "num_passes": 2,
            },
            provenance={
                "specplug": "0",
                "vllm": "0",
                "torch": "0",
                "python": "3",
                "commit": None,
                "dirty": None,
                "argv": ["specplug", evil],
                "machine": {"cpu": evil},
                "started_at": "2026-01-01T00:00:00+00:00",
            },
            asked=asked,
        )
    )


def test_report_is_valid_and_says_what_was_measured() -> None:
    report = make_report()
    validate(report)
    comparison = report["comparisons"][0]
    assert comparison["ratio"] == pytest.approx(2.0)
    assert comparison["verdict"] == "faster"
    assert report["results"]["arm"]["overall"]["tokens_per_forward"] == pytest.approx(3.0)
    assert report["results"]["baseline"]["overall"]["acceptance_rate"] is None
    assert report["lossless"]["arm"]["identical"] == 4
    assert report["theory"]["arm"]["measured_speedup"] == pytest.approx(2.0)


def test_costs_are_shares_of_a_plain_step() -> None:
    """A plain step takes 1.95 s / 11, one with drafts 0.95 s / 3, of which 0.06 s / 3 are the drafts'."""
    theory = make_report()["theory"]["arm"]
    plain = 1.95 / 11
    assert theory["draft_cost_ratio"] == pytest.approx(0.02 / plain)
    assert theory["verify_cost_ratio"] == pytest.approx((0.95 / 3 - 0.02) / plain)
    assert theory["predicted_speedup"] == pytest.approx((11 / 3) / (0.95 / 3 / plain))
    without = make_report(drafts=False)["theory"]["arm"]
    assert without["draft_cost_ratio"] is without["verify_cost_ratio"] is without["predicted_speedup"] is None


def test_numbers_can_be_computed_again_from_the_rows() -> None:
    report = make_report()
    rows = [run for row in report["prompts"] if row["category"] == "maths" for run in row["arms"]["arm"]]
    result = report["results"]["arm"]["categories"]["maths"]
    assert sum(run["output_tokens"] for run in rows) == result["output_tokens"]
    assert result["output_tokens_per_s"] == pytest.approx(result["output_tokens"] / sum(run["seconds"] for run in rows))
    assert result["tokens_per_forward"] == pytest.approx(result["output_tokens"] / sum(r["num_forwards"] for r in rows))
    assert sum(run["drafts"]["num_draft_tokens"] for run in rows) == result["num_draft_tokens"]


def test_looping_answers_are_reported_apart() -> None:
    report = make_report()
    assert report["loops"]["baseline"] == {"prompts": 6, "looping": 3}
    assert report["comparisons"][0]["looping"]["prompts"] == 3
    assert report["comparisons"][0]["not_looping"]["prompts"] == 3


def test_json_round_trip(tmp_path: Path) -> None:
    report = make_report()
    path = tmp_path / "deep" / "report.json"
    write_report(report, path)
    assert read_report(path) == json.loads(json.dumps(report))
    assert [file.name for file in path.parent.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("schema",), "specplug.compare/0", "schema is 'specplug.compare/0', expected 'specplug.compare/1'"),
        (("provenance", "argv"), "x", "provenance.argv is 'x', expected a list"),
        (("arms", 0, "name"), None, "arms[0].name is None, expected a text"),
        (("results", "arm", "overall", "num_drafts"), -1, "results.arm.overall.num_drafts is -1, expected a count or"),
        (("results", "arm", "categories", "maths", "ttft_ms", "p99"), "x", "results.arm.categories.maths.ttft_ms is {"),
        (("comparisons", 0, "verdict"), "better", "comparisons[0].verdict is 'better', expected one of 'faster', "),
        (("comparisons", 0, "ci95"), [2, 1], "comparisons[0].ci95 is [2, 1], expected [low, high] or null"),
        (("comparisons", 0, "p_value"), 1.5, "comparisons[0].p_value is 1.5, expected a number from 0 to 1 or null"),
        (
            ("comparisons", 0, "wilcoxon"),
            {"p_value": 1},
            "comparisons[0].wilcoxon is {'p_value': 1}, expected 'p_value'",
        ),
        (
            ("comparisons", 0, "prompts_to_decide"),
            -1,
            "comparisons[0].prompts_to_decide is -1, expected a count or null",
        ),
        (
            ("comparisons", 0, "categories", "maths", "p_holm"),
            "x",
            "comparisons[0].categories.maths.p_holm is 'x', expected a number from 0 to 1 or null",
        ),
        (("noise", "arm"), {"ratio": 1.0, "ci95": [2, 1]}, "noise.arm is {'ratio': 1.0, 'ci95': [2, 1]}, expected "),
        (("noise", "b"), None, "noise.b: no arm is called 'b'; arms: baseline, arm"),
        (("noise",), None, "noise is None, expected an object"),
        (("too_noisy",), 0, "too_noisy is 0, expected true or false"),
        (("arms", 1, "kv_cache"), {"num_blocks": "9"}, "arms[1].kv_cache is {'num_blocks': '9'}, expected counts "),
        (
            ("results", "arm", "overall", "goodput"),
            {"share": 2, "output_tokens_per_s": 1.0},
            "results.arm.overall.goodput is {'share': 2, 'output_tokens_per_s': 1.0}, expected 'share' from 0 to 1 and",
        ),
        (
            ("results", "arm", "categories", "maths", "cost_per_million_tokens"),
            "1",
            "results.arm.categories.maths.cost_per_million_tokens is '1', expected a number or null",
        ),
        (("recommendation", "sentences"), [1], "recommendation is {'sentences': [1], 'withheld': None, "),
        (("recommendation", "overall"), {"outcome": "buy", "arms": []}, "recommendation is {'sentences': "),
        (("comparisons", 0, "against"), "b", "comparisons[0].against: no arm is called 'b'; arms: baseline, arm"),
        (("lossless", "arm", "identical"), 5, "lossless.arm: identical + near_ties + different is not prompts (6)"),
        (("theory", "arm", "predicted_speedup"), True, "theory.arm.predicted_speedup is True, expected a number or"),
    ],
)
def test_wrong_key_is_named(where: tuple[Any, ...], value: Any, message: str) -> None:
    report = copy.deepcopy(make_report())
    part: Any = report
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    with pytest.raises(CompareError) as caught:
        validate(report)
    assert str(caught.value).startswith(message)


def test_report_of_a_former_version_is_valid_without_the_keys_it_did_not_have() -> None:
    report = make_report()
    for key in ("noise", "too_noisy", "too_noisy_reason", "asked", "recommendation"):
        del report[key]
    for arm in report["arms"]:
        del arm["kv_cache"]
    for result in report["results"].values():
        for part in (result["overall"], *result["categories"].values()):
            del part["goodput"], part["cost_per_million_tokens"]
    for part in (report["comparisons"][0], *report["comparisons"][0]["categories"].values()):
        for key in ("p_value", "p_holm", "wilcoxon", "prompts_to_decide"):
            part.pop(key, None)
    validate(report)
    render_page(report)
    print_report(report, io.StringIO())


@pytest.mark.parametrize("key", ["schema", "provenance", "target", "arms", "results", "comparisons", "lossless"])
def test_missing_key_is_named(key: str) -> None:
    report = make_report()
    del report[key]
    with pytest.raises(CompareError, match=f"^{key} is missing; expected"):
        validate(report)


def test_further_keys_are_allowed_and_what_is_no_object_is_not() -> None:
    validate({**make_report(), "something": 1})
    with pytest.raises(CompareError, match="report is \\[\\], expected an object"):
        validate([])


def test_failed_write_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(CompareError, match=f"cannot write {path}: No space left on device"):
        write_text("new", path)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]


def test_not_a_number_is_not_written(tmp_path: Path) -> None:
    report = make_report()
    report["comparisons"][0]["ratio"] = float("nan")
    with pytest.raises(CompareError, match="cannot be written as JSON"):
        write_report(report, tmp_path / "report.json")
    assert not list(tmp_path.iterdir())


def test_unreadable_report_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{")
    with pytest.raises(CompareError, match="not JSON"):
        read_report(tmp_path / "report.json")
    with pytest.raises(CompareError, match="No such file"):
        read_report(tmp_path / "absent.json")


def test_terminal_shows_each_arm_and_category() -> None:
    file = io.StringIO()
    print_report(make_report(), file)
    text = file.getvalue()
    for expected in ("baseline", "arm", "copying", "maths", "2.00x", "faster", "3.00", "4/1/1"):
        assert expected in text, expected
    assert "arm: 1 answers differ from baseline beyond rounding." in text


def test_verdict_comes_first_and_is_in_the_report() -> None:
    assert make_report()["recommendation"]["sentences"] == [
        "arm is not recommended: 1 of 6 answers differ from those of baseline beyond rounding.",
        "No arm is left to take the place of baseline.",
    ]
    file = io.StringIO()
    print_report(make_report(), file)
    assert file.getvalue().startswith("Verdict. arm is not recommended: 1 of 6 answers differ from those of baseline ")


def test_terminal_takes_names_literally() -> None:
    file = io.StringIO()
    print_report(make_report(evil="[red]x[/red]"), file)
    assert "[red]x[/red]" in file.getvalue().replace("\n", "")


def test_plain_progress_is_sparse_and_ends_with_the_last() -> None:
    file = io.StringIO()
    progress = PlainProgress(file, every_s=3600)
    for done in range(5):
        progress("a · maths", done, 4)
    assert file.getvalue() == "0/4 a · maths\n4/4 a · maths, 0 s left\n"


def test_what_a_draft_takes_of_the_kv_cache_is_said() -> None:
    report = make_report()
    line = "arm: its engine has 900 blocks of KV cache, that of baseline 1,000 in the same memory."
    assert report["arms"][1]["kv_cache"] == {"num_blocks": 900, "block_size": 16}
    assert line in notes(report)
    for arm in report["arms"]:  # reports of former versions do not have it
        del arm["kv_cache"]
    assert line not in notes(report)
