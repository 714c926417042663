"""Recorded answers as whole texts: what a draft model learns from.

A text is the tokens in front of an answer and the answer. Of each of the answer's tokens the state it was sampled from
is known, so the target's distribution there is one product away and the target itself is not needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from vllm_specplug.errors import ModelError
from vllm_specplug.train.data import load_chunks


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Some texts, padded at their ends."""

    token_ids: Tensor
    """[num_texts, longest] int64, 0 behind the end: what comes later changes nothing before it."""
    answered: Tensor
    """[num_texts, longest] bool: places whose next token is one of the answer's."""
    states: Tensor
    """[answered.sum(), hidden_size] float32: the target's, row by row."""
    labels: Tensor
    """[answered.sum()] int64: the answer's tokens."""


class Texts(Dataset[TextBatch]):
    """Texts of some chunk files; indexed by a list of places, so that a batch is gathered at once."""

    def __init__(self, files: Sequence[Path]) -> None:
        """
        Raises:
            ModelError: a file is damaged, was written by an older version, or there is nothing in them.
        """
        chunks = load_chunks(files)
        for file, chunk in zip(files, chunks, strict=True):
            if "contexts" not in chunk:
                raise ModelError(f"{file} holds no contexts, as older versions wrote it; remove its folder")
        self.states = torch.cat([chunk["states"] for chunk in chunks])
        self.tokens = torch.cat([chunk["tokens"] for chunk in chunks]).long()
        self.contexts = torch.cat([chunk["contexts"] for chunk in chunks]).long()
        self.lengths = torch.cat([chunk["lengths"] for chunk in chunks]).long()
        self.context_lengths = torch.cat([chunk["context_lengths"] for chunk in chunks]).long()
        self._starts = self.lengths.cumsum(0) - self.lengths
        self._context_starts = self.context_lengths.cumsum(0) - self.context_lengths

    @property
    def digest(self) -> str:
        """Of all tokens: other texts have another."""
        found = hashlib.sha256(self.tokens.numpy().tobytes())
        for part in (self.lengths, self.contexts, self.context_lengths):
            found.update(part.numpy().tobytes())
        return found.hexdigest()

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def sizes(self) -> list[int]:
        """Tokens of each text."""
        found: list[int] = (self.lengths + self.context_lengths).tolist()
        return found

    def __getitem__(self, indices: list[int]) -> TextBatch:
        longest = max(int(self.lengths[i] + self.context_lengths[i]) for i in indices)
        token_ids = torch.zeros((len(indices), longest), dtype=torch.int64)
        answered = torch.zeros((len(indices), longest), dtype=torch.bool)
        answers = []
        for row, index in enumerate(indices):
            front, length = int(self.context_lengths[index]), int(self.lengths[index])
            start, context_start = int(self._starts[index]), int(self._context_starts[index])
            token_ids[row, :front] = self.contexts[context_start : context_start + front]
            token_ids[row, front : front + length] = self.tokens[start : start + length]
            answered[row, front - 1 : front + length - 1] = True
            answers.append(slice(start, start + length))
        states = torch.cat([self.states[answer] for answer in answers]).float()
        return TextBatch(token_ids, answered, states, torch.cat([self.tokens[answer] for answer in answers]))


class _BySize(Sampler[list[int]]):
    """Texts of like size together, as many as fit into so many tokens, padding included; then the batches shuffled."""

    def __init__(self, sizes: Sequence[int], num_tokens: int, seed: int | None) -> None:
        order = list(range(len(sizes)))
        generator = torch.Generator().manual_seed(seed or 0)
        if seed is not None:
            # Sorted by size alone, so that there are as many batches with every seed; of a size, others each time.
            order = sorted(torch.randperm(len(sizes), generator=generator).tolist(), key=sizes.__getitem__)
        self._batches: list[list[int]] = []
        widest = 0
        for index in order:
            widest = max(widest, sizes[index])
            if not self._batches or widest * (len(self._batches[-1]) + 1) > num_tokens:
                self._batches.append([])
                widest = sizes[index]
            self._batches[-1].append(index)
        if seed is not None:
            shuffled = torch.randperm(len(self._batches), generator=generator).tolist()
            self._batches = [self._batches[number] for number in shuffled]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def text_batches(texts: Texts, num_tokens: int, shuffled_by: int | None = None) -> DataLoader[TextBatch]:
    """All texts once, so many tokens at a time.

    Args:
        shuffled_by: seed of the order; None: as recorded.
    """
    return DataLoader(texts, sampler=_BySize(texts.sizes, num_tokens, shuffled_by), batch_size=None)
