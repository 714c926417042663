"""The report of a staging log: numbers worked out by hand, what is compared and what is not, gates, outputs."""

from __future__ import annotations

import copy
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from staging_cases import drawn_lines, exposure, outcome, write_lines

from vllm_specplug import cli
from vllm_specplug.compare.staging_compare import LEVEL
from vllm_specplug.compare.staging_format import validate_staging
from vllm_specplug.compare.staging_log import read_staging_log
from vllm_specplug.compare.staging_page import staging_page
from vllm_specplug.compare.staging_report import staging_report
from vllm_specplug.compare.staging_show import print_staging, staging_markdown
from vllm_specplug.compare.verdicts import Rule
from vllm_specplug.errors import CompareError

RULE = Rule(num_resamples=99)


def report_of(tmp_path: Path, lines: list[dict[str, Any]], baseline: str = "baseline") -> dict[str, Any]:
    log = read_staging_log([write_lines(tmp_path / "r.jsonl", lines)])
    return staging_report(log, baseline, rule=RULE)


def by_hand() -> list[dict[str, Any]]:
    """Two users of each arm; of the baseline's second one, one request failed and one was cancelled."""
    return [
        exposure("a", "baseline", unit="u1"),
        outcome("a", "baseline", e2e_s=2.5, tokens=11, ttft_s=0.5),  # 10 further tokens in 2 s
        exposure("b", "baseline", unit="u2"),
        outcome("b", "baseline", e2e_s=4.0, tokens=21, ttft_s=1.0),  # 20 in 3 s
        exposure("c", "baseline", unit="u2"),
        outcome("c", "baseline", status=500, error="arm_failed", ttft_s=None, tokens=None),
        exposure("d", "baseline", unit="u2"),
        outcome("d", "baseline", status=499, error="cancelled", ttft_s=0.2, tokens=None),
        exposure("e", "medusa", unit="u3"),
        outcome("e", "medusa", e2e_s=1.5, tokens=31, ttft_s=0.5),  # 30 in 1 s
        exposure("f", "medusa", unit="u4"),
        outcome("f", "medusa", e2e_s=2.0, tokens=1, ttft_s=None, num_moves=0),  # no stream
        exposure("g", "medusa", unit="u4"),
        outcome("g", "medusa", e2e_s=1.0, tokens=None, ttft_s=0.25),  # the engine has not counted
        exposure("h", "medusa", "forced"),
        outcome("h", "medusa", e2e_s=99.0),
        exposure("h-shadow", "medusa", "shadow"),
        outcome("h-shadow", "medusa", e2e_s=99.0),
        exposure("i", "medusa", unit="u4"),
        exposure("i", "baseline", "moved", unit="u4", time_s=1_800_000_001.0),
        outcome("i", "baseline", e2e_s=50.0, num_moves=1),
        exposure("j", "medusa", unit="u3"),  # under way
    ]


def test_numbers_by_hand(tmp_path: Path) -> None:
    report = report_of(tmp_path, by_hand())
    validate_staging(report)
    baseline, medusa = report["results"]["baseline"], report["results"]["medusa"]
    assert [baseline[key] for key in ("requests", "units", "answered", "failed", "cancelled")] == [4, 2, 2, 1, 1]
    assert [medusa[key] for key in ("requests", "units", "answered", "moved", "without_outcome")] == [5, 2, 3, 1, 1]
    assert baseline["errors"] == {"arm_failed": 1}
    assert (baseline["error_share"], medusa["error_share"]) == (1 / 4, 0.0)
    assert baseline["output_tokens_per_s"] == pytest.approx(32 / 6.5)
    assert baseline["tpot_ms"]["p50"] == pytest.approx((200 + 150) / 2)
    assert medusa["uncounted"] == 1
    speeds = report["comparisons"][0]["speeds"]
    assert speeds["e2e"]["ratio"] == pytest.approx((32 / 3.5) / (32 / 6.5))
    assert speeds["tpot"]["ratio"] == pytest.approx((30 / 1) / (30 / 5))
    assert speeds["ttft"]["ratio"] == pytest.approx((2 / 0.75) / (2 / 1.5))
    assert speeds["tpot"]["requests"] == [1, 2]
    assert all(speed["interval"] is None and speed["verdict"] == "undecided" for speed in speeds.values())
    assert report["comparisons"][0]["errors"]["difference"] == pytest.approx(0 / 4 - 1 / 4)


