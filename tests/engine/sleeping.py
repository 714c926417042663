"""A proposer that drafts nothing and takes its time about it: a slowdown of known size."""

from __future__ import annotations

import time

from pydantic import Field

from vllm_specplug.proposer import Capabilities, DraftBatch, Drafts, Proposer, ProposerOptions


class SleepingOptions(ProposerOptions):
    sleep_s: float = Field(default=0.01, ge=0)


class Sleeping(Proposer):
    """Sleeps in every step."""

    Options = SleepingOptions
    capabilities = Capabilities()

    def propose(self, batch: DraftBatch) -> Drafts:
        time.sleep(self.options.sleep_s)
        return Drafts.from_lists([[] for _ in batch.req_ids])
