"""What a drafter needs of its target, read from the target's directory without building the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from vllm_specplug.errors import ModelError
from vllm_specplug.model_files import read_json, read_shapes, read_tensor

_INDEX = "model.safetensors.index.json"


def sizes(directory: Path) -> tuple[int, int]:
    """A target's hidden size and size of vocabulary, from its config.json.

    Raises:
        ModelError: they are not there.
    """
    config = _config(directory)
    found = [_setting(config, name) for name in ("hidden_size", "vocab_size")]
    if not all(isinstance(size, int) for size in found):
        raise ModelError(
            f"{directory / 'config.json'} names no hidden_size and vocab_size; is this the target's directory?"
        )
    return found[0], found[1]


def output_rows(directory: Path) -> Tensor:
    """A target's output layer, [rows, hidden_size], rows being its vocabulary or that and padding.

    That of its input embeddings, where the two are tied.

    Raises:
        ModelError: it is not found as plain weights in safetensors files.
    """
    config = _config(directory)
    found = places(directory)
    tied = _setting(config, "tie_word_embeddings")
    own, embeddings = _ending(found, "lm_head.weight"), _ending(found, "embed_tokens.weight")
    packed = any(".lm_head." in f".{name}" and not name.endswith("lm_head.weight") for name in found)
    if tied is True or (own is None and tied is None and not packed):
        own = embeddings
    if own is None:
        raise ModelError(
            f"{directory} has no output layer as plain weights: looked for lm_head.weight in its safetensors files, "
            "and for model.embed_tokens.weight where the two are tied; give the unquantised target"
        )
    return read_tensor(found[own], own)


def _config(directory: Path) -> dict[str, Any]:
    found = read_json(directory / "config.json")
    if not found:
        raise ModelError(f"{directory} has no config.json, or an empty one; give the target's directory")
    return found


def _setting(config: dict[str, Any], name: str) -> Any:
    """A setting of the language model, which multimodal models keep one level down."""
    inner = config.get("text_config")
    return config.get(name, inner.get(name) if isinstance(inner, dict) else None)


def places(directory: Path) -> dict[str, Path]:
    """The file of each tensor of a model."""
    index = read_json(directory / _INDEX).get("weight_map")
    if isinstance(index, dict):
        # The name alone: an index could otherwise lead out of the directory.
        return {name: directory / Path(str(file)).name for name, file in index.items()}
    return {name: path for path in sorted(directory.glob("*.safetensors")) for name in read_shapes([path])}


def _ending(places: dict[str, Path], name: str) -> str | None:
    found = [place for place in places if f".{place}".endswith(f".{name}")]
    return found[0] if len(found) == 1 else None
