"""What the bridge relies on in vLLM, whichever runner drives it and on the V1 runner; `hook_points_v2` has the rest.

Knows symbols, parameters and attributes by name, and asks a vLLM for them; `contract` decides when.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from vllm_specplug.bridge.symbols import Installed, Vllm

#: `HookPoint.only_for`: what one runner needs, and what the small-model draft needs beside that.
V1 = "V1 runner"
V2 = "V2 runner"
ASYNCHRONOUS = "asynchronous scheduling"
DRAFT_MODEL = "draft models on V1"
DRAFT_MODEL_V2 = "draft models on V2"

_RUNNERS = {V1: "v1", DRAFT_MODEL: "v1", V2: "v2", ASYNCHRONOUS: "v2", DRAFT_MODEL_V2: "v2"}

INSTALLED = Installed()


@dataclass(frozen=True, slots=True)
class HookPoint:
    """A symbol of vLLM we call, wrap or subclass."""

    path: str
    """'module:attribute.attribute'."""
    parameters: tuple[str, ...] = ()
    """Parameters it must take, where it is a function, or a class that we make an object of."""
    why: str = ""
    only_for: str = ""
    """Where it is needed, one of the words above; empty: everywhere."""
    attributes: tuple[str, ...] = ()
    """What its objects must have, where it is a class."""
    literals: tuple[str, ...] = ()
    """Words it must allow, where it is a Literal."""
    earlier: str = ""
    """Where earlier releases have it (`versions` knows how they differ)."""
    since: tuple[int, int] | None = None
    """The first release that has it, such as (0, 32). Earlier ones are driven without it."""

    @property
    def runner(self) -> str | None:
        """The model runner that needs it; None: whichever."""
        return _RUNNERS[self.only_for] if self.only_for else None

    def is_of(self, version: str | None) -> bool:
        """Whether a release should have it; one of which nothing is known should."""
        numbers = re.match(r"(\d+)\.(\d+)", version or "")
        return self.since is None or numbers is None or (int(numbers[1]), int(numbers[2])) >= self.since

    def problem(self, vllm: Vllm = INSTALLED) -> str | None:
        """What is wrong with it in `vllm`; None when nothing is."""
        module, _, attributes = self.path.partition(":")
        try:
            symbol = vllm.find(module, attributes.split("."))
        except LookupError as error:
            if self.earlier and replace(self, path=self.earlier, earlier="").problem(vllm) is None:
                return None
            text = str(error.args[0])
            return text if self.path in text else f"{self.path} is missing: {text}"
        if self.parameters:
            taken = vllm.parameters(symbol)
            if taken is None:
                return f"{self.path}: its parameters cannot be told"
            if missing := [name for name in self.parameters if name not in taken]:
                return f"{self.path} no longer takes {', '.join(missing)}"
        if missing := sorted({*self.attributes} - {*vllm.attributes(symbol)} if self.attributes else ()):
            return f"{self.path} no longer has {', '.join(missing)}"
        if missing := sorted({*self.literals} - {*vllm.literals(symbol)} if self.literals else ()):
            return f"{self.path} no longer allows {', '.join(missing)}"
        return None


POINTS = (
    HookPoint(
        "vllm.engine.arg_utils:EngineArgs.create_speculative_config",
        ("target_model_config", "target_parallel_config"),
        "a specplug: method becomes vLLM's SpeculativeConfig here",
    ),
    HookPoint("vllm.engine.arg_utils:EngineArgs.create_engine_config", (), "the whole configuration is checked here"),
    HookPoint("vllm.config:SpeculativeConfig.__post_init__", (), "our configuration is a subclass"),
    HookPoint("vllm.config:VllmConfig.use_v2_model_runner", (), "says which model runner will run"),
    HookPoint(
        "vllm.config:VllmConfig._get_v2_model_runner_unsupported_features", (), "says which proposers V2 can run"
    ),
    HookPoint("vllm.config:VllmConfig.__post_init__", (), "decides whether scheduling stays asynchronous"),
    HookPoint(
        "vllm.sampling_params:SamplingParams._validate_spec_decode",
        ("speculative_config",),
        "checks specplug_max_drafts of each request",
    ),
    HookPoint(
        "vllm.v1.spec_decode.custom_class_proposer:create_custom_proposer",
        ("vllm_config",),
        "makes our drafter in the worker",
        V1,
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
        V1,
    ),
    HookPoint(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_spec_decode_draft_probs",
        ("spec_decode_metadata",),
        "takes draft probabilities from _draft_probs and _draft_prob_req_ids",
        V1,
    ),
    HookPoint(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._input_fits_in_drafter",
        ("common_attn_metadata",),
        "one long request must not cost the others their drafts",
        V1,
    ),
    HookPoint(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._update_states",
        ("scheduler_output",),
        "says which requests finished or were preempted",
        V1,
    ),
    HookPoint(
        "vllm.v1.sample.rejection_sampler:expand_batch_to_tokens",
        ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),
        "wrong on CPU, mended",
        V1,
    ),
    HookPoint(
        "vllm.v1.sample.rejection_sampler:_rejection_random_sample",
        (),
        "wrong on CPU, mended",
        V1,
        earlier="vllm.utils.cpu_triton_utils:rejection_random_sample_kernel",
    ),
    HookPoint(
        "vllm.v1.sample.rejection_sampler:apply_sampling_constraints",
        ("logits", "cu_num_draft_tokens", "sampling_metadata"),
        "wrong on CPU, mended",
        V1,
    ),
    HookPoint("vllm.config.speculative:SpeculativeMethod", literals=("custom_class",), why="ours travels as this one"),
    HookPoint(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
        attributes=("drafter", "requests", "input_batch", "_draft_probs", "_draft_prob_req_ids"),
        why="what a step reads and hands back",
        only_for=V1,
    ),
    HookPoint(
        "vllm.v1.worker.gpu_input_batch:InputBatch",
        attributes=("req_ids", "token_ids_cpu", "num_tokens_no_spec"),
        why="the texts of a step",
        only_for=V1,
    ),
    HookPoint(
        "vllm.v1.worker.gpu_input_batch:CachedRequestState",
        attributes=("sampling_params", "num_prompt_tokens"),
        why="limits of a request",
        only_for=V1,
    ),
    HookPoint(
        "vllm.v1.core.sched.output:SchedulerOutput",
        attributes=(
            "finished_req_ids",
            "num_spec_tokens_to_schedule",
            "preempted_req_ids",
            "scheduled_cached_reqs",
            "scheduled_new_reqs",
        ),
        why="which requests come and go",
    ),
    HookPoint(
        "vllm.v1.core.sched.output:CachedRequestData", attributes=("resumed_req_ids",), why="which requests come back"
    ),
    HookPoint(
        "vllm.v1.sample.metadata:SamplingMetadata",
        attributes=("all_greedy", "temperature"),
        why="temperatures",
        only_for=V1,
    ),
    HookPoint(
        "vllm.v1.spec_decode.metadata:SpecDecodeMetadata",
        attributes=("num_draft_tokens",),
        why="drafts verified",
        only_for=V1,
    ),
    HookPoint("vllm.distributed.parallel_state:get_tp_group", (), "draft probabilities must agree between ranks"),
    HookPoint(
        "vllm.distributed.parallel_state:GroupCoordinator",
        attributes=("rank_in_group", "cpu_group"),
        why="draft probabilities must agree between ranks",
    ),
    HookPoint(
        "vllm.model_executor.layers.vocab_parallel_embedding:VocabParallelEmbedding",
        attributes=("shard_indices", "tp_size"),
        why="the target's embeddings, for neural drafters",
    ),
    HookPoint(
        "vllm.model_executor.layers.vocab_parallel_embedding:ParallelLMHead",
        why="the target's output layer, for neural drafters",
    ),
    HookPoint("vllm.distributed:tensor_model_parallel_all_reduce", why="both of these, whole again"),
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
    HookPoint(
        "vllm.v1.spec_decode.draft_model:DraftModelProposer",
        (),
        "what a pass reads and writes",
        DRAFT_MODEL,
        attributes=(
            "_draft_attn_layer_names",
            "arange",
            "block_size",
            "draft_model_config",
            "input_ids",
            "max_model_len",
            "model",
            "positions",
            "use_heterogeneous_vocab",
            "vocab_mapping",
        ),
    ),
    HookPoint(
        "vllm.v1.attention.backend:CommonAttentionMetadata",
        (),
        "lengths and places of a pass",
        DRAFT_MODEL,
        attributes=(
            "batch_size",
            "max_query_len",
            "num_actual_tokens",
            "query_start_loc",
            "query_start_loc_cpu",
            "seq_lens_cpu_upper_bound",
            "slot_mapping",
        ),
    ),
    HookPoint(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
        (),
        "what the first pass reads",
        DRAFT_MODEL,
        attributes=("_get_positions", "input_ids"),
    ),
    HookPoint("vllm.config.speculative:SpeculativeMethod", (), "vLLM's method", DRAFT_MODEL, literals=("draft_model",)),
    HookPoint("vllm.forward_context:set_forward_context", ("slot_mapping",), "runs a pass", DRAFT_MODEL),
    HookPoint(
        "vllm.config:SpeculativeConfig.verify_equal_vocab_size_if_draft_model",
        (),
        "padded rows may differ",
        DRAFT_MODEL,
    ),
)
