"""`specplug report`: one report shown again, several over time, and files that are none."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from report_cases import made_report, write

from vllm_specplug import cli
from vllm_specplug.compare.history import changes, incomparable


def changed(report: dict[str, Any], **values: Any) -> dict[str, Any]:
    """A copy with values at dotted places, written with two underscores for a dot."""
    report = copy.deepcopy(report)
    for name, value in values.items():
        *path, last = name.split("__")
        part: Any = report
        for key in path:
            part = part[int(key) if isinstance(part, list) else key]
        part[last] = value
    return report


LATER = {"provenance__started_at": "2026-01-02T10:00:00+00:00"}


def test_one_report_is_shown_as_compare_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(made_report(), tmp_path / "r.json")
    assert cli.main(["report", file]) == 0
    shown = capsys.readouterr().out
    for expected in ("models/target", "medusa by category", "2.00x (1.90 to 2.10)", "6/1/1"):
        assert expected in shown


def test_every_output_is_written_and_json_is_the_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for files in (
        [write(made_report(), tmp_path / "a.json")],
        [write(made_report(), tmp_path / "a.json"), write(changed(made_report(), **LATER), tmp_path / "b.json")],
    ):
        outputs = [tmp_path / name for name in ("r.html", "r.md", "r.xml")]
        flags = [
            text
            for flag, path in zip(("--html", "--markdown", "--junit"), outputs, strict=True)
            for text in (flag, str(path))
        ]
        assert cli.main(["report", *files, *flags, "--json", "--fail-if", "medusa.ratio > 1"]) == 1
        captured = capsys.readouterr()
        printed = json.loads(captured.out)
        assert printed["gates"][0]["state"] == "failed"
        assert ("schema" in printed) == (len(files) == 1)
        assert "gate FAILED: medusa.ratio > 1: 2 > 1" in captured.err
        contents = [path.read_text() for path in outputs]
        assert contents[0].startswith("<!doctype html>")
        assert "| medusa.ratio &gt; 1 | **failed** | 2 &gt; 1 |" in contents[1]
        assert '<failure message="gate FAILED: medusa.ratio &gt; 1: 2 &gt; 1">' in contents[2]
        for path in outputs:
            path.unlink()


@pytest.mark.parametrize(
    ("gate", "code"), [("medusa.ratio < 1", 0), ("medusa.ratio > 1", 1), ("no-drafts.acceptance_rate < 1", 2)]
)
def test_exit_code_is_the_gate_s(gate: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", write(made_report(), tmp_path / "r.json"), "--fail-if", gate]) == code


def test_gates_look_at_the_newest_whatever_the_order_of_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = write(changed(made_report(), **LATER, comparisons__0__ratio=3.0), tmp_path / "new.json")
    old = write(made_report(), tmp_path / "old.json")
    assert cli.main(["report", new, old, "--fail-if", "medusa.ratio < 2.5"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("2026-01-01 10:00") < shown.index("2026-01-02 10:00")
    assert f"From {old} to {new}:" in shown


def test_table_has_a_row_per_report_and_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        write(made_report(), tmp_path / "a.json"),
        write(changed(made_report(), **LATER, provenance__dirty=True), tmp_path / "b.json"),
    ]
    assert cli.main(["report", *files]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(" 2026")]
    assert [row[5] for row in rows] == ["medusa", "no-drafts"] * 2
    assert [row[4] for row in rows] == ["01234567"] * 2 + ["01234567+"] * 2
    assert " ".join(rows[0][6:]) == "2.00x (1.90 to 2.10) faster 200.0 50 %"
    assert " ".join(rows[1][6:]) == "0.80x (0.70 to 0.90) slower 80.0 -"


def test_nothing_changed_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        write(made_report(), tmp_path / "a.json"),
        write(changed(made_report(), **LATER), tmp_path / "b.json"),
    ]
    assert cli.main(["report", *files]) == 0
    assert capsys.readouterr().out.endswith("b.json:\nno verdict, version or setting changed\n")


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"comparisons__0__verdict": "undecided", "comparisons__0__ci95": [0.9, 3.0]},
            "medusa: verdict faster -> undecided, 2.00x (1.90 to 2.10) -> 2.00x (0.90 to 3.00)",
        ),
        (
            {"comparisons__0__ratio": 1.5, "comparisons__0__ci95": [1.4, 1.6]},
            "medusa: still faster, but the intervals do not overlap: 2.00x (1.90 to 2.10) -> 1.50x (1.40 to 1.60)",
        ),
        (
            {"lossless__medusa__different": 3, "lossless__medusa__identical": 4},
            "medusa: answers that differ beyond rounding: 1 -> 3",
        ),
        ({"provenance__vllm": "0.33.0"}, "vllm: 0.32.0 -> 0.33.0"),
        ({"provenance__commit": None}, "commit: 01234567 -> none"),
    ],
)
def test_what_changed_is_said_and_stays_comparable(values: dict[str, Any], line: str) -> None:
    before, after = made_report(), changed(made_report(), **values)
    assert changes(before, after) == [line]
    assert incomparable(before, after) == []


def test_arms_that_came_and_went_are_said() -> None:
    assert changes(made_report(), made_report(arm="lookup")) == [
        "lookup: was not in the report before",
        "medusa: is no longer there",
    ]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"target": "other"}, "target: models/target -> other"),
        ({"dtype": "bfloat16"}, "dtype: float32 -> bfloat16"),
        ({"settings__max_tokens": 5}, "setting max_tokens: 100 -> 5"),
        ({"settings__temperature": 1.0}, "setting temperature: none -> 1.0"),
        ({"provenance__machine__cores": 64}, "machine: cores: 2 -> 64"),
        ({"workload__sha256": "cd" * 32}, "prompts: sha256 of the file: abababab -> cdcdcdcd"),
        ({"workload__prompts": 4}, "prompts: number: 8 -> 4"),
        ({"prompts": [{"id": "code-0"}]}, "prompts: 7 are in one of the two only"),
        (
            {"arms__1__speculative_config": {"method": "x"}},
            'arm medusa: [{"method": "specplug:medusa"}, {}] -> [{"method": "x"}, {}]',
        ),
    ],
)
def test_what_makes_reports_incomparable_is_said(
    values: dict[str, Any], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = made_report(), changed(made_report(), **LATER, **values)
    assert incomparable(before, after) == [line]
    files = [write(before, tmp_path / "a.json"), write(after, tmp_path / "b.json")]
    assert cli.main(["report", *files, "--markdown", str(tmp_path / "r.md")]) == 0
    assert f"NOT COMPARABLE: {line}" in capsys.readouterr().out
    assert "- NOT COMPARABLE: " in (tmp_path / "r.md").read_text()


def test_page_over_time_escapes_every_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "<script>alert(1)</script>"
    files = [
        write(made_report(), tmp_path / "a.json"),
        write(changed(made_report(), **LATER, target=evil, provenance__vllm=evil), tmp_path / "b.json"),
    ]
    assert cli.main(["report", *files, "--html", str(tmp_path / "r.html"), "--markdown", str(tmp_path / "r.md")]) == 0
    for name in ("r.html", "r.md"):
        text = (tmp_path / name).read_text()
        assert "<script>alert" not in text
        assert "&lt;script&gt;" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "{file}: the report cannot be read: No such file or directory"),
        ("{", "{file}: not JSON ("),
        ([], "{file}: report is [], expected an object; give a file that `specplug compare --out` wrote"),
        ({"schema": "specplug.plan/1"}, "{file}: schema is 'specplug.plan/1', expected 'specplug.compare/1'; give"),
        ({}, "{file}: schema is missing; expected 'specplug.compare/1'; give a file"),
        ({"without": "loops"}, "{file}: loops is missing, which is needed to show it; give a file"),
        ({"without": "settings__margin"}, "{file}: settings.margin is missing, which is needed to show it; give"),
        ({"without": "comparisons__0__categories"}, "{file}: comparisons[0].categories is missing, which is needed"),
        ({"without": "theory__medusa"}, "{file}: theory.medusa is missing; give a file"),
    ],
)
def test_what_is_no_report_is_refused_by_name(
    content: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = write(made_report(), tmp_path / "good.json"), tmp_path / "bad.json"
    if isinstance(content, dict) and "without" in content:
        report: Any = made_report()
        *path, last = content["without"].split("__")
        part = report
        for key in path:
            part = part[int(key) if isinstance(part, list) else key]
        del part[last]
        write(report, bad)
    elif isinstance(content, str):
        bad.write_text(content)
    elif content is not None:
        write(content, bad)
    assert cli.main(["report", good, str(bad)]) == 2
    error = capsys.readouterr().err
    assert message.format(file=bad) in error
    assert error.count("\n") == 1


def test_time_that_is_none_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        write(made_report(), tmp_path / "a.json"),
        write(changed(made_report(), provenance__started_at="yesterday"), tmp_path / "b.json"),
    ]
    assert cli.main(["report", *files]) == 2
    assert f"{files[1]}: provenance.started_at is 'yesterday', expected as 2026-" in capsys.readouterr().err


def test_nothing_is_written_when_a_gate_or_a_place_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = write(made_report(), tmp_path / "r.json"), tmp_path / "r.html"
    assert cli.main(["report", file, "--html", str(page), "--fail-if", "medsua.ratio < 1"]) == 2
    assert cli.main(["report", file, "--html", str(page), "--junit", str(tmp_path)]) == 2
    assert f"cannot write {tmp_path}: it is a folder; name another file" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]
