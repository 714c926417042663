"""What an unfinished run has measured, a JSON line for each block, so that an interrupted run can go on.

Knows files and blocks; `identity` knows what makes two runs the same. The first line says which run it is, every other
line holds one block. It is appended to, never rewritten: a crash leaves at worst half a line at its end.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm_specplug.compare.identity import differences, shown
from vllm_specplug.compare.measure import Answer, Block, DraftCounts
from vllm_specplug.compare.prompt import Prompt
from vllm_specplug.errors import CompareError

SCHEMA = "specplug.compare.journal/1"

_Key = tuple[str, str | None, int, tuple[str, ...]]


def journal_path(out: str | Path) -> Path:
    """The journal of a report, beside it."""
    return Path(f"{out}.partial.jsonl")


class Journal:
    """The journal of one run: a `measure.Record`. Made by `open_journal`."""

    def __init__(
        self,
        path: Path,
        file: int,
        identity: Mapping[str, Any],
        head: dict[str, Any] | None,
        blocks: dict[_Key, Block],
    ) -> None:
        self.path = path
        self.recalled_s = 0.0
        self.num_before = len(blocks)
        """Blocks measured in earlier runs."""
        self._begun = False
        self._file = file
        self._identity = dict(identity)
        self._head = head
        self._blocks = blocks

    @property
    def num_blocks(self) -> int:
        """Blocks it holds."""
        return len(self._blocks)

    @property
    def resumed(self) -> dict[str, Any] | None:
        """For the report: when the first run began, and how many blocks there were before this one; None: it is it."""
        if self._head is None or not self.num_before:
            return None
        return {"started_at": self._head["started_at"], "blocks": self.num_before}

    def hint(self) -> str | None:
        """How to go on after this run ended early, None where there is nothing to go on from."""
        if not (self._begun and self._blocks):
            return None
        return f"blocks kept in {self.path}: {self.num_blocks}; the same command goes on from there"

    def begin(self, identity: Mapping[str, Any], started_at: str) -> None:
        """Say which run this is, once all is known about it. To be called before the first block.

        Args:
            identity: what was not known yet when the journal was opened.
            started_at: of this run, ISO 8601; written down by the first.
        Raises:
            CompareError: what was measured before belongs to another run, or the file cannot be written.
        """
        self._identity |= identity
        if self._head is None:
            head = {"schema": SCHEMA, "identity": self._identity, "started_at": started_at}
            self._append(head)
            self._head = head
        else:
            _refuse_another(self.path, self._head["identity"], self._identity)
        self._begun = True

    def recall(self, arm: str, prompts: Sequence[Prompt], pass_index: int, level: str | None = None) -> Block | None:
        """The block of these prompts, None where it was not measured.

        Args:
            level: name of the level of load of which it is a run.
        """
        block = self._blocks.get((arm, level, pass_index, tuple(prompt.id for prompt in prompts)))
        if block is not None:
            self.recalled_s += block.seconds
        return block

    def add(self, arm: str, block: Block) -> None:
        """Write down a block that was measured.

        Raises:
            CompareError: it cannot be written; the blocks before it are kept.
        """
        assert self._head is not None, "begin() comes first"
        self._append({"arm": arm, "block": asdict(block)})
        self._blocks[_key(arm, block)] = block

    def remove(self) -> None:
        """Remove the file: the report is written."""
        self.path.unlink(missing_ok=True)

    def _append(self, row: Mapping[str, Any]) -> None:
        line = (json.dumps(row) + "\n").encode()
        size = os.fstat(self._file).st_size
        try:
            while line:  # a disk that is nearly full takes a part of it
                line = line[os.write(self._file, line) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, size)
            raise CompareError(
                f"cannot write {self.path}: {error.strerror or error}; make room or name another place with --out"
            ) from error


@contextlib.contextmanager
def open_journal(path: Path, identity: Mapping[str, Any], fresh: bool = False) -> Iterator[Journal]:
    """The journal at `path`, which is made when missing, and closed again; removed when nothing was measured.

    Args:
        identity: what is known of the run before an engine starts, so that another one is refused at once.
        fresh: forget what was measured before.
    Raises:
        CompareError: the file holds another run, is no journal, is in use or cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError as error:
        raise CompareError(f"cannot write {path}: {error.strerror or error}; name another file with --out") from error
    journal = None
    try:
        _lock(file, path)
        if fresh:
            os.ftruncate(file, 0)
        head, blocks = _read(file, path)
        if head is not None:
            _refuse_another(path, head["identity"], identity)
        journal = Journal(path, file, identity, head, blocks)
        yield journal
    finally:
        if journal is not None and not journal.num_blocks:
            journal.remove()
        os.close(file)


def _lock(file: int, path: Path) -> None:
    """Released when the file is closed, also by a crash."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise CompareError(f"{path} is in use by another run; wait for it or name another file with --out") from error


def _refuse_another(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise where a run is not the one that was begun; what only one of them knows yet is left for later."""
    differing = differences(there, here)
    if differing:
        raise CompareError(
            f"{path} holds an unfinished run of another configuration: {shown(differing)}; run that command again to "
            "go on with it, name another file with --out, or start anew with --fresh"
        )


def _read(file: int, path: Path) -> tuple[dict[str, Any] | None, dict[_Key, Block]]:
    """First line and blocks; half a line at the end, which a crash leaves, is cut off."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    head: dict[str, Any] | None = None
    blocks: dict[_Key, Block] = {}
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            row = json.loads(line)
            if number == 1:
                head = _head(row)
            else:
                block = block_from_json(row["block"])
                blocks[_key(row["arm"], block)] = block
        except (ValueError, KeyError, TypeError) as error:
            raise CompareError(
                f"{path}:{number} is no line of a journal ({type(error).__name__}: {error}); move the file away or "
                "start anew with --fresh"
            ) from error
    if len(whole) < len(data):
        os.ftruncate(file, len(whole))
    return head, blocks


def _head(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["schema"] != SCHEMA:
        raise ValueError(f"schema is {row['schema']!r}, expected {SCHEMA!r}")
    return {"identity": dict(row["identity"]), "started_at": row["started_at"]}


def block_from_json(value: Mapping[str, Any]) -> Block:
    """What `dataclasses.asdict` made of a block, as it was; JSON keeps every digit of a float.

    Raises:
        KeyError, TypeError: it was made of something else.
    """
    answers = tuple(Answer(**{**answer, "token_ids": tuple(answer["token_ids"])}) for answer in value["answers"])
    counts = value["drafts"]
    drafts = None
    if counts is not None:
        drafts = DraftCounts(**{**counts, "accepted_per_position": tuple(counts["accepted_per_position"])})
    return Block(**{**value, "answers": answers, "drafts": drafts})


def _key(arm: str, block: Block) -> _Key:
    return arm, block.level, block.pass_index, tuple(answer.prompt_id for answer in block.answers)
