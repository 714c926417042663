"""What to know before believing a report, a sentence each: noise, failures, loops, costs, answers that differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_specplug.compare.cells import number, ratio_text
from vllm_specplug.compare.extra_columns import extra_notes
from vllm_specplug.compare.failed_requests import failure_notes
from vllm_specplug.compare.load_show import load_notes


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
    elif floors and not imported(report):
        lines.append(
            "Noise: not known, every prompt was measured once. On a machine that is not idle verdicts of one pass are "
            "wrong more often than they say; --passes 2 measures it."
        )
    for name, entry in report["repeats"].items():
        changed = entry["prompts_answered_differently"]
        if changed:
            lines.append(f"{name}: answered {changed} prompts differently from pass to pass.")
    return lines + load_notes(report) + extra_notes(report)


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
