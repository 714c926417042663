"""Gates: what they mean, what is refused before anything is measured, and when a run fails."""

from __future__ import annotations

from typing import Any

import pytest
from report_cases import made_report
from test_compare_report import make_report

from vllm_specplug import cli
from vllm_specplug.compare import run
from vllm_specplug.compare.asked import Asked
from vllm_specplug.compare.cost import Price
from vllm_specplug.compare.gate import Outcome, check_gate, check_gates, exit_code, parse_gate, parse_gates
from vllm_specplug.compare.gate_syntax import split_gate
from vllm_specplug.compare.goodput import parse_slo
from vllm_specplug.compare.quantity import LOAD_METRICS, METRICS, Known, resolve
from vllm_specplug.compare.report_format import validate
from vllm_specplug.errors import CompareError

KNOWN = Known(("baseline", "medusa", "no-drafts"), ("code", "chat"), "baseline")


def checked(text: str, report: dict[str, Any] | None = None) -> Outcome:
    report = report or made_report()
    return check_gate(parse_gate(text, Known.of(report)), report)


def test_the_made_up_report_is_a_report() -> None:
    validate(made_report())
    assert Known.of(made_report()) == KNOWN


@pytest.mark.parametrize(
    ("op", "below", "equal", "above"),
    [
        ("<", True, False, False),
        ("<=", True, True, False),
        (">", False, False, True),
        (">=", False, True, True),
        ("==", False, True, False),
        ("!=", True, False, True),
    ],
)
def test_every_operator_means_what_it_means_in_python(op: str, below: bool, equal: bool, above: bool) -> None:
    for limit, holds in (("200.5", below), ("200", equal), ("1.5e2", above)):
        outcome = checked(f"medusa.output_tokens_per_s {op} {limit}")
        assert outcome.state == ("failed" if holds else "passed"), limit


@pytest.mark.parametrize(
    ("text", "left", "right"),
    [
        ("medusa.tpot_ms.p50 > 1.05 * baseline", 5.0, 10.5),
        ("medusa.tpot_ms.p50>1.05*baseline", 5.0, 10.5),
        ("  medusa.tpot_ms.p50 > baseline ", 5.0, 10.0),
        ("medusa.overall.tpot_ms.p99 > -1", 15.0, -1.0),
        ("medusa.chat.tpot_ms.p50 > baseline", 2.5, 5.0),
        ("medusa.chat.tpot_ms.p50 > baseline.code", 2.5, 10.0),
        ("medusa.chat.tpot_ms.p50 > baseline.overall", 2.5, 10.0),
        ("medusa.tpot_ms.p50 > .5 * baseline.chat", 5.0, 2.5),
        ("medusa.tpot_ms.p50 > 2 * baseline.chat.ttft_ms.p90", 5.0, 120.0),
        ("medusa.ratio < 1.1", 2.0, 1.1),
        ("medusa.ratio.low < no-drafts.ratio.high", 1.9, 0.9),
        ("medusa.chat.ratio < 1", 3.0, 1.0),
        ("medusa.chat.ratio.low < 1", 1.9, 1.0),
        ("medusa.verdict == 'slower'", "faster", "slower"),
        ('medusa.verdict != "no difference"', "faster", "no difference"),
        ("medusa.verdict == no-drafts", "faster", "slower"),
        ("medusa.lossless.different > 0", 1.0, 0.0),
        ("medusa.overall.lossless.different > no-drafts", 1.0, 0.0),
        ("medusa.theory.predicted_speedup < 0.9 * medusa.ratio", 1.9, 1.8),
        ("medusa.acceptance_per_position.2 < 0.3", 0.25, 0.3),
        ('medusa."chat".num_drafts > "medusa"."code"', 300, 300),
    ],
)
def test_both_sides_are_the_numbers_they_name(text: str, left: Any, right: Any) -> None:
    outcome = checked(text)
    assert (outcome.left, outcome.right) == (pytest.approx(left), pytest.approx(right))


