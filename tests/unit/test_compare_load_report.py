"""A report with levels of load: its format, gates, what is said and drawn of it."""

from __future__ import annotations

import copy
import io
import json
import re
from typing import Any

import pytest
from load_cases import report_under_load
from report_cases import made_report
from test_compare_gate import numbers

from vllm_specplug import cli
from vllm_specplug.compare import sentences
from vllm_specplug.compare.asked import Asked
from vllm_specplug.compare.cost import Price
from vllm_specplug.compare.gate import check_gate, parse_gate
from vllm_specplug.compare.goodput import parse_slo
from vllm_specplug.compare.load_show import load_notes, load_tables
from vllm_specplug.compare.markdown import render_markdown
from vllm_specplug.compare.page import render_page
from vllm_specplug.compare.quantity import COMPARISON_METRICS, LOAD_METRICS, Known, resolve
from vllm_specplug.compare.report_format import read_report, validate, write_report
from vllm_specplug.compare.terminal import print_report
from vllm_specplug.errors import CompareError


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """`good` takes half the time with 2 requests at once and 1.5 times as long with 4; `even` makes no difference."""
    return report_under_load({"good": (0.5, 1.5), "even": (1.0, 1.0)})


def shown(report: dict[str, Any]) -> str:
    file = io.StringIO()
    print_report(report, file)
    return file.getvalue()


def test_report_is_valid_and_comes_back_from_its_file(report: dict[str, Any], tmp_path: Any) -> None:
    write_report(report, tmp_path / "r.json")
    assert read_report(tmp_path / "r.json") == json.loads(json.dumps(report))
    validate({**report, "load": None})
    validate({key: value for key, value in report.items() if key != "load"})  # of a former version


def test_each_level_has_results_of_all_arms_and_comparisons_of_the_others(report: dict[str, Any]) -> None:
    load = report["load"]
    assert (load["kind"], load["unit"], load["passes"]) == ("concurrency", "requests at once", 4)
    assert [(level["name"], level["value"]) for level in load["levels"]] == [("at_2", 2), ("at_4", 4)]
    for level in load["levels"]:
        assert list(level["results"]) == ["baseline", "good", "even"]
        assert [entry["arm"] for entry in level["comparisons"]] == ["good", "even"]
        assert {entry["against"] for entry in level["comparisons"]} == {"baseline"}
        # 4 runs of 8 prompts each, of ten tokens.
        assert {found["output_tokens"] for found in level["results"].values()} == {320}
        assert {len(rows) for rows in level["requests"].values()} == {32}
        assert {len(rows) for rows in level["runs"].values()} == {4}
        assert all(entry["identical"] == entry["prompts"] == 8 for entry in level["lossless"].values())
    two, four = load["levels"]
    # Pairs of 1.0 .. 1.7 s, each as long as its slower: 1.1 + 1.3 + 1.5 + 1.7 s a run.
    assert two["results"]["baseline"]["output_tokens_per_s"] == pytest.approx(80 / 5.6)
    assert two["results"]["baseline"]["in_flight"] == {"max": 2, "mean": pytest.approx(10.8 / 5.6)}
    assert two["comparisons"][0]["ratio"] == pytest.approx(2.0, rel=0.01)
    assert four["comparisons"][0]["ratio"] == pytest.approx(1 / 1.5, rel=0.01)


def test_verdicts_give_the_load_up_to_which_an_arm_pays(report: dict[str, Any]) -> None:
    verdicts = {
        name: [
            entry["verdict"]
            for level in report["load"]["levels"]
            for entry in level["comparisons"]
            if entry["arm"] == name
        ]
        for name in ("good", "even")
    }
    assert verdicts == {"good": ["faster", "slower"], "even": ["no difference", "no difference"]}
    assert report["load"]["advice"] == {
        "good": {"faster_up_to": 2, "slower_from": 4, "unit": "requests at once"},
        "even": {"faster_up_to": None, "slower_from": None, "unit": "requests at once"},
    }


def test_infinite_rate_is_valid_json_and_is_said() -> None:
    report = report_under_load({"good": (0.5, 0.5)}, "request_rate", "3,inf")
    validate(json.loads(json.dumps(report, allow_nan=False)))
    assert report["load"]["advice"]["good"]["faster_up_to"] == "inf"
    assert "Under load good is faster" in " ".join(sentences.sentences(report))
    assert "at_inf" in [level["name"] for level in report["load"]["levels"]]
    render_page(report)
    render_markdown(report)


