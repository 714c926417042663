"""A small draft model out of a target: some of its layers, taught to say what the target says.

The draft shares the target's tokenizer, embeddings and output layer, which stay as they are; its layers learn to match
the target's distribution over the draft vocabulary, by the KL divergence at every token of the target's own answers.
What is accepted under sampling is 1 - TV(p, q), which the divergence bounds (Pinsker).

Sources: Leviathan et al. 2023, arXiv:2211.17192 (acceptance); Zhou et al. 2024, arXiv:2310.08461 (DistillSpec).
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vllm_specplug import model_files, target_files
from vllm_specplug.errors import ConfigError, ModelError
from vllm_specplug.train.fit import FitSettings, Step, fit
from vllm_specplug.train.texts import TextBatch, Texts, text_batches

_LAYER = re.compile(r"(.*\blayers\.)(\d+)(\..*)")


@dataclass(frozen=True, slots=True)
class Draft:
    """A model in training."""

    model: torch.nn.Module
    """Of transformers, float32; embeddings and output layer frozen."""
    output: Tensor
    """[num_outputs, hidden_size], rows of the target's output layer that can be drafted."""
    token_ids: Tensor | None
    """[num_outputs] int64, the target's token behind each; None: 0, 1, 2, ..."""
    layers: tuple[int, ...]
    """Of the target, that it began as."""

    def states(self, batch: TextBatch) -> Tensor:
        """What its output layer reads at the answered places, [num_answered, hidden_size]."""
        device = self.output.device
        body = self.model.get_decoder()
        found: Tensor = body(input_ids=batch.token_ids.to(device), use_cache=False).last_hidden_state
        return found[batch.answered.to(device)]

    def loss(self, batch: TextBatch) -> Tensor:
        """KL(target || draft) over the draft vocabulary, mean over the answered places."""
        with torch.no_grad():
            wanted = (batch.states.to(self.output.device) @ self.output.T).softmax(dim=-1)
        found = (self.states(batch) @ self.output.T).log_softmax(dim=-1)
        return functional.kl_div(found, wanted, reduction="batchmean")


def spread_layers(count: int, num_layers: int) -> tuple[int, ...]:
    """`count` of `num_layers` layers, evenly spread from the first to the last."""
    if count == 1:
        return (0,)
    return tuple(round(place * (num_layers - 1) / (count - 1)) for place in range(count))


def new_draft(directory: Path, layers: Sequence[int], token_ids: Tensor | None, device: str) -> Draft:
    """A draft that begins as some layers of the target.

    Args:
        directory: of the target, weights in safetensors files.
        layers: which, ascending.
        token_ids: the draft vocabulary; None: all tokens.
    Raises:
        ConfigError: the target has no such layer, or is no stack of layers.
        ModelError: its weights cannot be read.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(directory)
    num_layers = getattr(config, "num_hidden_layers", None)
    if num_layers is None:
        raise ConfigError(f"{directory}: config.json names no num_hidden_layers; distil-draft needs a stack of layers")
    if layers[-1] >= num_layers:
        raise ConfigError(f"--layers names layer {layers[-1]}, but the target has {num_layers}, 0 to {num_layers - 1}")
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in layers]
    config.dtype = torch.float32
    model = AutoModelForCausalLM.from_config(config)
    missing = set(model.load_state_dict(_weights(directory, layers), strict=False).missing_keys)
    if getattr(config, "tie_word_embeddings", False):
        missing.discard("lm_head.weight")
    if missing:
        raise ModelError(f"{directory} lacks {', '.join(sorted(missing)[:3])}; give an unquantised target")
    model.get_input_embeddings().weight.requires_grad_(False)
    output = model.get_output_embeddings().weight.requires_grad_(False)
    model.to(device)
    rows = output.detach() if token_ids is None else output.detach()[token_ids].clone()
    return Draft(model, rows.to(device), token_ids, tuple(layers))


def _weights(directory: Path, layers: Sequence[int]) -> dict[str, Tensor]:
    """The target's tensors without the layers that are left out, the others renumbered, float32."""
    numbers = {layer: number for number, layer in enumerate(layers)}
    found = {}
    for name, path in target_files.places(directory).items():
        match = _LAYER.fullmatch(name)
        if match is None:
            found[name] = model_files.read_tensor(path, name).float()
        elif int(match[2]) in numbers:
            found[f"{match[1]}{numbers[int(match[2])]}{match[3]}"] = model_files.read_tensor(path, name).float()
    return found


