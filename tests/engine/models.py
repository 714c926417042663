"""Tiny seeded targets for engine tests: real Llama models, small enough to start in seconds."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

#: Text of a target with a tokenizer: its token ids are the places in this string.
CHARACTERS = string.printable[:95] + "\n"


def tiny_llama(
    folder: Path,
    *,
    vocab_size: int = 32,
    max_position_embeddings: int = 512,
    seed: int = 0,
    spread: float = 0.25,
    eos_token_id: int | None = None,
    with_tokenizer: bool = False,
) -> Path:
    """Save a Llama of two layers with random weights.

    Args:
        folder: where to; kept when it already holds a model.
        spread: standard deviation of the weights: the larger, the more the next token depends on the context.
        with_tokenizer: one token for each printable ASCII character (token ids from 0); the rest of the vocabulary is
            "<97>" and so on.
    """
    if (folder / "model.safetensors").exists():
        return folder
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=max_position_embeddings,
        bos_token_id=None,
        eos_token_id=eos_token_id,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=spread)
    model.save_pretrained(folder)
    if with_tokenizer:
        _character_tokenizer(folder, vocab_size, eos_token_id)
    return folder


def _character_tokenizer(folder: Path, vocab_size: int, eos_token_id: int | None) -> None:
    assert vocab_size > len(CHARACTERS), f"the vocabulary must hold {len(CHARACTERS)} characters and more"
    # Byte-level spelling, which both grammar backends know: a space is written Ġ, a newline Ċ.
    spelt = CHARACTERS.replace(" ", "Ġ").replace("\n", "Ċ")
    vocabulary = {character: token for token, character in enumerate(spelt)}
    vocabulary |= {f"<{token}>": token for token in range(len(CHARACTERS), vocab_size)}
    last = f"<{vocab_size - 1}>"
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[], unk_token=last))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    eos = None if eos_token_id is None else f"<{eos_token_id}>"
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=last, eos_token=eos)
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
