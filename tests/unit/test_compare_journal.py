"""Interrupted runs: what is kept, what is measured again, and what is refused."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_cases import made_report

from vllm_specplug import cli
from vllm_specplug.compare import identity, run
from vllm_specplug.compare import journal as journal_module
from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.journal import Journal, block_from_json, journal_path, open_journal
from vllm_specplug.compare.measure import Answer, Block, DraftCounts, measure, measure_within
from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.compare.resume import resumable
from vllm_specplug.compare.workload import Workload
from vllm_specplug.errors import CompareError

PROMPTS = tuple(Prompt(f"{category}{number}", category, "") for category in "xy" for number in range(2))
WORKLOAD = Workload("w", "0" * 64, PROMPTS)
TOKENS = {prompt.id: [1] for prompt in PROMPTS}
ARMS = ("A", "B")
IDENTITY = {"model": "m", "settings": {"max_tokens": 8}}


class Engines:
    """Two arms that note every call; block number `stop_at` of the process ends with Ctrl-C."""

    def __init__(self, stop_at: int | None = None, seconds: float = 0.1) -> None:
        self.calls: list[str] = []
        self.stop_at, self.seconds = stop_at, seconds

    def arm(self, name: str) -> Any:
        engines = self

        class OneArm:
            def request(self, op: str, **args: Any) -> Any:
                assert op == "generate"
                if len(engines.calls) == engines.stop_at:
                    raise KeyboardInterrupt
                engines.calls.append(name)
                # A time that tells the calls apart, with digits that rounding would lose.
                seconds = engines.seconds + len(engines.calls) / 3e6
                output = {"token_ids": [1, 2], "num_forwards": 1, "ttft_s": 0.1, "e2e_s": seconds}
                output["finish_reason"] = "stop"
                return {"seconds": seconds, "outputs": [output for _ in args["prompts"]], "counts": None}

        return OneArm()

    def measured(self, path: Path, progress: Callable[[str, int, int], None] = lambda *_: None) -> Any:
        with resumable(path, IDENTITY, "16") as journal:
            assert journal is not None
            journal.begin({"tokens": "t"}, "2026-01-01T00:00:00+00:00")
            engines = {name: self.arm(name) for name in ARMS}
            return measure(engines, WORKLOAD.blocks(1), TOKENS, 8, 2, progress, journal)


@pytest.mark.parametrize("stop_at", range(1, 16))
def test_interrupted_run_goes_on_in_the_same_order_and_measures_nothing_twice(
    stop_at: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"
    first, second = Engines(stop_at), Engines()
    with pytest.raises(KeyboardInterrupt) as stopped:
        first.measured(out)
    hint = f"blocks kept in {out}.partial.jsonl: {stop_at}; the same command goes on from there"
    assert str(stopped.value) == hint
    blocks = second.measured(out)
    assert f"{stop_at} of 16 blocks were measured before" in capsys.readouterr().err
    assert "".join(first.calls + second.calls) == "ABBABAAB" * 2
    assert [len(blocks[name]) for name in ARMS] == [8, 8]
    asked = [(block.answers[0].prompt_id, block.pass_index) for block in blocks["A"]]
    assert asked == [(prompt.id, index) for prompt in PROMPTS for index in (0, 1)]


def test_nothing_is_measured_when_all_was_and_numbers_are_the_same_to_the_last_digit(tmp_path: Path) -> None:
    blocks = Engines().measured(tmp_path / "r.json")
    again = Engines(stop_at=0).measured(tmp_path / "r.json")
    assert again == blocks


def test_progress_starts_where_the_run_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Engines(5).measured(tmp_path / "r.json")
    seen: list[tuple[int, int]] = []
    Engines().measured(tmp_path / "r.json", lambda what, done, total: seen.append((done, total)))
    assert seen[0] == (5, 16)
    assert seen[-1] == (16, 16)


def test_run_interrupted_before_its_first_block_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as stopped:
        Engines(0).measured(tmp_path / "r.json")
    assert stopped.value.args == ()
    assert list(tmp_path.iterdir()) == []


def test_error_says_that_what_was_measured_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    with pytest.raises(KeyboardInterrupt):
        Engines(3).measured(out)

    def dies() -> None:
        with resumable(out, IDENTITY, "16") as journal:
            assert journal is not None
            journal.begin({"tokens": "t"}, "later")
            raise CompareError("arm 'A' died")

    with pytest.raises(
        CompareError, match=r"^arm 'A' died; blocks kept in .*: 3; the same command goes on from there$"
    ):
        dies()


def test_seconds_of_an_earlier_run_count_for_the_budget(tmp_path: Path) -> None:
    """Four blocks of 10 s were measured; a budget of 45 s has no room for another round of 40 s."""
    rounds = [[block] for block in WORKLOAD.blocks(1)]
    path = tmp_path / "j"

    def within(budget_s: float, engines: Engines) -> Any:
        with open_journal(path, IDENTITY) as journal:
            journal.begin({}, "now")
            arms = {name: engines.arm(name) for name in ARMS}
            return measure_within(budget_s, arms, rounds, TOKENS, 8, 2, lambda *_: None, journal)

    with pytest.raises(KeyboardInterrupt):
        within(45, Engines(4, seconds=10))
    second = Engines()
    assert len(within(45, second)["A"]) == 2
    assert second.calls == []
    assert len(within(81, Engines())["A"]) == 2 + 2 * 3  # what is new takes no time here


def journal_with(path: Path, num_blocks: int = 2) -> list[str]:
    """A journal of some blocks; its lines."""
    with open_journal(path, IDENTITY) as journal:
        journal.begin({"tokens": "t"}, "2026-01-01T00:00:00+00:00")
        for index in range(num_blocks):
            answer = Answer("x0", index, (1, 2), 1, 0.1, 1 / 3, "stop")
            journal.add("A", Block("x", index, 1 / 3, (answer,), DraftCounts(1, 2, 1, (1, 0), 3, 0.1)))
    return path.read_text().splitlines(keepends=True)


def num_kept(path: Path) -> int:
    with open_journal(path, IDENTITY) as journal:
        return journal.num_before


def test_block_comes_back_as_it_was(tmp_path: Path) -> None:
    lines = journal_with(tmp_path / "j", 1)
    answer = Answer("x0", 0, (1, 2), 1, 0.1, 1 / 3, "stop")
    expected = Block("x", 0, 1 / 3, (answer,), DraftCounts(1, 2, 1, (1, 0), 3, 0.1))
    assert block_from_json(json.loads(lines[1])["block"]) == expected


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_half_a_line_at_the_end_costs_that_block_only(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "j"
    lines = journal_with(path)
    path.write_text("".join(lines)[:-cut])
    assert num_kept(path) == 1
    assert path.read_text() == "".join(lines[:2])  # what comes next starts on a line of its own


def test_half_a_first_line_is_a_run_that_measured_nothing(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text(journal_with(path)[0][:-20])
    assert num_kept(path) == 0


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{}"], ":1 is no line of a journal (KeyError: 'schema'); move the file away or start anew with --fresh"),
        (['{"schema": "x"}'], ":1 is no line of a journal (ValueError: schema is 'x', expected "),
        ([None, "nonsense"], ":2 is no line of a journal (JSONDecodeError: "),
        ([None, '{"arm": "A", "block": {"category": "x"}}'], ":2 is no line of a journal (KeyError: 'answers')"),
    ],
)
def test_what_is_no_journal_is_refused_by_file_and_line(lines: list[str | None], message: str, tmp_path: Path) -> None:
    path = tmp_path / "j"
    head = journal_with(path)[0]
    path.write_text("".join(head if line is None else line + "\n" for line in lines))
    before = path.read_bytes()
    with pytest.raises(CompareError) as caught, open_journal(path, IDENTITY):
        pass
    assert str(caught.value).startswith(f"{path}{message}")
    assert path.read_bytes() == before
    with open_journal(path, IDENTITY, fresh=True) as journal:
        assert journal.num_before == 0


def test_another_configuration_is_refused_naming_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "r.json.partial.jsonl"
    before = journal_with(path)
    with (
        pytest.raises(CompareError) as caught,
        open_journal(path, {"model": "m", "settings": {"max_tokens": 9}}),
    ):
        pass
    assert str(caught.value) == (
        f"{path} holds an unfinished run of another configuration: settings.max_tokens is 8 there, 9 now; run that "
        "command again to go on with it, name another file with --out, or start anew with --fresh"
    )
    assert path.read_text() == "".join(before)


def test_what_is_known_only_after_the_start_is_compared_too(tmp_path: Path) -> None:
    journal_with(tmp_path / "j")
    with (
        pytest.raises(CompareError, match=r'tokens is "t" there, "u" now'),
        open_journal(tmp_path / "j", IDENTITY) as journal,
    ):
        journal.begin({"tokens": "u"}, "later")
    assert num_kept(tmp_path / "j") == 2


def test_fresh_forgets(tmp_path: Path) -> None:
    journal_with(tmp_path / "j")
    with open_journal(tmp_path / "j", {"model": "another"}, fresh=True) as journal:
        assert journal.num_before == 0
        assert journal.resumed is None


def test_full_disk_loses_nothing_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j"
    before = "".join(journal_with(path))
    written: list[int] = []

    def full(file: int, data: bytes) -> int:
        """Takes ten bytes, then no more."""
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(file)
        return real(file, data[:10])

    with open_journal(path, IDENTITY) as journal:
        journal.begin({"tokens": "t"}, "later")
        real = os.write
        monkeypatch.setattr(journal_module.os, "write", full)
        block = Block("x", 2, 1.0, (Answer("x0", 2, (1,), 1, 0.1, 0.1, "stop"),), None)
        with pytest.raises(CompareError) as caught:
            journal.add("A", block)
        monkeypatch.undo()
        assert str(caught.value) == (
            f"cannot write {path}: No space left on device; make room or name another place with --out"
        )
        assert journal.num_blocks == 2
    assert path.read_text() == before


def test_two_runs_cannot_write_one_journal(tmp_path: Path) -> None:
    with (
        open_journal(tmp_path / "j", IDENTITY),
        pytest.raises(CompareError, match="j is in use by another run; wait for it or name another file with --out"),
        open_journal(tmp_path / "j", IDENTITY),
    ):
        pass


def identity_of(**changes: Any) -> dict[str, Any]:
    arms = [Arm("baseline"), Arm("b", changes.pop("config", {"method": "ngram"}))]
    workload = changes.pop("workload", WORKLOAD)
    settings = {"max_tokens": 8, "margin": 0.03, "near_tie_tolerance": None} | changes.pop("settings", {})
    return identity.before_start(changes.pop("model", "m"), arms, "baseline", workload, settings)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": "n"}, "model"),
        ({"config": {"method": "medusa"}}, "arms.b.speculative_config.method"),
        ({"config": None}, "arms.b.speculative_config.method"),
        ({"settings": {"max_tokens": 9}}, "settings.max_tokens"),
        ({"workload": replace(WORKLOAD, sha256="1" * 64)}, "prompts.sha256"),
        ({"workload": replace(WORKLOAD, prompts=PROMPTS[:3])}, "prompts.number"),
        ({"workload": replace(WORKLOAD, prompts=PROMPTS[::-1])}, "prompts.ids' sha256"),
    ],
)
def test_what_was_measured_must_be_the_same(changes: dict[str, Any], named: str) -> None:
    assert named in identity.differences(identity_of(), identity_of(**changes))


def test_how_it_is_judged_may_change() -> None:
    assert not identity.differences(identity_of(), identity_of(settings={"margin": 0.1, "near_tie_tolerance": 1.0}))


def test_engines_and_tokens_must_be_the_same_but_not_the_size_of_the_cache() -> None:
    info = {"vllm": "0.32.0", "dtype": "float32", "kv_cache": {"num_blocks": 9}}
    before = identity.after_start({"A": info}, TOKENS)
    assert not identity.differences(before, identity.after_start({"A": {**info, "kv_cache": None}}, TOKENS))
    assert identity.differences(before, identity.after_start({"A": {**info, "vllm": "0.33.0"}}, TOKENS)) == {
        "engines.A.vllm": ("0.32.0", "0.33.0")
    }
    assert list(identity.differences(before, identity.after_start({"A": info}, {**TOKENS, "x0": [2]}))) == [
        "tokens.sha256"
    ]


def command(tmp_path: Path, *more: str) -> list[str]:
    return ["compare", "--model", "m", "--arm", "medusa=null", "--arm", "no-drafts=null", "--limit", "1", *more]


def test_ctrl_c_is_one_line_that_says_how_to_go_on_and_the_report_removes_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"

    def interrupted(*args: Any, journal: Journal, **more: Any) -> Any:
        journal.begin({}, "2026-01-01T00:00:00+00:00")
        journal.add("medusa", Block("x", 0, 1.0, (Answer("x0", 0, (1,), 1, 0.1, 0.1, "stop"),), None))
        raise KeyboardInterrupt

    def whole(*args: Any, journal: Journal, **more: Any) -> Any:
        journal.begin({}, "later")
        assert journal.resumed == {"started_at": "2026-01-01T00:00:00+00:00", "blocks": 1}
        return made_report()

    monkeypatch.setattr(run, "run_compare", interrupted)
    assert cli.main(command(tmp_path, "--out", str(out))) == 130
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"specplug: interrupted; blocks kept in {out}.partial.jsonl: 1; the same command goes on from there"
    )
    monkeypatch.setattr(run, "run_compare", whole)
    assert cli.main(command(tmp_path, "--out", str(out), "--max-tokens", "9")) == 2
    assert "settings.max_tokens is 128 there, 9 now" in capsys.readouterr().err
    assert cli.main(command(tmp_path, "--out", str(out))) == 0
    assert "1 of 60 blocks were measured before" in capsys.readouterr().err  # 10 prompts, 3 arms, 2 passes
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_without_out_there_is_no_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def whole(*args: Any, journal: Journal | None, **more: Any) -> Any:
        assert journal is None
        return made_report()

    monkeypatch.setattr(run, "run_compare", whole)
    assert cli.main(command(tmp_path)) == 0
    assert list(tmp_path.iterdir()) == []
    assert cli.main(command(tmp_path, "--fresh")) == 2
    assert "--fresh forgets what is kept beside --out, which is not given" in capsys.readouterr().err


def test_report_that_cannot_be_written_keeps_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"

    def whole(*args: Any, journal: Journal, **more: Any) -> Any:
        journal.begin({}, "now")
        journal.add("medusa", Block("x", 0, 1.0, (Answer("x0", 0, (1,), 1, 0.1, 0.1, "stop"),), None))
        out.mkdir()  # as a stand-in for a disk that is full
        return made_report()

    monkeypatch.setattr(run, "run_compare", whole)
    assert cli.main(command(tmp_path, "--out", str(out))) == 2
    assert f"blocks kept in {out}.partial.jsonl: 1; the same" in capsys.readouterr().err
    assert journal_path(out).exists()
