"""Proposers that draft what a test tells them to, and batches without an engine. Public: bring your own tests.

`Scripted` replays known continuations, right or spoilt at chosen places, so that a draft can be made to cross a stop
string, an end of text or a length limit without a good draft model. `KnownDistribution` draws from a q that the test
knows. Both are named in a configuration by their dotted path, e.g. "specplug:vllm_specplug.testing.Scripted".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from vllm_specplug.proposer import (
    Capabilities,
    DraftBatch,
    Drafts,
    EngineInfo,
    Proposer,
    ProposerOptions,
    sample_rows,
)

Fault = Literal[
    "out_of_vocabulary",
    "minus_one",
    "too_many",
    "too_few_rows",
    "not_drafts",
    "raise",
    "raise_in_forget",
    "write",
    "overwrite",
]


class ScriptedOptions(ProposerOptions):
    """What `Scripted` drafts."""

    script: list[list[list[int]]] = []
    """Pairs [prompt, continuation] of token ids."""
    wrong_every: int = Field(default=0, ge=0)
    """Spoil every n-th draft token, counted along a continuation; 0: none."""
    ragged: bool = False
    """Draft 0, 1, 2, ... tokens by turns instead of as many as allowed."""
    fault: Fault | None = None
    """Break the interface in this way."""
    fault_every: int = Field(default=1, ge=1)
    """... in every n-th step."""


class Scripted(Proposer):
    """Replays the continuation of each request whose tokens so far begin one of the script's texts."""

    Options = ScriptedOptions
    capabilities = Capabilities(runners=frozenset({"v1", "v2"}))

    def __init__(self, options: ScriptedOptions, engine: EngineInfo) -> None:
        super().__init__(options, engine)
        self._texts = [(len(prompt), [*prompt, *continuation]) for prompt, continuation in options.script]
        self._found: dict[str, list[int]] = {}
        self.num_steps = 0

    def propose(self, batch: DraftBatch) -> Drafts:
        self.num_steps += 1
        rows: list[list[int]] = [[] for _ in batch.req_ids]
        for row in batch.drafting_rows():
            limit = int(batch.max_drafts[row])
            if self.options.ragged:
                limit = min(limit, (self.num_steps + row) % (self.engine.num_speculative_tokens + 1))
            rows[row] = self._next(batch.req_ids[row], batch.tokens(row), limit)
        if self.options.fault is not None and self.num_steps % self.options.fault_every == 0:
            broken: Drafts = self._break(rows, batch)
            return broken
        return Drafts.from_lists(rows)

    def forget(self, req_ids: Collection[str]) -> None:
        for req_id in req_ids:
            self._found.pop(req_id, None)
        if self.options.fault == "raise_in_forget":
            raise RuntimeError("scripted failure in forget")

    @property
    def num_tracked_requests(self) -> int:
        return len(self._found)

    def _next(self, req_id: str, tokens: np.ndarray[Any, Any], limit: int) -> list[int]:
        at = len(tokens)
        text = self._found.get(req_id)
        if text is None:
            text = next(
                (text for length, text in self._texts if at >= length and text[:length] == tokens[:length].tolist()), []
            )
            self._found[req_id] = text
        drafts = text[at : at + limit]
        every = self.options.wrong_every
        return [
            (token + 1) % self.engine.vocab_size if every and (at + offset) % every == 0 else token
            for offset, token in enumerate(drafts)
        ]

    def _break(self, rows: list[list[int]], batch: DraftBatch) -> Any:
        fault = self.options.fault
        vocab_size = self.engine.vocab_size
        if fault == "raise":
            raise RuntimeError("scripted failure")
        if fault == "not_drafts":
            return rows
        if fault == "too_few_rows":
            return Drafts.from_lists(rows[:-1])
        if fault == "too_many":
            return Drafts.from_lists([[*row, *([1] * 9)] for row in rows])
        if fault == "out_of_vocabulary":
            return Drafts.from_lists([[*row[:1], vocab_size, *row[1:]] for row in rows])
        if fault == "minus_one":
            return Drafts.from_lists([[*row[:1], -1, -1] for row in rows])
        if fault == "write":
            batch.token_ids[0, 0] = 0
        if fault == "overwrite":
            batch.max_drafts[:] = self.engine.num_speculative_tokens + 9
            batch.num_tokens[:] = 1
            if batch.temperatures is not None:
                batch.temperatures[:] = 5
            return Drafts.from_lists([[*row, *([1] * 9)] for row in rows])
        return Drafts.from_lists(rows)


class KnownDistributionOptions(ProposerOptions):
    """What `KnownDistribution` draws from."""

    q: list[float] = Field(min_length=2)
    """The draft distribution, over the whole vocabulary, the same at every position."""
    hand_over: bool = True
    """Give the rejection sampler the probabilities."""
    claimed_q: list[float] | None = None
    """Hand over this one instead: a mutant that must fail every test of exactness."""


class KnownDistribution(Proposer):
    """Draws every draft token from one fixed distribution."""

    Options = KnownDistributionOptions
    capabilities = Capabilities(gives_probs=True, stays_on_device=True, runners=frozenset({"v1", "v2"}))

    def propose(self, batch: DraftBatch) -> Drafts:
        import torch

        if not batch.width:
            return Drafts.none(batch.num_reqs)
        device = self.engine.device
        q = torch.tensor(self.options.q, dtype=torch.float32, device=device).expand(batch.num_reqs, -1)
        columns = [sample_rows(q, batch) for _ in range(batch.width)]
        probs = None
        if self.options.hand_over:
            claimed = self.options.claimed_q or self.options.q
            probs = torch.tensor(claimed, dtype=torch.float32, device=device).expand(batch.num_reqs, batch.width, -1)
        return Drafts.from_columns(batch, columns, probs=probs)


def batch_of(
    texts: Sequence[Sequence[int]],
    *,
    max_drafts: int | Sequence[int] = 8,
    num_new_tokens: int | Sequence[int] = 1,
    req_ids: Sequence[str] | None = None,
    width: int | None = None,
) -> DraftBatch:
    """A batch with the given token ids, as an engine would hand it over (a wider buffer, with rubbish behind the text).

    Args:
        texts: token ids of each request so far.
        max_drafts: one number for all or one for each.
        num_new_tokens: the same.
        req_ids: "0", "1", ... by default.
        width: columns of the buffer; the longest text and some by default.
    """
    num_reqs = len(texts)
    columns = width or max((len(text) for text in texts), default=0) + 16
    token_ids = np.full((num_reqs, columns), -7, np.int32)
    for row, text in zip(token_ids, texts, strict=True):
        row[: len(text)] = text
    token_ids.flags.writeable = False
    return DraftBatch(
        req_ids=list(req_ids or map(str, range(num_reqs))),
        token_ids=token_ids,
        num_tokens=np.array([len(text) for text in texts], np.int32),
        num_new_tokens=np.broadcast_to(np.asarray(num_new_tokens, np.int32), num_reqs).copy(),
        max_drafts=np.broadcast_to(np.asarray(max_drafts, np.int32), num_reqs).copy(),
    )


def engine_of(**changes: Any) -> EngineInfo:
    """A small engine on the CPU; `changes` replace fields of `EngineInfo`."""
    fields: dict[str, Any] = {
        "vocab_size": 32,
        "hidden_size": 16,
        "max_model_len": 256,
        "max_num_reqs": 8,
        "num_speculative_tokens": 8,
        "device": "cpu",
        "dtype": "float32",
        "seed": 0,
    }
    return EngineInfo(**{**fields, **changes})
