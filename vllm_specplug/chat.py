"""Texts as a chat model expects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def as_user_messages(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text as a user message in the chat template; plain text where there is no template.

    Args:
        tokenizer: of transformers.
    """
    if not getattr(tokenizer, "chat_template", None):
        return [list(tokenizer.encode(text)) for text in texts]
    return [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
            )
        )
        for text in texts
    ]