def test_names_may_hold_dots_spaces_and_begin_with_digits() -> None:
    report = made_report(arm="0.5b-v1.2", categories=("long context", "chat"))
    assert checked("0.5b-v1.2.tpot_ms.p50 > 1.05 * baseline", report).left == 5.0
    assert checked('0.5b-v1.2."long context".ratio < 1', report).left == 2.0
    assert checked("baseline.tpot_ms.p50 < 0.5 * 0.5b-v1.2", report).right == 2.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found nothing at column 1, expected an arm and a metric; write for example 'medusa.tpot_ms.p50 > 1.05"),
        ("medusa.ratio", "found nothing at column 13, expected one of < <= > >= == !="),
        ("medusa.ratio = 1", "found '=' at column 14, expected one of < <= > >= == !="),
        ("medusa.ratio <", "found nothing at column 15, expected a number or an arm"),
        ("medusa.ratio < > 1", "found '>' at column 16, expected a number or an arm"),
        ("1 < medusa.ratio", "found '1' at column 1, expected an arm and a metric"),
        ("medusa.ratio < 1 2", "found '2' at column 18, expected the end"),
        (
            "medusa.ratio < no-drafts * 2",
            "found '*' at column 26, expected the end; a factor stands in front of its arm",
        ),
        ("medusa.ratio < 2 * 3", "found '3' at column 20, expected an arm"),
        ("medusa.ratio < 2 *", "found nothing at column 19, expected an arm"),
        ("medusa..ratio < 2", "found '..ratio' at column 7, expected one of"),
        ("medusa.ratio < __import__('os')", "found \"('os')\" at column 26, expected the end"),
        ("medusa.ratio < 1e999", "1e999 at column 16 is too large for a number"),
        ("medsua.ratio < 1", "unknown arm 'medsua'; arms: baseline, medusa, no-drafts. Did you mean 'medusa'?"),
        (
            "medusa.ratio < basline",
            "unknown arm 'basline'; arms: baseline, medusa, no-drafts. Did you mean 'baseline'?",
        ),
        ("medusa < 1", "medusa names no metric; there are: ratio, "),
        ("medusa.chat < 1", "medusa.chat names no metric; there are: ratio, "),
        ("medusa.tpot_ms > 1", "unknown metric 'tpot_ms'; there are: ratio, ratio.low, "),
        ("medusa.tpot_ms.p51 > 1", "in front of it may stand overall, code, chat. Did you mean 'tpot_ms.p50'?"),
        ("medusa.chatt.ratio > 1", "unknown category 'chatt'; there are: overall, code, chat. Did you mean 'chat'?"),
        ("medusa.chatt > 1", "in front of it may stand overall, code, chat. Did you mean 'chat'?"),
        ("medusa.chat.rato > 1", "Did you mean 'ratio'?"),
        ("medusa.chat.lossless.different > 0", "counted over all categories; write medusa.lossless.different without"),
        ("medusa.lossless.different > no-drafts.chat", "write no-drafts.lossless.different without 'chat'"),
        (
            "baseline.ratio < 1",
            "baseline is what the others are compared with and has no ratio; they have it: medusa, no",
        ),
        ("medusa.lossless.different > baseline", "baseline is what the others are compared with and has no lossless"),
        ("medusa.verdict > 'slower'", "a verdict is a text, which > cannot compare; use == or !="),
        ("medusa.verdict == slower", 'a verdict stands in quotes: "slower"'),
        (
            "medusa.verdict == 'slowr'",
            'there are: "faster", "slower", "no difference", "undecided". Did you mean \'slower\'',
        ),
        ("medusa.verdict == 1", 'a verdict is one of "faster", "slower", "no difference", "undecided", not a number'),
        ("medusa.verdict == 2 * no-drafts", "a verdict is a text, which takes no factor"),
        ("medusa.verdict == medusa.ratio", "medusa.verdict and medusa.ratio cannot be compared: one is a number, the"),
        ("medusa.ratio < medusa.verdict", "medusa.ratio and medusa.verdict cannot be compared: one is a number, the"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(CompareError) as caught:
        parse_gate(text, KNOWN)
    assert str(caught.value).startswith(f"gate {text!r}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no-drafts.acceptance_rate < 0.1", "no-drafts.acceptance_rate is null: the arm made no drafts there"),
        ("no-drafts.acceptance_per_position.0 < 0.1", "is null: the arm made no drafts there"),
        ("medusa.acceptance_rate < no-drafts", "no-drafts.acceptance_rate is null"),
        ("no-drafts.acceptance_rate != 0", "no-drafts.acceptance_rate is null"),
        ("no-drafts.theory.draft_cost_ratio > 1", "the arm made no drafts, or its drafting was not timed"),
        ("medusa.acceptance_per_position.3 < 0.1", "medusa.acceptance_per_position.3 is not in the report"),
    ],
)
def test_null_is_an_error_and_never_a_pass(text: str, reason: str) -> None:
    outcome = checked(text)
    assert outcome.state == "error"
    assert reason in outcome.line
    assert exit_code([outcome]) == 2


