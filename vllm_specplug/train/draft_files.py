"""A draft model as files: a model directory that vLLM and transformers read.

The layers, which were trained, and the embeddings, which are the target's, stand in files of their own: who has the
target can have the draft for the size of its layers (`with_embeddings`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from vllm_specplug import draft_vocab, model_files, target_files
from vllm_specplug.atomic import write_json
from vllm_specplug.directories import replace_directory
from vllm_specplug.train.draft import Draft

LAYERS = "layers.safetensors"
EMBEDDINGS = "embeddings.safetensors"
INDEX = "model.safetensors.index.json"
PROVENANCE = "distilled.json"
_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "added_tokens.json", "chat_template*")


def replaceable(target: Path) -> set[str]:
    """Names of files that a draft's directory may hold to be written anew."""
    tokenizer = {file.name for file in _tokenizer_files(target)}
    return {"config.json", LAYERS, EMBEDDINGS, INDEX, PROVENANCE, draft_vocab.FILE, *tokenizer}


def write(directory: Path, draft: Draft, target: Path, provenance: Mapping[str, Any]) -> None:
    """Write a draft, bfloat16: all of it or nothing.

    Args:
        directory: made, or replaced where it holds a draft and nothing else.
        target: its directory; brings the tokenizer.
        provenance: where the draft comes from, as JSON.
    Raises:
        ModelError: something else is there, or the disk refuses.
    """
    layers, embeddings = _parts(draft)

    def fill(made: Path) -> None:
        for name, tensors in ((LAYERS, layers), (EMBEDDINGS, embeddings)):
            save_file(model_files.packed(tensors), made / name, metadata={"format": "pt"})
        write_json(made / INDEX, _index(layers, embeddings))
        config = draft.model.config.to_dict()
        config.pop("_name_or_path", None)  # a place on this machine
        config["dtype"] = "bfloat16"
        config["architectures"] = [type(draft.model).__name__]
        write_json(made / "config.json", config)
        write_json(made / PROVENANCE, provenance)
        if draft.token_ids is not None:
            draft_vocab.write(made / draft_vocab.FILE, draft.token_ids.tolist())
        for file in _tokenizer_files(target):
            shutil.copyfile(file, made / file.name)

    replace_directory(directory, replaceable(target), fill)


def with_embeddings(draft: Path, target: Path, made: Path) -> None:
    """Make a whole draft in `made`, from one without embeddings and its target.

    Raises:
        ModelError: a file of either cannot be read.
    """
    for file in draft.iterdir():
        if file.is_file():
            shutil.copyfile(file, made / file.name)
    places = target_files.places(target)
    index = json.loads((draft / INDEX).read_text())["weight_map"]
    names = [name for name, file in index.items() if file == EMBEDDINGS]
    tensors = {name: model_files.read_tensor(places[name], name).bfloat16() for name in names}
    save_file(model_files.packed(tensors), made / EMBEDDINGS, metadata={"format": "pt"})
    for file in _tokenizer_files(target):
        shutil.copyfile(file, made / file.name)


def _parts(draft: Draft) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What was trained and what is the target's; tied weights once."""
    trained: dict[str, Tensor] = {}
    frozen: dict[str, Tensor] = {}
    for name, parameter in draft.model.named_parameters():  # each once
        part = trained if parameter.requires_grad else frozen
        part[name] = parameter.detach().to(torch.bfloat16)
    return trained, frozen


def _index(layers: Mapping[str, Tensor], embeddings: Mapping[str, Tensor]) -> dict[str, Any]:
    size = sum(tensor.nbytes for part in (layers, embeddings) for tensor in part.values())
    places = {**dict.fromkeys(layers, LAYERS), **dict.fromkeys(embeddings, EMBEDDINGS)}
    return {"metadata": {"total_size": size}, "weight_map": places}


def _tokenizer_files(target: Path) -> list[Path]:
    return sorted({file for pattern in _TOKENIZER for file in target.glob(pattern) if file.is_file()})
