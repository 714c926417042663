"""Draft models for the tiny targets: the target's own weights with noise, so that some drafts are right."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

#: Of each tensor's standard deviation. Some three quarters of greedy drafts are then right.
NOISE = 0.03


def tiny_draft(
    model: str,
    noise: float = NOISE,
    *,
    vocab_size: int | None = None,
    max_position_embeddings: int | None = None,
    num_layers: int | None = None,
    with_tokenizer: bool = True,
    loud: float = 4.0,
) -> str:
    """A folder with a draft for `model`, beside it; made when it is not there yet.

    Args:
        noise: 0: the draft says what the target says.
        vocab_size: rows are cut or added.
        max_position_embeddings: how long a text the draft says it can read.
        num_layers: the first ones are kept.
        with_tokenizer: the target's, where it has one.
        loud: standard deviation of added rows, in that of the others: where it is large they would often be said.
    """
    from transformers import AutoConfig, LlamaForCausalLM

    changes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "max_position_embeddings": max_position_embeddings,
        "num_hidden_layers": num_layers,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    name = "-".join(str(part) for part in (noise, with_tokenizer, loud, *(f"{k}-{v}" for k, v in changes.items())))
    folder = Path(f"{model}-draft-{name}")
    if (folder / "model.safetensors").exists():
        return str(folder)
    weights = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).state_dict()
    config = AutoConfig.from_pretrained(model)
    config.update(changes)
    draft = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, parameter in draft.state_dict().items():
            source = weights[key]
            rows = min(len(source), len(parameter))
            if len(parameter) > rows:
                parameter.normal_(std=loud * float(source.std()), generator=generator)
            parameter[:rows] = source[:rows]
            if noise and source.ndim == 2:
                random = torch.randn(source[:rows].shape, generator=generator)
                parameter[:rows] += noise * source.std() * random
    draft.save_pretrained(folder)
    if with_tokenizer:
        for path in (*Path(model).glob("*token*"), *Path(model).glob("chat_template*")):
            shutil.copy(path, folder)
    return str(folder)


def renumbered(model: str, folder: Path, *, shift: int, extra: int = 0) -> str:
    """The model itself with other numbers for its tokens: token i becomes (i + shift) % vocab_size.

    Args:
        model: a target with a tokenizer.
        folder: where to.
        extra: so many tokens more, which the target does not know.
    """
    from transformers import LlamaForCausalLM

    source = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    size = source.config.vocab_size
    source.config.vocab_size = size + extra
    draft = LlamaForCausalLM(source.config)
    weights = source.state_dict()
    places = (torch.arange(size) + shift) % size
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = torch.zeros((size + extra, weights[name].shape[1]))
        rows[places] = weights[name]
        weights[name] = rows
    draft.load_state_dict(weights)
    draft.save_pretrained(folder)
    for path in (*Path(model).glob("*token*"), *Path(model).glob("chat_template*")):
        shutil.copy(path, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = {token: (number + shift) % size for token, number in tokenizer["model"]["vocab"].items()}
    vocabulary |= {f"<extra{number}>": size + number for number in range(extra)}
    tokenizer["model"]["vocab"] = vocabulary
    for added in tokenizer.get("added_tokens", []):
        added["id"] = vocabulary[added["content"]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(folder)
