"""Whether tensors are those of a set of heads: all there, of the right shapes, finite."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from vllm_specplug.error_lines import first_few
from vllm_specplug.errors import ModelError
from vllm_specplug.model_files import Shape

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_names(path: Path, found: Iterable[str], expected: Iterable[str]) -> None:
    """Refuse tensors that are missing or that nobody asked for.

    Raises:
        ModelError: naming the first few.
    """
    found, expected = set(found), set(expected)
    faults = [
        f"{what} {first_few(names)}"
        for what, names in (("missing", expected - found), ("unexpected", found - expected))
        if names
    ]
    if faults:
        raise ModelError(
            f"heads in {path} do not have the tensors that they should: {'; '.join(faults)}. For heads of another "
            "layout see `specplug convert-medusa`"
        )


def check_tensor(path: Path, name: str, tensor: Tensor, shape: Shape) -> None:
    """Refuse weights that do not fit or that are not finite numbers.

    Raises:
        ModelError: naming the tensor.
    """
    if tuple(tensor.shape) != shape:
        raise ModelError(
            f"heads in {path}: tensor {name} has shape {list(tensor.shape)}, {list(shape)} follows from the others and "
            "from config.json"
        )
    if tensor.dtype not in _DTYPES or tensor.layout != torch.strided:
        raise ModelError(
            f"heads in {path}: tensor {name} is {tensor.dtype}, {tensor.layout}; expected dense floats of 16 bits or "
            "more"
        )
    if not bool(torch.isfinite(tensor).all()):
        raise ModelError(f"heads in {path}: tensor {name} has values that are NaN or infinite; train the heads again")