WRONG: list[tuple[list[Any], Any, str]] = [
    (["kind"], "often", "load.kind is 'often', expected one of concurrency, request_rate, replay"),
    (["levels"], None, "load.levels is None, expected a list that is not empty"),
    (["levels"], [], "load.levels is [], expected a list that is not empty"),
    (["levels", 0, "value"], "2", "load.levels[0].value is '2', expected a number or 'inf'"),
    (["levels", 1, "results", "good", "failed"], -1, "load.levels[1].results.good.failed is -1, expected a count"),
    (["levels", 1, "results", "good", "ttft_ms"], 3, "load.levels[1].results.good.ttft_ms is 3, expected p50, p90 and"),
    (
        ["levels", 0, "comparisons", 1, "verdict"],
        "so",
        "load.levels[0].comparisons[1].verdict is 'so', expected one of",
    ),
    (["levels", 0, "comparisons", 0, "ci95"], [2, 1], "load.levels[0].comparisons[0].ci95 is [2, 1], expected [low, h"),
    (["advice", "good", "slower_from"], "16", "load.advice.good.slower_from is '16', expected a number, 'inf' or null"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG)
def test_wrong_values_are_named(report: dict[str, Any], path: list[Any], value: Any, message: str) -> None:
    broken = copy.deepcopy(report)
    place = broken["load"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(CompareError) as caught:
        validate(broken)
    assert str(caught.value).startswith(message)


def test_level_without_an_arm_is_named(report: dict[str, Any]) -> None:
    broken = copy.deepcopy(report)
    del broken["load"]["levels"][0]["results"]["even"]
    with pytest.raises(
        CompareError, match=r"load.levels\[0\].results.even is missing; expected a result for every arm"
    ):
        validate(broken)


# Gates


@pytest.mark.parametrize(
    ("gate", "state"),
    [
        ("good.at_2.ratio < 1.9", "passed"),
        ("good.at_4.ratio < 1", "failed"),
        ("good.at_4.ratio.high < 1", "failed"),
        ('good.at_4.verdict == "slower"', "failed"),
        ('good.at_2.verdict == "slower"', "passed"),
        ("good.at_2.throughput.ratio < 1.9", "passed"),
        ("good.at_2.tpot_ms.p50 > 1.05 * baseline", "passed"),
        ("good.at_4.tpot_ms.p50 > 1.05 * baseline", "failed"),
        ("good.at_4.e2e_ms.p99 > 2.9 * good.at_2", "failed"),
        ("good.at_4.requests_per_s < 0.5 * baseline", "passed"),
        ("baseline.at_2.failed > 0", "passed"),
        ("baseline.at_2.in_flight.max < 2", "passed"),
        ("good.at_2.acceptance_rate < 0.6", "passed"),
        ("baseline.at_2.acceptance_rate < 0.6", "error"),
        ("good.at_2.goodput.share < 1", "error"),
        ("good.ratio > good.at_4.ratio", "failed"),
    ],
)
def test_gates_can_name_a_level(report: dict[str, Any], gate: str, state: str) -> None:
    assert check_gate(parse_gate(gate, Known.of(report)), report).state == state


def test_every_number_that_is_measured_under_load_can_be_gated() -> None:
    report = report_under_load({"good": (0.5, 1.5)}, asked=Asked(parse_slo("e2e_ms<1000"), Price(2.0)))
    known = Known.of(report)
    results = report["load"]["levels"][0]["results"]["good"]
    names = [name for name in numbers(results) if not name.startswith(("finish_reasons", "errors"))]
    assert len(names) > 25
    for name in (*names, *LOAD_METRICS, *COMPARISON_METRICS):
        resolve(["good", "at_2", *name.split(".")], known).read(report)


def test_gate_may_name_a_level_with_a_dot() -> None:
    report = report_under_load({"good": (0.5, 0.5)}, "request_rate", "0.5,2")
    known = Known.of(report)
    assert known.levels == ("at_0.5", "at_2")
    outcome = check_gate(parse_gate("good.at_0.5.ratio < 1", known), report)
    assert (outcome.state, round(float(outcome.left or 0))) == ("passed", 2)
    assert str(outcome.gate.left) == "good.at_0.5.ratio"


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ("good.at_3.ratio < 1", "unknown category or level 'at_3'; there are: overall, c, at_2, at_4"),
        ("good.at_2 < 1", "good.at_2 names no metric; there are: "),
        ("good.at_2.speed < 1", "unknown metric 'speed'; there are: "),
        ("good.at_2.lossless.different > 0", "lossless.different is known without load only; write good.lossless.diff"),
        ("good.failed > 0", "failed is of a level of load, which stands in front of it: at_2, at_4"),
        ("baseline.at_2.ratio < 1", "baseline is what the others are compared with and has no ratio"),
        ("baseline.at_2.throughput.ratio < 1", "baseline is what the others are compared with and has no throughput.r"),
    ],
)
def test_gate_that_names_no_number_under_load_is_refused(report: dict[str, Any], gate: str, message: str) -> None:
    with pytest.raises(CompareError) as caught:
        parse_gate(gate, Known.of(report))
    assert str(caught.value).startswith(f"gate {gate!r}: {message}")


