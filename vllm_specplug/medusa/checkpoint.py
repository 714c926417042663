"""Medusa heads on disk: our layout, and the one door through which heads of any layout come in.

Ours is a directory with config.json, {"format": "specplug.medusa/1", "heads": HeadsConfig, "provenance": {...}}, and
heads.safetensors with the tensors of `MedusaHeads`. Nothing in any layout is run as code.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import Tensor

from vllm_specplug import model_files
from vllm_specplug.atomic import write_json
from vllm_specplug.directories import replace_directory
from vllm_specplug.errors import ModelError, ShapeError
from vllm_specplug.medusa import foreign_original, foreign_vllm
from vllm_specplug.medusa.checks import check_names, check_tensor
from vllm_specplug.medusa.heads import HeadsConfig, MedusaHeads

Layout: TypeAlias = Literal["specplug", "vllm", "original"]
AnyPath: TypeAlias = str | os.PathLike[str]

FORMAT = "specplug.medusa/1"
WEIGHTS = "heads.safetensors"
#: Rows of a target's vocabulary beyond the heads' that may be padding; more is another tokenizer.
MAX_PADDING = 1024
#: Files that any of the three layouts writes: a directory of these alone may be replaced.
REPLACEABLE = {"config.json", WEIGHTS, foreign_vllm.WEIGHTS, foreign_original.WEIGHTS, foreign_original.WEIGHTS_SAFE}


@dataclass(frozen=True)
class Checkpoint:
    """Heads as read from disk."""

    config: HeadsConfig
    tensors: dict[str, Tensor]
    """By the names of `MedusaHeads.state_dict()`."""
    layout: Layout
    provenance: dict[str, Any]
    """Where the heads come from; {} where nobody wrote it down."""


def read_config(path: AnyPath, vocab_size: int | None = None) -> HeadsConfig:
    """The shape of the heads in a directory, without reading weights where the layout allows.

    Args:
        vocab_size: the target's; needed only for heads of the original layout that use its output layer.
    Raises:
        ModelError: there are no heads, or they are not readable.
    """
    directory = Path(path)
    layout, settings = _recognise(directory)
    if layout == "vllm":
        return foreign_vllm.read_config(directory)
    if layout == "original":
        return foreign_original.read_config(directory, vocab_size)
    return _own_config(directory, settings)


def read(path: AnyPath, vocab_size: int | None = None) -> Checkpoint:
    """The heads in a directory of any of the three layouts, checked.

    Args:
        vocab_size: the target's; needed only for heads of the original layout that use its output layer.
    Raises:
        ModelError: there are no heads, they are not readable, or they do not fit together.
    """
    directory = Path(path)
    layout, settings = _recognise(directory)
    if layout == "vllm":
        config, tensors, names = foreign_vllm.read(directory)
    elif layout == "original":
        config, tensors, names = foreign_original.read(directory, vocab_size)
    else:
        config, tensors, names = _own_config(directory, settings), model_files.read_tensors([directory / WEIGHTS]), {}
    try:
        expected = _empty(config, tensors.get("draft_token_ids")).state_dict()
    except ShapeError as error:
        raise ModelError(f"heads in {directory}: {error}") from error
    check_names(directory, tensors, expected)
    for name, tensor in expected.items():
        if name != "draft_token_ids":  # checked above
            check_tensor(directory, names.get(name, name), tensors[name], tuple(tensor.shape))
    provenance = settings.get("provenance")
    return Checkpoint(config, tensors, layout, provenance if isinstance(provenance, dict) else {})


def source_files(path: AnyPath) -> list[Path]:
    """The files that hold the heads' weights.

    Raises:
        ModelError: there are no heads.
    """
    directory = Path(path)
    layout, _ = _recognise(directory)
    if layout == "vllm":
        return foreign_vllm.weight_files(directory)
    original = foreign_original.weight_file(directory)
    return [original] if layout == "original" and original else [directory / WEIGHTS]


def build(checkpoint: Checkpoint, dtype: torch.dtype | None = None) -> MedusaHeads:
    """Heads to compute with: in eval mode, on the CPU, nothing of the target attached, sharing no memory.

    Args:
        dtype: of the weights; None: as stored (the widest, where they differ).
    """
    heads = _empty(checkpoint.config, checkpoint.tensors.get("draft_token_ids"))
    stored = [tensor.dtype for tensor in checkpoint.tensors.values() if tensor.is_floating_point()]
    wanted = dtype or functools.reduce(torch.promote_types, stored, stored[0] if stored else torch.float32)
    tensors = {
        name: tensor.to(torch.long if name == "draft_token_ids" else wanted, copy=True)
        for name, tensor in checkpoint.tensors.items()
    }
    heads.load_state_dict(tensors, assign=True)
    heads.eval()
    return heads


def write(directory: AnyPath, heads: MedusaHeads, provenance: Mapping[str, Any]) -> None:
    """Write heads in our layout: all of it or nothing.

    Args:
        directory: made, or replaced where it holds heads and nothing else.
        provenance: where they come from, as JSON.
    Raises:
        ModelError: something else is there, or the disk refuses.
    """

    def fill(made: Path) -> None:
        settings = {"format": FORMAT, "heads": heads.config.model_dump(), "provenance": dict(provenance)}
        save_file(model_files.packed(heads.state_dict()), made / WEIGHTS, metadata={"format": "pt"})
        write_json(made / "config.json", settings)

    replace_directory(directory, REPLACEABLE, fill)


def check_fits(config: HeadsConfig, path: AnyPath, hidden_size: int, vocab_size: int) -> None:
    """Refuse heads that were made for another target.

    A target's vocabulary may be larger than the heads': many are padded, and what is drafted stays within the heads'.

    Args:
        path: of the heads, to name them.
        hidden_size, vocab_size: the target's.
    Raises:
        ModelError: naming both numbers.
    """
    remedy = "give heads that were trained for this target"
    if config.hidden_size != hidden_size:
        raise ModelError(
            f"heads in {path} are for hidden size {config.hidden_size}, the target has {hidden_size}; {remedy}"
        )
    if not config.vocab_size <= vocab_size <= min(2 * config.vocab_size, config.vocab_size + MAX_PADDING):
        raise ModelError(
            f"heads in {path} are for a vocabulary of {config.vocab_size} tokens, the target has {vocab_size}; {remedy}"
        )


def _recognise(directory: Path) -> tuple[Layout, dict[str, Any]]:
    """The layout of a directory, and its config.json."""
    if not directory.is_dir():
        raise ModelError(
            f"heads {str(directory)!r}: there is no such directory; download them first, and give its path"
        )
    settings = model_files.read_json(directory / "config.json")
    found = str(settings.get("format", ""))
    if found.startswith("specplug.medusa/"):
        if found != FORMAT:
            raise ModelError(
                f"heads in {directory} are of format {found}, this version reads {FORMAT}; update vllm-specplug"
            )
        if not (directory / WEIGHTS).is_file():
            raise ModelError(f"heads in {directory} lack their weights, {WEIGHTS}; copy or train them again")
        return "specplug", settings
    if settings.get("model_type") == foreign_vllm.MODEL_TYPE:
        if not foreign_vllm.weight_files(directory):
            raise ModelError(f"heads in {directory} lack their weights: looked for *.safetensors, *.bin and *.pt")
        return "vllm", settings
    if foreign_original.weight_file(directory) is not None:
        return "original", settings
    raise ModelError(
        f"{directory} holds no Medusa heads: looked for config.json with format {FORMAT} or model_type "
        f"{foreign_vllm.MODEL_TYPE}, {foreign_original.WEIGHTS_SAFE} and {foreign_original.WEIGHTS}"
    )


def _own_config(directory: Path, settings: Mapping[str, Any]) -> HeadsConfig:
    try:
        return HeadsConfig.model_validate(settings.get("heads"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, ("heads", *first["loc"])))
        what = str(first["msg"]).removeprefix("Value error, ")
        raise ModelError(f"{directory / 'config.json'}: {where} is {first['input']!r}: {what}") from error


def _empty(config: HeadsConfig, draft_token_ids: Tensor | None) -> MedusaHeads:
    """Heads of the right shapes without memory for their weights."""
    with torch.device("meta"):
        heads = MedusaHeads(config, draft_token_ids)
    return heads