def test_no_interval_and_no_latency_are_errors() -> None:
    report = made_report()
    report["comparisons"][0]["ci95"] = None
    report["results"]["medusa"]["overall"]["tpot_ms"] = None
    report["comparisons"][0]["categories"]["chat"] = None
    report["results"]["medusa"]["overall"]["output_tokens_per_s"] = float("nan")
    assert "too few prompts for an interval" in checked("medusa.ratio.low < 1", report).line
    assert "tpot_ms.p50 is null: no answer was long enough" in checked("medusa.tpot_ms.p50 > 1", report).line
    assert checked("medusa.chat.ratio < 1", report).state == "error"
    assert "is nan, which is no number to compare with" in checked("medusa.output_tokens_per_s > 1", report).line


def test_category_that_was_not_measured_in_time_is_an_error() -> None:
    report = made_report(categories=("code",))
    for text in ("medusa.chat.tpot_ms.p50 > 1", "medusa.chat.ratio < 1"):
        assert check_gate(parse_gate(text, KNOWN), report).state == "error"


def test_lines_name_the_measured_values() -> None:
    assert checked("medusa.tpot_ms.p50 > 0.4 * baseline").line == (
        "gate FAILED: medusa.tpot_ms.p50 > 0.4 * baseline: 5 > 4 (0.4 * 10)"
    )
    assert checked("medusa.verdict == 'slower'").line == (
        'gate passed: medusa.verdict == \'slower\': "faster", not == "slower"'
    )
    assert checked("medusa.ratio > 1.99999999").detail == "2.0 > 1.99999999"


def test_exit_code_is_the_worst_and_an_error_is_worse_than_a_failure() -> None:
    report = made_report()
    good, bad, null = "medusa.ratio < 1", "medusa.ratio > 1", "no-drafts.acceptance_rate < 1"

    def code(*texts: str) -> int:
        return exit_code(check_gates(parse_gates(texts, KNOWN), report))

    assert (code(), code(good), code(good, bad), code(bad, null), code(null)) == (0, 0, 1, 2, 2)


def numbers(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        return [name for key, part in value.items() for name in numbers(part, f"{path}.{key}")]
    if isinstance(value, list):
        return [name for index, part in enumerate(value) for name in numbers(part, f"{path}.{index}")]
    return [path[1:]] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


def test_every_number_that_is_measured_of_an_arm_can_be_gated() -> None:
    """A field that is new in reports has to be added to `quantity`, or gates on it are refused."""
    report = make_report(asked=Asked(parse_slo("ttft_ms<200"), Price(2.0)))
    known = Known.of(report)
    names = [n for n in numbers(report["results"]["arm"]["overall"]) if not n.startswith("finish_reasons")]
    assert len(names) > 20
    for name in names:
        assert isinstance(resolve(["arm", *name.split(".")], known).read(report), (int, float)), name
    for name in METRICS:
        if name not in LOAD_METRICS:  # test_compare_load_report has those
            resolve(["arm", *name.split(".")], known).read(report)


def test_compare_refuses_a_gate_before_it_measures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "run_compare", lambda *args, **kwargs: pytest.fail("it measured"))
    command = ["compare", "--model", "m", "--arm", "medusa=null"]
    assert cli.main([*command, "--fail-if", "medsua.ratio < 1"]) == 2
    error = capsys.readouterr().err
    assert error == (
        "specplug: error: gate 'medsua.ratio < 1': unknown arm 'medsua'; arms: baseline, medusa. "
        "Did you mean 'medusa'?\n"
    )
    assert cli.main([*command, "--category", "code", "--fail-if", "medusa.chat.ratio < 1"]) == 2
    assert "unknown category 'chat'; there are: overall, code." in capsys.readouterr().err


@pytest.mark.parametrize(("gate", "code"), [("medusa.ratio < 1", 0), ("medusa.ratio > 1", 1)])
def test_compare_ends_with_the_gate_s_code_and_writes_all_files(
    gate: str, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "run_compare", lambda *args, **kwargs: made_report())
    files = {name: tmp_path / f"report.{name}" for name in ("out", "html", "markdown", "junit")}
    flags = [text for name, path in files.items() for text in (f"--{name}", str(path))]
    command = ["compare", "--model", "m", "--arm", "medusa=null", "--arm", "no-drafts=null", *flags]
    assert cli.main([*command, "--fail-if", gate]) == code
    assert all(path.stat().st_size for path in files.values())
    assert f"gate {'FAILED' if code else 'passed'}: {gate}: 2" in capsys.readouterr().out


def test_a_gate_is_text_and_never_code() -> None:
    parts = split_gate("medusa.ratio < 2 * 'no-drafts'")
    assert (parts.factor, parts.op) == (2.0, "<")
    with pytest.raises(CompareError):
        split_gate("medusa.ratio < (lambda: 1)()")
