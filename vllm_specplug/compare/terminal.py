"""A report as tables in a terminal, and the progress of a run."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from vllm_specplug.compare.extra_columns import extra_cells, extra_headings, extra_notes
from vllm_specplug.compare.failed_requests import failure_notes
from vllm_specplug.compare.measure import Progress
from vllm_specplug.compare.power import MAX_PROMPTS, check_effect, prompts_needed

PLAIN_LINE_EVERY_S = 10.0
PLAIN_WIDTH = 120
"""Columns of tables that go into a file."""
_HEADINGS = ("ratio (95 %)", "verdict", "tok/s", "tok/fwd", "acc.len", "acc.rate")
_COLOURS = {"faster": "green", "slower": "red", "no difference": "cyan", "undecided": "yellow"}


def ratio_text(comparison: Mapping[str, Any] | None) -> str:
    """For example '1.42x (1.31 to 1.55)'."""
    if comparison is None:
        return "-"
    interval = comparison["ci95"]
    spread = f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval is not None else " (no interval)"
    return f"{comparison['ratio']:.2f}x{spread}"


def number(value: float | None, digits: int = 2) -> str:
    """A number, '-' for null."""
    return "-" if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    """A share as per cent, '-' for null."""
    return "-" if value is None else f"{100 * value:.0f} %"


def print_report(report: Mapping[str, Any], file: TextIO | None = None) -> None:
    """Print an overall table, one per arm by category, and what to know before believing them."""
    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    comparisons = {comparison["arm"]: comparison for comparison in report["comparisons"]}
    console.print(_overall(report, comparisons))
    for name, comparison in comparisons.items():
        console.print(_by_category(report, name, comparison))
    for line in notes(report):
        console.print(escape(line))


def _overall(report: Mapping[str, Any], comparisons: Mapping[str, Any]) -> Table:
    title = f"{report['target']} · {report['dtype']} · {report['workload']['prompts']} prompts"
    table = _table("arm", title)
    for heading in (*_HEADINGS, *extra_headings(report), "same/tie/other"):
        table.add_column(heading, justify="right")
    for name, results in report["results"].items():
        overall, comparison = results["overall"], comparisons.get(name)
        table.add_row(
            escape(name),
            "1" if comparison is None else ratio_text(comparison),
            "" if comparison is None else _verdict(comparison["verdict"]),
            *_speed_cells(overall),
            *extra_cells(report, overall),
            _answers_cell(report["lossless"].get(name)),
        )
    return table


def _by_category(report: Mapping[str, Any], name: str, comparison: Mapping[str, Any]) -> Table:
    table = _table("category", f"{name} by category")
    for heading in (*_HEADINGS, *extra_headings(report)):
        table.add_column(heading, justify="right")
    for category, part in comparison["categories"].items():
        result = report["results"][name]["categories"][category]
        cells = (*_speed_cells(result), *extra_cells(report, result))
        table.add_row(escape(category), ratio_text(part), _verdict(part["verdict"]), *cells)
    return table


def _table(first: str, title: str) -> Table:
    return Table(first, title=escape(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))


def _speed_cells(result: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        number(result["output_tokens_per_s"], 1),
        number(result["tokens_per_forward"]),
        number(result["acceptance_length"]),
        percent(result["acceptance_rate"]),
    )


def _verdict(verdict: str) -> str:
    return f"[{_COLOURS[verdict]}]{verdict}[/]"


def _answers_cell(entry: Mapping[str, Any] | None) -> str:
    return "-" if entry is None else f"{entry['identical']}/{entry['near_ties']}/{entry['different']}"


def notes(report: Mapping[str, Any]) -> list[str]:
    """What to know before believing the numbers, a sentence each."""
    lines: list[str] = []
    if report.get("too_noisy"):
        lines.append(
            f"Too noisy to decide anything: {report['baseline']} {report['too_noisy_reason']}. Every verdict is "
            "undecided; measure on a quieter machine or with more passes."
        )
    lines += _sitting_note(report)
    lines += failure_notes(report)
    lines += report.get("remarks", [])
    loops = report["loops"][report["baseline"]]
    if loops["prompts"]:
        lines.append(
            f"{loops['looping']} of {loops['prompts']} answers of {report['baseline']} loop (over 15 % repeated "
            "4-grams)."
        )
    for comparison in report["comparisons"]:
        name = comparison["arm"]
        if loops["looping"]:
            lines.append(
                f"{name}: {ratio_text(comparison['looping'])} on looping answers, "
                f"{ratio_text(comparison['not_looping'])} on the others."
            )
        lines += _decision_notes(comparison)
        theory = report["theory"][name]
        if theory["draft_cost_ratio"] is not None:
            lines.append(
                f"{name}: a step's drafts take {100 * theory['draft_cost_ratio']:.1f} % of the time of a step of "
                f"{comparison['against']}, checking them takes {theory['verify_cost_ratio']:.2f} times as long as one."
            )
        lines += _cache_note(report, name)
        answers = report["lossless"][name]
        different = 0 if answers is None else answers["different"]
        if answers is None and not imported(report):
            lines.append(f"{name}: not compared with the answers of {comparison['against']}: token ids are not told.")
        if different:
            beyond = "" if imported(report) else " beyond rounding"
            lines.append(f"{name}: {different} answers differ from {comparison['against']}{beyond}.")
        lines += _stop_note(report, name)
    floors = report.get("noise", {})  # reports of former versions do not have it
    noise = [f"{name} {ratio_text(floor)}" for name, floor in floors.items() if floor is not None]
    if noise:
        lines.append(f"Noise: each arm's later passes over its earlier ones (1 without any): {', '.join(noise)}.")
    for name, entry in report["repeats"].items():
        changed = entry["prompts_answered_differently"]
        if changed:
            lines.append(f"{name}: answered {changed} prompts differently from pass to pass.")
    return lines + extra_notes(report)


def imported(report: Mapping[str, Any]) -> bool:
    """Whether another program measured: nothing is known of how its engines took turns, nor of near ties."""
    return "imported_from" in report


def _sitting_note(report: Mapping[str, Any]) -> list[str]:
    before = report["provenance"].get("resumed")
    if not before:
        return []
    return [
        f"{before['blocks']} blocks were measured in an earlier run, begun {before['started_at']}, which was "
        "interrupted; this one went on after them."
    ]


def _stop_note(report: Mapping[str, Any], name: str) -> list[str]:
    """Why vLLM counts more accepted drafts than reached the answers."""
    overall = report["results"][name]["overall"]
    accepted, emitted = overall["num_accepted_tokens"], overall["num_emitted_accepted_tokens"]
    if accepted is None or emitted is None or accepted == emitted:
        return []
    ends = overall.get("finish_reasons", {})
    reasons = ", ".join(f"{count} {reason}" for reason, count in ends.items())
    return [
        f"{name}: vLLM counts {accepted:,} accepted drafts, the answers have {emitted:,} tokens more than steps: "
        f"drafts behind an answer's end are accepted, then cut off (ends: {reasons}). Tokens/forward is of the latter."
    ]


def _decision_notes(comparison: Mapping[str, Any]) -> list[str]:
    """What would decide an undecided comparison, and whether ranks agree with a decided one."""
    name, lines = comparison["arm"], []
    parts = {"overall": comparison, **comparison["categories"]}
    needed = {part: found["prompts_to_decide"] for part, found in parts.items() if found.get("prompts_to_decide")}
    if needed:
        counts = ", ".join(f"{part} {number(count, 0)}" for part, count in needed.items())
        lines.append(f"{name}: prompts that would decide what is undecided (90 % chance, rough): {counts}.")
    ranks = comparison.get("wilcoxon")
    if comparison["verdict"] in ("faster", "slower") and ranks is not None and ranks["p_value"] > 0.05:
        lines.append(
            f"{name}: {comparison['verdict']}, yet prompts taken by rank do not show it (Wilcoxon p = "
            f"{ranks['p_value']:.2f}): few of them carry the difference."
        )
    return lines


def power_lines(report: Mapping[str, Any], effect: float) -> list[str]:
    """How many prompts would find an effect with 90 % power, a sentence per arm.

    Args:
        effect: change of speed, 0.05 for 5 % faster.
    Raises:
        CompareError: the effect is no change of speed.
    """
    check_effect(effect)
    lines = []
    for comparison in report["comparisons"]:
        categories = comparison["categories"]
        counts = {"over all categories": _needed(comparison, effect, 0.95, len(categories))}
        # The level that Holm asks of the first category to be decided.
        level = 1 - 0.05 / len(categories)
        counts |= {category: _needed(part, effect, level, 1) for category, part in categories.items()}
        found = ", ".join(f"{where} {count}" for where, count in counts.items())
        lines.append(f"{comparison['arm']}: prompts that find {100 * effect:+g} % with 90 % power: {found}.")
    return lines


def _needed(comparison: Mapping[str, Any], effect: float, level: float, num_strata: int) -> str:
    spread = comparison["log_ratio_sd"]
    if spread is None:
        return "unknown"
    needed = prompts_needed(spread, effect, level=level, num_strata=num_strata)
    return f"over {MAX_PROMPTS:,}" if needed is None else f"{needed:,}"


def _cache_note(report: Mapping[str, Any], name: str) -> list[str]:
    """What an arm's drafter takes of the KV cache, where it takes any."""
    caches = {arm["name"]: arm.get("kv_cache") for arm in report["arms"]}
    mine, plain = caches[name], caches[report["baseline"]]
    if not mine or not plain or not mine["num_blocks"] or mine["num_blocks"] >= plain["num_blocks"]:
        return []
    return [
        f"{name}: its engine has {mine['num_blocks']:,} blocks of KV cache, that of {report['baseline']} "
        f"{plain['num_blocks']:,} in the same memory."
    ]


