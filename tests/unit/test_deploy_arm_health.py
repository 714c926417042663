"""An arm's health, with a clock that the tests move."""

from __future__ import annotations

import pytest

from deploy.arm_health import ArmHealth
from deploy.router_settings import Limits

LIMITS = Limits(unhealthy_after=3, probe_period_s=5.0, retry_s=1.0, max_retry_s=4.0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> ArmHealth:
    return ArmHealth(LIMITS, clock)


def fail(health: ArmHealth, clock: Clock, *, is_dead: bool = False) -> None:
    clock.now += 0.01
    began = health.began()
    clock.now += 0.01
    health.failed(began, "timeout", is_dead)
    health.ended(began)


def answer(health: ArmHealth, clock: Clock) -> None:
    clock.now += 0.01
    began = health.began()
    health.answered(began)
    health.ended(began)


def test_failures_in_a_row_take_an_arm_out_and_have_it_checked_at_once(health: ArmHealth, clock: Clock) -> None:
    fail(health, clock)
    fail(health, clock)
    assert health.is_candidate
    fail(health, clock)
    assert (health.state, health.reason, health.check_in_s) == ("suspect", "timeout", 0.0)
    assert not health.is_candidate
    assert health.is_last_resort


def test_answer_in_between_starts_the_count_anew(health: ArmHealth, clock: Clock) -> None:
    for _ in range(5):
        fail(health, clock)
        fail(health, clock)
        answer(health, clock)
    assert health.state == "up"


def test_death_takes_an_arm_out_at_once_and_a_passed_check_brings_it_back(health: ArmHealth, clock: Clock) -> None:
    fail(health, clock, is_dead=True)
    assert health.state == "suspect"
    health.passed()
    assert health.state == "up"


def test_after_failures_a_passed_check_gives_one_request_at_a_time(health: ArmHealth, clock: Clock) -> None:
    for _ in range(3):
        fail(health, clock)
    health.passed()
    assert health.state == "trial"
    assert health.is_candidate
    began = health.began()
    assert not health.is_candidate
    health.ended(began)  # its client went away: that says nothing
    assert health.is_candidate
    answer(health, clock)
    assert health.state == "up"


def test_failed_trials_are_ever_further_apart(health: ArmHealth, clock: Clock) -> None:
    for _ in range(3):
        fail(health, clock)
    waits = []
    for _ in range(5):
        health.passed()
        fail(health, clock)
        assert health.state == "suspect"
        waits.append(health.check_in_s)
        clock.now += health.check_in_s
    assert waits == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_arm_that_was_never_up_is_checked_as_often_as_before(health: ArmHealth, clock: Clock) -> None:
    """It is starting, which takes minutes: once it is up, nobody waits for the end of a long pause."""
    for _ in range(4):
        health.did_not_pass("no answer")
        assert (health.state, health.check_in_s) == ("down", 1.0)
        clock.now += health.check_in_s
    health.passed()
    assert health.state == "up"


def test_arm_that_does_not_pass_is_down_until_it_does_and_checked_ever_later(health: ArmHealth, clock: Clock) -> None:
    waits = []
    health.passed()
    for _ in range(4):
        health.did_not_pass("no answer")
        assert health.state == "down"
        assert not health.is_last_resort
        waits.append(health.check_in_s)
        clock.now += health.check_in_s
    assert waits == [1.0, 2.0, 4.0, 4.0]
    health.passed()
    assert (health.state, health.reason) == ("up", "")
    health.did_not_pass("no answer")
    assert health.check_in_s == 1.0


def test_what_began_before_an_arm_went_out_says_nothing_of_it_now(health: ArmHealth, clock: Clock) -> None:
    old = health.began()
    fail(health, clock, is_dead=True)
    health.answered(old)  # a chunk of the dead replica that was still under way
    assert health.state == "suspect"
    health.passed()
    clock.now += 0.01
    health.failed(old, "arm_died", is_dead=True)  # the last of those that died with it
    assert health.state == "up"


def test_arm_that_answers_is_not_checked(health: ArmHealth, clock: Clock) -> None:
    for _ in range(10):
        clock.now += 4.0
        answer(health, clock)
        assert health.check_in_s == LIMITS.probe_period_s
    clock.now += 5.0
    assert health.check_in_s == 0.0


def test_changes_are_told(clock: Clock) -> None:
    seen: list[tuple[str, str, str]] = []
    health = ArmHealth(LIMITS, clock, lambda *change: seen.append(change))
    fail(health, clock, is_dead=True)
    health.did_not_pass("no answer")
    health.passed()
    assert seen == [("up", "suspect", "timeout"), ("suspect", "down", "no answer"), ("down", "up", "")]
