"""`specplug compare`: its arguments, and what they ask for."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from vllm_specplug.compare import asked, levels, outputs, staging_command
from vllm_specplug.compare.arms import BASELINE, parse_arm, with_baseline, with_second_baseline
from vllm_specplug.compare.arms_file import ArmsFile, load_arms
from vllm_specplug.compare.asked import asked_for
from vllm_specplug.compare.endpoint import DEFAULT_SETTINGS, EndpointSettings
from vllm_specplug.compare.gate import check_gates, exit_code, parse_gates
from vllm_specplug.compare.levels import load_plan
from vllm_specplug.compare.power import check_effect
from vllm_specplug.compare.quantity import Known
from vllm_specplug.compare.run import run_and_show
from vllm_specplug.compare.settings import CompareSettings
from vllm_specplug.compare.terminal import power_lines
from vllm_specplug.compare.workload import load_workload
from vllm_specplug.errors import CompareError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `specplug compare`."""
    defaults = CompareSettings()
    parser.add_argument("--model", help="target: a folder or a name vLLM can load; not for running endpoints")
    parser.add_argument(
        "--arm",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="what to compare: a name and a speculative config, or null for none; its key 'engine_args' holds further "
        'arguments of vllm.LLM; or a running server, as {"endpoint": URL, "model": NAME}; may be repeated',
    )
    parser.add_argument(
        "--staging-log",
        nargs="+",
        metavar="PATH",
        help="measure nothing: compare the arms of a deployment by what its routers have logged (files, or folders)",
    )
    parser.add_argument("--arms", metavar="FILE", help="YAML with arms by name, and 'model' and 'prompts' if wanted")
    parser.add_argument("--timeout-s", type=float, default=DEFAULT_SETTINGS.timeout_s, help="endpoints' (%(default)s)")
    parser.add_argument("--tokenizer", metavar="T", help="tokenizer of endpoints that have no /tokenize")
    parser.add_argument("--aa", action="store_true", help="add the baseline again, as an arm: what noise alone does")
    parser.add_argument("--baseline", default=BASELINE, metavar="NAME", help="arm to compare with (%(default)s)")
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        help="JSONL with 'prompt' or 'messages', or Spec-Bench's question.jsonl (default: shipped set)",
    )
    parser.add_argument("--category", nargs="+", metavar="C", help="use these categories only")
    parser.add_argument("--limit", type=int, metavar="N", help="use the first N prompts of each category")
    parser.add_argument("--max-tokens", type=int, default=defaults.max_tokens, metavar="N", help="(%(default)s)")
    parser.add_argument("--max-model-len", type=int, metavar="N", help="(default: as vLLM decides)")
    parser.add_argument("--dtype", default=defaults.dtype, help="(%(default)s)")
    parser.add_argument("--batch-size", type=int, default=1, metavar="N", help="prompts at once (%(default)s)")
    parser.add_argument("--passes", type=int, default=defaults.num_passes, metavar="N", help="(%(default)s)")
    levels.add_arguments(parser)
    parser.add_argument("--budget-s", type=float, metavar="S", help="use as many prompts as S seconds allow")
    parser.add_argument("--power", type=float, metavar="EFFECT", help="say how many prompts find it; 0.05: 5 %% faster")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--enforce-eager", action="store_true", help="no torch.compile: starts in seconds")
    parser.add_argument("--kv-cache-gib", type=float, default=defaults.kv_cache_gib, help="on a CPU (%(default)s)")
    asked.add_arguments(parser)
    parser.add_argument("--out", metavar="FILE", help="write the report as JSON; an interrupted run can go on")
    parser.add_argument("--fresh", action="store_true", help="forget what an interrupted run has measured")
    parser.add_argument("--html", metavar="FILE", help="write the report as one HTML page")
    outputs.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the report as one JSON line last on stdout")


def main(args: argparse.Namespace) -> int:
    """Run `specplug compare`. Tables go to stdout, or to stderr with --json.

    Returns:
        0; with gates 1 when one failed, 2 when one cannot be told.
    Raises:
        CompareError: for the caller to print.
    """
    if args.staging_log:
        return staging_command.main(args, _defaults())
    settings = CompareSettings(
        dtype=args.dtype,
        max_tokens=args.max_tokens,
        max_model_len=args.max_model_len,
        enforce_eager=args.enforce_eager,
        kv_cache_gib=args.kv_cache_gib,
        batch_size=args.batch_size,
        num_passes=args.passes,
        budget_s=args.budget_s,
        seed=args.seed,
    )
    if args.power is not None:
        check_effect(args.power)
    extra, load = asked_for(args), load_plan(args)
    if args.fresh and not args.out:
        raise CompareError("--fresh forgets what is kept beside --out, which is not given; add it or leave --fresh out")
    file = ArmsFile(()) if args.arms is None else load_arms(args.arms)
    arms = [*file.arms, *(parse_arm(text) for text in args.arm)]
    if args.aa:
        arms = with_second_baseline(arms, args.baseline)
    workload = load_workload(args.prompts or file.prompts, args.category, args.limit)
    names = tuple(arm.name for arm in with_baseline(arms, args.baseline))
    level_names = () if load is None else tuple(level.name for level in load.levels)
    gates = parse_gates(args.fail_if, Known(names, workload.categories, args.baseline, level_names))
    report = run_and_show(
        args.model or file.model,
        arms,
        workload,
        settings,
        baseline=args.baseline,
        out=args.out,
        html=args.html,
        markdown=args.markdown,
        junit=args.junit,
        gates=gates,
        as_json=args.json,
        extra=extra,
        keep_journal=bool(args.out),
        fresh=args.fresh,
        endpoint_settings=EndpointSettings(args.timeout_s, args.tokenizer),
        load=load,
    )
    for line in [] if args.power is None else power_lines(report, args.power):
        print(line, file=sys.stderr if args.json else sys.stdout)
    return exit_code(check_gates(gates, report))


def _defaults() -> dict[str, Any]:
    """The arguments' values where nothing is given."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return vars(parser.parse_args([]))
