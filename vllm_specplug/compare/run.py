"""Runs an experiment from end to end. All engines live at once, one works at a time."""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vllm_specplug.compare import identity, lossless, provenance
from vllm_specplug.compare.arms import (
    BASELINE,
    Arm,
    target_of,
    with_baseline,
    without_secrets,
)
from vllm_specplug.compare.asked import NOTHING_MORE, Asked
from vllm_specplug.compare.endpoint import DEFAULT_SETTINGS, EndpointSettings
from vllm_specplug.compare.engine import EngineProcess, RunningArm, on_cpu, running
from vllm_specplug.compare.failed_requests import Careful, check_some_answered, find_failures, without_failed
from vllm_specplug.compare.gate import Gate
from vllm_specplug.compare.journal import Journal
from vllm_specplug.compare.measure import Progress, measure, measure_within, warm_up
from vllm_specplug.compare.outputs import Outputs, show_report
from vllm_specplug.compare.prompt_tokens import check_same_tokens, find_tokens
from vllm_specplug.compare.report import Measured, build_report
from vllm_specplug.compare.report_format import check_writable, write_report
from vllm_specplug.compare.resume import resumable
from vllm_specplug.compare.terminal import show_progress
from vllm_specplug.compare.workload import Workload
from vllm_specplug.errors import CompareError

GIB = 1 << 30

