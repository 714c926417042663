"""From two arms' times to the words of a report: faster, slower, no difference, undecided.

Fixed horizon: the prompts were chosen before the first was measured. Who looks in between needs `peeking`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_specplug.compare.intervals import NUM_RESAMPLES, compare, paired_tables
from vllm_specplug.compare.power import log_ratio_sd, prompts_to_decide
from vllm_specplug.compare.statistics import PromptSpeed
from vllm_specplug.compare.tests_of_difference import holm, t_test, wilcoxon

ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Rule:
    """How a run is judged."""

    seed: int = 0
    margin: float = 0.03
    """Ratios within 1 -/+ margin count as no difference."""
    too_noisy: bool = False
    """The run decides nothing."""
    num_resamples: int = NUM_RESAMPLES


def verdict(ci95: tuple[float, float] | None, margin: float = 0.03, p_value: float | None = None) -> str:
    """In words: faster or slower when the interval excludes 1, no difference when it lies within 1 -/+ margin.

    Args:
        p_value: of Student's t, adjusted where several verdicts are to hold together; above 5 % faster and slower are
            out, whatever the interval says.
    """
    if ci95 is None:
        return "undecided"
    low, high = ci95
    if p_value is None or p_value <= ALPHA:
        if low > 1:
            return "faster"
        if high < 1:
            return "slower"
    return "no difference" if low >= 1 - margin and high <= 1 + margin else "undecided"


def decide(arm: Mapping[str, PromptSpeed], baseline: Mapping[str, PromptSpeed], rule: Rule) -> dict[str, Any]:
    """The report's comparison of two arms on the same prompts, overall and by category.

    The overall verdict is wrong in 5 % of the runs in which nothing differs; of the categories' verdicts, faster and
    slower hold jointly: in 95 % of such runs none of them is wrong.

    Returns:
        That of `compared`, and `categories`: by category the same, with `p_holm`.
    """
    by_category: dict[str, dict[str, PromptSpeed]] = {}
    for prompt_id, speed in baseline.items():
        by_category.setdefault(speed.category, {})[prompt_id] = speed
    adjusted = holm({name: t_test(list(paired_tables(arm, part).values())) for name, part in by_category.items()})
    # Holm asks this level of the first category; of those that follow it asks less.
    level = 1 - ALPHA / max(1, sum(p_value is not None for p_value in adjusted.values()))
    categories = {
        name: {**compared(arm, part, rule, adjusted[name], level), "p_holm": adjusted[name]}
        for name, part in by_category.items()
    }
    return {**compared(arm, baseline, rule), "categories": categories}


def compared(
    arm: Mapping[str, PromptSpeed],
    baseline: Mapping[str, PromptSpeed],
    rule: Rule,
    p_holm: float | None = None,
    level: float = 1 - ALPHA,
) -> dict[str, Any]:
    """One ratio of the report with all that is known of it.

    Args:
        arm: by prompt id; those that the baseline lacks are left out.
        p_holm: adjusted p-value the verdict needs; None: that of this comparison alone.
        level: of confidence that the verdict asks for, for the number of prompts that would decide.
    Returns:
        prompts, ratio, ci95 and p_value (never adjusted), resampled, verdict, wilcoxon, log_ratio_sd; when undecided
        also prompts_to_decide, null where hopeless, too little is known, or noise is what has to go first.
    """
    found = compare(arm, baseline, rule.seed, rule.num_resamples)
    tables = list(paired_tables(arm, baseline).values())
    p_value, spread = t_test(tables), log_ratio_sd(tables)
    judged = verdict(found.ci95, rule.margin, p_value if p_holm is None else p_holm)
    entry = {
        "prompts": len(baseline),
        "ratio": found.ratio,
        "ci95": None if found.ci95 is None else list(found.ci95),
        "p_value": p_value,
        "resampled": found.resampled,
        "verdict": "undecided" if rule.too_noisy else judged,
        "wilcoxon": wilcoxon(tables),
        "log_ratio_sd": spread,
    }
    if entry["verdict"] == "undecided":
        needed = None if rule.too_noisy else prompts_to_decide(spread, found.ratio, rule.margin, level, len(tables))
        # Fewer than there are would be an answer to another question.
        entry["prompts_to_decide"] = needed if needed is None else max(needed, len(baseline) + 1)
    return entry
