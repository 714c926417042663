"""Commands whose reader leaves early, as `head` does: what was asked for is written, and nobody complains."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from report_cases import made_report, write

from vllm_specplug import cli

#: 128 and the number of SIGPIPE: what a shell says of `cat` and other usual tools then.
ENDED_BY_SIGPIPE = 141


def run_without_a_reader(*arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a command whose standard output nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "vllm_specplug", *arguments], stdout=writer, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize("num_reports", [1, 2])
@pytest.mark.parametrize("as_json", [False, True])
def test_every_file_is_written_whole_though_nobody_reads_the_tables(
    num_reports: int, as_json: bool, tmp_path: Path
) -> None:
    files = [write(made_report(), tmp_path / f"{number}.json") for number in range(num_reports)]
    page, summary, cases = (tmp_path / name for name in ("r.html", "r.md", "r.xml"))
    outputs = ["--html", str(page), "--markdown", str(summary), "--junit", str(cases)]
    code, error = run_without_a_reader("report", *files, *outputs, *(["--json"] if as_json else []))
    assert code == ENDED_BY_SIGPIPE
    assert "Traceback" not in error
    assert "Broken" not in error
    if not as_json:  # the tables go to stderr with --json
        assert error == ""
    assert page.read_text().rstrip().endswith("</html>")
    assert summary.read_text().startswith("###")
    assert cases.read_text().rstrip().endswith("</testsuites>")


@pytest.mark.parametrize("arguments", [["plan", "--alpha", "0.8", "--draft-cost", "0.1"], ["list"]])
def test_command_without_a_reader_ends_quietly(arguments: list[str]) -> None:
    assert run_without_a_reader(*arguments) == (ENDED_BY_SIGPIPE, "")


def test_pipe_that_breaks_elsewhere_is_no_quiet_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_a_dead_child(given: list[str]) -> int:
        raise BrokenPipeError("a child's pipe")

    monkeypatch.setattr(cli, "_run", to_a_dead_child)
    with pytest.raises(BrokenPipeError, match="a child's pipe"):
        cli.main(["list"])
