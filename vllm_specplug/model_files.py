"""A model's files, of tensors and of JSON, read with suspicion: every fault of one is a `ModelError` that names it.

Knows nothing of what the tensors mean.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vllm_specplug.errors import ModelError

Shape: TypeAlias = tuple[int, ...]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} where there is no such file.

    Raises:
        ModelError: it is not readable, or holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}); write it again") from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} should hold a JSON object, found {type(found).__name__}")
    return found


def read_shapes(paths: Iterable[Path]) -> dict[str, Shape]:
    """Names and shapes of all tensors in some files; of .safetensors the headers alone are read.

    Raises:
        ModelError: a file cannot be read, or two hold a tensor of the same name.
    """
    found: dict[str, Shape] = _gather(paths, _safetensors_shapes, lambda tensor: tuple(tensor.shape))
    return found


def read_tensors(paths: Iterable[Path]) -> dict[str, Tensor]:
    """All tensors in some files, .safetensors or pickled by torch.

    Raises:
        ModelError: a file cannot be read, or two hold a tensor of the same name.
    """
    found: dict[str, Tensor] = _gather(paths, _safetensors, lambda tensor: tensor)
    return found


def read_tensor(path: Path, name: str) -> Tensor:
    """One tensor of a .safetensors file.

    Raises:
        ModelError: the file cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _gather(paths: Iterable[Path], safe: Callable[[Path], dict[str, Any]], one: Callable[[Tensor], Any]) -> Any:
    gathered: dict[str, Any] = {}
    for path in paths:
        found = safe(path) if path.suffix == ".safetensors" else {k: one(v) for k, v in _pickled(path).items()}
        for name in found:
            if name in gathered:
                raise ModelError(f"{path} holds tensor {name!r}, which a file beside it holds too; remove one of them")
        gathered.update(found)
    return gathered


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _safetensors_shapes(path: Path) -> dict[str, Shape]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ModelError:
    return ModelError(f"{path} is not a whole safetensors file ({error}); copy or download it again")


def _pickled(path: Path) -> dict[str, Tensor]:
    try:
        # weights_only: a pickle could otherwise run any code. mmap exists for the newer, zipped files only.
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # a damaged pickle can raise anything
        raise ModelError(
            f"{path} cannot be read as plain tensors ({type(error).__name__}); nothing in it was run. Save its tensors "
            "as .safetensors where you trust it"
        ) from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} should hold a dict of tensors by name, found a {type(found).__name__}")
    if not all(isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in found.items()):
        raise ModelError(f"{path} should hold a dict of tensors by name, found other things in it")
    return dict(found)


def hashes(paths: Iterable[Path]) -> dict[str, str]:
    """sha256 of files, by name.

    Raises:
        ModelError: one cannot be read.
    """
    found = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ModelError(f"{path} cannot be read ({error.strerror})") from error
    return found


def packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as files want them: on the CPU, contiguous, without the storage around them."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
