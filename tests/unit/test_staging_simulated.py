"""How often the verdicts on a staging log are wrong, and what they find: simulated logs with users who come again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from vllm_specplug.compare.staging_compare import SPEEDS, compare_errors, compare_speed
from vllm_specplug.compare.staging_lines import Exposure, Outcome
from vllm_specplug.compare.staging_log import StagedRequest
from vllm_specplug.compare.verdicts import Rule

RULE = Rule(num_resamples=9)  # of the intervals for one look, which decide nothing
WEIGHTS = {"baseline": 1.0, "medusa": 1.0}


def days(
    rng: np.random.Generator, num_users: int, num_days: int, slowdown: float = 1.0
) -> Iterator[list[StagedRequest]]:
    """Requests of each day: users begin on different days, keep their arm, their pace and their share of errors.

    Users' times differ by a log-normal factor of sigma 0.3, their requests' by one of 0.3 more; some send ten times as
    many as others.
    """
    arms = np.where(rng.random(num_users) < 0.5, "medusa", "baseline")
    began = rng.integers(0, num_days, num_users)
    pace = rng.normal(0, 0.3, num_users) + np.log(slowdown) * (arms == "medusa")
    per_day = np.exp(rng.normal(0, 0.6, num_users))
    failing = 0.03 * np.exp(rng.normal(-0.5, 1, num_users))
    for day in range(num_days):
        users = np.repeat(np.arange(num_users), rng.poisson(per_day * (began <= day)))
        tokens = rng.integers(20, 200, len(users))
        factors = np.exp(pace[users] + rng.normal(0, 0.3, len(users)))
        fails = rng.random(len(users)) < failing[users]
        yield [
            request(str(arms[user]), f"user-{user}", float(day), int(count), float(factor), bool(failed))
            for user, count, factor, failed in zip(users, tokens, factors, fails, strict=True)
        ]


def request(arm: str, unit: str, time_s: float, tokens: int, factor: float, failed: bool) -> StagedRequest:
    exposure = Exposure(time_s, "chat", arm, "sticky", unit, WEIGHTS, True)
    times = (0.2 * factor, factor * (0.2 + 0.02 * tokens))
    outcome = Outcome(500 if failed else 200, "arm_failed" if failed else None, *times, tokens, 0)
    return StagedRequest(exposure, arm, "sticky", outcome)


def verdicts(requests: list[StagedRequest]) -> set[str]:
    """All four of the arm against the baseline."""
    parts = [[one for one in requests if one.arm == arm] for arm in ("medusa", "baseline")]
    if not all(parts):
        return set()
    errors = compare_errors(parts[0], parts[1], RULE)
    found = {compare_speed(speed, parts[0], parts[1], RULE).verdict for speed in SPEEDS}
    return found | ({errors.verdict} if errors is not None else set())


FALSE = {"faster", "slower", "more", "fewer"}


def test_false_verdicts_of_equal_arms_are_rare() -> None:
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(1000):
        ((requests),) = days(rng, 120, 1)
        wrong += bool(FALSE & verdicts(requests))
    assert wrong <= 60  # 6 %, for all four verdicts of an arm together


@pytest.mark.slow
def test_false_verdicts_stay_rare_when_one_looks_every_day() -> None:
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(200):
        requests: list[StagedRequest] = []
        found: set[str] = set()
        for day in days(rng, 200, 14):
            requests += day
            found |= FALSE & verdicts(requests)
        wrong += bool(found)
    assert wrong <= 12


def test_requests_taken_for_independent_would_be_wrong_far_more_often() -> None:
    """Why users are what is counted."""
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(50):
        requests = [one for day in days(rng, 60, 20) for one in day]
        alone = [replace(one, exposure=replace(one.exposure, unit=None)) for one in requests]
        wrong += bool(FALSE & verdicts(alone))
    assert wrong >= 8


def test_planted_slowdown_is_found() -> None:
    rng = np.random.default_rng(3)
    found = 0
    for _ in range(20):
        requests = [one for day in days(rng, 3500, 3, slowdown=1.1) for one in day]
        told = verdicts(requests)
        assert "faster" not in told
        found += "slower" in told
    assert found >= 18