def test_gate_on_load_without_any_is_refused() -> None:
    with pytest.raises(CompareError, match="in front of it: there is none: --concurrency, --request-rate or --replay"):
        parse_gate("medusa.requests_per_s < 1", Known.of(made_report()))


def test_interval_that_few_runs_do_not_give_is_an_error_of_the_gate() -> None:
    report = report_under_load({"good": (0.5, 0.5)}, num_passes=2)
    outcome = check_gate(parse_gate("good.at_2.ratio.low < 1", Known.of(report)), report)
    assert outcome.state == "error"
    assert outcome.detail == "good.at_2.ratio.low is null: there are too few prompts or passes for an interval"


# For people


def test_terminal_and_markdown_have_rows_for_each_level_and_arm(report: dict[str, Any]) -> None:
    speeds, latencies = load_tables(report)
    assert speeds.title == "Under load, by requests at once"
    assert speeds.header == ("load", "arm", "ratio (95 %)", "verdict", "tok/s", "req/s", "tok/fwd", "acc.rate")
    assert latencies.header == ("load", "arm", "ttft", "tpot", "e2e")
    assert speeds.rows[1] == ("2", "good", "2.00x (2.00 to 2.00)", "faster", "28.6", "2.86", "2.00", "62 %")
    # Answers of 1.0 .. 1.7 s, a quarter of it for the first of ten tokens.
    assert latencies.rows[0] == ("2", "baseline", "338 / 423 / 425", "112 / 141 / 142", "1,350 / 1,690 / 1,700")
    text, markdown = shown(report), render_markdown(report)
    for table in (speeds, latencies):
        assert [row[:2] for row in table.rows] == [(load, arm) for load in "24" for arm in ("baseline", "good", "even")]
        assert table.title in text
        assert f"**{table.title}**" in markdown
        for row in table.rows:
            assert f"| {' | '.join(row)} |" in markdown
            assert re.search(r"\s+".join(re.escape(cell) for cell in row[1:] if cell), text), row


def test_goodput_and_failures_have_columns_when_there_are_any(report: dict[str, Any]) -> None:
    found = load_tables(report_under_load({"good": (0.5, 0.5)}, asked=Asked(parse_slo("e2e_ms<1000"))))[0]
    assert found.header[-1] == "goodput"
    assert found.rows[1][-1].startswith("100 % · ")
    broken = copy.deepcopy(report)
    broken["load"]["levels"][1]["results"]["good"] |= {
        "failed": 3,
        "errors": {
            "requests": 32,
            "failed": 3,
            "kinds": {"timeout": 2, "http_500": 1},
            "first": "timeout: no token for 9 s",
            "prompts_left_out": ["p1", "p2"],
        },
    }
    found = load_tables(broken)[0]
    assert found.header[-1] == "failed"
    assert [row[-1] for row in found.rows] == ["0", "0", "0", "0", "3", "0"]
    assert (
        "good: at 4 requests at once 3 of 32 requests failed (timeout 2, http_500 1); ratios are without 2 prompts. "
        "The first: timeout: no token for 9 s"
    ) in load_notes(broken)


