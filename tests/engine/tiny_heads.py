"""Medusa heads for the tiny targets, trained in seconds on the target's own texts by the product's own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vllm_specplug.medusa import checkpoint
from vllm_specplug.medusa.heads import HeadsConfig, MedusaHeads
from vllm_specplug.train.data import Answers
from vllm_specplug.train.fit import FitSettings
from vllm_specplug.train.heads import fit_heads

NUM_PROMPTS = 192
LENGTH = 96


def tiny_heads(model: str, num_heads: int = 5, temperature: float = 0.0, **config: Any) -> str:
    """A folder of heads for `model`, beside it; made when it is not there yet.

    Args:
        temperature: of the texts they learn from.
        config: further fields of `HeadsConfig`; `draft_token_ids` for a draft vocabulary.
    """
    from safetensors.torch import save_file
    from transformers import LlamaForCausalLM

    name = "-".join(str(part) for part in (num_heads, temperature, *sorted(config.items())))
    folder = Path(f"{model}-heads-{torch.tensor(bytearray(name.encode())).sum().item()}-{len(name)}")
    if folder.exists():
        return str(folder)
    target = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    vocab_size, hidden_size = target.config.vocab_size, target.config.hidden_size
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(vocab_size, (NUM_PROMPTS, 1), generator=generator)
    strides = torch.randint(1, 6, (NUM_PROMPTS, 1), generator=generator)
    texts = (starts + torch.arange(12) % 5 * strides) % vocab_size  # repeat themselves, as the tests' prompts do
    with torch.inference_mode():
        for _ in range(LENGTH):
            logits = target(texts[:, -64:]).logits[:, -1]
            best = logits.argmax(-1)
            if temperature:
                best = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)[:, 0]
            texts = torch.cat([texts, best[:, None]], dim=1)
        states = target.model(texts).last_hidden_state[:, :-1]
    chunk = folder.with_suffix(".chunk")
    save_file(
        {
            "states": states.reshape(-1, hidden_size).clone(),
            "tokens": texts[:, 1:].reshape(-1).int(),
            "lengths": torch.full((NUM_PROMPTS,), texts.shape[1] - 1).int(),
        },
        chunk,
    )
    given = config.pop("draft_token_ids", None)
    ids = None if given is None else list(given)
    shape = HeadsConfig(
        num_heads=num_heads,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        draft_vocab_size=None if ids is None else len(ids),
        **config,
    )
    torch.manual_seed(0)
    heads = MedusaHeads(shape, None if ids is None else torch.tensor(ids))
    output = target.lm_head.weight.data if ids is None else target.lm_head.weight.data[ids]
    heads.attach(target.model.embed_tokens.weight.data, output)
    for layer in (heads.output, *(head.output for head in heads.heads)):
        if layer is not None:
            layer.weight.data.copy_(output)
    fit_heads(
        heads,
        Answers([chunk], num_heads),
        FitSettings(num_epochs=6, batch_size=256, learning_rate=3e-3),
        folder.with_suffix(".pt"),
    )
    checkpoint.write(folder, heads, {"made_by": "tests"})
    return str(folder)
