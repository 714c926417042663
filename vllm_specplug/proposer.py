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
    stays_on_device: bool = False
    """Can draft without waiting for anything on the host, when `DraftBatch.on_device` is given. On the V2 runner
    scheduling then stays asynchronous: the next step is prepared while the device works on this one."""
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
    asynchronous: bool = False
    """Whether steps come with `DraftBatch.on_device`: scheduling does not wait for the device, nor should a
    proposer."""


@dataclass(frozen=True, slots=True)
class OnDevice:
    """What of a step the device knows before the host does."""

    token_ids: torch.Tensor
    """[lines, max_model_len] int32, the engine's own buffer: read only."""
    lines: torch.Tensor
    """[num_reqs] int64, the line of `token_ids` that holds each request."""
    num_tokens: torch.Tensor
    """[num_reqs] int32, valid columns of each line."""
    longest: int
    """None of them is larger."""
    max_drafts: torch.Tensor
    """[num_reqs] int32, as `DraftBatch.max_drafts`, but for the length limits: the engine cuts there itself."""


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
    on_device: OnDevice | None = None
    """Given in asynchronous steps, to proposers that stay on the device. The arrays above are right then too, but the
    first look at one of them waits until the device is done."""

    @property
    def num_reqs(self) -> int:
        return len(self.req_ids)

    @property
    def width(self) -> int:
        """Upper end of `max_drafts`; waits for nothing."""
        return int(self.max_drafts.max(initial=0))

    def tokens(self, row: int) -> IntArray:
        """Tokens of one request so far, [num_tokens[row]], a view."""
        view: IntArray = self.token_ids[row, : self.num_tokens[row]]
        return view

    def token_buffer(self) -> tuple[IntArray, IntArray]:
        """The engine's buffer as it lies, for who reads long histories in each step and wants no copy of them.

        Returns:
            [lines, >= max num_tokens] int32, read only, and the line of each request, [num_reqs] int32.
        """
        return self.token_ids, np.arange(self.num_reqs, dtype=np.int32)

    def newest_tokens(self, device: str) -> torch.Tensor:
        """The last token of each request, [num_reqs] int64 on `device`; waits for nothing."""
        import torch

        newest = self.token_ids[np.arange(self.num_reqs), np.maximum(self.num_tokens - 1, 0)]
        return torch.from_numpy(newest).to(device, torch.int64)

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

    token_ids: IntArray | torch.Tensor
    """[num_reqs, width], width <= max of `max_drafts`. A tensor on the engine's device where the batch had
    `on_device`."""
    num_drafts: IntArray | torch.Tensor
    """[num_reqs], valid columns of each row, from the left; a tensor where `token_ids` is one."""
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

    @classmethod
    def from_columns(
        cls,
        batch: DraftBatch,
        columns: Sequence[torch.Tensor],
        lengths: torch.Tensor | None = None,
        probs: torch.Tensor | None = None,
    ) -> Drafts:
        """Of a proposer that drafts one token for all requests at a time, on the device; they stay there if they may.

        Args:
            columns: [num_reqs] int64 each.
            lengths: [num_reqs] int32, how many tokens to keep; None: all that `max_drafts` allows.
            probs: see `Drafts`.
        """
        import torch

        token_ids = torch.stack(list(columns), dim=1)
        if batch.on_device is not None:
            limits = batch.on_device.max_drafts
            return cls(token_ids, limits if lengths is None else torch.minimum(limits, lengths), probs)
        kept = batch.max_drafts.copy() if lengths is None else np.minimum(batch.max_drafts, lengths.cpu().numpy())
        return cls(token_ids.cpu().numpy().astype(np.int32), kept, probs)

    def to_lists(self) -> list[list[int]]:
        """One list of token ids per request; waits for the device where they lie there."""
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
    """Of the class: all it can do."""

    def __init__(self, options: Any, engine: EngineInfo) -> None:
        """Check that `options` (an instance of `Options`) fit the engine; allocate nothing large yet.

        Raises:
            ConfigError: they do not fit.
        """
        self.options = options
        self.engine = engine
        self.capabilities = self.capabilities_for(options)

    @classmethod
    def capabilities_for(cls, options: Any) -> Capabilities:
        """The capabilities that these options use; asked before there is an engine."""
        return cls.capabilities

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
