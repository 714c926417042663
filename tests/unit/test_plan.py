"""`specplug plan`: from numbers, from a report, for a device; the page; what it refuses."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from vllm_specplug import cli
from vllm_specplug.compare.report_format import SCHEMA, write_report
from vllm_specplug.plan_drafter import Drafter, read_drafters
from vllm_specplug.plan_page import render_plan

#: 80 rounds of 3 drafts, of which 0.875 a round are accepted: alpha = 0.5, as 1/2 + 1/4 + 1/8 = 0.875.
DRAFTED = {"num_drafts": 80, "num_draft_tokens": 240, "num_accepted_tokens": 70, "num_emitted_accepted_tokens": 70}
DEVICE = ["--params", "70e9", "--bytes-per-param", "2", "--bandwidth", "3.35e12", "--flops", "989e12"]


def result(output_tokens: int, **drafted: int) -> dict[str, Any]:
    acceptance = ("tokens_per_forward", "acceptance_length", "acceptance_rate", "acceptance_per_position")
    latency = dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_ms"))
    counts = {"prompts": 5, "requests": 10, "output_tokens": output_tokens, "output_tokens_per_s": 1.0}
    return {**counts, **latency, **dict.fromkeys((*acceptance, *DRAFTED)), **drafted}


def theory(draft: float | None, verify: float | None, measured: float) -> dict[str, float | None]:
    costs = {"draft_cost_ratio": draft, "verify_cost_ratio": verify, "predicted_speedup": None}
    return {"acceptance_rate": 70 / 240, **costs, "measured_speedup": measured}


def report() -> dict[str, Any]:
    """`medusa` drafts in all its 80 steps, `lookup` in half of its 160, `peer` is not timed."""
    overall = {
        "baseline": result(160),
        "medusa": result(10 + 80 + 70, **DRAFTED),
        "lookup": result(10 + 160 + 70, **DRAFTED),
        "peer": result(10 + 80 + 70, **DRAFTED),
    }
    arms = [{"name": name, "speculative_config": {"num_speculative_tokens": 3}} for name in overall]
    arms[0]["speculative_config"] = None
    return {
        "schema": SCHEMA,
        "provenance": {
            **dict.fromkeys(("specplug", "vllm", "commit", "started_at"), "0"),
            "argv": [],
            "machine": {},
        },
        "target": "target",
        "dtype": "float32",
        "arms": arms,
        "results": {name: {"overall": found, "categories": {}} for name, found in overall.items()},
        "comparisons": [],
        "lossless": {},
        "theory": {
            "medusa": theory(0.15, 1.3, 1.25),
            "lookup": theory(0.075, 1.15, 1.15),
            "peer": theory(None, None, 1.1),
        },
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_report(report(), tmp_path / "report.json")
    return tmp_path / "report.json"


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line `specplug plan` ends with when it refuses."""
    assert cli.main(["plan", *map(str, arguments)]) == 2
    caught = capsys.readouterr()
    assert caught.out == ""
    assert caught.err.count("\n") == 1
    return caught.err.strip().removeprefix("specplug: error: ")


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    assert cli.main(["plan", *map(str, arguments), "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


# From numbers.


def test_table_shows_each_number_of_drafts_and_marks_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--alpha", "0.5", "--draft-cost", "0.15", "--max-drafts", "3"]) == 0
    text = capsys.readouterr().out
    rows = [line.split() for line in text.splitlines() if re.match(r" +\d ", line)]
    assert rows == [
        ["0", "1.00", "1.00x"],
        ["1", "1.50", "1.30x"],
        ["2", "1.75", ">", "1.35x"],
        ["3", "1.88", "1.29x"],
    ]
    assert "alpha 0.5: best: 2 drafts, 1.35 times; alpha 0.5, draft cost 0.15, checking step 1\n" in text
    assert "speed-up = tokens / (drafts * draft cost + checking step)" in text


def test_json_is_one_line_and_holds_all_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = ("--alpha", "0.5", "0.8", "--draft-cost", "0.15", "--verify-cost", "1.1", "--max-drafts", "3")
    found = json_of(capsys, *numbers, *DEVICE, "--tokens", "4")
    first, second = found["drafters"]
    assert (first["name"], first["best_drafts"], second["best_drafts"]) == ("alpha 0.5", 2, 3)
    assert first["best_speedup"] == pytest.approx(1.75 / 1.4)
    assert [row["drafts"] for row in first["rows"]] == [0, 1, 2, 3]
    assert first["rows"][3] == {"drafts": 3, "tokens": pytest.approx(1.875), "speedup": pytest.approx(1.875 / 1.55)}
    assert found["roofline"]["bound"] == "memory"
    assert found["roofline"]["compute_s"] == pytest.approx(4 * 0.00014156, rel=1e-4)


def test_a_drafter_that_only_loses_is_advised_against(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--alpha", "0.1", "--draft-cost", "0.3"]) == 0
    assert "best: 0 drafts: do not speculate; alpha 0.1" in capsys.readouterr().out


def test_best_at_the_limit_is_said_to_be_cut_off(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--alpha", "0.8", "--draft-cost", "0.05", "--max-drafts", "4"]) == 0
    assert "best: 4 drafts, 2.80 times (the most considered: raise --max-drafts" in capsys.readouterr().out


# From a report.


def test_costs_of_a_mean_step_are_shared_out_among_its_drafts(path: Path) -> None:
    """Both arms pay 0.05 to make a draft and 0.1 to check it; one of them drafts in every other step."""
    drafters, left_out = read_drafters(path)
    assert [drafter.name for drafter in drafters] == ["medusa", "lookup"]
    for drafter, share in zip(drafters, (1, 0.5), strict=True):
        assert drafter.alpha == pytest.approx(0.5)
        assert (drafter.draft_cost, drafter.check_cost) == (pytest.approx(0.05), pytest.approx(0.1))
        assert (drafter.verify_cost, drafter.share) == (1, share)
        assert drafter.measured is not None
        assert (drafter.measured.drafts, drafter.measured.max_drafts) == (3, 3)
    assert left_out["baseline"] == "it made no drafts"
    assert left_out["peer"].startswith("its drafting was not timed; give --draft-cost")


def test_prediction_where_it_was_measured_is_tokens_over_cost_of_a_step(path: Path) -> None:
    """As the report has it: tokens a step / (drafts' share + checking)."""
    medusa, lookup = read_drafters(path)[0]
    assert medusa.speedup(3) == pytest.approx(1.875 / (0.15 + 1.3))
    assert lookup.speedup(3) == pytest.approx((150 + 80) / 160 / (0.075 + 1.15))


def test_rounds_shorter_than_allowed_count_as_long_as_they_were(tmp_path: Path) -> None:
    """80 rounds allowed 3 drafts hold 160: two on average, of which 0.875 are accepted."""
    short = report()
    short["results"]["medusa"]["overall"]["num_draft_tokens"] = 160
    write_report(short, tmp_path / "short.json")
    (drafter,), _ = read_drafters(tmp_path / "short.json", ["medusa"])
    assert drafter.measured is not None
    assert drafter.measured.drafts == 2
    assert 1 + drafter.alpha + drafter.alpha**2 == pytest.approx(1.875)


def test_checking_measured_as_cheaper_than_a_plain_step_counts_as_one(tmp_path: Path) -> None:
    noisy = report()
    noisy["theory"]["medusa"]["verify_cost_ratio"] = 0.97
    write_report(noisy, tmp_path / "noisy.json")
    (drafter,), _ = read_drafters(tmp_path / "noisy.json", ["medusa"])
    assert (drafter.verify_cost, drafter.check_cost) == (1, 0)


def test_given_costs_replace_those_of_the_report(path: Path) -> None:
    drafters, left_out = read_drafters(path, (), 0.01, 1.2)
    assert [drafter.name for drafter in drafters] == ["medusa", "lookup", "peer"]
    assert {(drafter.draft_cost, drafter.verify_cost, drafter.check_cost) for drafter in drafters} == {(0.01, 1.2, 0)}
    assert list(left_out) == ["baseline"]


def test_measured_stands_beside_predicted(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--report", str(path)]) == 0
    text = capsys.readouterr().out
    for line in (
        "medusa: best: 2 drafts, 1.35 times; alpha 0.5, draft cost 0.05, checking step 1 + 0.1 a draft\n",
        "medusa: measured: 1.25 times, predicted: 1.29, at 3.0 drafts a round of 3 allowed\n",
        "lookup: best: 2 drafts, 1.20 times; alpha 0.5, draft cost 0.05, checking step 1 + 0.1 a draft, "
        "50 % of steps with drafts\n",
        "lookup: measured: 1.15 times, predicted: 1.17, at 3.0 drafts a round of 3 allowed\n",
        "baseline: left out, it made no drafts\n",
        "s the share of steps with drafts",
    ):
        assert line in text
    found = json_of(capsys, "--report", path, "--arm", "medusa")
    (medusa,) = found["drafters"]
    assert medusa["measured"]["speedup"] == 1.25
    assert medusa["measured"]["predicted_speedup"] == pytest.approx(1.875 / 1.45)


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ("medsua", "--arm medsua: no such arm in {path}; arms: baseline, medusa, lookup, peer"),
        ("baseline", "{path} has no arm to plan for: baseline: it made no drafts"),
        ("peer", "{path} has no arm to plan for: peer: its drafting was not timed; give --draft-cost, and"),
    ],
)
def test_arm_that_cannot_be_planned_for_is_named(
    arm: str, message: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_of(capsys, "--report", path, "--arm", arm).startswith(message.format(path=path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file or directory"),
        ("{", "not JSON"),
        ('{"schema": "other/2"}', "schema is 'other/2', expected 'specplug.compare/1'"),
    ],
)
def test_file_that_is_no_report_is_refused(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.json"
    if text is not None:
        file.write_text(text)
    error = error_of(capsys, "--report", file)
    assert error.startswith(f"--report {file}: ")
    assert message in error
    assert error.endswith("give a file that `specplug compare --out` wrote")


def test_report_with_impossible_counts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = copy.deepcopy(report())
    wrong["results"]["medusa"]["overall"]["num_accepted_tokens"] = 241
    write_report(wrong, tmp_path / "wrong.json")
    assert error_of(capsys, "--report", tmp_path / "wrong.json").startswith("tokens is 4.0125; expected 1 to 4; ")


# For a device.


def test_roofline_shows_both_times_and_the_balance(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *DEVICE]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^ +1 +41\.8 +0\.142 +memory *$", text, re.MULTILINE)
    assert "a step may hold 295 tokens before computing takes longer than reading" in text


# The page.


def test_plot_is_one_page_that_needs_nothing_else(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = path.with_name("plan.html")
    assert cli.main(["plan", "--report", str(path), "--plot", str(file)]) == 0
    assert f"plot: {file}\n" in capsys.readouterr().out
    page = file.read_text()
    assert not re.search(r"https?://|url\(|@import|<script |<link|<img", page)
    drawing = page[page.index("<svg role") :]
    drawing = drawing[: drawing.index("</svg>")]
    assert drawing.count("<polyline") == 2
    assert drawing.count("<circle") == 2  # measured of each
    assert drawing.count('<path class="mark') == 2  # best of each
    assert "medusa: best 2 drafts, 1.35x, measured 1.25x at 3.0" in drawing
    assert sorted(found.name for found in path.parent.iterdir()) == ["plan.html", "report.json"]


def test_plot_without_measurement_has_no_ring() -> None:
    page = render_plan([Drafter("a", 0.5, 0.15)], 4)
    assert page.count("<circle") == 0
    assert page.count('<path class="mark') == 2  # the best, and the legend's


def test_plot_escapes_names() -> None:
    page = render_plan([Drafter("<script>x</script>", 0.5, 0.15)], 4)
    assert page.count("<script") == 1  # the page's own
    assert "&lt;script&gt;x" in page


def test_plot_of_a_flat_line_stays_within_its_frame() -> None:
    page = render_plan([Drafter("flat", 0.0, 0.0)], 1)
    heights = [float(value) for value in re.findall(r'\by1="([-\d.]+)"', page)]
    assert heights
    assert all(0 <= value <= 250 for value in heights)


# What it refuses.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to plan for: give --alpha and --draft-cost, or --report FILE, or --params, --bytes-per-param,"),
        (["--alpha", "0.5"], "--alpha needs --draft-cost; give time of one draft / time of a plain step, as 0.05"),
        (["--draft-cost", "0.5"], "--draft-cost alone says no speed-up; give --alpha or --report FILE too"),
        (["--verify-cost", "1"], "--verify-cost alone says no speed-up; give --alpha or --report FILE too"),
        (["--alpha", "1.5", "--draft-cost", "0"], "alpha is 1.5; expected 0 to 1; "),
        (["--alpha", "nan", "--draft-cost", "0"], "alpha is nan; expected 0 to 1; "),
        (["--alpha", "0.5", "--draft-cost", "-1"], "draft_cost is -1; expected 0 to 1e+06; "),
        (["--alpha", "0.5", "--report", "x"], "--alpha and --report both say how often drafts are accepted; give one"),
        (["--arm", "medusa"], "--arm medusa names an arm of a report; give --report FILE too"),
        (["--max-drafts", "0"], "--max-drafts is 0; expected 1 to 64"),
        (["--max-drafts", "65"], "--max-drafts is 65; expected 1 to 64"),
        (["--params", "7e9", "--flops", "1e14"], "--params needs --bytes-per-param, --bandwidth too, for the roofline"),
        (["--tokens", "4"], "--tokens needs --params, --bytes-per-param, --bandwidth, --flops too, for the roofline"),
        (
            [*DEVICE, "--plot", "x.html"],
            "--plot draws speed-ups, and there are none: give --alpha and --draft-cost, or",
        ),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert error_of(capsys, *arguments).startswith(message)


def test_plot_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--alpha", "0.5", "--draft-cost", "0", "--plot", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"specplug: error: cannot write {tmp_path}: ")