def test_what_no_draw_decided_is_reported_apart(tmp_path: Path) -> None:
    report = report_of(tmp_path, by_hand())
    counts = {reason: [(arm, one["requests"]) for arm, one in arms.items()] for reason, arms in report["apart"].items()}
    assert counts == {"forced": [("medusa", 1)], "moved": [], "shadow": [("medusa", 1)]}
    assert report["log"]["by"] == {"weight": 0, "sticky": 9, "forced": 1, "moved": 0, "shadow": 1}
    assert "Not compared, since no draw gave them their arm: forced medusa 1." in report["remarks"]


def test_request_that_moved_counts_for_errors_of_its_own_arm_and_for_no_speed(tmp_path: Path) -> None:
    moved = [
        exposure("x", "medusa", unit="u9", time_s=1.0),
        exposure("x", "baseline", "moved", unit="u9", time_s=2.0),
        outcome("x", "baseline", status=503, error="no_arm", num_moves=1, ttft_s=None),
    ]
    report = report_of(tmp_path, [*by_hand(), *moved])
    assert report["results"]["medusa"]["failed"] == 1
    assert report["results"]["baseline"]["failed"] == 1
    before = report_of(tmp_path, by_hand())
    assert report["comparisons"][0]["speeds"] == before["comparisons"][0]["speeds"]


def test_remarks_say_what_was_passed_over(tmp_path: Path) -> None:
    report = report_of(tmp_path, by_hand())
    for expected in (
        "Too few requests were drawn to tell whether they are split as the weights say.",
        "baseline and medusa: fewer than 30 users, too few for an interval.",
        "baseline: 1 of 4 requests were cancelled by clients.",
        "baseline: 1 of 4 requests failed (arm_failed 1).",
        "medusa: 1 of 5 requests have no outcome in the log: under way, or lost with their router.",
        "medusa: 1 answers without tokens, or without a count of them, are in no speed per token.",
    ):
        assert expected in report["remarks"], expected
    assert report["recommendation"]["sentences"] == [
        "medusa is undecided: how many more users or sessions would tell cannot be said."
    ]


def drawn(tmp_path: Path, num_users: int = 1500, seed: int = 0, **how: Any) -> dict[str, Any]:
    return report_of(tmp_path, drawn_lines(np.random.default_rng(seed), num_users, **how))


def test_planted_slowdown_is_found(tmp_path: Path) -> None:
    report = drawn(tmp_path, 4000, slowdown=1.1, spread=0.3)
    validate_staging(report)
    speeds = report["comparisons"][0]["speeds"]
    for name in ("e2e", "tpot", "ttft"):
        low, high = speeds[name]["interval"]
        assert speeds[name]["verdict"] == "slower"
        assert low < 1 / 1.1 < high < 1
    assert report["comparisons"][0]["errors"]["verdict"] == "undecided"
    assert report["recommendation"]["sentences"][0].startswith("Keep baseline: medusa is slower per output token, 0.")


def test_faster_arm_is_to_be_shipped(tmp_path: Path) -> None:
    report = drawn(tmp_path, slowdown=0.6)
    assert report["recommendation"]["arms"] == {"medusa": "ship"}
    assert report["recommendation"]["sentences"][0].startswith("Ship medusa: it is faster per output token, 1.")


def test_faster_arm_with_more_errors_is_not(tmp_path: Path) -> None:
    report = drawn(tmp_path, slowdown=0.6, error_share=0.03, more_errors=4.0)
    assert report["comparisons"][0]["errors"]["verdict"] == "more"
    assert report["recommendation"]["arms"] == {"medusa": "keep"}
    assert report["recommendation"]["sentences"][0].startswith("Keep baseline: of 100 requests ")


def test_small_log_is_undecided_and_says_how_many_users_would_tell(tmp_path: Path) -> None:
    report = drawn(tmp_path, 200, slowdown=1.1)
    assert report["recommendation"]["arms"] == {"medusa": "undecided"}
    assert report["recommendation"]["more_units"]["medusa"] > 100
    assert " more users or sessions would tell." in report["recommendation"]["sentences"][0]