def fit_draft(
    draft: Draft,
    texts: Texts,
    settings: FitSettings,
    checkpoint: Path,
    progress: Callable[[Step], None] = lambda _: None,
) -> None:
    """Train `draft` in place.

    Args:
        texts: what it learns from.
        checkpoint, progress: as in `fit`, and so are the errors raised.
    """
    fit(
        draft.model,
        lambda seed: text_batches(texts, settings.batch_size, shuffled_by=seed),
        draft.loss,
        settings,
        identity_of(draft, texts, settings),
        checkpoint,
        progress,
    )


def identity_of(draft: Draft, texts: Texts, settings: FitSettings) -> dict[str, Any]:
    """What must be the same for a checkpoint to be gone on from."""
    ids = draft.token_ids
    return {
        "layers": list(draft.layers),
        "settings": asdict(settings),
        "texts": texts.digest,
        "draft_token_ids": None if ids is None else hashlib.sha256(ids.cpu().numpy().tobytes()).hexdigest(),
    }


@dataclass(frozen=True, slots=True)
class DraftQuality:
    """Figures on held-out answers, the tokens before each place being the target's."""

    num_examples: int
    top1: float
    """How often the draft's best token is the target's: the acceptance rate at temperature 0."""
    overlap: float
    """Mean of sum min(p, q) over the whole vocabulary: the acceptance rate at temperature 1."""
    acceptance_length: list[float]
    """Tokens a greedy round gives with 1, 2, ... drafts, walking each answer round by round."""


def evaluate_draft(
    draft: Draft, texts: Texts, whole_output: Tensor, most: int = 8, num_tokens: int = 8192
) -> DraftQuality:
    """Ask the draft about all answered places but the first of each answer, which no draft is made for.

    Args:
        whole_output: [vocab_size, hidden_size], the target's output layer.
        most: drafts of the longest round.
        num_tokens: of texts, at a time.
    """
    with torch.inference_mode():
        return _evaluate(draft, texts, whole_output.to(draft.output.device), most, num_tokens)


def _evaluate(draft: Draft, texts: Texts, whole_output: Tensor, most: int, num_tokens: int) -> DraftQuality:
    from vllm_specplug.train.evaluate import rounds_length

    hits, overlaps = [], []
    for batch in text_batches(texts, num_tokens):
        device = draft.output.device
        for states, wanted, labels in zip(
            draft.states(batch).split(_ROWS),
            batch.states.to(device).split(_ROWS),
            batch.labels.to(device).split(_ROWS),
            strict=True,
        ):
            q = (states @ draft.output.T).softmax(dim=-1)
            p = (wanted @ whole_output.T).softmax(dim=-1)
            best = q.argmax(dim=-1)
            if draft.token_ids is not None:
                ids = draft.token_ids.to(device)
                best, p = ids[best], p[:, ids]
            hits.append((best == labels).cpu())
            overlaps.append(torch.minimum(p, q).sum(dim=-1).cpu())
    ends = texts.lengths.cumsum(0)
    drafted = torch.ones(int(ends[-1]), dtype=torch.bool)
    drafted[ends - texts.lengths] = False
    hit, overlap = torch.cat(hits)[drafted], torch.cat(overlaps)[drafted]
    accepted = functools.partial(_accepted, hit, _left(texts.lengths))
    return DraftQuality(
        len(hit),
        float(hit.float().mean()),
        float(overlap.mean()),
        [rounds_length(accepted(count), texts.lengths) for count in range(1, most + 1)],
    )


#: Rows of a whole vocabulary's probabilities at a time.
_ROWS = 1024


def _left(lengths: Tensor) -> Tensor:
    """[sum of (lengths - 1)]: drafted places of the same answer from each one on."""
    return torch.cat([torch.arange(length - 1, 0, -1) for length in lengths.tolist()])


def _accepted(hit: Tensor, left: Tensor, count: int) -> Tensor:
    """Drafts accepted in a round of `count` that begins at each place: hits in a row, within the answer.

    Args:
        hit: [num_places] bool.
        left: [num_places], see `_left`.
    """
    run = torch.ones(len(hit), dtype=torch.int64)
    found = torch.zeros(len(hit), dtype=torch.int64)
    padded = functional.pad(hit.long(), (0, count))
    for step in range(count):
        run = run * padded[step : step + len(hit)] * (left > step)
        found += run
    return found
