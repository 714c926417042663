"""The interface between a drafting strategy and a serving engine.

A *proposer* guesses the next tokens of each request; the engine's target model checks the guesses. This module says
what a proposer is told (`EngineInfo`, `DraftBatch`) and what it may answer (`Drafts`). It knows nothing of vLLM: the
package `vllm_specplug.bridge` translates. Whatever a proposer answers, the served text is the target's own: a bad
draft costs time, never correctness, as long as `Drafts.probs` are the ones the tokens were drawn from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict

from vllm_specplug.errors import ShapeError

if TYPE_CHECKING:
    import torch

Runner: TypeAlias = Literal["v1", "v2"]
IntArray: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]


class ProposerOptions(BaseModel):
    """Base of a proposer's options: what `--speculative-config` may hold for it besides vLLM's own keys.

    Frozen, and unknown keys are refused: an option that is ignored in silence is a bug waiting for its operator.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a proposer needs from the engine and what it gives back."""

    reads_hidden_states: bool = False
    """Fill `DraftBatch.hidden_states`."""
    gives_probs: bool = False
    """May hand over the distribution its drafts were drawn from (`Drafts.probs`)."""
    runs_draft_model: bool = False
    """The engine loads a second model for it, the one its option `model` names, with a part of the KV cache
    (`Target.draft_model`). Shipped proposers only for now: not promised to others yet."""
    runners: frozenset[Runner] = frozenset({"v1"})
    """vLLM model runners it was tested on."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What stays the same for the life of an engine."""

    vocab_size: int
    """Ids a draft may hold are 0 .. vocab_size - 1."""
    hidden_size: int
    max_model_len: int
    max_num_reqs: int
    num_speculative_tokens: int
    """Upper end of `DraftBatch.max_drafts`."""
    device: str
    """Where hidden states live and probabilities are wanted, as torch spells it."""
    dtype: str
    """Dtype of the target, e.g. 'bfloat16'."""
    seed: int
    tp_rank: int = 0
    tp_size: int = 1
    model: str = ""
    """Name or path of the target, as the engine was given it."""
    draft_vocab_size: int | None = None
    """Of the second model; None unless `Capabilities.runs_draft_model`."""


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """The requests of one decode step, row by row. Valid during `propose` only: keep nothing of it.

    Rows move between steps. State that outlives a step is keyed by `req_ids`, never by row.
    """

    req_ids: Sequence[str]
    token_ids: IntArray
    """Prompt and output of each request, [>= num_reqs, >= max num_tokens], a view of the engine's buffer (read only).
    Columns from `num_tokens[i]` on are undefined."""
    num_tokens: IntArray
    """[num_reqs], valid columns of each row."""
    num_new_tokens: IntArray
    """[num_reqs], how many of them were accepted in this step (0: still reading its prompt)."""
    max_drafts: IntArray
    """[num_reqs], how many tokens may be drafted now; 0: do not draft. Beyond what the length limits leave."""
    temperatures: torch.Tensor | None = None
    """[num_reqs] float32 on the engine's device, 0 for greedy; None: the whole batch is greedy."""
    hidden_states: torch.Tensor | None = None
    """[num_reqs, hidden_size], the target's state at the last accepted position; None unless asked for. Rows with
    num_new_tokens 0 are undefined."""
    generator: torch.Generator | None = None
    """Draws drafts, on the engine's device: the same on every tensor-parallel rank, independent of the one that
    verifies. None where the proposer gives no probabilities."""
    generators: Mapping[int, torch.Generator] = field(default_factory=dict)
    """Row -> generator of a request that came with a seed of its own; used for that row instead of `generator`."""

    @property
    def num_reqs(self) -> int:
        return len(self.req_ids)

    def tokens(self, row: int) -> IntArray:
        """Tokens of one request so far, [num_tokens[row]], a view."""
        view: IntArray = self.token_ids[row, : self.num_tokens[row]]
        return view

    def drafting_rows(self) -> Iterator[int]:
        """Rows that may draft now."""
        return (int(row) for row in np.flatnonzero(self.max_drafts[: self.num_reqs]))


@dataclass(frozen=True, slots=True)
class Drafts:
    """Guesses for one step, a different number for each request allowed.

    `probs` are handed to the rejection sampler, which trusts them. A token given with its probabilities q must have
    been drawn from exactly that q, and whether it is kept must not depend on the value drawn. Leave `probs` None when
    in doubt: drafts then count as one-hot, which is exact whatever their origin.
    """

    token_ids: IntArray
    """[num_reqs, width], width <= max of `max_drafts`."""
    num_drafts: IntArray
    """[num_reqs], valid columns of each row, from the left."""
    probs: torch.Tensor | None = None
    """[num_reqs, width, vocab_size] float32, rows sum to 1, on the engine's device. Used before `propose` is called
    again, so a proposer may keep one place for it."""
    stages: Sequence[str] | None = None
    """Name of the stage of a cascade that drafted each row, [num_reqs]; None for a plain proposer."""

    @classmethod
    def none(cls, num_reqs: int) -> Drafts:
        """No draft for any request."""
        return cls(np.zeros((num_reqs, 0), np.int32), np.zeros(num_reqs, np.int32))

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[int]], probs: torch.Tensor | None = None) -> Drafts:
        """From one list of token ids per request."""
        width = max((len(row) for row in rows), default=0)
        token_ids = np.zeros((len(rows), width), np.int32)
        for row, tokens in zip(token_ids, rows, strict=True):
            row[: len(tokens)] = tokens
        return cls(token_ids, np.array([len(row) for row in rows], np.int32), probs)

    def to_lists(self) -> list[list[int]]:
        """One list of token ids per request."""
        counts = self.num_drafts.tolist()
        return [row[:count] for row, count in zip(self.token_ids.tolist(), counts, strict=True)]


