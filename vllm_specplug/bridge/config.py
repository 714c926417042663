"""From `--speculative-config '{"method": "specplug:..."}'` to a configuration vLLM runs.

vLLM knows a fixed set of methods. Ours travels as its `custom_class`, whose class is the V1 drafter of this package,
in a subclass of vLLM's SpeculativeConfig that carries the proposer's name and options to every process; a proposer that
runs a draft model travels as vLLM's `draft_model` (`draft_config`). Everything that can be refused is refused here, in
the front-end, before weights load.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, get_args

from vllm_specplug import options
from vllm_specplug.bridge import contract, draft_config, logs, patches, runner_choice
from vllm_specplug.errors import ConfigError
from vllm_specplug.options import ProposerSpec
from vllm_specplug.proposer import EngineInfo, Runner
from vllm_specplug.registry import installed

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)

_V1_DRAFTER = "vllm_specplug.bridge.runner_v1.V1Drafter"


def proposer_spec(speculative_config: object) -> ProposerSpec | None:
    """The proposer of ours that a SpeculativeConfig stands for; None: it is not ours."""
    return getattr(speculative_config, "specplug", None)


def engine_info(vllm_config: VllmConfig, tp_rank: int = 0) -> EngineInfo:
    """What a proposer may know of the engine."""
    model = vllm_config.model_config
    scheduler = vllm_config.scheduler_config
    draft = vllm_config.speculative_config.draft_model_config
    return EngineInfo(
        vocab_size=model.get_vocab_size(),
        hidden_size=model.get_hidden_size(),
        max_model_len=model.max_model_len,
        max_num_reqs=scheduler.max_num_seqs,
        num_speculative_tokens=vllm_config.speculative_config.num_speculative_tokens,
        device=str(vllm_config.device_config.device_type),
        dtype=str(model.dtype).removeprefix("torch."),
        seed=model.seed,
        tp_rank=tp_rank,
        tp_size=vllm_config.parallel_config.tensor_parallel_size,
        model=model.model,
        draft_vocab_size=draft.get_vocab_size() if vllm_config.speculative_config.uses_draft_model() else None,
        asynchronous=bool(vllm_config.use_v2_model_runner and scheduler.async_scheduling),
    )


def install() -> list[Callable[[], None]]:
    """Open vLLM's door for our methods, in this process. Repeatable.

    Unnecessary once vLLM lets plugins register speculative methods.

    Returns:
        Functions that undo it.
    Raises:
        ContractError: vLLM has no such door.
    """
    from vllm.engine.arg_utils import EngineArgs

    from vllm_specplug.bridge import requests

    return [
        patches.wrap(EngineArgs, "create_speculative_config", _create_speculative_config),
        patches.wrap(EngineArgs, "create_engine_config", _create_engine_config),
        requests.install(),
        *runner_choice.install(),
    ]


def _create_speculative_config(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_speculative_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked = _asked_for(self)
        if asked is None:
            return original(self, *args, **kwargs)
        contract.require()
        spec = options.resolve(asked)
        from vllm_specplug.bridge.speculative_config import SpecplugConfig

        target = inspect.signature(original).bind(self, *args, **kwargs).arguments
        if spec.proposer_class().capabilities.runs_draft_model:
            return draft_config.make(spec, target)
        return SpecplugConfig(
            specplug=spec,
            method="custom_class",
            model=_V1_DRAFTER,
            num_speculative_tokens=spec.num_speculative_tokens,
            target_model_config=target["target_model_config"],
            target_parallel_config=target["target_parallel_config"],
            **spec.engine_keys,
        )

    return create_speculative_config


def _create_engine_config(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = original(self, *args, **kwargs)
        logs.join_vllm()  # vLLM sets its own logging up in there
        spec = proposer_spec(config.speculative_config)
        if spec is not None:
            check(config, spec)
            is_asynchronous = bool(config.scheduler_config.async_scheduling)
            config.speculative_config.driven_by(
                "v2" if config.use_v2_model_runner else "v1", asynchronous=is_asynchronous
            )
            from vllm_specplug import metrics  # prometheus_client costs people who do not use us 20 ms a process

            metrics.prepare_front_end()
            logger.info(
                "specplug: proposer %r (%s) drafts up to %d tokens a step on the %s model runner, %s scheduling",
                spec.name,
                spec.target,
                spec.num_speculative_tokens,
                config.speculative_config.runner.upper(),
                "asynchronous" if is_asynchronous else "synchronous",
            )
        return config

    return create_engine_config


def _asked_for(engine_args: Any) -> dict[str, Any] | None:
    """The speculative configuration of these arguments, if it is for us; keys as vLLM normalises them."""
    raw = engine_args.speculative_config
    if not isinstance(raw, Mapping):
        return None
    asked = {str(key).replace("-", "_"): value for key, value in raw.items()}
    method = asked.get("method")
    if not options.is_ours(method) and not _is_ours_alone(method):
        return None
    for flag, key in (("spec_method", "method"), ("spec_model", "model"), ("spec_tokens", "num_speculative_tokens")):
        value = getattr(engine_args, flag, None)
        if value is None:
            continue
        if key in asked:
            raise ConfigError(
                f"--{flag.replace('_', '-')} and --speculative-config['{key}'] are both given ({value!r} and "
                f"{asked[key]!r}); give one"
            )
        asked[key] = value
    return asked


def _is_ours_alone(method: object) -> bool:
    """Whether a bare name is a proposer of ours and no method of this vLLM.

    Asked of everybody's configuration, so it must not fail for people who do not use us.
    """
    if not isinstance(method, str):
        return False
    try:
        from vllm.config.speculative import SpeculativeMethod

        return method not in _literals(SpeculativeMethod) and method in installed()
    except (ImportError, ConfigError):
        return False


def check(config: VllmConfig, spec: ProposerSpec) -> None:
    """Refuse a configuration the proposer cannot serve.

    Raises:
        ConfigError: naming the value and the remedy.
    """
    name = f"proposer {spec.name!r}"
    _check_runner(config, name, runner_choice.runners_of(spec))
    stages = config.parallel_config.pipeline_parallel_size
    if stages > 1:
        raise ConfigError(
            f"{name}: pipeline_parallel_size is {stages}; only 1 is supported yet, use tensor parallelism"
        )
    proposer = spec.proposer_class()
    reads_target = proposer.capabilities.reads_hidden_states or proposer.capabilities.runs_draft_model
    if config.lora_config is not None and reads_target:
        raise ConfigError(f"{name} together with LoRA is not tested yet, so not supported; leave --enable-lora out")
    num_tokens = spec.num_speculative_tokens
    room = config.model_config.max_model_len - 2
    if num_tokens > room:
        raise ConfigError(
            f"{name}: num_speculative_tokens is {num_tokens}, but max_model_len {config.model_config.max_model_len} "
            f"leaves room for at most {max(room, 0)} drafts after a prompt; lower it or raise --max-model-len"
        )
    budget = config.scheduler_config.max_num_batched_tokens
    if num_tokens + 1 > budget:
        raise ConfigError(
            f"{name}: num_speculative_tokens is {num_tokens}, but a step holds at most {budget} tokens "
            f"(max_num_batched_tokens), so at most {budget - 1} drafts; lower it or raise --max-num-batched-tokens"
        )
    proposer.check(spec.parsed_options(), engine_info(config))


def _check_runner(config: VllmConfig, name: str, runners: Collection[Runner]) -> None:
    """Refuse a runner that the proposer was not tested on, or features that were not tested on a runner."""
    if not config.use_v2_model_runner:
        if "v1" not in runners:
            raise ConfigError(
                f"{name} does not support vLLM's V1 model runner, which was chosen here (VLLM_USE_V2_MODEL_RUNNER=0, "
                "no Triton, or a feature that V2 lacks: see vLLM's log); set VLLM_USE_V2_MODEL_RUNNER=1 to learn why"
            )
        return
    assert "v2" in runners, "vLLM refuses what _get_v2_model_runner_unsupported_features names"
    untested = {
        "watermarking": getattr(config, "watermark_config", None) is not None,
        "prefill context parallelism": config.parallel_config.prefill_context_parallel_size > 1,
        "batch-sharded sampling": config.parallel_config.enable_batch_sharded_sampling,
    }
    if found := [feature for feature, is_on in untested.items() if is_on]:
        raise ConfigError(f"{name} together with {', '.join(found)} is not tested yet, so not supported; switch it off")


def _literals(annotation: Any) -> set[str]:
    """All strings of a Literal of Literals."""
    found: set[str] = set()
    for value in get_args(annotation):
        found |= {value} if isinstance(value, str) else _literals(value)
    return found
