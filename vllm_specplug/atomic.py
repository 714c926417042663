"""Files that are whole or not there: written under a temporary name beside their place, then renamed."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def check_ordinary(path: Path) -> None:
    """Refuse a path at which something stands that is neither a file nor a folder.

    Raises:
        OSError: saying what to do.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is a device, a pipe or a socket; name a file")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it becomes `path` when the block ends, and is removed when the block fails.

    A symbolic link stays one: the file that it leads to is replaced.

    Raises:
        OSError: as writing does; also where `path` is a device, a pipe or a socket, which renaming would replace.
    """
    check_ordinary(path)
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp{os.getpid()}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # or a crash may leave the new name with nothing behind it
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write one JSON object, indented."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n")


def save_tensors(path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write torch tensors as safetensors."""
    from safetensors.torch import save_file

    with replacing(path) as temporary:
        save_file(dict(tensors), temporary, dict(metadata) if metadata else None)
