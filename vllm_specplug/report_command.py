"""`specplug report`: shows reports of `specplug compare` again, and several of them over time. Measures nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_specplug.compare import asked, history, history_show, outputs, staging_command
from vllm_specplug.compare.asked import NOTHING_MORE, asked_for
from vllm_specplug.compare.gate import Gate, check_gates, exit_code, parse_gates
from vllm_specplug.compare.history import Entry
from vllm_specplug.compare.junit import render_junit
from vllm_specplug.compare.outputs import Outputs, put_out, show_report
from vllm_specplug.compare.quantity import Known
from vllm_specplug.compare.report_format import check_writable, read_report, write_report
from vllm_specplug.compare.staging_format import SCHEMA as STAGING
from vllm_specplug.compare.staging_format import read_staging, schema_of
from vllm_specplug.compare.vllm_bench_report import bench_report, parse_bench_arms
from vllm_specplug.errors import CompareError

#: Keys that showing needs and the format leaves to the writer.
_SHOWN: Mapping[str, tuple[str, ...]] = {
    "workload": ("name", "sha256", "prompts", "categories"),
    "settings": ("max_tokens", "batch_size", "num_passes", "margin", "near_tie_tolerance"),
    "loops": (),
    "repeats": (),
    "baseline": (),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `specplug report`."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="reports that `specplug compare --out` wrote")
    parser.add_argument(
        "--from-vllm-bench",
        nargs="+",
        metavar="NAME=FILE",
        help="make a report of files that `vllm bench serve --save-result --save-detailed` wrote, the baseline first",
    )
    asked.add_arguments(parser)
    parser.add_argument("--out", metavar="FILE", help="with --from-vllm-bench: write the report as JSON")
    outputs.add_arguments(parser)
    parser.add_argument("--html", metavar="FILE", help="write it as one HTML page")
    parser.add_argument("--json", action="store_true", help="print it as one JSON line last on stdout")


def main(args: argparse.Namespace) -> int:
    """Run `specplug report`. Gates and JUnit look at the newest report.

    Returns:
        0; with gates 1 when one failed, 2 when one cannot be told.
    Raises:
        CompareError: a file is no report, a gate is wrong, or a file cannot be written.
    """
    where = Outputs(args.html, args.markdown, args.junit, args.json)
    # Of whatever version: what is wrong with another one is said by its own reader.
    if any((schema_of(path) or "").startswith(STAGING.rpartition("/")[0]) for path in args.files):
        return _show_staging(args, where)
    entries = _imported(args) if args.from_vllm_bench else _read(args)
    if len(entries) > 1:
        entries = history.in_order(entries)
    newest = entries[-1].report
    gates = parse_gates(args.fail_if, Known.of(newest))
    where.check()
    if len(entries) > 1:
        _show_history(entries, gates, where)
    else:
        show_report(newest, gates, where)
    return exit_code(check_gates(gates, newest))


def _show_staging(args: argparse.Namespace, where: Outputs) -> int:
    if len(args.files) > 1 or args.from_vllm_bench or args.out or asked_for(args) != NOTHING_MORE:
        raise CompareError(
            f"{', '.join(args.files)}: the report of a staging log is shown alone; give one such file, with gates and "
            "outputs only"
        )
    return staging_command.show(read_staging(args.files[0]), args.fail_if, where)


def _read(args: argparse.Namespace) -> list[Entry]:
    if not args.files:
        raise CompareError("no report is given; name files that `specplug compare --out` wrote, or --from-vllm-bench")
    if args.out or asked_for(args) != NOTHING_MORE:
        raise CompareError(
            "--out, --slo and --gpu-hour-price make a new report, which takes --from-vllm-bench; for a report that is "
            "there give them to `specplug compare`"
        )
    return [Entry(path, read_shown(path)) for path in args.files]


def _imported(args: argparse.Namespace) -> list[Entry]:
    if args.files:
        raise CompareError(f"{args.files[0]!r} is no NAME=FILE; give reports or --from-vllm-bench, not both")
    if args.out:
        check_writable(args.out)
    report = bench_report(parse_bench_arms(args.from_vllm_bench), asked_for(args), argv=sys.argv)
    if args.out:
        write_report(report, args.out)
    return [Entry(args.out or "--from-vllm-bench", report)]


def read_shown(path: str) -> dict[str, Any]:
    """Read a report that has all that tables and pages show.

    Raises:
        CompareError: it cannot be read, is not of this schema, or lacks something; naming the file.
    """
    remedy = "give a file that `specplug compare --out` wrote"
    try:
        report = read_report(path)
    except CompareError as error:
        raise CompareError(f"{error}; {remedy}") from error
    for key, inner in _SHOWN.items():
        if key not in report:
            raise CompareError(f"{path}: {key} is missing, which is needed to show it; {remedy}")
        for name in inner:
            if not isinstance(report[key], dict) or name not in report[key]:
                raise CompareError(f"{path}: {key}.{name} is missing, which is needed to show it; {remedy}")
    _check_arms(report, path, remedy)
    return report


def _check_arms(report: Mapping[str, Any], path: str, remedy: str) -> None:
    """Every comparison must have what stands beside it in the tables."""
    baseline = report["baseline"]
    if baseline not in report["results"]:
        raise CompareError(f"{path}: baseline is {baseline!r}, which has no results; {remedy}")
    for key in ("loops", "repeats"):
        if not isinstance(report[key], dict) or baseline not in report[key]:
            raise CompareError(f"{path}: {key}.{baseline} is missing, which is needed to show it; {remedy}")
    for index, comparison in enumerate(report["comparisons"]):
        for key in ("categories", "looping", "not_looping"):
            if key not in comparison:
                raise CompareError(
                    f"{path}: comparisons[{index}].{key} is missing, which is needed to show it; {remedy}"
                )
        for section in ("lossless", "theory"):
            if comparison["arm"] not in report[section]:
                raise CompareError(f"{path}: {section}.{comparison['arm']} is missing; {remedy}")


def _show_history(entries: Sequence[Entry], gates: Sequence[Gate], where: Outputs) -> None:
    before, newest = entries[-2].report, entries[-1].report
    outcomes = check_gates(gates, newest)
    put_out(
        where,
        outcomes,
        tables=lambda file: history_show.print_history(entries, file),
        html=lambda: history_show.history_page(entries),
        markdown=lambda: history_show.history_markdown(entries, outcomes),
        junit=lambda: render_junit(newest, outcomes),
        value={
            "reports": history.rows(entries),
            "incomparable": history.incomparable(before, newest),
            "changes": history.changes(before, newest),
        },
    )
