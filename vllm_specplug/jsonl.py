"""Files of one JSON object a line, read with errors that name file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_specplug.errors import SpecplugError


def read_text(file: Path, what: str, error: type[SpecplugError]) -> str:
    """All of a file.

    Args:
        what: how errors name what it holds.
        error: what to raise.
    """
    try:
        return file.read_bytes().decode("utf-8")
    except OSError as cause:
        raise error(f"cannot read {what} {file}: {cause.strerror or cause}") from cause
    except UnicodeDecodeError as cause:
        raise error(f"cannot read {what} {file}: not UTF-8 (byte {cause.start})") from cause


def objects(text: str, file: Path, error: type[SpecplugError], expected: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and object of each line that is not blank.

    Args:
        file: where the text is from.
        error: what to raise where a line holds something else.
        expected: how that error names what should stand there.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as cause:
            raise error(f"{where}: not JSON ({cause.msg} at column {cause.colno}); expected one object") from cause
        except (ValueError, RecursionError) as cause:  # an integer of thousands of digits, or nested too deep
            raise error(f"{where}: not JSON that can be read ({cause}); expected one object") from cause
        if not isinstance(row, dict):
            raise error(f"{where}: expected {expected}, found {type(row).__name__}")
        yield number, row
