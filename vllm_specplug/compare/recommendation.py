"""What to ship, as data: the comparisons of a report taken together. Computes no statistics; `sentences` has the words.

The best arm is the one whose interval begins highest. Faster arms whose intervals reach as high as that are tied with
it: comparisons with one baseline do not tell which of them is faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

DECIDED = ("faster", "slower")
OUTCOMES = ("ship", "keep", "undecided")

_Row = Mapping[str, Any]


def recommend(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report's `recommendation`, without its sentences.

    Returns:
        withheld: why there is none, null where there is one. candidates: arms that may be shipped. overall,
        categories.<category>: choices, see `_choice`; null and empty where there are no candidates. excluded.<arm>:
        why it may not be shipped, whatever its speed. cautions.<arm>: what to know before it is. load.<arm>: of the
        report's `load.advice`.
    """
    copies = _copies_of_baseline(report)
    excluded = _excluded(report, copies)
    withheld = _why_withheld(report, copies)
    rivals = [row for row in report["comparisons"] if row["arm"] not in excluded and row["arm"] not in copies]
    if withheld is not None:
        rivals = []
    names = dict.fromkeys(name for row in rivals for name in row["categories"])
    parts = {
        name: [{**row["categories"][name], "arm": row["arm"]} for row in rivals if name in row["categories"]]
        for name in names
    }
    advice = (report.get("load") or {}).get("advice") or {}
    return {
        "withheld": withheld,
        "candidates": [row["arm"] for row in rivals],
        "overall": _choice(rivals) if rivals else None,
        "categories": {name: _choice(rows) for name, rows in parts.items()},
        "excluded": excluded,
        "cautions": {row["arm"]: found for row in rivals if (found := _cautions(report, row))},
        "load": {row["arm"]: dict(advice[row["arm"]]) for row in rivals if row["arm"] in advice},
    }


def _choice(rows: Sequence[_Row]) -> dict[str, Any]:
    """Between some arms and the baseline, over all or in one category.

    Returns:
        outcome: ship (an arm is faster), keep (every arm is decided, none is faster) or undecided. arms: what to ship,
        the best first, those tied with it behind; where undecided, the arms that are. slower: arms found so.
        more_prompts: where undecided, prompts to be added that would probably decide all of `arms`; null: unknown.
    """
    slower = [row["arm"] for row in rows if row["verdict"] == "slower"]
    faster = sorted((row for row in rows if row["verdict"] == "faster"), key=lambda row: -row["ci95"][0])
    if faster:
        tied = [row["arm"] for row in faster if row["ci95"][1] >= faster[0]["ci95"][0]]
        return {"outcome": "ship", "arms": tied, "slower": slower, "more_prompts": None}
    undecided = [row for row in rows if row["verdict"] == "undecided"]
    more = [row["prompts_to_decide"] - row["prompts"] for row in undecided if row.get("prompts_to_decide")]
    return {
        "outcome": "undecided" if undecided else "keep",
        "arms": [row["arm"] for row in undecided],
        "slower": slower,
        "more_prompts": max(more) if more and len(more) == len(undecided) else None,
    }


def _copies_of_baseline(report: Mapping[str, Any]) -> set[str]:
    """Arms configured as the baseline is: they differ from it by noise alone."""
    told = {arm["name"]: _configuration(arm) for arm in report["arms"]}
    baseline = report["baseline"]
    return {name for name, configuration in told.items() if name != baseline and configuration == told[baseline]}


def _configuration(arm: Mapping[str, Any]) -> tuple[Any, ...]:
    # Imported reports know nothing of an arm but its file.
    return (arm["speculative_config"], arm.get("engine_args") or {}, arm.get("endpoint"), arm.get("sha256"))


def _excluded(report: Mapping[str, Any], copies: set[str]) -> dict[str, str]:
    reasons = {}
    for row in report["comparisons"]:
        answers = report["lossless"].get(row["arm"])
        if row["arm"] in copies:
            continue
        if answers is not None and answers["different"]:
            beyond = "" if "imported_from" in report else " beyond rounding"
            reasons[row["arm"]] = (
                f"{answers['different']} of {answers['prompts']} answers differ from those of {row['against']}{beyond}"
            )
        elif row.get("undecided_reason") or row.get("incomparable"):
            reasons[row["arm"]] = row.get("undecided_reason") or row["incomparable"]
    return reasons


def _why_withheld(report: Mapping[str, Any], copies: set[str]) -> str | None:
    if report.get("too_noisy"):
        return f"the run is too noisy: {report['baseline']} {report['too_noisy_reason']}"
    for row in report["comparisons"]:
        if row["arm"] in copies and row["verdict"] in DECIDED:
            return f"{row['arm']}, configured as {row['against']} is, was found {row['verdict']}: that is noise"
    if all(row["arm"] in copies for row in report["comparisons"]):
        return f"{report['baseline']} was compared with itself alone"
    return None


def _cautions(report: Mapping[str, Any], row: _Row) -> list[str]:
    name = row["arm"]
    found = []
    answers = report["lossless"].get(name)
    if answers is None or not answers["prompts"]:
        found.append(f"its answers were not compared with those of {row['against']}")
    errors = report["results"][name].get("errors")
    failed, requests = (errors["failed"], errors["requests"]) if errors else _failed_when_imported(report, name)
    if failed:
        found.append(f"{failed} of its {requests} requests failed")
    looping, others = row.get("looping"), row.get("not_looping")
    if row["verdict"] == "faster" and looping is not None and others is not None and others["verdict"] != "faster":
        found.append(f"without the answers that loop its speed is {others['verdict']}")
    if "imported_from" in report:
        found.append("the arms were measured one after the other, so what drifted in between is in the ratio")
    return found


def _failed_when_imported(report: Mapping[str, Any], name: str) -> tuple[int, int]:
    overall = report["results"][name]["overall"]
    failed: int = overall.get("failed", 0)
    return failed, failed + overall.get("requests", 0)
