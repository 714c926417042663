"""The layout of the Medusa authors (FasterDecoding), read and written.

One state dict, medusa_lm_head.pt or .safetensors, with tensors {head}.{layer}.linear.weight|bias and, as the layer
after the last block, {head}.{layer}.weight: the head's own output. Heads without it use the target's. A config.json
beside it may be missing or wrong (that of the published heads names 2 heads where the file holds 5), so the tensors
decide.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_specplug import model_files
from vllm_specplug.atomic import write_json
from vllm_specplug.errors import ConfigError, ModelError
from vllm_specplug.medusa.checks import check_names
from vllm_specplug.medusa.heads import HeadsConfig
from vllm_specplug.model_files import Shape

WEIGHTS = "medusa_lm_head.pt"
WEIGHTS_SAFE = "medusa_lm_head.safetensors"

_PREFIX = "medusa_head."
_NAME = re.compile(r"(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)")

logger = logging.getLogger(__name__)


def weight_file(directory: Path) -> Path | None:
    """The file with the heads, or None; the safe one where there are both."""
    return next((path for name in (WEIGHTS_SAFE, WEIGHTS) if (path := directory / name).is_file()), None)


def read_config(directory: Path, vocab_size: int | None) -> HeadsConfig:
    """The heads' shape, from the shapes of their tensors.

    Args:
        vocab_size: the target's, for heads that use its output layer.
    Raises:
        ModelError: they cannot be read, do not fit together, or need a `vocab_size`.
    """
    return _shape(directory, _without_prefix(model_files.read_shapes([_file(directory)])), vocab_size)[0]


def read(directory: Path, vocab_size: int | None) -> tuple[HeadsConfig, dict[str, Tensor], dict[str, str]]:
    """Configuration, tensors by our names, and their name of each.

    Args:
        vocab_size: the target's, for heads that use its output layer.
    Raises:
        ModelError: they cannot be read, do not fit together, or need a `vocab_size`.
    """
    found = _without_prefix(model_files.read_tensors([_file(directory)]))
    config, names = _shape(directory, {name: tuple(tensor.shape) for name, tensor in found.items()}, vocab_size)
    return config, {name: found[theirs] for name, theirs in names.items()}, names


def _file(directory: Path) -> Path:
    path = weight_file(directory)
    assert path is not None, "the layout was recognised by it"
    return path


def _without_prefix(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(_PREFIX): value for name, value in found.items()}


def _shape(directory: Path, shapes: Mapping[str, Shape], vocab_size: int | None) -> tuple[HeadsConfig, dict[str, str]]:
    """What the tensors say, and their name of each of ours."""
    parts = [match.groups() for match in map(_NAME.fullmatch, shapes) if match]
    num_heads = len({head for head, _, _ in parts})
    num_layers = len({layer for _, layer, kind in parts if kind == "linear.weight"})
    if num_heads == 0:
        raise ModelError(
            f"{_file(directory)} holds no heads: looked for tensors 0.0.linear.weight or 0.0.weight, found "
            f"{', '.join(sorted(shapes)[:3]) or 'none'}"
        )
    has_bias = any(kind == "linear.bias" for _, _, kind in parts)
    has_output = any(kind == "weight" for _, _, kind in parts)
    names = _names(num_heads, num_layers, has_bias, has_output)
    check_names(directory, shapes, names.values())
    for name in (name for name in shapes if name.endswith("weight")):
        if len(shapes[name]) != 2:
            raise ModelError(f"heads in {directory}: tensor {name} has shape {list(shapes[name])}, expected a matrix")
    settings = model_files.read_json(directory / "config.json")
    _compare(directory, settings, {"medusa_num_heads": num_heads, "medusa_num_layers": num_layers})
    if has_output:
        vocab_size = shapes[f"0.{num_layers}.weight"][0]
    elif isinstance(settings.get("vocab_size"), int):
        vocab_size = settings["vocab_size"]
    elif vocab_size is None:
        raise ModelError(
            f"heads in {directory} use the target's output layer, and their layout does not say how large its "
            "vocabulary is; give it as vocab_size, or the target's directory to specplug convert-medusa --target"
        )
    first = shapes["0.0.linear.weight" if num_layers else "0.0.weight"]
    assert vocab_size is not None
    if min(vocab_size, first[-1]) < 1:
        raise ModelError(f"heads in {directory} are empty: vocabulary of {vocab_size}, hidden size {first[-1]}")
    config = HeadsConfig(
        kind="independent",
        num_heads=num_heads,
        hidden_size=first[-1],
        vocab_size=vocab_size,
        num_layers=num_layers,
        bias=has_bias,
        output="own" if has_output else "target",
    )
    return config, names


def _names(num_heads: int, num_layers: int, bias: bool, output: bool) -> dict[str, str]:
    kinds = ("weight", "bias") if bias else ("weight",)
    names = {
        f"heads.{head}.blocks.{layer}.linear.{kind}": f"{head}.{layer}.linear.{kind}"
        for head in range(num_heads)
        for layer in range(num_layers)
        for kind in kinds
    }
    if output:
        names.update({f"heads.{head}.output.weight": f"{head}.{num_layers}.weight" for head in range(num_heads)})
    return names


def _compare(directory: Path, settings: Mapping[str, Any], counted: Mapping[str, int]) -> None:
    for key, number in counted.items():
        if settings.get(key, number) != number:
            logger.warning(
                "%s: %s is %r, but the file holds %d: using %d",
                directory / "config.json",
                key,
                settings[key],
                number,
                number,
            )


def check_writable(config: HeadsConfig) -> None:
    """Refuse heads that this layout cannot say.

    Raises:
        ConfigError: it says why.
    """
    if config.kind == "sequential":
        raise ConfigError(
            "sequential heads read the tokens drafted before theirs, which the original layout cannot say; they run "
            "in the specplug layout only"
        )
    if config.draft_vocab_size is not None:
        raise ConfigError(
            f"heads that draft {config.draft_vocab_size} of {config.vocab_size} tokens cannot go to the original "
            "layout, which has no map of tokens; use the specplug or the vllm layout"
        )
    if config.num_layers == 0 and config.output == "target":
        raise ConfigError(
            "heads without blocks and without outputs have no tensors, so the original layout cannot hold them; use "
            "the specplug layout"
        )


def write(directory: Path, config: HeadsConfig, tensors: Mapping[str, Tensor], provenance: Mapping[str, Any]) -> None:
    """Fill an empty directory. One output for all heads becomes the same for each; no bias becomes one of zeros.

    Args:
        tensors: by our names.
    Raises:
        ConfigError: the layout cannot say what these heads are.
    """
    check_writable(config)
    names = _names(config.num_heads, config.num_layers, bias=True, output=config.output != "target")
    tensors = model_files.packed(tensors)
    stored = {}
    for name, theirs in names.items():
        if name.endswith(".bias") and not config.bias:
            weight = tensors[name.removesuffix("bias") + "weight"]
            stored[theirs] = weight.new_zeros(config.hidden_size)
        elif name.endswith("output.weight") and config.output == "shared":
            stored[theirs] = tensors["output.weight"]
        else:
            stored[theirs] = tensors[name]
    settings = {
        "medusa_num_heads": config.num_heads,
        "medusa_num_layers": config.num_layers,
        "base_model_name_or_path": provenance.get("target", ""),
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "provenance": dict(provenance),
    }
    torch.save(stored, directory / WEIGHTS)  # the authors' code reads no other kind of file
    write_json(directory / "config.json", settings)
