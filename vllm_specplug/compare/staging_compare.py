"""Compares arms on different requests of live traffic: three speeds and the share of errors. Knows no report.

Only requests that a draw by the weights gave to their arm count. A request that moved on to another arm stays with its
own for errors (intention to treat: who moves is not random), and out of the speeds, which are of the arm that answered.
What an arm answers in place of another one counts nowhere for it: no draw gave it that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vllm_specplug.compare.staging_lines import Outcome
from vllm_specplug.compare.staging_log import StagedRequest
from vllm_specplug.compare.unpaired import (
    Request,
    ShareDifference,
    UnpairedRatio,
    compare_samples,
    compare_shares,
    interval_for_many_looks,
)
from vllm_specplug.compare.verdicts import Rule, verdict

_LEAST_S = 1e-9
"""Less is no time that a clock has measured."""
NUM_VERDICTS = 4
"""Of an arm: three speeds and errors."""
LEVEL = 1 - 0.05 / NUM_VERDICTS
"""Of each interval, so that all four of an arm hold together in 95 % of all logs (Bonferroni)."""


@dataclass(frozen=True, slots=True)
class Speed:
    """A speed as an amount for each second that a request took; above 1 in a ratio means less time."""

    name: str
    about: str
    of: Callable[[Outcome], tuple[float, float] | None]
    """Amount and seconds of a request; None: it has none."""


def _per_token(outcome: Outcome) -> tuple[float, float] | None:
    tokens = outcome.num_output_tokens
    return None if not tokens else (tokens, outcome.e2e_s)


def _per_further_token(outcome: Outcome) -> tuple[float, float] | None:
    tokens, ttft_s = outcome.num_output_tokens, outcome.ttft_s
    return None if ttft_s is None or tokens is None or tokens < 2 else (tokens - 1, outcome.e2e_s - ttft_s)


def _to_first_token(outcome: Outcome) -> tuple[float, float] | None:
    return None if outcome.ttft_s is None else (1, outcome.ttft_s)


SPEEDS = (
    Speed("e2e", "output tokens for each second from the request to the end of its answer", _per_token),
    Speed("tpot", "further tokens for each second after the first token, of streams", _per_further_token),
    Speed("ttft", "first tokens for each second of waiting for them, of streams", _to_first_token),
)


@dataclass(frozen=True, slots=True)
class SpeedComparison:
    """One speed of an arm against the baseline's."""

    requests: tuple[int, int]
    """Arm's, baseline's."""
    once: UnpairedRatio | None
    """By the tests for one look at the end; None: an arm has no such request."""
    interval: tuple[float, float] | None
    """Of the ratio, at LEVEL, whenever and however often one looks; None: fewer than 30 units in an arm."""
    verdict: str


@dataclass(frozen=True, slots=True)
class ErrorComparison:
    """Errors of an arm against the baseline's."""

    found: ShareDifference
    verdict: str
    """more, fewer or undecided."""


def compare_speed(
    speed: Speed, arm: Sequence[StagedRequest], baseline: Sequence[StagedRequest], rule: Rule
) -> SpeedComparison:
    """Ratio of pooled speeds, arm / baseline; above 1 the arm is faster."""
    samples = [_sample(speed, requests) for requests in (arm, baseline)]
    counts = (len(samples[0]), len(samples[1]))
    if not all(counts):
        return SpeedComparison(counts, None, None, "undecided")
    once = compare_samples(samples[0], samples[1], rule.seed, rule.num_resamples)
    interval = interval_for_many_looks(samples[0], samples[1], LEVEL)
    judged = "undecided" if rule.too_noisy else verdict(interval, rule.margin)
    return SpeedComparison(counts, once, interval, judged)


def compare_errors(
    arm: Sequence[StagedRequest], baseline: Sequence[StagedRequest], rule: Rule
) -> ErrorComparison | None:
    """Difference of the shares of requests that failed, arm - baseline; None: an arm has no request that ended."""
    samples = [
        [(request.failed, request.exposure.unit) for request in requests if request.outcome is not None]
        for requests in (arm, baseline)
    ]
    if not all(samples):
        return None
    found = compare_shares(samples[0], samples[1], LEVEL)
    judged = "undecided"
    if found.interval is not None and not rule.too_noisy:
        judged = "more" if found.interval[0] > 0 else "fewer" if found.interval[1] < 0 else "undecided"
    return ErrorComparison(found, judged)


def while_in(requests: Sequence[StagedRequest], *arms: str) -> list[StagedRequest]:
    """Those that were drawn while none of these arms was out.

    While an arm is out the others have its load, and it has none of it. Which arm a request is drawn for has nothing to
    do with who is out at that moment, so leaving such moments out of both arms leaves a fair comparison of the rest.
    """
    return [request for request in requests if not request.was_out(*arms)]


def answered(requests: Sequence[StagedRequest]) -> list[StagedRequest]:
    """Those whose times are their own arm's: neither failed, cancelled, moved nor lost."""
    return [
        request
        for request in requests
        if request.outcome is not None and request.outcome.error is None and not request.moved
    ]


def _sample(speed: Speed, requests: Sequence[StagedRequest]) -> list[Request]:
    sample = []
    for request in answered(requests):
        assert request.outcome is not None
        found = speed.of(request.outcome)
        if found is not None and found[1] > _LEAST_S:
            sample.append(Request(*found, cluster=request.exposure.unit))
    return sample
