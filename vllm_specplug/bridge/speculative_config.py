"""vLLM's SpeculativeConfig with our proposer in it; imported only where vLLM is, and pickled to its processes."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, SkipValidation
from vllm.config import SpeculativeConfig
from vllm.config.utils import config

from vllm_specplug.bridge import draft_config
from vllm_specplug.options import ProposerSpec


@config(config=ConfigDict(arbitrary_types_allowed=True))
class SpecplugConfig(SpeculativeConfig):
    """A speculative configuration whose drafter is one of our proposers."""

    specplug: SkipValidation[ProposerSpec] = None  # type: ignore[assignment]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Arrive in another process, which then has to run what this configuration asks for."""
        self.__dict__.update(state)
        if self.method == "draft_model":
            draft_config.install()

    def verify_equal_vocab_size_if_draft_model(self) -> None:
        """Sizes may differ by rows of padding; `draft_config` compares the tokenizers."""

    def __repr__(self) -> str:
        return (
            f"SpecplugConfig(proposer={self.specplug.name!r}, options={dict(self.specplug.options)}, "
            f"num_speculative_tokens={self.num_speculative_tokens})"
        )
