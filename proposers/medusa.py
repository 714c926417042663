"""Medusa heads: draft from the target's last hidden state, with a small network for each token ahead.

Needs heads trained for the target (`specplug train-medusa`, or a checkpoint of the original project or of vLLM up to
0.32), which cost a fraction of a target step. Drafts are each head's best token, or sampled at the request's own
temperature; sampled drafts come with their probabilities, so that the verifier keeps as many as it can.

This module turns heads into drafts; `vllm_specplug.medusa` knows what heads are and how they are stored.

Sources: Cai et al. 2024, arXiv:2401.10774 (without the tree: one draft for each request); Ankner et al. 2024,
arXiv:2402.05109 (sequential heads); Leviathan et al. 2023, arXiv:2211.17192 (sampled drafts and what to hand over).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from vllm_specplug.draft_probs import StepProbs, tempered
from vllm_specplug.errors import ConfigError, ModelError
from vllm_specplug.proposer import (
    Capabilities,
    DraftBatch,
    Drafts,
    EngineInfo,
    Proposer,
    ProposerOptions,
    Target,
    sample_rows,
)

if TYPE_CHECKING:
    import torch

    from vllm_specplug.medusa.heads import MedusaHeads


class MedusaOptions(ProposerOptions):
    """What `--speculative-config` may hold for Medusa."""

    model: str = Field(min_length=1, description="Directory of the heads.")
    draft_sample_method: Literal["greedy", "probabilistic"] = Field(
        default="greedy",
        description="greedy: each head's best token. probabilistic: drawn at the request's temperature and handed over "
        "with its probabilities; greedy requests get greedy drafts all the same.",
    )
    min_confidence: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="End a draft where the heads themselves think all of it less likely than this to be right. "
        "0: never, which is best where checking a token costs nothing.",
    )


class Medusa(Proposer):
    """Drafts from the target's hidden state with Medusa or Hydra heads."""

    Options = MedusaOptions
    capabilities = Capabilities(
        reads_hidden_states=True, gives_probs=True, stays_on_device=True, runners=frozenset({"v1", "v2"})
    )

    _heads: MedusaHeads
    _step_probs: StepProbs | None = None

    @classmethod
    def capabilities_for(cls, options: MedusaOptions) -> Capabilities:
        """Shorter drafts are of no use to asynchronous scheduling, which checks as many for every request."""
        return replace(
            cls.capabilities,
            gives_probs=options.draft_sample_method == "probabilistic",
            stays_on_device=options.min_confidence == 0,
        )

    @classmethod
    def check(cls, options: MedusaOptions, engine: EngineInfo) -> None:
        """Refuse heads that are missing, unreadable, too few, or made for another target.

        Raises:
            ConfigError: naming what the heads have and what the target has.
        """
        from vllm_specplug.medusa import checkpoint

        try:
            config = checkpoint.read_config(options.model, vocab_size=engine.vocab_size)
            checkpoint.check_fits(config, options.model, engine.hidden_size, engine.vocab_size)
        except ModelError as error:
            raise ConfigError(f"proposer 'medusa': {error}") from error
        if engine.num_speculative_tokens > config.num_heads:
            raise ConfigError(
                f"proposer 'medusa': num_speculative_tokens is {engine.num_speculative_tokens}, but {options.model} "
                f"has {config.num_heads} heads, one for each token; ask for 1 to {config.num_heads}, or train more "
                "heads"
            )

    def load(self, target: Target) -> None:
        """Load the heads in the target's dtype, onto its device, and give them the target's tensors they read."""
        import torch

        from vllm_specplug.medusa import checkpoint

        stored = checkpoint.read(self.options.model, vocab_size=self.engine.vocab_size)
        dtype = getattr(torch, self.engine.dtype)
        heads = checkpoint.build(stored, dtype).to(self.engine.device)
        config = heads.config
        embeddings = target.input_embeddings()[: config.vocab_size] if config.kind == "sequential" else None
        output = None
        if config.output == "target":
            ids = heads.draft_token_ids
            output = target.output_embeddings(ids)[: config.num_outputs]
        heads.attach(embeddings, output)
        self._heads = heads.eval().requires_grad_(False)
        if self.capabilities.gives_probs:
            self._step_probs = StepProbs(self.engine)

    def propose(self, batch: DraftBatch) -> Drafts:
        """One token from each head in turn, for all requests at once."""
        import torch

        if not batch.width:
            return Drafts.none(batch.num_reqs)
        with torch.inference_mode():
            columns, probs, lengths = self._draft(batch, batch.width)
            over_vocabulary = self._over_target_vocabulary(probs) if probs else None
            return Drafts.from_columns(batch, columns, lengths, over_vocabulary)

    def _draft(
        self, batch: DraftBatch, width: int
    ) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor | None]:
        """Tokens of one head after the other.

        Returns:
            Drafted tokens, a [num_reqs] for each head; the distributions they were drawn from, a
            [num_reqs, num_outputs] each, none for greedy drafts; how many of the tokens to keep, [num_reqs] int32, None
            for all.
        """
        import torch

        heads = self._heads
        states = batch.hidden_states
        assert states is not None
        states = states.to(heads.dtype)
        # A target padded beyond the heads' vocabulary has tokens they do not know, which nobody should see.
        token = batch.newest_tokens(self.engine.device).clamp(max=heads.config.vocab_size - 1)
        temperatures = batch.temperatures if self.options.draft_sample_method == "probabilistic" else None
        columns: list[torch.Tensor] = []
        probs: list[torch.Tensor] = []
        embeddings: list[torch.Tensor] = []
        confidence = states.new_ones(batch.num_reqs, dtype=torch.float32) if self.options.min_confidence else None
        lengths = None if confidence is None else torch.zeros(batch.num_reqs, dtype=torch.int32, device=states.device)
        for index in range(width):
            embedded = heads.embed(token)
            if embedded is not None:
                embeddings.append(embedded)
            logits = heads.logits(index, states, embeddings)
            if temperatures is None:
                row = logits.argmax(dim=-1)
            else:
                drawn_from = tempered(logits, temperatures)
                row = sample_rows(drawn_from, batch)
                probs.append(drawn_from)
            token = heads.target_ids(row)
            columns.append(token)
            if confidence is not None and lengths is not None:
                before = confidence
                confidence = before * logits.float().softmax(dim=-1).gather(1, row[:, None])[:, 0]
                # Whether a token that is judged by its q is kept must not depend on its value: there the draft ends
                # behind the doubtful token. A greedy draft is one-hot, which may be cut anywhere.
                judged = before if temperatures is not None else confidence
                lengths += (judged >= self.options.min_confidence) & (lengths == index)
                if not bool((lengths > index).any()):
                    break
        return columns, probs, lengths

    def _over_target_vocabulary(self, columns: list[torch.Tensor]) -> torch.Tensor:
        """[num_reqs, num_columns, vocab_size] from [num_reqs, num_outputs] each."""
        assert self._step_probs is not None, "load() comes first"
        return self._step_probs.over_vocabulary(columns, self._heads.draft_token_ids)
