"""A report as one HTML page that needs nothing else: no network, plots drawn in place, tables that can be sorted."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from vllm_specplug.compare import page_load, page_plots, page_tables
from vllm_specplug.compare.notes import imported, notes
from vllm_specplug.compare.page_parts import Section, document, list_of
from vllm_specplug.compare.plots import verdict_class
from vllm_specplug.compare.sentences import sentences


def render_page(report: Mapping[str, Any]) -> str:
    """The page: the verdict first, then plots, tables, losslessness and how it was measured. All text is escaped."""
    sections = [
        Section("verdict", "Verdict", _verdict(report)),
        Section("speed", "Speed by category", page_plots.ratio_plots(report)),
        Section("acceptance", "Acceptance by position", page_plots.acceptance_plot(report)),
        Section("latency", "Latency", page_plots.latency_plot(report)),
        *([Section("load", "Under load", page_load.load(report))] if report.get("load") else []),
        Section("numbers", "Numbers", page_tables.numbers(report)),
        Section("answers", "Same answers?", page_tables.lossless(report)),
        Section("provenance", "How it was measured", page_tables.provenance(report)),
    ]
    # The whole path of the target stands under provenance.
    return document(f"Speculative decoding on {Path(report['target']).name}", _subtitle(report), sections)


def _subtitle(report: Mapping[str, Any]) -> str:
    workload, settings = report["workload"], report["settings"]
    if imported(report):
        return (
            f'<p class="soft">{workload["prompts"]} requests, measured by {escape(report["imported_from"])}, '
            f"{escape(report['provenance']['started_at'])}</p>"
        )
    return (
        f'<p class="soft">{workload["prompts"]} prompts of {escape(workload["name"])} in '
        f"{len(workload['categories'])} categories, {escape(report['dtype'])}, greedy, at most "
        f"{settings['max_tokens']} output tokens, {settings['batch_size']} at a time, "
        f"{settings['num_passes']} passes, {escape(report['provenance']['started_at'])}</p>"
    )


def _verdict(report: Mapping[str, Any]) -> str:
    first, *rest = sentences(report)
    margin = 100 * report["settings"]["margin"]
    explained = (
        "Ratio of output tokens a second, each category weighing the same. Faster or slower: the interval excludes 1, "
        "and a t test agrees. "
        f"No difference: it lies within {margin:g} % of 1. Undecided: neither; more prompts would tell."
    )
    return (
        f'<p class="first">{escape(first)}</p>{list_of(rest) if rest else ""}'
        f'<ul class="verdicts">{"".join(_card(report, comparison) for comparison in report["comparisons"])}</ul>'
        f'<p class="soft">{escape(explained)}</p><h3>Before you believe it</h3>{list_of(notes(report))}'
    )


def _card(report: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    css = verdict_class(comparison["verdict"])
    return (
        f'<li class="{css}"><strong>{escape(comparison["arm"])}</strong> against '
        f'{escape(comparison["against"])}<span class="ratio">{comparison["ratio"]:.2f}x</span>'
        f'<b class="{css}">{escape(comparison["verdict"])}</b>, {escape(_interval_text(comparison))}<br>'
        f'<span class="soft">{escape(_answers_text(report["lossless"][comparison["arm"]]))}</span></li>'
    )


def _answers_text(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "answers not compared"
    text = f"{entry['identical']} of {entry['prompts']} answers identical, {entry['near_ties']} near ties"
    return text + f", {entry['different']} different"


def _interval_text(comparison: Mapping[str, Any]) -> str:
    if comparison["ci95"] is None:
        return "too few prompts for an interval"
    low, high = comparison["ci95"]
    return f"95 % interval {low:.2f} to {high:.2f}"
