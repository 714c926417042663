"""vLLM's SpeculativeConfig with our proposer in it; imported only where vLLM is, and pickled to its processes."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, SkipValidation
from vllm.config import SpeculativeConfig
from vllm.config.utils import config

from vllm_specplug.bridge import contract, runner_choice
from vllm_specplug.options import ProposerSpec
from vllm_specplug.proposer import Runner


@config(config=ConfigDict(arbitrary_types_allowed=True))
class SpecplugConfig(SpeculativeConfig):
    """A speculative configuration whose drafter is one of our proposers."""

    specplug: SkipValidation[ProposerSpec] = None  # type: ignore[assignment]
    runner: Runner | None = None
    """The model runner that will drive it; None: not decided yet."""
    searches_on_device: bool = False
    """Whether the proposer reads token histories where V2 keeps them."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Arrive in another process, which then has to run what this configuration asks for."""
        self.__dict__.update(state)
        self._install()

    def driven_by(self, runner: Runner, *, asynchronous: bool) -> None:
        """Note the runner, and put in place what this configuration needs of it, here and in the engine's processes.

        Raises:
            ContractError: vLLM lacks it.
        """
        words = [contract.V1 if runner == "v1" else contract.V2]
        if self.uses_draft_model():
            words.append(contract.DRAFT_MODEL if runner == "v1" else contract.DRAFT_MODEL_V2)
        if asynchronous:
            words.append(contract.ASYNCHRONOUS)
        contract.require(*words)
        self.runner = runner
        can = runner_choice.capabilities_of(self.specplug)
        self.searches_on_device = asynchronous and not (can.reads_hidden_states or can.runs_draft_model)
        self._install()

    def use_ngram(self) -> bool:
        """V2 asks this to know whether histories are read often, and keeps them in the device's own memory then."""
        return self.searches_on_device

    def _install(self) -> None:
        runner_choice.install()
        if self.runner == "v2":
            from vllm_specplug.bridge import runner_v2, scheduling

            runner_v2.install()
            scheduling.install()
        elif self.runner == "v1" and self.uses_draft_model():
            from vllm_specplug.bridge import draft_model

            draft_model.install()

    def verify_equal_vocab_size_if_draft_model(self) -> None:
        """Sizes may differ by rows of padding; `draft_config` compares the tokenizers."""

    def __repr__(self) -> str:
        return (
            f"SpecplugConfig(proposer={self.specplug.name!r}, options={dict(self.specplug.options)}, "
            f"num_speculative_tokens={self.num_speculative_tokens})"
        )
