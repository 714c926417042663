"""The exposure log's files: whole lines, bounded, and never in the way."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from deploy.exposure import ExposureWriter
from deploy.router_settings import ExposureLog
from vllm_specplug.errors import DeployError


def rows(file: Path) -> list[dict[str, int]]:
    text = file.read_text()
    assert not text or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def test_all_lines_of_all_threads_arrive_whole(tmp_path: Path) -> None:
    writer = ExposureWriter(ExposureLog(directory=str(tmp_path / "new" / "folder")), "r")
    threads = [
        threading.Thread(target=lambda t=t: [writer.write({"t": t, "n": n}) for n in range(500)]) for t in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    found = rows(tmp_path / "new" / "folder" / "r-000001.jsonl")
    assert sorted((row["t"], row["n"]) for row in found) == [(t, n) for t in range(4) for n in range(500)]
    assert [row["n"] for row in found if row["t"] == 0] == list(range(500))
    assert (writer.num_written, writer.num_dropped) == (2000, 0)


def test_line_is_on_disk_soon_without_closing(tmp_path: Path) -> None:
    writer = ExposureWriter(ExposureLog(directory=str(tmp_path)), "r")
    writer.write({"n": 1})
    for _ in range(200):
        if (tmp_path / "r-000001.jsonl").read_text():
            break
        threading.Event().wait(0.01)
    assert rows(tmp_path / "r-000001.jsonl") == [{"n": 1}]
    writer.close()


def test_files_are_bounded_in_size_and_number_and_the_newest_stay(tmp_path: Path) -> None:
    writer = ExposureWriter(ExposureLog(directory=str(tmp_path), max_file_mb=0.001, max_files=3), "r")
    for number in range(400):
        writer.write({"n": number})
        while writer.num_written <= number:  # so that no two lines are written at once
            threading.Event().wait(0.0005)
    writer.close()
    files = sorted(tmp_path.glob("*.jsonl"))
    assert len(files) == 3
    assert all(file.stat().st_size <= 1000 for file in files)
    kept = [row["n"] for file in files for row in rows(file)]
    assert kept == list(range(kept[0], 400))


def test_another_routers_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "other-000001.jsonl").write_text("{}\n")
    writer = ExposureWriter(ExposureLog(directory=str(tmp_path), max_file_mb=1e-5, max_files=2), "r")
    for number in range(50):
        writer.write({"n": number})
    writer.close()
    assert (tmp_path / "other-000001.jsonl").read_text() == "{}\n"


def test_full_queue_drops_and_counts_instead_of_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    held_up = ExposureWriter._append

    def append(self: ExposureWriter, lines: list[bytes]) -> None:
        goes_on.wait(10)
        held_up(self, lines)

    monkeypatch.setattr(ExposureWriter, "_append", append)  # a disk that does not answer
    writer = ExposureWriter(ExposureLog(directory=str(tmp_path), max_queued=10), "r")
    for number in range(100):
        writer.write({"n": number})
    goes_on.set()
    writer.close()
    assert writer.num_dropped >= 79  # at most 10 in the queue, and what the thread took out at first
    assert writer.num_written == 100 - writer.num_dropped == len(rows(tmp_path / "r-000001.jsonl"))


def test_full_disk_leaves_whole_lines_and_counts_the_rest(tmp_path: Path) -> None:
    """A child process that may write no file beyond 1,000 bytes, which cuts a write off as a full disk does."""
    code = f"""
import resource, threading
from deploy.exposure import ExposureWriter
from deploy.router_settings import ExposureLog
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
writer = ExposureWriter(ExposureLog(directory={str(tmp_path)!r}), "r")
for number in range(40):
    writer.write({{"n": number, "text": "x" * 50}})
    while writer.num_written + writer.num_dropped <= number:
        threading.Event().wait(0.001)
writer.close()
print(writer.num_written, writer.num_dropped)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    num_written, num_dropped = map(int, done.stdout.split())
    found = rows(tmp_path / "r-000001.jsonl")
    assert [row["n"] for row in found] == list(range(num_written))
    assert num_written + num_dropped == 40
    assert num_dropped > 10
    assert done.stderr.count("lines are dropped and counted") == 1


def test_folder_that_cannot_be_written_to_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DeployError, match=r"router\.exposure\.directory is .*file/log'.*expected a folder"):
        ExposureWriter(ExposureLog(directory=str(tmp_path / "file" / "log")), "r")
