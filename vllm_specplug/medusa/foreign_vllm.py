"""The layout that vLLM's own Medusa class loads, read and written.

config.json with model_type "medusa", and tensors blocks.{head}.layers.{layer}.weight|bias, lm_heads.{head}.weight or
lm_head.weight (one for all), and token_map where fewer tokens can be drafted than the vocabulary has.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors.torch import save_file
from torch import Tensor

from vllm_specplug import model_files
from vllm_specplug.atomic import write_json
from vllm_specplug.errors import ConfigError, ModelError
from vllm_specplug.medusa.checks import check_names
from vllm_specplug.medusa.heads import HeadsConfig

MODEL_TYPE = "medusa"
WEIGHTS = "model.safetensors"
#: What training leaves beside weights in files that look like them.
_NOT_WEIGHTS = {"training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pt"}


def read_config(directory: Path) -> HeadsConfig:
    """The heads' shape, from config.json as vLLM reads it.

    Raises:
        ModelError: it lacks something or contradicts itself.
    """
    path = directory / "config.json"
    found = model_files.read_json(path)
    settings = {"num_hidden_layers": 1, **found}
    for key in found:  # vLLM takes any name with these words in it
        if "num" in key and "heads" in key:
            settings["num_heads"] = found[key]
        elif "num" in key and "layers" in key:
            settings["num_hidden_layers"] = found[key]
    for key in ("num_heads", "hidden_size", "vocab_size"):
        if not isinstance(settings.get(key), int):
            raise ModelError(f"{path}: {key} is {settings.get(key)!r}, expected a whole number")
    vocab_size, drafted = settings["vocab_size"], settings.get("truncated_vocab_size")
    if drafted is not None and (not isinstance(drafted, int) or drafted > vocab_size):
        raise ModelError(f"{path}: truncated_vocab_size is {drafted!r}, expected at most vocab_size, {vocab_size}")
    try:
        return HeadsConfig(
            kind="independent",
            num_heads=settings["num_heads"],
            hidden_size=settings["hidden_size"],
            vocab_size=vocab_size,
            num_layers=settings["num_hidden_layers"],
            bias=settings.get("medusa_fc_bias", False),
            output="shared" if settings.get("original_lm_head", False) else "own",
            draft_vocab_size=None if drafted == vocab_size else drafted,
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ModelError(f"{path}: {'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}") from error


def read(directory: Path) -> tuple[HeadsConfig, dict[str, Tensor], dict[str, str]]:
    """Configuration, tensors by our names, and their name of each.

    A scale of the logits is worked into the output rows.

    Raises:
        ModelError: they cannot be read or do not fit together.
    """
    config = read_config(directory)
    found = _own_names(model_files.read_tensors(weight_files(directory)), config)
    token_map = found.get("token_map")
    names = _names(config)
    check_names(directory, found, names.values())
    scale = model_files.read_json(directory / "config.json").get("logit_scale", 1.0)
    if not isinstance(scale, int | float) or not scale > 0:
        raise ModelError(f"{directory / 'config.json'}: logit_scale is {scale!r}, expected a number above 0")
    if token_map is not None:
        _check_map(directory, token_map, config)
    tensors = {}
    for name, theirs in names.items():
        tensor = found[theirs]
        if name.endswith("output.weight"):
            if token_map is not None and tensor.ndim == 2 and tensor.shape[0] > token_map.shape[0]:  # of all tokens
                _check_rows(directory, theirs, tensor, config)
                tensor = tensor[token_map.long()]
            tensor = tensor if scale == 1 else tensor * scale
        tensors[name] = tensor
    return config, tensors, names


def weight_files(directory: Path) -> list[Path]:
    """The files that hold weights: .safetensors, or pickles where there are none."""
    safe = sorted(directory.glob("*.safetensors"))
    pickles = sorted(path for path in directory.iterdir() if path.suffix in (".bin", ".pt"))
    return safe or [path for path in pickles if path.name not in _NOT_WEIGHTS]


def _names(config: HeadsConfig) -> dict[str, str]:
    """Their name of each of our tensors."""
    kinds = ("weight", "bias") if config.bias else ("weight",)
    names = {
        f"heads.{head}.blocks.{layer}.linear.{kind}": f"blocks.{head}.layers.{layer}.{kind}"
        for head in range(config.num_heads)
        for layer in range(config.num_layers)
        for kind in kinds
    }
    if config.output == "own":
        names.update({f"heads.{head}.output.weight": f"lm_heads.{head}.weight" for head in range(config.num_heads)})
    else:
        names["output.weight"] = "lm_head.weight"
    if config.draft_vocab_size is not None:
        names["draft_token_ids"] = "token_map"
    return names


def _own_names(found: Mapping[str, Tensor], config: HeadsConfig) -> dict[str, Tensor]:
    """Tensors by vLLM's names, from the names that it understands; those that it passes over on purpose left out."""
    tensors = {}
    for stored, tensor in found.items():
        name = stored.replace("medusa_heads.", "")
        parts = name.split(".")
        if len(parts) >= 3 and parts[0].isdigit() and parts[1].isdigit():  # those of the original layout
            own = f"lm_heads.{parts[0]}.{parts[-1]}"
            name = f"blocks.{parts[0]}.layers.{parts[1]}.{parts[-1]}" if "linear" in parts else own
        tensors[name] = tensor
    if config.output == "shared":
        first = tensors.get("lm_heads.0.weight")
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("lm_heads.")}
        if first is not None:
            tensors.setdefault("lm_head.weight", first)
    if config.draft_vocab_size is None:
        tensors.pop("token_map", None)
    return tensors


