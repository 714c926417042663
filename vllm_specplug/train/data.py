"""Recorded answers as training examples, in batches.

Position j of an answer is one example: the state that token j was sampled from, token j and those after it (what
sequential heads read), and for head k token j + 1 + k (what it should guess).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from vllm_specplug.errors import ModelError

#: Marks what is not to be learned: the answer ended before, or the token is not in the draft vocabulary.
IGNORED = -100


@dataclass(frozen=True, slots=True)
class Batch:
    """Some examples."""

    states: Tensor
    """[batch, hidden_size]."""
    tokens: Tensor
    """[batch, num_heads] int64: the newest token and those after it; 0 behind the end of the answer."""
    labels: Tensor
    """[batch, num_heads] int64: the target's token each head should guess; IGNORED behind the end."""


class Answers(Dataset[Batch]):
    """Examples of some chunk files; indexed by a list of places, so that a batch is gathered at once."""

    def __init__(self, files: Sequence[Path], num_heads: int) -> None:
        """
        Raises:
            ModelError: a file is damaged, or there is nothing in them to learn from.
        """
        chunks = load_chunks(files)
        self.states = torch.cat([chunk["states"] for chunk in chunks])
        self.tokens = torch.cat([chunk["tokens"] for chunk in chunks]).long()
        lengths = torch.cat([chunk["lengths"] for chunk in chunks]).long()
        ends = torch.repeat_interleave(lengths.cumsum(0), lengths)
        self._ends = ends
        self.places = torch.flatten(torch.nonzero(torch.arange(len(self.tokens)) + 1 < ends))
        if not len(self.places):
            raise ModelError("all answers hold a single token, so there is nothing to guess; raise --max-tokens")
        self._num_heads = num_heads
        self.lengths = lengths

    @property
    def digest(self) -> str:
        """Of all tokens and answers: other examples have another."""
        found = hashlib.sha256(self.tokens.numpy().tobytes())
        found.update(self.lengths.numpy().tobytes())
        return found.hexdigest()

    def __len__(self) -> int:
        return len(self.places)

    @property
    def hidden_size(self) -> int:
        """Of the target."""
        return int(self.states.shape[1])

    def __getitem__(self, indices: list[int]) -> Batch:
        places = self.places[torch.as_tensor(indices)]
        window = places[:, None] + torch.arange(self._num_heads + 1)
        inside = window < self._ends[places][:, None]
        found = self.tokens[window.clamp(max=len(self.tokens) - 1)]
        return Batch(
            self.states[places].float(),
            torch.where(inside, found, 0)[:, :-1],
            torch.where(inside, found, IGNORED)[:, 1:],
        )


def load_chunks(files: Sequence[Path]) -> list[dict[str, Tensor]]:
    """The tensors of chunk files, see `answering.write_chunk`.

    Raises:
        ModelError: a file is damaged, or there is nothing in them.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    chunks = []
    for file in files:
        try:
            chunks.append(load_file(file))
        except SafetensorError as error:
            raise ModelError(f"{file} is damaged ({error}); remove it, and it is made again") from error
    if not sum(len(chunk["tokens"]) for chunk in chunks):
        raise ModelError(f"no answers in {len(files)} files; are the prompts longer than the target's context?")
    return chunks


def batches(answers: Answers, size: int, shuffled_by: int | None = None) -> DataLoader[Batch]:
    """All examples once.

    Args:
        shuffled_by: seed of the order; None: as recorded, the last batch being whatever is left.
    """
    if shuffled_by is None:
        sampler = BatchSampler(SequentialSampler(answers), size, drop_last=False)
    else:
        generator = torch.Generator().manual_seed(shuffled_by)
        sampler = BatchSampler(RandomSampler(answers, generator=generator), size, drop_last=len(answers) >= size)
    return DataLoader(answers, sampler=sampler, batch_size=None)


def frequent_tokens(tokens: Tensor, count: int) -> tuple[Tensor, float]:
    """The commonest tokens, sorted by id, and which share of all tokens they are.

    Args:
        tokens: [n] int64, of the answers.
        count: at most so many; fewer when the answers hold fewer.
    """
    counts = torch.bincount(tokens)
    kept = torch.topk(counts, min(count, int((counts > 0).sum()))).indices
    return kept.sort().values, float(counts[kept].sum() / counts.sum())
