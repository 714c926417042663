"""What a staging log says of each arm, in sentences, and what to know before believing it. Computes no statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

NAMES = {"e2e": "per output token", "tpot": "per further token", "ttft": "to the first token"}
"""Of the speeds, as in 'faster to the first token'."""
MAX_MORE_UNITS = 10_000_000
"""Beyond it no number is named."""
#: Half-width + 1.28 standard errors, in half-widths: what a difference must exceed to be found with 90 % probability.
_SURE = 1 + 1.28 / 3.7
LOST_SHARE = 0.01
"""Share of an arm's requests without an outcome, or cancelled, from which on it is worth a remark."""


def recommendation(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report's `recommendation`.

    Returns:
        sentences. withheld: why there is none, else null. arms.<arm>: ship (a speed is better, none worse, no more
        errors shown), keep (the baseline: a speed is worse, or more errors), weigh (one better, another worse), same or
        undecided. more_units.<arm>: users that would probably end an undecided one; null: unknown.
    """
    split = report["split"]
    if split["mismatch"]:
        told = ", ".join(
            f"{arm} {split['observed'][arm]:,} instead of {split['expected'][arm]:,.0f}" for arm in split["observed"]
        )
        p_value = f"{split['p_value']:.1g}" if split["p_value"] else "0"
        why = f"the split does not fit the weights (p = {p_value}): {told}"
        line = f"No verdict: {why}. Something besides the draw decides who meets which arm; find out what."
        return {"sentences": [line], "withheld": why, "arms": {}, "more_units": {}}
    found = {row["arm"]: _judged(row) for row in report["comparisons"]}
    more = {
        row["arm"]: _more_units(row, report["settings"]["margin"])
        for row in report["comparisons"]
        if found[row["arm"]] == "undecided"
    }
    lines = [_line(row, found[row["arm"]], report, more.get(row["arm"])) for row in report["comparisons"]]
    lines += [
        line
        for row in report["comparisons"]
        if found[row["arm"]] in ("ship", "weigh")
        for line in _caution(row, report)
    ]
    lines += _between([row for row in report["comparisons"] if found[row["arm"]] == "ship"])
    return {"sentences": lines, "withheld": None, "arms": found, "more_units": more}


def _judged(row: Mapping[str, Any]) -> str:
    verdicts = [speed["verdict"] for speed in row["speeds"].values() if speed["ratio"] is not None]
    if row["errors"] is not None and row["errors"]["verdict"] == "more":
        return "keep"
    if "slower" in verdicts:
        return "weigh" if "faster" in verdicts else "keep"
    if "faster" in verdicts:
        return "ship"
    return "undecided" if "undecided" in verdicts or not verdicts else "same"


def _line(row: Mapping[str, Any], judged: str, report: Mapping[str, Any], more: int | None) -> str:
    name, against, errors = row["arm"], row["against"], row["errors"]
    if errors is not None and errors["verdict"] == "more":
        low, high = (100 * end for end in errors["interval"])
        return (
            f"Keep {against}: of 100 requests {100 * errors['difference']:.2g} more fail with {name} ({low:.2g} to "
            f"{high:.2g})."
        )
    faster, slower = _those(row, "faster"), _those(row, "slower")
    if judged == "ship":
        fewer = " and fewer errors" if errors is not None and errors["verdict"] == "fewer" else ""
        return f"Ship {name}: it is faster {faster}{fewer}, slower in nothing that was measured."
    if judged == "weigh":
        return f"Weigh {name}: it is faster {faster}, but slower {slower}."
    if judged == "keep":
        return f"Keep {against}: {name} is slower {slower}."
    if judged == "same":
        return f"{name} makes no difference."
    who = _who(report)
    if more is None:
        return f"{name} is undecided: how many more {who} would tell cannot be said."
    return f"{name} is undecided: about {_about(more)} more {who} would tell."


def _caution(row: Mapping[str, Any], report: Mapping[str, Any]) -> list[str]:
    """An arm that is out while others answer for it fails nobody and is slow for nobody; so it is said."""
    name = row["arm"]
    moved, requests = report["results"][name]["moved"], report["results"][name]["requests"]
    if moved <= LOST_SHARE * requests:
        return []
    return [
        f"Before you ship {name}: {moved:,} of its {requests:,} requests had to leave it, because it was out or "
        "failed; no speed above holds that, and errors only those that nobody else could answer."
    ]


def _those(row: Mapping[str, Any], verdict: str) -> str:
    told = []
    for key, speed in row["speeds"].items():
        if speed["verdict"] == verdict:
            low, high = speed["interval"]
            told.append(f"{NAMES[key]}, {speed['ratio']:.2f}x ({low:.2f} to {high:.2f})")
    return "; ".join(told)


def _between(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of several arms to ship, which one."""
    ranked = sorted(
        (row for row in rows if row["speeds"]["e2e"]["interval"] is not None),
        key=lambda row: -row["speeds"]["e2e"]["interval"][0],
    )
    if len(ranked) < 2:
        return []
    first, *others = ranked
    tied = [
        row["arm"] for row in others if row["speeds"]["e2e"]["interval"][1] >= first["speeds"]["e2e"]["interval"][0]
    ]
    if tied:
        return [f"Between {first['arm']} and {' and '.join(tied)} nothing is decided: their intervals overlap (e2e)."]
    return [f"Of these {first['arm']} is the fastest {NAMES['e2e']}."]


def _more_units(row: Mapping[str, Any], margin: float) -> int | None:
    """From the first speed that is undecided, if its ratio is the truth: to find it, or to see that it is 1."""
    for speed in row["speeds"].values():
        if speed["verdict"] == "undecided" and speed["interval"] is not None:
            width = math.log(speed["interval"][1] / speed["interval"][0]) / 2
            away, least = abs(math.log(speed["ratio"])), math.log1p(margin)
            room = away if away > least else least - away
            if room <= 0:
                return None
            there: int = sum(speed["units"])
            more = math.ceil(there * max(0.0, (width * _SURE / room) ** 2 - 1)) or 1
            return more if more <= MAX_MORE_UNITS else None
    return None


def _who(report: Mapping[str, Any]) -> str:
    alone = all(result["units"] == result["requests"] for result in report["results"].values())
    return "requests" if alone else "users or sessions"


def _about(count: int) -> str:
    step = 10 ** max(0, len(str(count)) - 2)
    return f"{math.ceil(count / step) * step:,}"


def remarks(report: Mapping[str, Any]) -> list[str]:
    """What to know before believing the numbers, a sentence each."""
    log, split, results = report["log"], report["split"], report["results"]
    lines = []
    if split["p_value"] is None:
        lines.append("Too few requests were drawn to tell whether they are split as the weights say.")
    few = [arm for arm, result in results.items() if result["units"] < report["settings"]["min_units"]]
    if few:
        least = report["settings"]["min_units"]
        lines.append(f"{' and '.join(few)}: fewer than {least} users, too few for an interval.")
    for arm, result in results.items():
        for key, what in (
            ("without_outcome", "have no outcome in the log: under way, or lost with their router"),
            ("cancelled", "were cancelled by clients"),
        ):
            if result[key] > LOST_SHARE * result["requests"]:
                lines.append(f"{arm}: {result[key]:,} of {result['requests']:,} requests {what}.")
        if result["errors"]:
            kinds = ", ".join(f"{kind} {count:,}" for kind, count in result["errors"].items())
            ended = result["requests"] - result["without_outcome"]
            lines.append(f"{arm}: {result['failed']:,} of {ended:,} requests failed ({kinds}).")
        if result["uncounted"]:
            lines.append(
                f"{arm}: {result['uncounted']:,} answers without tokens, or without a count of them, are in no speed "
                "per token."
            )
        if result["moved"]:
            hours = (
                "" if log.get("knows_who_was_out") else " Hours in which it was out are in the others' speeds alone."
            )
            lines.append(
                f"{arm}: {result['moved']:,} requests drawn for it were moved to another arm, or back to it after a "
                f"failure; they count among its errors, not in its speeds.{hours}"
            )
        if result.get("stood_in"):
            whom = ", ".join(f"{other} {count:,}" for other, count in result["stood_in_for"].items())
            lines.append(
                f"{arm}: {result['stood_in']:,} requests that were drawn for others ended with it, because their arm "
                f"was out or failed ({whom}); no draw gave it these, so they are in none of its numbers."
            )
    for row in report["comparisons"]:
        ours, theirs = row.get("drawn_while_out", (0, 0))
        if ours or theirs:
            lines.append(
                f"{row['arm']} or {row['against']} was out when {ours:,} and {theirs:,} of their requests were drawn; "
                "these are in none of the speeds compared, since one arm then has the load of two."
            )
    for reason, arms in report["apart"].items():
        if arms:
            told = ", ".join(f"{arm} {result['requests']:,}" for arm, result in arms.items())
            lines.append(f"Not compared, since no draw gave them their arm: {reason} {told}.")
    if split["units_in_several_arms"]:
        lines.append(
            f"{split['units_in_several_arms']:,} users met several arms, as they do when weights change; with each arm "
            "they count as another user."
        )
    broken = {
        "torn": "lines without their end",
        "duplicate_exposures": "exposures that came twice",
        "duplicate_outcomes": "outcomes that came twice",
        "outcomes_without_exposure": "outcomes of requests that the log does not begin with",
    }
    told = ", ".join(f"{log[key]:,} {what}" for key, what in broken.items() if log[key])
    if told:
        lines.append(f"Passed over: {told}.")
    return lines