#: How the command line calls settings, for errors.
_FLAGS = {
    "max_tokens": "--max-tokens",
    "batch_size": "--batch-size",
    "num_passes": "--passes",
    "max_model_len": "--max-model-len",
    "kv_cache_gib": "--kv-cache-gib",
    "budget_s": "--budget-s",
}


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """What all arms share. `Arm.engine_args` may differ from it for one arm."""

    dtype: str = "bfloat16"
    max_tokens: int = 128
    """Output tokens of an answer at most; a prompt's own limit wins."""
    max_model_len: int | None = None
    """None: as vLLM decides."""
    enforce_eager: bool = False
    """No torch.compile: slower steps, a start in seconds."""
    kv_cache_gib: float = 1.0
    """KV cache of each engine on a CPU. On a GPU the engines share 90 % of its memory."""
    batch_size: int = 1
    """Prompts sent at once."""
    num_passes: int = 2
    """Times each arm answers each prompt; an even number cancels drift."""
    budget_s: float | None = None
    """Measure no longer than this (seconds, without start and warm-up), by using fewer prompts of each category."""
    seed: int = 0
    margin: float = 0.03
    """Ratios within 1 -/+ margin count as no difference."""
    near_tie_tolerance: float | None = None
    """Log-probability; None: 0.05, in float32 0."""

    def __post_init__(self) -> None:
        for name in ("max_tokens", "batch_size", "num_passes", "max_model_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise CompareError(f"{_FLAGS.get(name, name)} is {value}, expected 1 or more")
        for name in ("kv_cache_gib", "budget_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise CompareError(f"{_FLAGS[name]} is {value}, expected a number above 0")


def run_compare(
    model: str | None,
    arms: Sequence[Arm],
    workload: Workload,
    settings: CompareSettings | None = None,
    *,
    baseline: str = BASELINE,
    argv: Sequence[str] = (),
    progress: Progress = lambda what, done, total: None,
    extra: Asked = NOTHING_MORE,
    journal: Journal | None = None,
    endpoint_settings: EndpointSettings = DEFAULT_SETTINGS,
) -> dict[str, Any]:
    """Compare arms on the same token prompts, greedily, and return the report (`report_format`).

    Args:
        model: what our own engines serve; None where all arms are running endpoints.
        arms: what to compare; an arm `baseline` without speculation is added when missing.
        argv: how the program was called, for the record.
        progress: told what is being done.
        extra: measures beyond the usual ones.
        journal: where measured blocks are written down and those of an interrupted run are found.
        endpoint_settings: how running endpoints are asked.
    Raises:
        CompareError: the experiment cannot be run, naming the arm at fault. Nothing but the journal is written.
    """
    settings = settings or CompareSettings()
    if importlib.util.find_spec("scipy") is None:
        raise CompareError("comparing needs scipy, which is not installed; pip install 'vllm-specplug[compare]'")
    arms = with_baseline(arms, baseline)
    target = target_of(model, arms)
    started_at, start = datetime.now(UTC), time.perf_counter()
    with running(arms, endpoint_settings) as processes:
        engines = {process.arm.name: process for process in processes}
        infos = _start(target, processes, settings, progress)
        max_model_len = _shortest(infos, settings)
        careful = {name: Careful(name, engine) for name, engine in engines.items()}
        token_ids = find_tokens(
            careful[baseline], workload.prompts, settings.max_tokens, max_model_len, settings.batch_size, progress
        )
        if any(arm.endpoint is not None for arm in arms):
            check_same_tokens(engines, workload.prompts, token_ids, baseline)
        if journal is not None:
            journal.begin(identity.after_start(infos, token_ids), started_at.isoformat(timespec="seconds"))
        for name, engine in careful.items():
            progress(f"{name} · warm-up", 0, 0)
            warm_up(engine, list(token_ids.values()), settings.max_tokens)
        how = (token_ids, settings.max_tokens, settings.num_passes, progress, journal)
        if settings.budget_s is None:
            blocks = measure(engines, workload.blocks(settings.batch_size), *how)
        else:
            blocks = measure_within(settings.budget_s, engines, workload.rounds(settings.batch_size), *how)
            workload = workload.only({answer.prompt_id for block in blocks[baseline] for answer in block.answers})
        failures = {name: find_failures(part) for name, part in blocks.items()}
        blocks = {name: without_failed(part, failures[name]) for name, part in blocks.items()}
        check_some_answered(failures, blocks, baseline)
        dtype = str(infos[baseline]["dtype"])
        if settings.near_tie_tolerance is None:
            settings = replace(settings, near_tie_tolerance=lossless.default_tolerance(dtype))
        assert settings.near_tie_tolerance is not None
        differences = {
            name: lossless.judge(
                engines[baseline],
                lossless.find_differences(blocks[baseline], blocks[name]),
                token_ids,
                lossless.first_answers(blocks[baseline]),
                settings.near_tie_tolerance,
            )
            for name in engines
            if name != baseline
        }
    head, dirty = provenance.commit()
    versions = infos[baseline]
    return build_report(
        Measured(
            model=target,
            dtype=dtype,
            arms=arms,
            kv_caches={name: info["kv_cache"] for name, info in infos.items()},
            baseline=baseline,
            workload=workload,
            blocks=blocks,
            differences=differences,
            num_prompt_tokens={prompt_id: len(ids) for prompt_id, ids in token_ids.items()},
            settings=asdict(settings) | {"temperature": 0.0, "prefix_caching": False},
            provenance={
                "specplug": provenance.specplug_version(),
                "vllm": versions["vllm"],
                "torch": versions["torch"],
                "python": versions["python"],
                "commit": head,
                "dirty": dirty,
                "argv": without_secrets(argv),
                "machine": provenance.machine(),
                "started_at": started_at.isoformat(timespec="seconds"),
                "duration_s": round(time.perf_counter() - start, 1),
                "resumed": None if journal is None else journal.resumed,
            },
            asked=extra,
            failures={arm.name: failures[arm.name] for arm in arms if arm.endpoint is not None},
        )
    )


def _shortest(infos: Mapping[str, Mapping[str, Any]], settings: CompareSettings) -> int:
    """Model length of all arms; an endpoint that does not tell its own is taken for long enough."""
    told = [info["max_model_len"] for info in infos.values() if info["max_model_len"] is not None]
    return min(told, default=settings.max_model_len or sys.maxsize)


def engine_arguments(arm: Arm, settings: CompareSettings, num_arms: int, cpu: bool) -> dict[str, Any]:
    """Keyword arguments of `vllm.LLM` for one arm."""
    arguments: dict[str, Any] = {
        "dtype": settings.dtype,
        "seed": settings.seed,
        "enforce_eager": settings.enforce_eager,
        # Prompts come again in later passes, which must not find their own past.
        "enable_prefix_caching": False,
        "disable_log_stats": False,
    }
    if settings.max_model_len is not None:
        arguments["max_model_len"] = settings.max_model_len
    if cpu:
        arguments["kv_cache_memory_bytes"] = int(settings.kv_cache_gib * GIB)
    else:
        arguments["gpu_memory_utilization"] = 0.9 / num_arms
    if arm.speculative_config is not None:
        arguments["speculative_config"] = arm.speculative_config
    return arguments | arm.engine_args


def _start(
    model: str, arms: Sequence[RunningArm], settings: CompareSettings, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Build the engines; what each tells of itself, by arm name."""
    infos: dict[str, dict[str, Any]] = {}
    for arm in arms:
        if not isinstance(arm, EngineProcess):  # first: what is wrong with them is known in a second
            progress(f"{arm.arm.name} · looking at its endpoint", 0, 0)
            infos[arm.arm.name] = arm.request("start")
    processes = [arm for arm in arms if isinstance(arm, EngineProcess)]
    cpu = on_cpu()
    for process in processes:
        arguments = engine_arguments(process.arm, settings, len(processes), cpu)
        process.send("start", model=model, llm_args=arguments)
        if not cpu:  # vLLM measures free memory while it starts: on a GPU one at a time
            progress(f"{process.arm.name} · starting its engine", 0, 0)
            infos[process.arm.name] = process.receive()
    for process in processes if cpu else ():
        progress(f"{process.arm.name} · starting its engine", 0, 0)
        infos[process.arm.name] = process.receive()
    return infos


def run_and_show(
    model: str | None,
    arms: Sequence[Arm],
    workload: Workload,
    settings: CompareSettings,
    *,
    baseline: str = BASELINE,
    out: str | Path | None = None,
    html: str | Path | None = None,
    markdown: str | Path | None = None,
    junit: str | Path | None = None,
    gates: Sequence[Gate] = (),
    as_json: bool = False,
    extra: Asked = NOTHING_MORE,
    keep_journal: bool = False,
    fresh: bool = False,
    endpoint_settings: EndpointSettings = DEFAULT_SETTINGS,
) -> dict[str, Any]:
    """Compare with progress shown, write what is asked for, print the tables and, with `as_json`, the report last.

    Args:
        gates: shown in all outputs; what follows from them is for the caller (`gate.exit_code`).
        extra: measures beyond the usual ones.
        keep_journal: write measured blocks down beside `out`, so that an interrupted run can go on.
        fresh: forget those of an interrupted run.
        endpoint_settings: how running endpoints are asked.
    Raises:
        CompareError: the experiment cannot be run; nothing but the journal is written then.
        KeyboardInterrupt: saying how to go on.
    """
    where = Outputs(html, markdown, junit, as_json)
    where.check()  # now, not after an hour of measuring
    if out:
        check_writable(out)
    arms = with_baseline(arms, baseline)
    planned = len(workload.blocks(settings.batch_size)) * settings.num_passes * len(arms)
    with resumable(
        out if keep_journal else None,
        identity.before_start(target_of(model, arms), arms, baseline, workload, asdict(settings)),
        f"{planned}" if settings.budget_s is None else f"at most {planned}",
        fresh,
    ) as journal:
        with show_progress() as progress:
            report = run_compare(
                model,
                arms,
                workload,
                settings,
                baseline=baseline,
                argv=sys.argv,
                progress=progress,
                extra=extra,
                journal=journal,
                endpoint_settings=endpoint_settings,
            )
        if out:
            write_report(report, out)
        if journal is not None:
            journal.remove()
    show_report(report, gates, where)
    return report