@contextlib.contextmanager
def show_progress() -> Iterator[Progress]:
    """A bar with the time left on a terminal, else one plain line every 10 s; on stderr either way."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield PlainProgress(sys.stderr)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def report(what: str, done: int, total: int) -> None:
            if total and bar.tasks[0].total is None:
                # The time left is that of the measurement, not of the start, nor of what was measured before.
                bar.reset(task, total=total, completed=done)
            bar.update(task, description=escape(what), completed=done, total=total or None)

        yield report


class PlainProgress:
    """Progress for logs: a line at most every 10 s, with the time left once it can be told."""

    def __init__(self, file: TextIO, every_s: float = PLAIN_LINE_EVERY_S) -> None:
        self._file = file
        self._every_s = every_s
        self._last_s = float("-inf")
        self._start_s: float | None = None
        self._done_before = 0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if total and self._start_s is None:
            self._start_s, self._done_before = now, done  # a run that goes on has done some before
        if now - self._last_s < self._every_s and done < max(total, 1):
            return
        self._last_s = now
        if not total:
            print(what, file=self._file, flush=True)
            return
        left = ""
        if self._start_s is not None and done > self._done_before:
            left = f", {(now - self._start_s) / (done - self._done_before) * (total - done):.0f} s left"
        print(f"{done}/{total} {what}{left}", file=self._file, flush=True)
