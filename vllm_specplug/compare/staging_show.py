"""The report of a staging log as tables in a terminal and as Markdown. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from vllm_specplug.compare import markdown
from vllm_specplug.compare.cells import number
from vllm_specplug.compare.gate import Outcome
from vllm_specplug.compare.staging_sentences import NAMES
from vllm_specplug.console import report_console

SPEEDS_NOTE = f"Speeds: {', '.join(f'{key} {about}' for key, about in NAMES.items())}; above 1x is faster."
ERRORS_NOTE = "Errors: of 100 requests, so many more fail than of the baseline's."
COMPARED = ("arm", "speed", "ratio (many looks)", "verdict", "requests", "users", "one look (95 %)", "p (ranks)")
MEASURED = (
    "arm",
    "requests",
    "users",
    "failed",
    "cancelled",
    "moved",
    "stood in",
    "lost",
    "tok/s",
    "ttft p50/p90/p99",
    "tpot",
)
SPLIT = ("arm", "drawn", "expected")


def compared_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Under COMPARED: each arm's speeds, then its errors."""
    rows: list[tuple[str, ...]] = []
    for row in report["comparisons"]:
        for key, speed in row["speeds"].items():
            once = speed["once"]
            rows.append(
                (
                    row["arm"],
                    key,
                    "-" if speed["ratio"] is None else f"{speed['ratio']:.2f}x{_spread(speed['interval'])}",
                    speed["verdict"],
                    _pair(speed["requests"]),
                    _pair(speed["units"]),
                    _spread(once and once["ci95"]).strip(" ()") or "-",
                    "-" if once is None else f"{once['mann_whitney_p']:.2g}",
                )
            )
        errors = row["errors"]
        if errors is not None:
            shown = f"{100 * errors['difference']:+.2f} points{_spread(errors['interval'], 100)}"
            rows.append((row["arm"], "errors", shown, errors["verdict"], "-", "-", "-", "-"))
    return rows


def measured_rows(results: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Under MEASURED: what each arm did."""
    return [
        (
            arm,
            f"{result['requests']:,}",
            f"{result['units']:,}",
            *(f"{result.get(key, 0):,}" for key in ("failed", "cancelled", "moved", "stood_in", "without_outcome")),
            number(result["output_tokens_per_s"], 1),
            _percentiles(result["ttft_ms"]),
            _percentiles(result["tpot_ms"]),
        )
        for arm, result in results.items()
    ]


def split_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Under SPLIT: draws of each arm and those that the weights let expect."""
    split = report["split"]
    return [(arm, f"{count:,}", f"{split['expected'][arm]:,.1f}") for arm, count in split["observed"].items()]


def title(report: Mapping[str, Any]) -> str:
    """What the report is about."""
    told, log = report["provenance"], report["log"]
    drawn = sum(result["requests"] for result in report["results"].values())
    return (
        f"{report['model']} in staging: {drawn:,} requests drawn by weight of {sum(log['by'].values()):,}, from "
        f"{told['started_at'][:16].replace('T', ' ')} to {told['ended_at'][:16].replace('T', ' ')}"
    )


def split_text(report: Mapping[str, Any]) -> str:
    """Of the chi-square test."""
    p_value = report["split"]["p_value"]
    if p_value is None:
        return "too few draws for a test"
    return f"{'MISMATCH' if report['split']['mismatch'] else 'as the weights say'}, p = {p_value:.2g}"


def _percentiles(values: Mapping[str, float] | None) -> str:
    if values is None:
        return "-"
    digits = 0 if values["p50"] >= 100 else 1
    return " / ".join(number(values[key], digits) for key in ("p50", "p90", "p99"))


def _pair(values: Sequence[int]) -> str:
    return " : ".join(f"{value:,}" for value in values)


def _spread(interval: Sequence[float] | None, factor: float = 1) -> str:
    return "" if interval is None else f" ({factor * interval[0]:.2f} to {factor * interval[1]:.2f})"


def print_staging(report: Mapping[str, Any], file: TextIO | None = None) -> None:
    """Print the verdict, what was compared, what each arm did, the split, and what to know before believing it."""
    console = report_console(file)
    style = "bold red" if report["recommendation"]["withheld"] else "bold"
    console.print(f"[{style}]Verdict.[/] " + escape(" ".join(report["recommendation"]["sentences"])))
    console.print(_table(title(report), COMPARED, compared_rows(report), num_texts=2))
    console.print(_table("What each arm did", MEASURED, measured_rows(report["results"])))
    drawn = ", ".join(f"{arm} {count} ({expected} expected)" for arm, count, expected in split_rows(report))
    console.print(escape(f"Split: {split_text(report)}; {drawn}."))
    for line in (SPEEDS_NOTE, ERRORS_NOTE):
        console.print(escape(line))
    for line in report["remarks"]:
        console.print(escape(line))


def _table(heading: str, header: Sequence[str], rows: Iterable[Sequence[str]], num_texts: int = 1) -> Table:
    table = Table(title=escape(heading), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index < num_texts else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def staging_markdown(report: Mapping[str, Any], outcomes: Sequence[Outcome] = ()) -> str:
    """The same as Markdown, fit for a pull request; all text is escaped."""
    parts = [
        f"### {markdown.escape(title(report))}",
        f"**{markdown.escape(' '.join(report['recommendation']['sentences']))}**",
        *([markdown.gate_table(outcomes)] if outcomes else []),
        _markdown_table(COMPARED, compared_rows(report), num_texts=2),
        f"{SPEEDS_NOTE} {ERRORS_NOTE}",
        _markdown_table(MEASURED, measured_rows(report["results"])),
        f"Split: {split_text(report)}",
        _markdown_table(SPLIT, split_rows(report)),
        *([markdown.bullets(map(markdown.escape, report["remarks"]))] if report["remarks"] else []),
        markdown.folded("How it was measured", provenance_rows(report)),
    ]
    return "\n\n".join(parts) + "\n"


def _markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], num_texts: int = 1) -> str:
    return markdown.table(header, [tuple(map(markdown.escape, row)) for row in rows], num_texts)


def provenance_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values, not escaped."""
    told, log, settings = report["provenance"], report["log"], report["settings"]
    changed = ", changed" if told.get("dirty") else ""
    return [
        ("vllm-specplug", f"{told['specplug']}, commit {told['commit'] or 'unknown'}{changed}"),
        ("model", report["model"]),
        ("first and last request", f"{told['started_at']}, {told['ended_at']}"),
        ("log", f"{log['exposures']:,} exposures, {log['outcomes']:,} outcomes in {', '.join(log['files'])}"),
        ("requests by", ", ".join(f"{reason} {count:,}" for reason, count in log["by"].items())),
        ("command", " ".join(map(str, told["argv"])) or "-"),
        ("settings", ", ".join(f"{key} {value}" for key, value in settings.items())),
    ]
