"""Puts the report of a staging log together: the object of `staging_format` from its requests. Prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from vllm_specplug import __version__, provenance
from vllm_specplug.compare.peeking import FIRST_LOOK
from vllm_specplug.compare.staging_compare import (
    LEVEL,
    SPEEDS,
    ErrorComparison,
    SpeedComparison,
    answered,
    compare_errors,
    compare_speed,
    while_in,
)
from vllm_specplug.compare.staging_format import SCHEMA
from vllm_specplug.compare.staging_lines import RANDOMISED, REASONS
from vllm_specplug.compare.staging_log import StagedRequest, StagingLog
from vllm_specplug.compare.staging_sentences import recommendation, remarks
from vllm_specplug.compare.staging_split import check_split
from vllm_specplug.compare.statistics import percentiles_ms
from vllm_specplug.compare.verdicts import Rule
from vllm_specplug.errors import CompareError

NUM_RESAMPLES = 999
"""Of the intervals for one look, which decide nothing; logs are large."""


def staging_report(
    log: StagingLog, baseline: str, *, argv: Sequence[str] = (), rule: Rule | None = None
) -> dict[str, Any]:
    """The report of a log, valid by `staging_format.validate_staging`.

    Args:
        baseline: arm that the others are compared with.
        rule: how it is judged.
    Raises:
        CompareError: there is no such arm with requests, or no other.
    """
    rule = rule or Rule(num_resamples=NUM_RESAMPLES)
    drawn = {arm: [one for one in log.requests if one.randomised and one.arm == arm] for arm in log.arms}
    if not drawn.get(baseline):
        met = ", ".join(arm for arm, requests in drawn.items() if requests)
        raise CompareError(f"no request was drawn for the baseline {baseline!r}; arms with requests: {met}; --baseline")
    others = [arm for arm, requests in drawn.items() if requests and arm != baseline]
    if not others:
        raise CompareError(f"all requests were drawn for {baseline!r}; there is nothing to compare it with")
    # What an arm answered in place of others that were out: no draw gave it these requests.
    stood_in = {
        arm: Counter(one.arm for one in log.requests if one.randomised and one.stand_in == arm) for arm in log.arms
    }
    split = check_split(log.requests, log.arms)
    judged = Rule(rule.seed, rule.margin, split.mismatch, rule.num_resamples)
    times = [request.exposure.time_s for request in log.requests]
    commit, dirty = provenance.commit()
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "provenance": {
            "specplug": __version__,
            "commit": commit,
            "dirty": dirty,
            "argv": list(argv),
            "started_at": _moment(times[0]),
            "ended_at": _moment(times[-1]),
        },
        "model": log.model,
        "baseline": baseline,
        "arms": log.arms,
        "settings": {"margin": rule.margin, "level": LEVEL, "min_units": FIRST_LOOK, "seed": rule.seed},
        "log": {
            "files": list(log.files),
            **log.counts,
            "knows_who_was_out": any(request.exposure.out is not None for request in log.requests),
            "by": {reason: sum(request.by == reason for request in log.requests) for reason in REASONS},
        },
        "split": {
            "observed": split.observed,
            "expected": split.expected,
            "p_value": split.p_value,
            "mismatch": split.mismatch,
            "units_in_several_arms": split.units_in_several_arms,
        },
        "results": {
            arm: {
                **_result(drawn[arm]),
                "stood_in": stood_in[arm].total(),
                "stood_in_for": dict(stood_in[arm]),
            }
            for arm in [baseline, *others]
        },
        "comparisons": [_comparison(arm, baseline, drawn, judged) for arm in others],
        "apart": {reason: _apart(log.requests, reason) for reason in REASONS if reason not in RANDOMISED},
    }
    return {**report, "remarks": remarks(report), "recommendation": recommendation(report)}


def _comparison(arm: str, baseline: str, drawn: Mapping[str, Sequence[StagedRequest]], rule: Rule) -> dict[str, Any]:
    """Speeds of the requests drawn while both arms were in; errors of all."""
    ours, theirs = (while_in(drawn[name], arm, baseline) for name in (arm, baseline))
    return {
        "arm": arm,
        "against": baseline,
        "drawn_while_out": [len(drawn[arm]) - len(ours), len(drawn[baseline]) - len(theirs)],
        "speeds": {speed.name: _speed(compare_speed(speed, ours, theirs, rule)) for speed in SPEEDS},
        "errors": _errors(compare_errors(drawn[arm], drawn[baseline], rule)),
    }


def _result(requests: Sequence[StagedRequest]) -> dict[str, Any]:
    """Of the requests that were drawn for an arm, or of others that met it."""
    ended = [request.outcome for request in requests if request.outcome is not None]
    good = [request.outcome for request in answered(requests) if request.outcome is not None]
    units = Counter(request.exposure.unit for request in requests)
    failed = [request.outcome for request in requests if request.failed and request.outcome is not None]
    counted = [outcome for outcome in good if outcome.num_output_tokens]
    tpot = [
        (outcome.e2e_s - outcome.ttft_s) / (outcome.num_output_tokens - 1)
        for outcome in counted
        if outcome.ttft_s is not None and outcome.num_output_tokens and outcome.num_output_tokens > 1
    ]
    tokens, seconds = (
        sum(outcome.num_output_tokens or 0 for outcome in counted),
        sum(outcome.e2e_s for outcome in counted),
    )
    return {
        "requests": len(requests),
        "units": len(units) - (None in units) + units[None],
        "without_outcome": len(requests) - len(ended),
        "failed": len(failed),
        "error_share": len(failed) / len(ended) if ended else None,
        "errors": dict(Counter(outcome.error for outcome in failed)),
        "cancelled": sum(request.cancelled for request in requests),
        "moved": sum(request.moved for request in requests),
        "answered": len(good),
        "uncounted": len(good) - len(counted),
        "output_tokens": tokens,
        "output_tokens_per_s": tokens / seconds if seconds else None,
        "ttft_ms": percentiles_ms([outcome.ttft_s for outcome in good if outcome.ttft_s is not None]),
        "tpot_ms": percentiles_ms(tpot),
        "e2e_ms": percentiles_ms([outcome.e2e_s for outcome in good]),
    }


def _apart(requests: Sequence[StagedRequest], reason: str) -> dict[str, Any]:
    by_arm: dict[str, list[StagedRequest]] = {}
    for request in requests:
        if request.by == reason:
            by_arm.setdefault(request.arm, []).append(request)
    return {arm: _result(part) for arm, part in by_arm.items()}


def _speed(found: SpeedComparison) -> dict[str, Any]:
    once = found.once
    return {
        "requests": list(found.requests),
        "units": [0, 0] if once is None else list(once.clusters),
        "ratio": None if once is None else once.ratio,
        "interval": None if found.interval is None else list(found.interval),
        "verdict": found.verdict,
        "once": None
        if once is None
        else {"ci95": None if once.ci95 is None else list(once.ci95), "mann_whitney_p": once.mann_whitney_p},
    }


def _errors(found: ErrorComparison | None) -> dict[str, Any] | None:
    if found is None:
        return None
    interval = found.found.interval
    return {
        "difference": found.found.difference,
        "interval": None if interval is None else list(interval),
        "verdict": found.verdict,
    }


def _moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