def test_notes_say_what_spoils_a_level(report: dict[str, Any]) -> None:
    """4 at once were not held by pairs; the rest is made up."""
    found = load_notes(report)
    assert (
        "At 4 requests at once only 1.9 were in flight on average: each run ends with fewer. More prompts would hold "
        "the level."
    ) in found
    assert not any("max_num_seqs" in line for line in found)
    assert not any("KV cache" in line or "differ" in line or "undecided" in line for line in found)
    worse = copy.deepcopy(report)
    four = worse["load"]["levels"][1]
    four["results"]["even"]["num_preemptions"] = 7
    worse["load"]["max_num_seqs"] = {"baseline": 1, "good": 1, "even": 2}
    four["lossless"]["good"] = {"prompts": 8, "identical": 6, "near_ties": 0, "different": 2}
    four["comparisons"][1] |= {"verdict": "undecided", "more_would_help": "passes"}
    said = load_notes(worse)
    assert any(
        line.startswith("even: at 4 requests at once a request lost its KV cache to others 7 times") for line in said
    )
    assert (
        "good: at 4 requests at once 2 of 8 answers differ beyond rounding from those of baseline without load." in said
    )
    assert "even: undecided at 4 requests at once: more passes would tell." in said


def test_few_runs_are_said_to_be_why_nothing_is_decided() -> None:
    report = report_under_load({"good": (0.5, 0.5)}, num_passes=2)
    assert "good: undecided at 2, 4 requests at once: because of fewer than 4 passes." in load_notes(report)


def test_late_client_is_said_of_endpoints_only() -> None:
    report = report_under_load({"good": (0.5, 0.5)}, "request_rate", "3,inf")
    for level in report["load"]["levels"]:
        for result in level["results"].values():
            result["late_ms"] = {"p50": 10.0, "p90": 30.0, "p99": 400.0}
    assert not any("late" in line for line in load_notes(report))
    report["arms"][1]["endpoint"] = {"url": "http://localhost:1/v1", "model": "m"}
    late = [line for line in load_notes(report) if "late" in line]
    assert late == [
        "good: at 3 requests a second requests were sent up to 400 ms late (p99): this machine is too slow a client "
        "for them."
    ]


def test_page_draws_the_sweep_and_says_in_words_what_it_draws(report: dict[str, Any]) -> None:
    page = render_page(report)
    assert 'id="load"' in page
    drawings = re.findall(r'<svg role="img".*?</svg>', page, re.DOTALL)
    ratios = next(one for one in drawings if "by requests at once</title>" in one)
    assert "good: 2 2.00x (" in ratios
    assert "4 0.67x (" in ratios
    assert "slower" in ratios
    assert ratios.count("whisker") == 4  # two arms, two levels
    throughput = next(one for one in drawings if "Throughput over time per token" in one)
    assert "baseline: 2 14.3 tokens/s at " in throughput
    assert throughput.count('class="mark') == 6
    assert "2 · good" in page
    assert 'id="load"' not in render_page({**report, "load": None})


def test_names_in_the_load_part_cannot_break_out_of_the_page() -> None:
    report = report_under_load({"good": (0.5, 0.5)})
    text = json.dumps(report).replace('"good"', '"<img src=x>"')
    page = render_page(json.loads(text))
    assert "<img" not in page
    assert "&lt;img src=x&gt;" in page


# The command line, before anything is started


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "0"], "--concurrency 0: '0' is no whole number of 1 or more"),
        (["--concurrency", "1", "--request-rate", "1"], "--concurrency and --request-rate are different kinds of load"),
        (
            ["--concurrency", "99"],
            "--concurrency 99 cannot be held with 10 prompts; give more of them or a lower level",
        ),
        (["--replay"], "--replay sends prompts at their 'arrival_s', which those of specplug-v1 do not have"),
        (
            ["--concurrency", "1", "--budget-s", "9"],
            "--budget-s does not bound the time of levels of load; use --limit",
        ),
        (["--concurrency", "1", "--fail-if", "x.at_2.ratio < 1"], "gate 'x.at_2.ratio < 1': unknown category or level"),
    ],
)
def test_load_that_cannot_be_measured_is_one_line_before_an_engine_starts(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "--model", "/no/such/model", "--arm", "x=null", "--limit", "1", *arguments]
    assert cli.main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"specplug: error: {message}")
    assert error.count("\n") == 1
