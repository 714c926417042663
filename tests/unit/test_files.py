"""Files that are written whole or not at all, and JSON that is read without surprises."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from report_cases import made_report, write

from vllm_specplug import cli, jsonl, strict_json
from vllm_specplug.compare.endpoint_stream import read_answer
from vllm_specplug.compare.report_format import check_writable, write_text
from vllm_specplug.errors import CompareError, ConfigError, EndpointError

DEEP = '{"a":' * 100_000


def test_json_is_what_python_reads_where_nothing_is_odd() -> None:
    value = {"a": [1, -2.5, 1e300, None, True, "é\ud800", 10**299], "b": {}}
    assert strict_json.loads(json.dumps(value)) == value
    assert strict_json.loads(b"[1]") == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[NaN]", "NaN is no number"),
        ("[-Infinity]", "-Infinity is no number"),
        ("[1e999]", "1e999 is too large for a number"),
        ("9" * 301, "99999999999999999... is too large for a number"),
        ("9" * 5000, "99999999999999999... is too large for a number"),
        (DEEP, "nested too deep"),
        ("[1", "Expecting ',' delimiter: line 1 column 3 (char 2)"),
    ],
)
def test_json_that_would_surprise_a_reader_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message) + "$"):
        strict_json.loads(text)


@pytest.mark.parametrize("text", [DEEP, '{"schema": ' + "9" * 5000 + "}", '{"schema": NaN}'])
def test_odd_report_ends_every_command_with_one_line(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.json"
    file.write_text(text)
    for command in (["report", str(file)], ["plan", "--report", str(file)], ["report", str(file), str(file)]):
        assert cli.main(command) == 2
        said = capsys.readouterr().err
        assert said.startswith("specplug: error: ")
        assert f"{file}: not JSON (" in said
        assert said.count("\n") == 1


@pytest.mark.parametrize("text", [DEEP, '{"a": ' + "9" * 5000 + "}"])
def test_odd_line_is_named_by_file_and_line(text: str) -> None:
    lines = jsonl.objects(f"{{}}\n{text}\n", Path("p.jsonl"), ConfigError, "an object")
    with pytest.raises(ConfigError, match=r"^p\.jsonl:2: not JSON that can be read \(.*\); expected one object$"):
        list(lines)


def test_chunk_that_is_nested_too_deep_is_malformed() -> None:
    with pytest.raises(EndpointError, match="a chunk is no JSON") as caught:
        read_answer([(0.0, DEEP)], 0.0, True)
    assert caught.value.kind == "malformed"


def test_pipe_is_never_replaced_by_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither is a device, such as /dev/full or /dev/stdout, which an administrator could lose that way."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    message = f"cannot write {pipe}: it is a device, a pipe or a socket; name a file"
    for write_it in (lambda: write_text("x", pipe), lambda: check_writable(pipe)):
        with pytest.raises(CompareError) as caught:
            write_it()
        assert str(caught.value).startswith(message)
    assert cli.main(["report", write(made_report(), tmp_path / "r.json"), "--html", str(pipe)]) == 2
    assert message in capsys.readouterr().err
    assert pipe.is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["pipe", "r.json"]


def test_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "there" / "file")
    for text in ("new", "newer"):
        write_text(text, link)
        assert link.is_symlink()
        assert (tmp_path / "there" / "file").read_text() == text
    assert os.listdir(tmp_path / "there") == ["file"]


def test_text_that_no_file_holds_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_text("old")
    with pytest.raises(CompareError, match=f"cannot write {path}: 'utf-8' codec can't encode"):
        write_text("half a character: \ud800", path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["r"]


def unread(report: dict[str, Any]) -> str:
    return json.dumps(report)[:-100]


def test_report_that_was_cut_short_is_said_once_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.json"
    file.write_text(unread(made_report()))
    assert cli.main(["report", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"specplug: error: {file}: not JSON (")
    assert said.count(str(file)) == 1
    assert said.endswith("give a file that `specplug compare --out` wrote\n")