def test_split_that_does_not_fit_the_weights_stops_every_verdict(tmp_path: Path) -> None:
    # Of one arm's requests 40 % never reach the log, its slowest user's perhaps: nothing may be said.
    report = drawn(tmp_path, slowdown=0.5, sort_out=0.9, per_user=1.5)
    assert report["split"]["mismatch"]
    row = report["comparisons"][0]
    assert {speed["verdict"] for speed in row["speeds"].values()} == {"undecided"}
    assert row["errors"]["verdict"] == "undecided"
    assert report["recommendation"]["sentences"][0].startswith("No verdict: the split does not fit the weights (p = ")
    file = io.StringIO()
    print_staging(report, file)
    assert file.getvalue().startswith("Verdict. No verdict: the split does not fit the weights (p = ")
    assert "Split: MISMATCH, p = " in file.getvalue()


def test_clusters_are_users(tmp_path: Path) -> None:
    """The same requests, each user's copied ten times: no more is known."""
    lines = drawn_lines(np.random.default_rng(1), 300)
    once = report_of(tmp_path, lines)
    copies = [line | {"request_id": f"{line['request_id']}-{copy}"} for line in lines for copy in range(10)]
    tenfold = report_of(tmp_path, copies)
    one, ten = (report["comparisons"][0]["speeds"]["e2e"] for report in (once, tenfold))
    assert ten["units"] == one["units"]
    assert ten["interval"] == pytest.approx(one["interval"])


def test_verdicts_hold_jointly_and_at_all_looks(tmp_path: Path) -> None:
    assert pytest.approx(1 - 0.05 / 4) == LEVEL
    speed = drawn(tmp_path)["comparisons"][0]["speeds"]["e2e"]
    many, one = (math.log(high / low) for low, high in (speed["interval"], speed["once"]["ci95"]))
    assert many > 1.5 * one


@pytest.mark.parametrize(
    ("lines", "baseline", "message"),
    [
        (
            by_hand(),
            "plain",
            "no request was drawn for the baseline 'plain'; arms with requests: baseline, medusa;",
        ),
        (
            [exposure("a", "baseline")],
            "baseline",
            "all requests were drawn for 'baseline'; there is nothing to comp",
        ),
    ],
)
def test_log_with_nothing_to_compare_is_refused(
    tmp_path: Path, lines: list[dict[str, Any]], baseline: str, message: str
) -> None:
    with pytest.raises(CompareError) as caught:
        report_of(tmp_path, lines, baseline)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("schema",), "x", "schema is 'x', expected 'specplug.staging-report/1'"),
        (("split", "p_value"), 2, "split.p_value is 2, expected a number from 0 to 1 or null"),
        (("results", "medusa", "failed"), -1, "results.medusa.failed is -1, expected a count"),
        (
            ("comparisons", 0, "speeds", "tpot", "verdict"),
            "x",
            "comparisons[0].speeds.tpot.verdict is 'x', expected",
        ),
        (
            ("comparisons", 0, "errors", "verdict"),
            "x",
            "comparisons[0].errors.verdict is 'x', expected one of 'more'",
        ),
    ],
)
def test_wrong_key_is_named(tmp_path: Path, where: tuple[Any, ...], value: Any, message: str) -> None:
    report = copy.deepcopy(report_of(tmp_path, by_hand()))
    part: Any = report
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    with pytest.raises(CompareError) as caught:
        validate_staging(report)
    assert str(caught.value).startswith(message)


# The command.


@pytest.fixture
def log_file(tmp_path: Path) -> str:
    return write_lines(tmp_path / "log.jsonl", drawn_lines(np.random.default_rng(0), 400, slowdown=0.5, spread=0.3))


