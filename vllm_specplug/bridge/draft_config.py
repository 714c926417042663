"""From the options of a proposer that runs a draft model to a configuration vLLM runs.

vLLM's method stays `draft_model`: it gives the second model its part of the KV cache and the scheduler its lookahead
slots. What vLLM makes of it in the worker is ours: `bridge.draft_model` on the V1 runner, with drafts of different
lengths, which vLLM schedules synchronously; `bridge.draft_model_v2` on V2.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from vllm_specplug.errors import ConfigError
from vllm_specplug.options import ProposerSpec

if TYPE_CHECKING:
    from vllm.config import ModelConfig

    from vllm_specplug.bridge.speculative_config import SpecplugConfig

logger = logging.getLogger(__name__)

#: Options that are fields of vLLM's SpeculativeConfig, and mean there what they say.
_PASSED_ON = (
    "attention_backend",
    "code_revision",
    "draft_tensor_parallel_size",
    "kv_cache_dtype",
    "max_model_len",
    "model",
    "quantization",
    "revision",
    "use_heterogeneous_vocab",
)


def make(spec: ProposerSpec, target: Mapping[str, Any]) -> SpecplugConfig:
    """The configuration.

    Args:
        target: `target_model_config` and `target_parallel_config`.
    Raises:
        ConfigError: the draft model cannot be read, or does not fit the target.
    """
    from vllm_specplug.bridge.speculative_config import SpecplugConfig

    label = f"proposer {spec.name!r}"
    model = spec.options["model"]
    if Path(model).is_dir() and not (Path(model) / "config.json").is_file():
        raise ConfigError(f"{label}: model {model!r} has no config.json; name the directory of a model")
    num_ranks = target["target_parallel_config"].tensor_parallel_size
    asked = spec.options.get("draft_tensor_parallel_size", num_ranks)
    if asked not in (None, num_ranks):  # vLLM would say so in the worker
        raise ConfigError(
            f"{label}: draft_tensor_parallel_size is {asked}, but tensor_parallel_size is {num_ranks}; leave "
            "draft_tensor_parallel_size out"
        )
    try:
        config = SpecplugConfig(
            specplug=spec,
            method="draft_model",
            num_speculative_tokens=spec.num_speculative_tokens,
            target_model_config=target["target_model_config"],
            target_parallel_config=target["target_parallel_config"],
            disable_padded_drafter_batch=True,
            **{key: spec.options[key] for key in _PASSED_ON if key in spec.options},
            **spec.engine_keys,
        )
    except (OSError, ValueError) as error:
        first = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else error
        why = " ".join(str(first).removeprefix("Value error, ").split())
        raise ConfigError(
            f"{label}: vLLM refuses model {model!r}: {why}; name the directory of a model that this vLLM serves, or a "
            "name on a hub that can be reached"
        ) from error
    if config.method != "draft_model":
        raise ConfigError(
            f"{label}: vLLM takes {model!r} for a {config.method} draft because of its name; rename its directory"
        )
    if not config.use_heterogeneous_vocab:
        _check_vocabularies(label, config.draft_model_config, config.target_model_config)
    if config.draft_model_config.max_model_len < config.target_model_config.max_model_len:
        logger.warning(
            "specplug: the draft model may be %d tokens long, the target %d: requests go on without drafts from there",
            config.draft_model_config.max_model_len,
            config.target_model_config.max_model_len,
        )
    return config


def _check_vocabularies(label: str, draft: ModelConfig, target: ModelConfig) -> None:
    """Refuse a draft whose tokens mean something else than the target's; rows of padding may differ.

    Where one of them brings no tokenizer it is taken to share the other's if the sizes are equal.
    """
    sizes = f"{draft.model} has {draft.get_vocab_size()} tokens, the target {target.get_vocab_size()}"
    remedy = "choose a draft of the target's family, or set use_heterogeneous_vocab"
    theirs = _vocabulary(draft.model, draft.revision)
    ours = _vocabulary(target.tokenizer, target.tokenizer_revision)
    if theirs is None or ours is None:
        if draft.get_vocab_size() != target.get_vocab_size():
            which = "it" if theirs is None else "the target"
            raise ConfigError(
                f"{label}: {sizes}, and {which} brings no tokenizer to tell whether only padding differs; put the "
                f"tokenizer beside it, {remedy}"
            )
        return
    different = sum(theirs.get(token) != number for token, number in ours.items())
    if different or len(theirs) != len(ours):
        raise ConfigError(
            f"{label}: {sizes}, and their tokenizers differ in {different} of {len(ours)} tokens, so its drafts would "
            f"mean something else; {remedy}"
        )


def _vocabulary(model: str, revision: str | None) -> dict[str, int] | None:
    """Token -> id; None where there is no tokenizer."""
    from transformers import AutoTokenizer

    if Path(model).is_dir() and not any(Path(model).glob("*token*")):
        return None
    try:
        found: dict[str, int] = AutoTokenizer.from_pretrained(model, revision=revision).get_vocab()
    except Exception as error:  # whatever an unknown tokenizer raises
        logger.warning("specplug: the tokenizer of %s cannot be read, so it was not compared: %s", model, error)
        return None
    return found
