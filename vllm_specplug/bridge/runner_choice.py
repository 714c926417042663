"""Which model runner drives a configuration of ours, and whether scheduling stays asynchronous.

vLLM decides both by the name of the method alone, and ours travel under `custom_class`, which it takes for unsupported
on V2 and for synchronous. For configurations of ours the proposer's capabilities count instead; everything else vLLM
weighs (platform, executor, environment, other features) it weighs as ever. Unnecessary once vLLM asks the class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm_specplug.bridge import contract, patches
from vllm_specplug.options import ProposerSpec
from vllm_specplug.proposer import Capabilities, Runner

#: A method of vLLM's whose drafts never leave the device either.
_STAYS_ON_DEVICE = "ngram_gpu"


def capabilities_of(spec: ProposerSpec) -> Capabilities:
    """What the proposer can do with its options."""
    return spec.proposer_class().capabilities_for(spec.parsed_options())


def runners_of(spec: ProposerSpec) -> frozenset[Runner]:
    """The runners that the proposer supports and we drive in the installed vLLM."""
    found = capabilities_of(spec)
    return found.runners.intersection(contract.runners(contract.installed_version(), found.runs_draft_model))


@dataclass(frozen=True, slots=True)
class Choice:
    """What vLLM does here with a configuration that would run on either runner."""

    runner: Runner
    why: str
    problem: str | None = None


def choice_here() -> Choice:
    """Asked by `specplug doctor`, without a configuration."""
    from vllm import envs
    from vllm.triton_utils import HAS_TRITON

    forced = envs.VLLM_USE_V2_MODEL_RUNNER
    if forced is None:
        return Choice("v2", "vLLM's default") if HAS_TRITON else Choice("v1", "V2 needs Triton, which is not here")
    why = f"VLLM_USE_V2_MODEL_RUNNER={int(forced)}"
    if not forced:
        return Choice("v1", why)
    version = contract.installed_version()
    if not HAS_TRITON:
        return Choice("v2", why, f"{why} forces V2, which needs Triton, and there is none here; unset it")
    if "v2" not in contract.runners(version):
        return Choice("v2", why, f"{why} forces V2, which we do not drive in vLLM {version}; unset it")
    return Choice("v2", why)


def install() -> list[Callable[[], None]]:
    """Correct vLLM's answers in this process, for our configurations only. Repeatable.

    Returns:
        Functions that undo it.
    """
    from vllm.config import VllmConfig

    return [
        patches.wrap(VllmConfig, "_get_v2_model_runner_unsupported_features", _unsupported_on_v2),
        patches.wrap(VllmConfig, "__post_init__", _post_init),
    ]


def _spec_of(config: Any) -> ProposerSpec | None:
    return getattr(config.speculative_config, "specplug", None)


def _unsupported_on_v2(original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def _get_v2_model_runner_unsupported_features(self: Any) -> list[str]:
        found, spec = original(self), _spec_of(self)
        if spec is None:
            return found
        # The second one stands for ours while `_post_init` is at it; vLLM's own is new on V2 in 0.32.
        ours = ("'custom_class'", f"'{_STAYS_ON_DEVICE}'")
        others = [feature for feature in found if not any(name in feature for name in ours)]
        if "v2" in runners_of(spec):
            return others
        # A draft model without this would be run by vLLM's own V2 drafter in our place, and nobody would notice.
        return [*others, f"proposer {spec.name!r} of vllm-specplug"]

    return _get_v2_model_runner_unsupported_features


def _post_init(original: Callable[..., None]) -> Callable[..., None]:
    def post_init(self: Any) -> None:
        spec = _spec_of(self)
        if spec is None or not self.use_v2_model_runner:
            original(self)
            return
        config = self.speculative_config
        stays = capabilities_of(spec).stays_on_device
        # Drafts of different lengths: vLLM's word for a draft model that needs synchronous scheduling.
        config.disable_padded_drafter_batch = config.uses_draft_model() and not stays
        method = config.method
        if stays and not config.uses_draft_model():
            config.method = _STAYS_ON_DEVICE
        try:
            original(self)
        finally:
            config.method = method

    return post_init
