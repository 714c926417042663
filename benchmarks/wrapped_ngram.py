"""vLLM's own n-gram class as a proposer of ours: the same drafts through our path, to see what the path costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vllm_specplug import DraftBatch, Drafts, EngineInfo, Proposer, ProposerOptions


class WrappedNgramOptions(ProposerOptions):
    """As vLLM's keys of the same names."""

    prompt_lookup_min: int = 1
    prompt_lookup_max: int = 4


class WrappedNgram(Proposer):
    """Hands each step to vllm.v1.spec_decode.ngram_proposer.NgramProposer."""

    Options = WrappedNgramOptions

    def __init__(self, options: WrappedNgramOptions, engine: EngineInfo) -> None:
        super().__init__(options, engine)
        from vllm.v1.spec_decode.ngram_proposer import NgramProposer

        config: Any = SimpleNamespace(
            speculative_config=SimpleNamespace(
                prompt_lookup_min=options.prompt_lookup_min,
                prompt_lookup_max=options.prompt_lookup_max,
                num_speculative_tokens=engine.num_speculative_tokens,
            ),
            model_config=SimpleNamespace(max_model_len=engine.max_model_len),
            scheduler_config=SimpleNamespace(max_num_seqs=engine.max_num_reqs),
            parallel_config=SimpleNamespace(tensor_parallel_size=engine.tp_size),
        )
        self._ngram = NgramProposer(config)

    def propose(self, batch: DraftBatch) -> Drafts:
        # vLLM's class looks at who sampled something, not at what.
        sampled = [[0] * int(count) for count in batch.num_new_tokens]
        width = self.engine.num_speculative_tokens
        rows = self._ngram.propose(width, sampled, batch.num_tokens, batch.token_ids)
        return Drafts.from_lists([row[:limit] for row, limit in zip(rows, batch.max_drafts.tolist(), strict=True)])