def _check_map(directory: Path, token_map: Tensor, config: HeadsConfig) -> None:
    if list(token_map.shape) != [config.draft_vocab_size]:
        raise ModelError(
            f"heads in {directory}: token_map has shape {list(token_map.shape)}, config.json names a "
            f"truncated_vocab_size of {config.draft_vocab_size}"
        )
    if token_map.is_floating_point() or token_map.min() < 0 or token_map.max() >= config.vocab_size:
        raise ModelError(
            f"heads in {directory}: token_map should hold whole numbers from 0 to {config.vocab_size - 1}, found "
            f"{token_map.min().item()} to {token_map.max().item()}"
        )


def _check_rows(directory: Path, name: str, tensor: Tensor, config: HeadsConfig) -> None:
    if tensor.shape[0] < config.vocab_size:
        raise ModelError(
            f"heads in {directory}: {name} has {tensor.shape[0]} rows, expected {config.draft_vocab_size} "
            f"(truncated_vocab_size) or {config.vocab_size} (vocab_size)"
        )


def check_writable(config: HeadsConfig) -> None:
    """Refuse heads that vLLM 0.32 could not load.

    Raises:
        ConfigError: it says why.
    """
    if config.kind == "sequential":
        raise ConfigError(
            "sequential heads read the tokens drafted before theirs, which the vllm layout cannot say; they run in "
            "the specplug layout only"
        )
    if config.output == "own" and config.draft_vocab_size is not None:
        # Its lm_heads have vocab_size rows, and it cuts what it loads to truncated_vocab_size.
        raise ConfigError(
            "heads with outputs of their own and a draft vocabulary cannot go to the vllm layout: vLLM 0.32 makes "
            f"room for {config.vocab_size} rows and loads {config.draft_vocab_size}; keep them in the specplug layout"
        )


def write(
    directory: Path,
    config: HeadsConfig,
    tensors: Mapping[str, Tensor],
    provenance: Mapping[str, Any],
    target_output: Tensor | None,
) -> None:
    """Fill an empty directory.

    Args:
        tensors: by our names.
        target_output: [vocab_size or more, hidden_size], the target's output rows; for heads that share it.
    Raises:
        ConfigError: vLLM could not load the heads.
        ModelError: the target's rows are missing or too few.
    """
    check_writable(config)
    tensors = dict(tensors)
    if config.output == "target":
        tensors["output.weight"] = _drafted_rows(config, tensors, target_output)
        config = config.model_copy(update={"output": "shared"})
    stored = {theirs: tensors[name] for name, theirs in _names(config).items()}
    dtype = str(next(tensor.dtype for tensor in stored.values() if tensor.is_floating_point())).removeprefix("torch.")
    settings = {
        "architectures": ["MedusaModel"],
        "model_type": MODEL_TYPE,
        "dtype": dtype,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "truncated_vocab_size": config.num_outputs,
        "num_heads": config.num_heads,
        "num_hidden_layers": config.num_layers,
        "medusa_fc_bias": config.bias,
        "original_lm_head": config.output == "shared",
        "provenance": dict(provenance),
    }
    save_file(model_files.packed(stored), directory / WEIGHTS, metadata={"format": "pt"})
    write_json(directory / "config.json", settings)


def _drafted_rows(config: HeadsConfig, tensors: Mapping[str, Tensor], target_output: Tensor | None) -> Tensor:
    if target_output is None:
        raise ModelError(
            "these heads use the target's output layer, of which the vllm layout holds a copy; give the target's "
            "directory (specplug convert-medusa --target)"
        )
    rows, hidden_size = target_output.shape
    if hidden_size != config.hidden_size or rows < config.vocab_size:
        raise ModelError(
            f"the target's output layer is [{rows}, {hidden_size}], the heads need [{config.vocab_size}, "
            f"{config.hidden_size}]; give the target that they were trained for"
        )
    ids = tensors.get("draft_token_ids")
    chosen = target_output[: config.vocab_size] if ids is None else target_output[ids.long()]
    dtype = next((tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), target_output.dtype)
    return chosen.to(dtype)
