"""Generators that draw drafts.

They must be independent of the ones vLLM verifies with, also where the request has a seed: if the draft were drawn
with the same random numbers as the verdict on it, acceptance would depend on the value drawn. They must also agree on
all tensor-parallel ranks and repeat for the same seed. So every seed is hashed with a word of its own and with where
it is used; nothing depends on the batch a request happens to be in.

Source: Leviathan et al. 2023, arXiv:2211.17192, section 2.3 (the draft and its verdict are drawn independently).
"""

from __future__ import annotations

import hashlib

import torch

_MASK = (1 << 63) - 1


def derived_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) that differs for different `parts`."""
    text = "/".join(("vllm-specplug draft", *map(str, parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") & _MASK


def seeded(device: str, *parts: int | str) -> torch.Generator:
    """A generator on `device`, seeded by `parts`."""
    return torch.Generator(device=device).manual_seed(derived_seed(*parts))