def test_compare_reads_a_log_and_report_shows_it_again(
    tmp_path: Path, log_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.json"
    assert cli.main(["compare", "--staging-log", log_file, "--out", str(out)]) == 0
    first = capsys.readouterr().out
    assert first.startswith("Verdict. Ship medusa: it is faster per output token, ")
    written = {name: tmp_path / f"r.{name}" for name in ("html", "markdown", "junit")}
    flags = [text for name, path in written.items() for text in (f"--{name}", str(path))]
    gates = ["--fail-if", "medusa.tpot.ratio < 1", "--fail-if", "medusa.errors.share > 0.5"]
    assert cli.main(["report", str(out), *flags, *gates, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["schema"] == "specplug.staging-report/1"
    assert "gate passed: medusa.tpot.ratio < 1: " in captured.err
    assert written["html"].read_text().startswith("<!doctype html>")
    assert "**Ship medusa: it is faster per output token" in written["markdown"].read_text()
    assert 'tests="2" failures="0" errors="0"' in written["junit"].read_text()
    assert cli.main(["report", str(out)]) == 0
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    ("gate", "code"),
    [
        ("medusa.e2e.ratio < 1.2", 0),
        ("medusa.e2e.ratio.low < 3", 1),
        ('medusa.tpot.verdict == "faster"', 1),
        ("medusa.errors.verdict == 'more'", 0),
        ("medusa.errors.difference.high > -1", 1),
        ("medusa.errors.share > 50 * baseline", 0),
        ("medusa.ttft_ms.p99 > 0.1 * baseline.ttft_ms.p50", 1),
        ("medusa.units < 100", 0),
        ("medusa.without_outcome > 0", 0),
    ],
)
def test_gates(log_file: str, gate: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "--staging-log", log_file, "--fail-if", gate]) == code


def test_gate_on_a_comparison_cannot_be_told_where_the_split_is_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = drawn_lines(np.random.default_rng(0), 800, sort_out=0.9, per_user=1.5)
    file = write_lines(tmp_path / "r.jsonl", lines)
    assert cli.main(["compare", "--staging-log", file, "--fail-if", "medusa.e2e.ratio < 0.1"]) == 2
    assert "CANNOT BE TOLD: medusa.e2e.ratio < 0.1: medusa.e2e.ratio: nothing can be compared: the split" in (
        capsys.readouterr().out
    )
    assert cli.main(["compare", "--staging-log", file, "--fail-if", "medusa.requests < 1"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fail-if", "medsua.e2e.ratio < 1"], "unknown arm 'medsua'; arms: baseline, medusa. Did you mean 'medusa'?"),
        (["--fail-if", "medusa.e2e.ration < 1"], "unknown metric 'e2e.ration'; there are: requests, units,"),
        (["--fail-if", "baseline.e2e.ratio < 1"], "baseline is what the others are compared with and has no e2e.ratio"),
        (["--fail-if", "medusa.e2e.verdict == 1"], "a verdict is compared with one of 'faster', 'slower', 'no differ"),
        (["--fail-if", "medusa.errors.verdict == 'slower'"], "a verdict is compared with one of 'more', 'fewer', 'un"),
        (["--seed", "-1"], "--seed is -1, expected 0 to 4294967295"),
        (["--passes", "3"], "--passes is about measuring; leave it out with --staging-log"),
        (["--arm", "a=null"], "--arm is about measuring; leave it out with --staging-log"),
        (["--baseline", "plain"], "no request was drawn for the baseline 'plain'"),
        (["--model", "maths"], "the log has no requests for the model 'maths'; it has chat"),
    ],
)
def test_what_does_not_fit_is_named(
    log_file: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", "--staging-log", log_file, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_report_of_a_log_is_shown_alone(tmp_path: Path, log_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "report.json")
    assert cli.main(["compare", "--staging-log", log_file, "--out", out]) == 0
    assert cli.main(["report", out, out]) == 2
    assert "the report of a staging log is shown alone" in capsys.readouterr().err


def test_every_text_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>"
    weights = {"baseline": 1.0, evil: 1.0}
    lines = [line | ({"weights": weights} if "weights" in line else {}) for line in by_hand()]
    lines = [line | ({"arm": evil} if line["arm"] == "medusa" else {}) for line in lines]
    lines = [line | ({"model": evil} if "model" in line else {}) for line in lines]
    report = report_of(tmp_path, lines)
    folded = staging_markdown(report).index("```text")  # what is to be copied stands there as it is
    for text in (staging_page(report), staging_markdown(report)[:folded]):
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text


# An arm that is out.


def failover() -> list[dict[str, Any]]:
    """By hand: while medusa is out, the baseline has its two requests besides two of its own, and is slow."""
    out = {"out": ["medusa"]}
    lines = [
        exposure("a", "baseline", unit="u1", out=[]),
        outcome("a", "baseline", e2e_s=2.0, tokens=10),
        exposure("b", "medusa", unit="u2", out=[]),
        outcome("b", "medusa", e2e_s=4.0, tokens=10),
    ]
    for name, unit in (("c", "u3"), ("d", "u4")):
        lines += [exposure(name, "baseline", unit=unit, **out), outcome(name, "baseline", e2e_s=20.0, tokens=10)]
    for name, end in (("e", {}), ("f", {"status": 503, "error": "arm_died"})):
        lines += [
            exposure(name, "medusa", unit="u5", **out),
            exposure(name, "baseline", "moved", unit="u5", instead_of="medusa", why="out", **out),
            outcome(name, "baseline", e2e_s=20.0, tokens=10, num_moves=1, **end),
        ]
    return lines


def test_answers_in_place_of_an_arm_that_is_out_count_for_nobody_s_speed_and_for_its_own_arm_s_errors(
    tmp_path: Path,
) -> None:
    report = report_of(tmp_path, failover())
    validate_staging(report)
    baseline, medusa = report["results"]["baseline"], report["results"]["medusa"]
    assert (baseline["requests"], baseline["failed"], baseline["stood_in"]) == (3, 0, 2)
    assert baseline["stood_in_for"] == {"medusa": 2}
    assert baseline["output_tokens"] == 30
    assert (medusa["requests"], medusa["failed"], medusa["moved"], medusa["stood_in"]) == (3, 1, 2, 0)
    assert report["comparisons"][0]["errors"]["difference"] == pytest.approx(1 / 3)


def test_requests_drawn_while_either_arm_was_out_are_in_no_speed_compared(tmp_path: Path) -> None:
    comparison = report_of(tmp_path, failover())["comparisons"][0]
    assert comparison["drawn_while_out"] == [2, 2]
    # One request of each is left: 10 tokens in 4 s over 10 in 2 s. With all, the baseline would have 30 in 42 s.
    assert comparison["speeds"]["e2e"]["requests"] == [1, 1]
    assert comparison["speeds"]["e2e"]["ratio"] == pytest.approx(0.5)
    old = [{key: value for key, value in line.items() if key != "out"} for line in failover()]
    assert report_of(tmp_path, old)["comparisons"][0]["speeds"]["e2e"]["ratio"] == pytest.approx((10 / 4) / (30 / 42))


def test_third_arm_that_is_out_leaves_the_other_two_comparable(tmp_path: Path) -> None:
    weights = {"baseline": 1.0, "medusa": 1.0, "third": 1.0}
    lines = [line | ({"weights": weights, "out": ["third"]} if "out" in line else {}) for line in failover()[:8]]
    third = [exposure("z", "third", unit="u9", weights=weights, out=[]), outcome("z", "third")]
    report = report_of(tmp_path, [*lines, *third])
    assert [row["drawn_while_out"] for row in report["comparisons"]] == [[0, 0], [0, 3]]


def test_report_says_what_it_does_with_failover(tmp_path: Path) -> None:
    said = report_of(tmp_path, failover())["remarks"]
    for expected in (
        "medusa: 2 requests drawn for it were moved to another arm, or back to it after a failure; they count among "
        "its errors, not in its speeds.",
        "baseline: 2 requests that were drawn for others ended with it, because their arm was out or failed (medusa "
        "2); no draw gave it these, so they are in none of its numbers.",
        "medusa or baseline was out when 2 and 2 of their requests were drawn; these are in none of the speeds "
        "compared, since one arm then has the load of two.",
    ):
        assert expected in said, expected
    old = [{key: value for key, value in line.items() if key != "out"} for line in failover()]
    assert any(
        line.endswith("Hours in which it was out are in the others' speeds alone.")
        for line in report_of(tmp_path, old)["remarks"]
    )


def with_outages(lines: list[dict[str, Any]], tell: bool) -> list[dict[str, Any]]:
    """The same with medusa out for every third user: the baseline answers all of them, three times as slowly."""
    found = []
    for line in lines:
        user = int(line["request_id"].partition("-")[0])
        if user % 3:
            found.append(line | ({"out": []} if tell and line["event"] == "exposure" else {}))
            continue
        if line["event"] == "exposure":
            told = line | ({"out": ["medusa"]} if tell else {})
            found.append(told)
            if line["arm"] == "medusa":
                found.append(told | {"arm": "baseline", "by": "moved", "instead_of": "medusa", "why": "out"})
        else:
            moved = {"num_moves": 1} if line["arm"] == "medusa" else {}
            slow = {"e2e_s": 3 * line["e2e_s"], "ttft_s": 3 * line["ttft_s"]}
            found.append(line | slow | moved | {"arm": "baseline"})
    return found


def test_outages_of_an_arm_do_not_make_it_look_faster(tmp_path: Path) -> None:
    lines = drawn_lines(np.random.default_rng(4), 1500, spread=0.3)
    report = report_of(tmp_path, with_outages(lines, tell=True))
    assert {speed["verdict"] for speed in report["comparisons"][0]["speeds"].values()} == {"undecided"}
    # So it would be if the log did not say when the arm was out.
    report = report_of(tmp_path, with_outages(lines, tell=False))
    assert {speed["verdict"] for speed in report["comparisons"][0]["speeds"].values()} == {"faster"}


def test_arm_that_is_to_be_shipped_but_was_out_is_said_to_have_been(tmp_path: Path) -> None:
    lines = drawn_lines(np.random.default_rng(4), 1500, spread=0.3, slowdown=0.5)
    sentences = report_of(tmp_path, with_outages(lines, tell=True))["recommendation"]["sentences"]
    assert sentences[0].startswith("Ship medusa: ")
    assert sentences[1].startswith("Before you ship medusa: ")
    assert " requests had to leave it, because it was out or failed; no speed above holds that" in sentences[1]
    assert len(report_of(tmp_path, lines)["recommendation"]["sentences"]) == 1


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (
            ("schema",),
            "specplug.staging-report/2",
            "schema is 'specplug.staging-report/2', expected 'specplug.staging-r",
        ),
        (("provenance",), {}, "provenance.specplug is missing; expected a text"),
        (("log", "by"), {"weight": "x"}, "log.by is {'weight': 'x'}, expected a count for each"),
        (("recommendation",), {}, "recommendation.sentences is missing; expected a list of texts, not empty"),
        (("recommendation", "sentences"), [], "recommendation.sentences is [], expected a list of texts, not empty"),
        (("remarks",), [5], "remarks is [5], expected a list of texts"),
        (("results",), {}, "results.baseline is missing, that of the baseline; expected an object"),
        (("apart",), {"shadow": 5}, "apart.shadow is 5, expected an object"),
        (("apart",), {"shadow": {"medusa": 5}}, "apart.shadow.medusa is 5, expected an object"),
        (("split", "expected"), {}, "split.expected.baseline is missing; expected a number"),
        (("comparisons", 0, "arm"), "other", "comparisons[0].arm is 'other', which has no results"),
        (
            ("comparisons", 0, "speeds", "e2e", "once"),
            5,
            "comparisons[0].speeds.e2e.once is 5, expected an object or nu",
        ),
        (("comparisons", 0, "drawn_while_out"), [1], "comparisons[0].drawn_while_out is [1], expected two counts"),
    ],
)
def test_report_that_could_not_be_shown_is_refused_before_anything_is(
    tmp_path: Path, where: tuple[Any, ...], value: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = report_of(tmp_path, by_hand())
    part: Any = report
    for key in where[:-1]:
        part = part[key]
    part[where[-1]] = value
    file = tmp_path / "r.json"
    file.write_text(json.dumps(report))
    assert cli.main(["report", str(file), "--html", str(tmp_path / "r.html")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"specplug: error: {file}: {message}")
    assert said.err.endswith("; give a file that `specplug compare --staging-log ... --out` wrote\n")
    assert not (tmp_path / "r.html").exists()


def test_report_of_a_former_version_is_shown_without_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = report_of(tmp_path, failover())
    del report["log"]["knows_who_was_out"]
    for result in report["results"].values():
        del result["stood_in"], result["stood_in_for"]
    for comparison in report["comparisons"]:
        del comparison["drawn_while_out"]
    file = tmp_path / "old.json"
    file.write_text(json.dumps(report))
    assert cli.main(["report", str(file), "--html", str(tmp_path / "r.html")]) == 0
    assert cli.main(["report", str(file), "--fail-if", "baseline.stood_in > 0"]) == 2
    assert "baseline.stood_in is null" in capsys.readouterr().out
