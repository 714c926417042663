"""The verdict of a report in sentences, which come first wherever a report is shown. Decides nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vllm_specplug.compare.recommendation import recommend

UNNAMED = "all"
"""Category of prompts that name none."""
ENDLESS = "inf"
"""Requests a second where all come at once."""
_UNKNOWN = "how many more prompts would tell cannot be said"

_Choice = Mapping[str, Any]


def recommendation(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report's `recommendation`: that of `recommend` and, first, its `sentences`."""
    found = recommend(report)
    return {"sentences": _sentences(report, found), **found}


def sentences(report: Mapping[str, Any]) -> list[str]:
    """What to ship, for people. Reports of former versions do not hold it; then it is made here."""
    held = report.get("recommendation") or recommendation(report)
    told: list[str] = held["sentences"]
    return told


def _sentences(report: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    if found["withheld"] is not None:
        return [f"No recommendation: {found['withheld']}."]
    excluded = [f"{name} is not recommended: {reason}." for name, reason in found["excluded"].items()]
    if not found["candidates"]:
        return [*excluded, f"No arm is left to take the place of {report['baseline']}."]
    categories = found["categories"]
    in_parts = [
        *_ship(categories),
        *_keep(categories, report["baseline"], found["candidates"]),
        *_undecided(categories),
    ]
    together = _together(report, found) if len(categories) > 1 else []
    ships = any(choice["outcome"] == "ship" for choice in categories.values())
    shipped = list(dict.fromkeys(name for choice in _choices(found) for name in _arms_to_ship(choice)))
    return [
        *([*in_parts, *together] if ships else [*together, *in_parts]),
        *_load(found["load"], shipped),
        *excluded,
        *(f"Before you ship {name}: {'; '.join(told)}." for name, told in found["cautions"].items() if name in shipped),
    ]


def _choices(found: Mapping[str, Any]) -> list[_Choice]:
    return [found["overall"], *found["categories"].values()]


def _arms_to_ship(choice: _Choice) -> list[str]:
    return choice["arms"] if choice["outcome"] == "ship" else []


def _ship(categories: Mapping[str, _Choice]) -> list[str]:
    """A sentence for each arm, or arms that are tied, with all categories it is best in."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, choice in categories.items():
        if choice["outcome"] == "ship":
            groups.setdefault(tuple(choice["arms"]), []).append(name)
    return [f"Ship {_one_of(arms)}{_for(names, categories)}{_tie(arms)}." for arms, names in groups.items()]


def _keep(categories: Mapping[str, _Choice], baseline: str, candidates: Sequence[str]) -> list[str]:
    """Where every arm is decided and none is faster; slower ones are named."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, choice in categories.items():
        if choice["outcome"] == "keep":
            groups.setdefault(tuple(choice["slower"]), []).append(name)
    lines = []
    for slower, names in groups.items():
        where = _for(names, categories)
        if slower:
            verb = "is" if len(slower) == 1 else "are"
            lines.append(f"Keep {baseline}{where}: {_joined(slower)} {verb} slower.")
        elif len(candidates) == 1:
            lines.append(f"{candidates[0]} makes no difference{where}.")
        else:
            lines.append(f"No arm is faster than {baseline}{where}.")
    return lines


def _undecided(categories: Mapping[str, _Choice]) -> list[str]:
    """Where some arm may be faster, and how many more prompts would tell; one sentence more where that is unknown."""
    choices = {name: choice for name, choice in categories.items() if choice["outcome"] == "undecided"}
    known = {name: choice["more_prompts"] for name, choice in choices.items() if choice["more_prompts"] is not None}
    unknown = [name for name in choices if name not in known]
    lines = []
    if known:
        low, high = (_about(pick(known.values())) for pick in (min, max))
        count = low if low == high else f"{low} to {high}"
        prompts = "prompt" if count == "1" else "prompts"
        each = " in each" if len(known) > 1 else ""
        lines.append(f"Undecided{_for(list(known), categories)}: about {count} more {prompts}{each} would tell.")
    if unknown:
        lines.append(f"Undecided{_for(unknown, categories)}: {_UNKNOWN}.")
    return lines


def _together(report: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Over all categories, which weigh the same."""
    choice, where = found["overall"], "over all categories together"
    if choice["outcome"] == "ship":
        told = {row["arm"]: row for row in report["comparisons"]}
        arms = choice["arms"]
        ratios = _joined([f"{told[name]['ratio']:.2f}x" for name in arms])
        if any(_arms_to_ship(part) for part in found["categories"].values()):
            verb = "is" if len(arms) == 1 else "are"
            return [f"{where.capitalize()} {_joined(arms)} {verb} faster, {ratios}{_tie(arms)}."]
        pronoun = "it is" if len(arms) == 1 else "they are"
        return [
            f"Ship {_one_of(arms)} for a mix of prompts like this one: {where} {pronoun} faster, {ratios}{_tie(arms)}."
        ]
    if choice["outcome"] == "keep":
        return [f"{where.capitalize()} no arm is faster than {report['baseline']}."]
    more = choice["more_prompts"]
    needed = _UNKNOWN if more is None else f"about {_about(more)} more prompts would tell"
    return [f"{where.capitalize()} it is undecided: {needed}."]


def _load(advice: Mapping[str, Mapping[str, Any]], shipped: Sequence[str]) -> list[str]:
    """How far the speed holds under load: of what is to be shipped, else of what is faster at least under some."""
    lines = []
    for name, told in advice.items():
        up_to, start, unit = told["faster_up_to"], told["slower_from"], told["unit"]
        if name not in shipped and (shipped or up_to is None):
            continue
        if up_to == ENDLESS:
            lines.append(f"Under load {name} is faster even when all requests come at once.")
        elif up_to is not None:
            beyond = "that it is beyond was not shown" if start is None else f"switch it off {_from(start, '')}"
            lines.append(f"Under load {name} is faster up to {up_to:g} {unit}; {beyond}.")
        elif start is not None:
            lines.append(f"Switch {name} off {_from(start, unit)}: there it is slower.")
        else:
            lines.append(f"That {name} is faster under load was not shown.")
    return lines


def _from(start: float | str, unit: str) -> str:
    return "when all requests come at once" if start == ENDLESS else f"from {' '.join(f'{start:g} {unit}'.split())} on"


def _for(names: Sequence[str], categories: Mapping[str, _Choice]) -> str:
    """' for code and chat'; nothing where no category has a name."""
    if list(categories) == [UNNAMED]:
        return ""
    if len(names) == len(categories) > 1:
        return f" for each of the {len(names)} categories alone"
    return f" for {_joined(names)}"


def _tie(arms: Sequence[str]) -> str:
    return "" if len(arms) == 1 else " (a tie: their intervals overlap)"


def _one_of(names: Sequence[str]) -> str:
    return _joined(names, "or")


def _joined(names: Iterable[str], word: str = "and") -> str:
    *rest, last = names
    return f"{', '.join(rest)} {word} {last}" if rest else last


def _about(count: int) -> str:
    """Two digits, rounded up: it is a rough number."""
    step = 10 ** max(0, len(str(count)) - 2)
    return f"{math.ceil(count / step) * step:,}"
