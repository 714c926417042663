"""Texts as a chat model expects them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def chat_tokens(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Token ids of a conversation in the chat template, up to where its answer begins.

    Where there is no template: of the plain contents, with an empty line between two.

    Args:
        tokenizer: of transformers.
        messages: each with `role` and `content`.
    """
    if not getattr(tokenizer, "chat_template", None):
        return list(tokenizer.encode("\n\n".join(message["content"] for message in messages)))
    return list(
        tokenizer.apply_chat_template(
            [dict(message) for message in messages], add_generation_prompt=True, tokenize=True, return_dict=False
        )
    )


def as_user_messages(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text as a user message in the chat template; plain text where there is no template.

    Args:
        tokenizer: of transformers.
    """
    return [chat_tokens(tokenizer, [{"role": "user", "content": text}]) for text in texts]
