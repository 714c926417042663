"""`specplug compare --staging-log`: arms compared on live traffic, from the log of a deployment's routers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_specplug.compare.gate import check_gates, exit_code
from vllm_specplug.compare.junit import render_junit
from vllm_specplug.compare.outputs import Outputs, put_out
from vllm_specplug.compare.report_format import check_writable
from vllm_specplug.compare.settings import check_seed
from vllm_specplug.compare.staging_format import write_staging
from vllm_specplug.compare.staging_gate import parse_staging_gates
from vllm_specplug.compare.staging_log import read_staging_log
from vllm_specplug.compare.staging_page import staging_page
from vllm_specplug.compare.staging_report import NUM_RESAMPLES, staging_report
from vllm_specplug.compare.staging_show import print_staging, staging_markdown
from vllm_specplug.compare.verdicts import Rule
from vllm_specplug.errors import CompareError

#: Arguments of `specplug compare` that go with a log; all others are about measuring.
_FITTING = ("staging_log", "model", "baseline", "seed", "out", "html", "markdown", "junit", "json", "fail_if", "run")


def main(args: argparse.Namespace, defaults: Mapping[str, Any]) -> int:
    """Compare the arms of a log.

    Args:
        defaults: of the command's arguments, by name.
    Returns:
        0; with gates 1 when one failed, 2 when one cannot be told.
    Raises:
        CompareError: the log is malformed, or an argument does not go with one.
    """
    for name, value in vars(args).items():
        if name not in _FITTING and value != defaults.get(name):
            raise CompareError(f"--{name.replace('_', '-')} is about measuring; leave it out with --staging-log")
    check_seed(args.seed)
    if args.out:
        check_writable(args.out)
    log = read_staging_log(args.staging_log, args.model)
    report = staging_report(log, args.baseline, argv=sys.argv, rule=Rule(args.seed, num_resamples=NUM_RESAMPLES))
    if args.out:
        write_staging(report, args.out)
    return show(report, args.fail_if, Outputs(args.html, args.markdown, args.junit, args.json))


def show(report: Mapping[str, Any], fail_if: Sequence[str], where: Outputs) -> int:
    """Hold the gates, write the files, print the tables.

    Returns:
        The exit code, as that of `main`.
    Raises:
        CompareError: a gate is wrong, or a file cannot be written.
    """
    where.check()
    gates = parse_staging_gates(fail_if, list(report["results"]), report["baseline"])
    outcomes = check_gates(gates, report)
    provenance = {**report["provenance"], "vllm": "not in the log"}
    about = {"target": report["model"], "baseline": report["baseline"], "lossless": {}, "provenance": provenance}
    put_out(
        where,
        outcomes,
        tables=lambda file: print_staging(report, file),
        html=lambda: staging_page(report),
        markdown=lambda: staging_markdown(report, outcomes),
        junit=lambda: render_junit(about, outcomes),
        value=report,
    )
    return exit_code(outcomes)
