"""The tables of a report's page: numbers, answers that differ, how it was measured. All text is escaped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from vllm_specplug.compare.cells import number, percent, ratio_text
from vllm_specplug.compare.extra_columns import extra_cells, extra_headings
from vllm_specplug.compare.notes import imported
from vllm_specplug.compare.page_parts import facts, table

_MAX_DIFFERENCES = 20


def numbers(report: Mapping[str, Any]) -> str:
    """What was measured: all arms, then each by category."""
    comparisons = {comparison["arm"]: comparison for comparison in report["comparisons"]}
    usual = ("tokens/s", "ratio (95 %)", "verdict", "tokens/forward", "acc. length", "acc. rate")
    header = (*usual, *extra_headings(report))
    rows = [
        (name, *_cells(report, result["overall"], comparisons.get(name))) for name, result in report["results"].items()
    ]
    parts = [table("All arms over all categories", ("arm", *header), rows)]
    for name, comparison in comparisons.items():
        categories = report["results"][name]["categories"]
        rows = [
            (category, *_cells(report, result, comparison["categories"].get(category)))
            for category, result in categories.items()
        ]
        parts.append(table(f"{name} by category", ("category", *header), rows))
    parts.append(
        '<p class="soft">Tokens/forward: output tokens for each step of the target, the fairest measure of a drafter '
        "apart from time. Acceptance length: 1 + accepted drafts for each step that held drafts. "
        "Acceptance rate: accepted / drafted.</p>"
    )
    return "".join(parts)


def _cells(
    report: Mapping[str, Any], result: Mapping[str, Any], comparison: Mapping[str, Any] | None
) -> tuple[str, ...]:
    return (
        number(result["output_tokens_per_s"], 1),
        ratio_text(comparison),
        "-" if comparison is None else comparison["verdict"],
        number(result["tokens_per_forward"]),
        number(result["acceptance_length"]),
        percent(result["acceptance_rate"]),
        *extra_cells(report, result),
    )


def lossless(report: Mapping[str, Any]) -> str:
    """Which answers differ from the baseline's, and where."""
    tolerance = report["settings"]["near_tie_tolerance"]
    explained = (
        "Every answer is compared with the baseline's, token for token. Where they part, a near tie means that "
        f"both tokens lie within {tolerance:g} of the baseline's most probable one in log-probability, so that "
        "rounding decides; anything else counts as different."
    )
    if imported(report):
        explained = "Texts are compared as they are. Whether rounding explains a difference cannot be told from texts."
    rows = [
        (name, *(str(entry[key]) for key in ("prompts", "identical", "near_ties", "different")))
        for name, entry in report["lossless"].items()
        if entry is not None
    ]
    parts = [
        f"<p>{explained}</p>",
        table("Answers compared with the baseline's", ("arm", "prompts", "identical", "near ties", "different"), rows),
    ]
    for name, entry in report["lossless"].items():
        if entry is None:
            continue
        shown = sorted(entry["differences"], key=lambda difference: difference["near_tie"])[:_MAX_DIFFERENCES]
        if shown:
            cells = [
                (
                    difference["prompt_id"],
                    str(difference["position"]),
                    _token(difference["baseline_token"]),
                    _token(difference["arm_token"]),
                    number(difference["gap"], 3),
                    "near tie" if difference["near_tie"] else "different",
                )
                for difference in shown
            ]
            header = ("prompt", "position", "baseline token", "arm token", "gap", "judged")
            parts.append(table(f"First differences of {name}, at most {_MAX_DIFFERENCES}", header, cells))
    return "".join(parts)


def _token(token: int | None) -> str:
    return "(end)" if token is None else str(token)


def provenance_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of versions, machine and settings; not escaped."""
    told, machine = report["provenance"], report["provenance"]["machine"]
    commit = told["commit"] or "unknown"
    return [
        ("vllm-specplug", f"{told['specplug']}, commit {commit}{', changed' if told.get('dirty') else ''}"),
        ("target", str(report["target"])),
        ("vLLM, torch, Python", ", ".join(str(told.get(key, "-")) for key in ("vllm", "torch", "python"))),
        ("machine", ", ".join(f"{key} {value}" for key, value in machine.items())),
        ("took", f"{told.get('duration_s', '-')} s"),
        ("command", " ".join(map(str, told["argv"])) or "-"),
        ("prompts", f"{report['workload']['name']}, sha256 {report['workload']['sha256']}"),
        ("settings", json.dumps(report["settings"])),
        *((f"arm {arm['name']}", json.dumps(_arm_config(arm))) for arm in report["arms"]),
    ]


def provenance(report: Mapping[str, Any]) -> str:
    """Versions, machine, settings."""
    how = (
        "All engines were alive at once and one worked at a time; for each prompt the arms ran in order, then in "
        "reverse order. Warm-up runs were thrown away. Prefix caching was off."
    )
    if imported(report):
        how = f"Each arm was measured by {escape(report['imported_from'])}, apart from the others."
    return f"{facts('Versions, machine and settings', provenance_rows(report))}<p>{how}</p>"


def _arm_config(arm: Mapping[str, Any]) -> Any:
    if "file" in arm:  # of a report that was made from other programs' files, which do not say more
        return {"file": arm["file"], "sha256": arm["sha256"]}
    if arm.get("endpoint"):
        return {"endpoint": arm["endpoint"]}
    if arm.get("engine_args"):
        return {"speculative_config": arm["speculative_config"], "engine_args": arm["engine_args"]}
    return arm["speculative_config"]