class DraftModel(Protocol):
    """A small model that the engine runs for a proposer, with a part of the engine's paged KV cache.

    All ranks have to ask for the same passes in the same order. `begin` comes once a step, also where nothing is to be
    drafted: it reads the new tokens of all requests, whose keys and values would be missing later.
    """

    @property
    def vocab_size(self) -> int:
        """Its outputs are tokens 0 .. vocab_size - 1 of the target; never more than the target has."""

    def begin(self) -> torch.Tensor:
        """Read what is new of each request up to its newest token.

        Returns:
            [num_reqs, hidden_size], states that the token behind the newest one is drafted from. Rows of a request that
            is still reading its prompt, or is longer than the model may be, are undefined.
        """

    def advance(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Read one token more of each request.

        Args:
            token_ids: [num_reqs] int64, what was drafted from the last states.
        Returns:
            [num_reqs, hidden_size].
        """

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """[num_reqs, vocab_size] from [num_reqs, hidden_size]."""

    def logits_of(self, token_ids: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """A smaller output layer.

        Args:
            token_ids: [n] int64, the outputs to compute.
        Returns:
            A function from [num_reqs, hidden_size] to [num_reqs, n].
        Raises:
            ModelError: the model's output layer is quantised.
        """

    def to_target_ids(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The target's ids of its outputs, where the two have different tokenizers."""


class Target(Protocol):
    """The model that verifies, as far as a proposer may look into it. Valid for the life of the engine.

    Under tensor parallelism each rank holds a part of these tensors; what is returned is whole on every rank, so all
    ranks have to ask for the same things in the same order.
    """

    @property
    def module(self) -> torch.nn.Module:
        """The engine's own model; what is inside differs from model to model and from version to version."""

    @property
    def draft_model(self) -> DraftModel | None:
        """The second model; None unless `Capabilities.runs_draft_model`."""

    def input_embeddings(self) -> torch.Tensor:
        """[vocab_size, hidden_size], the table of token embeddings; not a copy where one device holds it all.

        Raises:
            ModelError: the model keeps none, or keeps it quantised.
        """

    def output_embeddings(self, token_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Rows of the output layer: a hidden state times these gives logits (before any scale or soft cap).

        Args:
            token_ids: [n] int64, which rows; None: all.
        Returns:
            [n, hidden_size]; a copy, unless all rows are asked for and one device holds them.
        Raises:
            ModelError: the model keeps none, or keeps it quantised.
        """


class Proposer(ABC):
    """A drafting strategy. Subclass it, register the class under the entry point `vllm_specplug.proposers`.

    One instance lives in each worker process. An exception in `propose` costs that step's drafts and is counted;
    repeated ones switch the proposer off. Neither ends a request nor changes its text.
    """

    Options: ClassVar[type[ProposerOptions]] = ProposerOptions
    capabilities: Capabilities = Capabilities()
    """Of the class: all it can do. `__init__` may narrow them for one instance to what its options need."""

    def __init__(self, options: Any, engine: EngineInfo) -> None:
        """Check that `options` (an instance of `Options`) fit the engine; allocate nothing large yet.

        Raises:
            ConfigError: they do not fit.
        """
        self.options = options
        self.engine = engine

    @classmethod
    def check(cls, options: Any, engine: EngineInfo) -> None:
        """Refuse options that cannot work with this engine; called in the front-end before any weight is loaded.

        Raises:
            ConfigError: naming the value, what was expected and what to do.
        """

    def load(self, target: Target) -> None:
        """Get ready to draft; called once, after the target's weights are there."""

    @abstractmethod
    def propose(self, batch: DraftBatch) -> Drafts:
        """Guess the next tokens of each request whose `max_drafts` is above 0."""

    def forget(self, req_ids: Collection[str]) -> None:
        """Drop all state of requests that finished, were aborted or preempted. Unknown ids are not an error."""


def sample_rows(probs: torch.Tensor, batch: DraftBatch) -> torch.Tensor:
    """Draw one token for each request from its row of probabilities, with the batch's generators.

    Exponential races: argmax of p / e with e ~ Exp(1) is distributed as p, and needs no cumulative sum.

    Args:
        probs: [num_reqs, vocab_size], rows sum to 1.
        batch: brings the generators.
    Returns:
        [num_reqs] int64.
    Raises:
        ShapeError: the number of rows differs from the batch.
    """
    import torch

    if probs.ndim != 2 or probs.shape[0] != batch.num_reqs:
        raise ShapeError(f"probs have shape {tuple(probs.shape)}, expected [{batch.num_reqs}, vocab_size]")
    noise = torch.empty_like(probs).exponential_(generator=batch.generator)
    for row, generator in batch.generators.items():
        noise[row].exponential_(generator=generator)
    return (probs / noise).argmax(dim=-1)
