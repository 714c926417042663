"""A drafter as the formulas of `theory` see it: from numbers, or out of a report of `specplug compare`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm_specplug import theory
from vllm_specplug.errors import CompareError, ConfigError


@dataclass(frozen=True, slots=True)
class Measured:
    """What a report says of an arm as it ran."""

    drafts: float
    """Drafted tokens a round, on average."""
    max_drafts: int | None
    """`num_speculative_tokens` of its configuration; None where it has none."""
    speedup: float | None
    """Over the baseline, prompts included; each category weighs the same."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """Acceptance and costs. Times are in steps without speculation."""

    name: str
    alpha: float
    """Chance that a draft is accepted, given that those before it were."""
    draft_cost: float
    """To make one draft."""
    verify_cost: float = 1.0
    """A step that checks drafts, however many."""
    check_cost: float = 0.0
    """What each draft adds to that step."""
    share: float = 1.0
    """Of steps that hold drafts."""
    measured: Measured | None = None

    def tokens(self, drafts: float) -> float:
        """Tokens a step, with so many drafts a round.

        Raises:
            ConfigError: a number is out of range.
        """
        return theory.tokens_per_step(self.alpha, drafts, self.share)

    def speedup(self, drafts: float) -> float:
        """Over no speculation, with so many drafts a round.

        Raises:
            ConfigError: a number is out of range.
        """
        return theory.speedup(self.alpha, drafts, self._cost_each, self.verify_cost, self.share)

    def best(self, limit: int) -> int:
        """Drafts a round, 0 to `limit`, that gain most.

        Raises:
            ConfigError: a number is out of range.
        """
        return theory.best_drafts(self.alpha, limit, self._cost_each, self.verify_cost, self.share)

    @property
    def _cost_each(self) -> float:
        """A draft's whole price: making and checking both grow with the number of drafts, so one c holds them."""
        return self.draft_cost + self.check_cost

    def as_dict(self, limit: int) -> dict[str, Any]:
        """Numbers, best and the table up to `limit` drafts, as JSON."""
        best, measured = self.best(limit), self.measured
        return {
            **asdict(self),
            "measured": measured and {**asdict(measured), "predicted_speedup": self.speedup(measured.drafts)},
            "best_drafts": best,
            "best_speedup": self.speedup(best),
            "rows": [
                {"drafts": drafts, "tokens": self.tokens(drafts), "speedup": self.speedup(drafts)}
                for drafts in range(limit + 1)
            ],
        }


def read_drafters(
    path: str | Path,
    arms: Collection[str] = (),
    draft_cost: float | None = None,
    verify_cost: float | None = None,
) -> tuple[list[Drafter], dict[str, str]]:
    """The arms of a report that drafted.

    Assumed: every draft has the same chance, all rounds are as long as their mean (`theory.acceptance_of`), a step's
    drafts cost as much as there are of them, and so does checking them beyond the time of a plain step. What was
    measured below a plain step is noise and counts as one. Counts are over all prompts, long answers weighing more.

    Args:
        arms: only these; none: all.
        draft_cost: per draft, in place of what was measured.
        verify_cost: of a step that checks drafts, however many, in place of what was measured.
    Returns:
        The drafters, and by name why an arm was left out.
    Raises:
        ConfigError: the file cannot be read or is no such report, it has no such arm, or none can be planned for.
    """
    from vllm_specplug.compare.report_format import read_report

    try:
        report = read_report(path)
    except CompareError as error:
        raise ConfigError(f"--report {error}; give a file that `specplug compare --out` wrote") from error
    configs = {arm["name"]: arm["speculative_config"] for arm in report["arms"]}
    for name in arms:
        if name not in configs:
            raise ConfigError(f"--arm {name}: no such arm in {path}; arms: {', '.join(configs)}")
    drafters: list[Drafter] = []
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(arms or configs):
        overall, costs = report["results"][name]["overall"], report["theory"].get(name, {})
        if not overall["num_drafts"] or not overall["num_draft_tokens"] or overall["num_accepted_tokens"] is None:
            left_out[name] = "it made no drafts"
        elif draft_cost is None and costs.get("draft_cost_ratio") is None:
            left_out[name] = (
                "its drafting was not timed; give --draft-cost, and --verify-cost where checking costs more"
            )
        else:
            drafters.append(_drafter(name, overall, configs[name] or {}, costs, draft_cost, verify_cost))
    if not drafters:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise ConfigError(f"{path} has no arm to plan for: {reasons or 'it has no arms'}")
    return drafters, left_out


def _drafter(
    name: str,
    overall: Mapping[str, Any],
    config: Mapping[str, Any],
    costs: Mapping[str, Any],
    draft_cost: float | None,
    verify_cost: float | None,
) -> Drafter:
    rounds = overall["num_drafts"]
    drafts = overall["num_draft_tokens"] / rounds
    # Steps of decoding: each answer's first token comes from the step that read the prompt, which checks nothing.
    requests = overall.get("requests", overall["prompts"])  # not every report counts the passes
    num_steps = overall["output_tokens"] - (overall["num_emitted_accepted_tokens"] or 0) - requests
    share = min(1.0, rounds / num_steps) if num_steps > 0 else 1.0
    check_cost = 0.0
    if draft_cost is None:
        draft_cost = costs["draft_cost_ratio"] / (share * drafts)  # the ratio is of a mean step, drafts or none
    if verify_cost is None:
        check_cost = max(0.0, (costs.get("verify_cost_ratio") or 1.0) - 1) / (share * drafts)
    return Drafter(
        name,
        theory.acceptance_of(1 + overall["num_accepted_tokens"] / rounds, drafts),
        draft_cost,
        1.0 if verify_cost is None else verify_cost,
        check_cost,
        share,
        Measured(drafts, config.get("num_speculative_tokens"), costs.get("measured_speedup")),
    )
