"""What the bridge relies on in vLLM's V2 model runner; `contract` checks it where that runner is asked for."""

from __future__ import annotations

from vllm_specplug.bridge.hook_points import ASYNCHRONOUS, DRAFT_MODEL_V2, V2, HookPoint

_GPU = "vllm.v1.worker.gpu"
_RUNNER = f"{_GPU}.model_runner"
_SPECULATOR = f"{_GPU}.spec_decode.speculator:BaseSpeculator"
_STANDALONE = f"{_GPU}.spec_decode.standalone_ar.speculator:StandaloneARSpeculator"

#: In 0.29 to 0.31 each step wants as many drafts, token histories are where the host and the device read them, and
#: draft models have another speculator, which we do not drive.
_SINCE = (0, 32)

DRAFTS_OF_A_STEP = HookPoint(
    f"{_SPECULATOR}.propose", ("num_speculative_tokens",), "how many drafts a step wants", V2, since=_SINCE
)

POINTS = (
    HookPoint(f"{_RUNNER}:init_speculator", ("vllm_config", "device"), "our speculator takes its place", V2),
    HookPoint(
        f"{_RUNNER}:GPUModelRunner",
        (),
        "our speculator is found in it",
        V2,
        ("speculator", "model", "model_memory_usage", "req_states"),
    ),
    HookPoint(f"{_RUNNER}:GPUModelRunner.load_model", (), "gives our proposer the target", V2),
    HookPoint(f"{_RUNNER}:GPUModelRunner.add_requests", ("scheduler_output",), "says which requests begin", V2),
    HookPoint(f"{_RUNNER}:GPUModelRunner._remove_request", ("req_id",), "says which requests end or are preempted", V2),
    HookPoint(f"{_RUNNER}:GPUModelRunner.take_draft_token_ids", (), "says how many drafts a request has", V2),
    HookPoint(
        f"{_SPECULATOR}.propose",
        (
            "input_batch",
            "last_hidden_states",
            "num_sampled",
            "num_rejected",
            "last_sampled",
            "temperature",
            "dummy_run",
        ),
        "our proposers draft here",
        V2,
    ),
    DRAFTS_OF_A_STEP,
    HookPoint(f"{_SPECULATOR}.init_cudagraph_manager", ("cudagraph_mode",), "drafting is not captured", V2),
    HookPoint(f"{_SPECULATOR}.capture", (), "drafting is not captured", V2),
    HookPoint(
        f"{_GPU}.states:RequestState",
        (),
        "token histories by line",
        V2,
        ("all_token_ids", "total_len", "req_id_to_index"),
    ),
    HookPoint(
        f"{_GPU}.input_batch:InputBatch",
        (),
        "the requests of a step",
        V2,
        (
            "req_ids",
            "num_reqs",
            "idx_mapping",
            "idx_mapping_np",
            "query_start_loc",
            "prefill_len_np",
            "seq_lens",
            "seq_lens_cpu_upper_bound",
        ),
    ),
    HookPoint(
        f"{_GPU}.spec_decode.rejection_sampler:RejectionSampler.__call__",
        ("draft_logits",),
        "takes draft probabilities",
        V2,
    ),
    HookPoint(
        "vllm.v1.core.sched.output:NewRequestData",
        (),
        "what a request allows",
        V2,
        ("req_id", "sampling_params", "prompt_len", "prefill_token_ids"),
    ),
    HookPoint("vllm.v1.outputs:DraftTokenIds", (), "how many drafts a request has", V2, ("req_ids", "draft_token_ids")),
    HookPoint("vllm.config:SpeculativeConfig.use_ngram", (), "keeps token histories on the device", V2, since=_SINCE),
    HookPoint("vllm.utils.torch_utils:async_tensor_h2d", ("data", "device"), "to the device without waiting", V2),
    HookPoint(
        "vllm.utils.mem_utils:DeviceMemoryProfiler", (), "what a proposer takes of memory", V2, ("consumed_memory",)
    ),
    HookPoint(
        "vllm.config.speculative:NgramGPUTypes",
        (),
        "scheduling stays asynchronous with it",
        ASYNCHRONOUS,
        literals=("ngram_gpu",),
    ),
    HookPoint(
        "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_after_schedule",
        ("scheduler_output",),
        "plans as many drafts as a request allows",
        ASYNCHRONOUS,
    ),
    *(
        HookPoint(f"{_STANDALONE}.{name}", parameters, why, DRAFT_MODEL_V2, since=_SINCE)
        for name, parameters, why in (
            ("__init__", ("vllm_config", "device"), "our speculator is a subclass"),
            ("load_model", ("target_model",), "loads the draft model"),
            ("set_attn", ("kv_cache_config", "block_tables"), "gives it its part of the cache"),
            ("propose", ("dp_sync_state", "dummy_run", "num_speculative_tokens"), "our proposer drafts here"),
            ("_copy_request_inputs", ("num_reqs", "idx_mapping", "temperature", "seeds"), "prepares the first pass"),
            ("_prefill", ("input_batch", "num_rejected", "last_sampled", "num_tokens_across_dp"), "the first pass"),
            ("sample_draft", ("hidden_states",), "the first pass ends here"),
            ("_run_model", ("input_ids", "positions", "attn_metadata", "slot_mappings"), "runs a pass"),
            ("_build_uniform_attn_metadata", ("seq_lens_cpu_upper_bound", "step"), "prepares a later pass"),
        )
    ),
    HookPoint(
        _STANDALONE,
        (),
        "where a pass reads and writes",
        DRAFT_MODEL_V2,
        (
            "arange_gpu",
            "block_tables",
            "draft_attn_layer_names",
            "draft_max_seq_len",
            "expanded_positions",
            "input_buffers",
            "kv_cache_config",
            "last_token_indices",
            "max_model_len",
        ),
        since=_SINCE,
    ),
    HookPoint(
        f"{_GPU}.block_table:BlockTables.compute_slot_mappings",
        ("idx_mapping", "query_start_loc", "positions", "num_tokens_padded"),
        "where keys and values go",
        DRAFT_MODEL_V2,
    ),
    HookPoint(f"{_GPU}.attn_utils:build_slot_mappings_by_layer", (), "where keys and values go", DRAFT_MODEL_V2),
    HookPoint(
        f"{_GPU}.cudagraph_utils:BatchExecutionDescriptor",
        ("cg_mode", "num_tokens", "num_reqs", "uniform_token_count"),
        "prepares a later pass",
        DRAFT_MODEL_V2,
    ),
)
