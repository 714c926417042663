"""Small-model draft: a second model of the target's family guesses token after token.

Needs a draft model that shares the target's tokenizer (`specplug distill-draft` makes one for a target that has no
small sibling). Drafts are its best tokens, or sampled at the request's own temperature and handed over with their
probabilities. Two things make it cheaper: `min_confidence` ends a draft that has become doubtful, `draft_vocab`
computes the outputs of frequent tokens alone.

The engine runs the model and keeps its part of the KV cache (`DraftModel`); this module decides what is drafted.

Sources: Leviathan et al. 2023, arXiv:2211.17192; Zhao et al. 2025, arXiv:2502.14856 (frequent tokens, FR-Spec).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from vllm_specplug import draft_vocab
from vllm_specplug.draft_probs import StepProbs, tempered
from vllm_specplug.errors import ConfigError, ModelError
from vllm_specplug.proposer import (
    Capabilities,
    DraftBatch,
    DraftModel,
    Drafts,
    EngineInfo,
    Proposer,
    ProposerOptions,
    Target,
    sample_rows,
)

if TYPE_CHECKING:
    import torch


class DraftModelOptions(ProposerOptions):
    """What `--speculative-config` may hold for the small-model draft."""

    model: str = Field(min_length=1, description="The draft model, as vLLM takes it.")
    draft_sample_method: Literal["greedy", "probabilistic"] = Field(
        default="greedy",
        description="greedy: the draft's best token. probabilistic: drawn at the request's temperature and handed over "
        "with its probabilities; greedy requests get greedy drafts all the same.",
    )
    min_confidence: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Drafting for a request ends behind the first token to which the draft gives less than this. "
        "0: never.",
    )
    draft_vocab: str | None = Field(
        default=None,
        min_length=1,
        description="File with the tokens that can be drafted (JSON list of ids), or 'all'. None: the list stored with "
        "the draft, all where there is none.",
    )
    quantization: str | None = Field(default=None, description="vLLM's: how the draft's weights are quantised.")
    max_model_len: int | None = Field(default=None, ge=1, description="vLLM's: the longest request to draft for.")
    draft_tensor_parallel_size: int | None = Field(default=None, ge=1, description="vLLM's: must be the target's.")
    revision: str | None = Field(default=None, description="vLLM's: version of the draft on a hub.")
    code_revision: str | None = Field(default=None, description="vLLM's: version of its code on a hub.")
    attention_backend: str | None = Field(default=None, description="vLLM's: of the draft alone.")
    kv_cache_dtype: str | None = Field(default=None, description="vLLM's: of the draft alone.")
    use_heterogeneous_vocab: bool = Field(
        default=False, description="vLLM's: the draft has another tokenizer, and drafts tokens that both have."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.use_heterogeneous_vocab and self.draft_sample_method != "greedy":
            raise ValueError(
                "use_heterogeneous_vocab drafts greedily only; leave draft_sample_method out or set it to 'greedy'"
            )
        if self.use_heterogeneous_vocab and self.draft_vocab not in (None, "all"):
            raise ValueError(
                "draft_vocab lists tokens of the target, so it cannot be used with use_heterogeneous_vocab"
            )
        return self


class DraftModelProposer(Proposer):
    """Drafts with a second model, token after token."""

    Options = DraftModelOptions
    capabilities = Capabilities(
        gives_probs=True, runs_draft_model=True, stays_on_device=True, runners=frozenset({"v1", "v2"})
    )

    _draft: DraftModel
    _logits: Callable[[torch.Tensor], torch.Tensor]
    _token_ids: torch.Tensor | None = None
    """Token behind each output of `_logits`; None: 0, 1, 2, ..."""
    _step_probs: StepProbs | None = None

    @classmethod
    def capabilities_for(cls, options: DraftModelOptions) -> Capabilities:
        """Shorter drafts are of no use to asynchronous scheduling, which checks as many for every request."""
        return replace(
            cls.capabilities,
            gives_probs=options.draft_sample_method == "probabilistic",
            stays_on_device=options.min_confidence == 0,
        )

    @classmethod
    def check(cls, options: DraftModelOptions, engine: EngineInfo) -> None:
        """Refuse a list of tokens that cannot be read, or holds one that target or draft has not.

        Raises:
            ConfigError: naming the file and what is wrong with it.
        """
        if options.use_heterogeneous_vocab:  # no list is used
            return
        try:
            num_outputs = min(engine.vocab_size, engine.draft_vocab_size or engine.vocab_size)
            draft_vocab.find(options.draft_vocab, options.model, num_outputs)
        except ModelError as error:
            raise ConfigError(f"proposer 'draft_model': {error}") from error

    def load(self, target: Target) -> None:
        """Keep the draft model, and cut its output layer to the tokens that can be drafted."""
        import torch

        assert target.draft_model is not None, "the engine runs it for whoever asks for it in its capabilities"
        self._draft = target.draft_model
        self._logits = self._draft.logits
        ids = None
        if not self.options.use_heterogeneous_vocab:
            ids = draft_vocab.find(self.options.draft_vocab, self.options.model, self._draft.vocab_size)
        if ids is not None:
            self._token_ids = torch.tensor(ids, dtype=torch.int64, device=self.engine.device)
            self._logits = self._draft.logits_of(self._token_ids)
        if self.capabilities.gives_probs:
            self._step_probs = StepProbs(self.engine)

    def propose(self, batch: DraftBatch) -> Drafts:
        """Pass after pass of the draft model, for all requests at once."""
        import torch

        with torch.inference_mode():
            states = self._draft.begin()
            if not batch.width:
                return Drafts.none(batch.num_reqs)
            columns, probs, lengths = self._passes(batch, states, batch.width)
            over_vocabulary = None
            if probs:
                assert self._step_probs is not None, "load() comes first"
                over_vocabulary = self._step_probs.over_vocabulary(probs, self._token_ids)
            return Drafts.from_columns(batch, columns, lengths, over_vocabulary)

    def _passes(
        self, batch: DraftBatch, states: torch.Tensor, width: int
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor | None]:
        """Tokens, one pass after the other.

        Returns:
            Drafted tokens, a [num_reqs] for each pass; the distributions they were drawn from, a
            [num_reqs, num_outputs] each, none for greedy drafts; how many of the tokens to keep, [num_reqs] int32, None
            for all.
        """
        import torch

        temperatures = batch.temperatures if self.options.draft_sample_method == "probabilistic" else None
        # Where ranks share the model, one that ended its passes before the others would leave them waiting.
        may_end_early = self.engine.tp_size == 1
        lengths = batch.max_drafts.astype(np.int32) if self.options.min_confidence else None
        columns: list[torch.Tensor] = []
        probs: list[torch.Tensor] = []
        for column in range(1, width + 1):
            logits = self._logits(states)
            if temperatures is None:
                row = logits.argmax(dim=-1)
            else:
                probs.append(tempered(logits, temperatures))
                row = sample_rows(probs[-1], batch)
            token = row if self._token_ids is None else self._token_ids[row]
            columns.append(self._draft.to_target_ids(token))
            if column == width:
                break
            if lengths is not None:
                # The doubtful token itself stays: whether a token judged by its q is kept must not depend on its value.
                given = probs[-1] if probs else logits.float().softmax(dim=-1)
                doubtful = (given.gather(1, row[:, None])[:, 0] < self.options.min_confidence).cpu().numpy()
                lengths[doubtful] = np.minimum(lengths[doubtful], column)
                if may_end_early and (lengths <= column).all():
                    break
            states = self._draft.advance(columns[-1])
        return columns, probs, None if lengths is None else torch.from_numpy(lengths)
