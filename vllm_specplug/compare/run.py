"""Runs an experiment from end to end. All engines live at once, one works at a time."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vllm_specplug import __version__, provenance
from vllm_specplug.compare import identity, lossless
from vllm_specplug.compare.arms import BASELINE, Arm, target_of, with_baseline, without_secrets
from vllm_specplug.compare.asked import NOTHING_MORE, Asked
from vllm_specplug.compare.endpoint import DEFAULT_SETTINGS, EndpointSettings
from vllm_specplug.compare.engine import running
from vllm_specplug.compare.failed_requests import Careful, check_some_answered, find_failures, without_failed
from vllm_specplug.compare.gate import Gate
from vllm_specplug.compare.journal import Journal
from vllm_specplug.compare.levels import LoadPlan
from vllm_specplug.compare.load import arrivals_s, in_front_of, measure_load, num_runs, total_weight
from vllm_specplug.compare.load_report import Loaded, judge_answers
from vllm_specplug.compare.measure import measure, measure_within, warm_up
from vllm_specplug.compare.outputs import Outputs, show_report
from vllm_specplug.compare.prompt_tokens import check_same_tokens, find_tokens
from vllm_specplug.compare.report import Measured, build_report
from vllm_specplug.compare.report_format import check_writable, write_report
from vllm_specplug.compare.resume import resumable
from vllm_specplug.compare.settings import CompareSettings as CompareSettings
from vllm_specplug.compare.start import shortest_model_length, start_engines
from vllm_specplug.compare.workload import Workload
from vllm_specplug.errors import CompareError
from vllm_specplug.progress import Progress, show_progress


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
    load: LoadPlan | None = None,
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
        load: levels of load that are measured after the blocks; None: none.
    Raises:
        CompareError: the experiment cannot be run, naming the arm at fault. Nothing but the journal is written.
    """
    settings = settings or CompareSettings()
    if load is not None:
        load.check(workload, settings.budget_s)
    if importlib.util.find_spec("scipy") is None:
        raise CompareError("comparing needs scipy, which is not installed; pip install 'vllm-specplug[compare]'")
    arms = with_baseline(arms, baseline)
    target = target_of(model, arms)
    started_at, start = datetime.now(UTC), time.perf_counter()
    with running(arms, endpoint_settings) as processes:
        engines = {process.arm.name: process for process in processes}
        infos = start_engines(target, processes, settings, progress)
        max_model_len = shortest_model_length(infos, settings)
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
        told = progress if load is None else in_front_of(progress, total_weight(load, len(workload.prompts), len(arms)))
        how = (token_ids, settings.max_tokens, settings.num_passes, told, journal)
        if settings.budget_s is None:
            blocks = measure(engines, workload.blocks(settings.batch_size), *how)
        else:
            blocks = measure_within(settings.budget_s, engines, workload.rounds(settings.batch_size), *how)
            workload = workload.only({answer.prompt_id for block in blocks[baseline] for answer in block.answers})
        failures = {name: find_failures(part) for name, part in blocks.items()}
        asked_blocks = {name: part for name, part in blocks.items() if failures[name].failed}
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
        loaded = None
        if load is not None:
            limit, done = settings.max_tokens, _num_blocks(workload, settings, len(arms))
            runs = measure_load(
                engines, load, workload.prompts, token_ids, limit, settings.seed, progress, journal, done
            )
            judged = judge_answers(engines[baseline], runs, blocks[baseline], token_ids, settings.near_tie_tolerance)
            seats = {name: info["max_num_seqs"] for name, info in infos.items()}
            loaded = Loaded(load, runs, judged, lossless.told_answers(blocks[baseline]), seats)
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
            settings=_as_json(settings, load) | {"temperature": 0.0, "prefix_caching": False},
            provenance={
                "specplug": __version__,
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
            asked_blocks=asked_blocks,
            loaded=loaded,
        )
    )


def _num_blocks(workload: Workload, settings: CompareSettings, num_arms: int) -> int:
    return len(workload.blocks(settings.batch_size)) * settings.num_passes * num_arms


def _as_json(settings: CompareSettings, load: LoadPlan | None) -> dict[str, Any]:
    return asdict(settings) | {"load": None if load is None else load.as_json()}


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
    load: LoadPlan | None = None,
) -> dict[str, Any]:
    """Compare with progress shown, write what is asked for, print the tables and, with `as_json`, the report last.

    Args:
        gates: shown in all outputs; what follows from them is for the caller (`gate.exit_code`).
        extra: measures beyond the usual ones.
        keep_journal: write measured blocks down beside `out`, so that an interrupted run can go on.
        fresh: forget those of an interrupted run.
        endpoint_settings: how running endpoints are asked.
        load: levels of load that are measured after the blocks; None: none.
    Raises:
        CompareError: the experiment cannot be run; nothing but the journal is written then.
        KeyboardInterrupt: saying how to go on.
    """
    where = Outputs(html, markdown, junit, as_json)
    where.check()  # now, not after an hour of measuring
    if out:
        check_writable(out)
    arms = with_baseline(arms, baseline)
    planned = _num_blocks(workload, settings, len(arms))
    if load is not None:
        load.check(workload, settings.budget_s)
        planned += num_runs(load, len(arms))
        minutes = arrivals_s(load, workload.prompts, settings.seed, len(arms)) / 60
        if minutes >= 1:
            print(
                f"the levels of load take {minutes:.0f} minutes at least: so late the last requests come",
                file=sys.stderr,
            )
    with resumable(
        out if keep_journal else None,
        identity.before_start(target_of(model, arms), arms, baseline, workload, _as_json(settings, load)),
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
                load=load,
            )
        if out:
            write_report(report, out)
        if journal is not None:
            journal.remove()
    show_report(report, gates, where)
    return report
