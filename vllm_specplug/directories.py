"""Directories that are written whole or not at all, and never over what somebody else put there."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from safetensors import SafetensorError

from vllm_specplug.error_lines import first_few
from vllm_specplug.errors import ModelError


def replace_directory(directory: str | os.PathLike[str], ours: Iterable[str], fill: Callable[[Path], None]) -> None:
    """Write a directory whole or not at all.

    `fill` writes into a temporary sibling, which then takes the place of what was there.

    Args:
        ours: names of files that an existing directory may hold; with any other in it, it is not replaced.
    Raises:
        ModelError: something else is there, or the disk refuses.
    """
    place = Path(directory).resolve()
    check_replaceable(place, ours)
    made = place.with_name(f".{place.name}.{secrets.token_hex(4)}.new")
    aside = made.with_suffix(".old")
    try:
        made.mkdir(parents=True)
        fill(made)
        for file in made.iterdir():  # some libraries write for the owner alone
            file.chmod(made.stat().st_mode & 0o666)
        if place.exists():
            place.rename(aside)
        made.rename(place)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"{place} cannot be written ({error}); what was there before is as it was") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if aside.exists() and not place.exists():
            aside.rename(place)
        shutil.rmtree(aside, ignore_errors=True)


def check_replaceable(directory: str | os.PathLike[str], ours: Iterable[str]) -> None:
    """Refuse a place where `replace_directory` would.

    Raises:
        ModelError: something else is there.
    """
    place, ours = Path(directory).resolve(), set(ours)
    if place.exists() and not place.is_dir():
        raise ModelError(f"{place} is a file; choose a directory to write to")
    others = [entry.name for entry in place.iterdir() if entry.name not in ours] if place.exists() else []
    if others:
        raise ModelError(f"{place} holds {first_few(others)}, which would be lost; choose another directory")
