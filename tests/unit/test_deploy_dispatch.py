"""How a request goes from arm to arm, with arms in this process that do as the tests say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from deploy.arm import Answer, Arm
from deploy.dispatch import Dispatch
from deploy.failures import RequestError
from deploy.inquiry import Inquiry
from deploy.meters import Meters
from deploy.record import Record
from deploy.router_settings import Limits, RouterSettings
from deploy.routing import Routing, Target

LIMITS = Limits(
    first_byte_timeout_s=0.2, chunk_timeout_s=0.2, request_timeout_s=1.0, max_moves=2, probe_timeout_s=0.1, retry_s=0.1
)
Behaviour = Callable[[], AsyncIterator[Any]]


async def answers() -> AsyncIterator[Any]:
    yield {"choices": ["x"]}


async def dies() -> AsyncIterator[Any]:
    raise ActorDiedError()
    yield


async def waits() -> AsyncIterator[Any]:
    await asyncio.sleep(60)
    yield


async def fails() -> AsyncIterator[Any]:
    raise KeyError("x")
    yield


async def refuses() -> AsyncIterator[Any]:
    yield {"error": {"message": "no", "type": "T", "param": None, "code": 400}}


async def ends_at_once() -> AsyncIterator[Any]:
    return
    yield


class Call:
    """As Serve's response to a call of a handle."""

    def __init__(self, items: AsyncIterator[Any]) -> None:
        self._items = items
        self.is_cancelled = False

    def __aiter__(self) -> Call:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._items)

    def cancel(self) -> None:
        self.is_cancelled = True


class Check:
    def __init__(self, outcome: Awaitable[None]) -> None:
        self._outcome = outcome

    def __await__(self) -> Any:
        return self._outcome.__await__()

    def cancel(self) -> None:
        pass


class Handle:
    """As Serve's handle of an arm."""

    def __init__(self) -> None:
        self.behaviour: Behaviour = answers
        self.is_well = True
        self.answers_checks = True
        self.calls: list[Call] = []
        self.bodies: list[Any] = []

    def options(self, **options: Any) -> Handle:
        return self

    @property
    def chat(self) -> Any:
        class Method:
            @staticmethod
            def remote(body: Any, raw_request: Any) -> Call:
                self.bodies.append(body)
                self.calls.append(Call(self.behaviour()))
                return self.calls[-1]

        return Method

    @property
    def check_health(self) -> Any:
        async def check() -> None:
            if not self.answers_checks:
                await asyncio.sleep(60)
            if not self.is_well:
                raise RuntimeError("unwell")

        class Method:
            @staticmethod
            def remote() -> Check:
                return Check(check())

        return Method


class Body:
    model_fields_set: frozenset[str] = frozenset()
    model_fields = {"request_id": None}
    stream_options = None

    def __init__(self, stream: bool = True, **fields: Any) -> None:
        self.stream = stream
        self.fields = fields

    def model_copy(self, update: dict[str, Any]) -> Body:
        return Body(self.stream, **update)


class Case:
    """A router's inside with arms a, b and c; unit "u" of seed 0 belongs to `order[0]`."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.handles = {arm: Handle() for arm in "abc"}
        self.settings = RouterSettings(model="m", arms=list("abc"), limits=LIMITS)
        self.meters = Meters("abc")
        handles: dict[str, Any] = self.handles
        self.arms = {arm: Arm(arm, f"m--{arm}", handles[arm], LIMITS, self.meters) for arm in "abc"}
        self.routing = Routing(self.settings, self.arms)
        self.dispatch = Dispatch(self.settings, self.routing, self.meters, self, "r", None)
        self.target = Target(None, "u", is_sticky=True)
        self.order = [arm.name for arm in self.routing._order(self.target)]

    def write(self, line: Any) -> None:
        self.lines.append(dict(line))

    def first(self, number: int = 0) -> Handle:
        return self.handles[self.order[number]]

    async def ask(self, *, forced: str | None = None, stream: bool = True) -> tuple[Arm, Answer]:
        target = Target(forced, "u", is_sticky=True)
        inquiry = Inquiry("id", "chat", Body(stream), target, "unit", None, None)  # type: ignore[arg-type]
        self.record: Record = self.dispatch.record(inquiry)
        try:
            return await self.dispatch.answer(inquiry, self.record)
        except RequestError as error:
            self.record.ended(error.status, error.reason)
            raise

    def exposures(self) -> list[tuple[str, str]]:
        return [(line["arm"], line["by"]) for line in self.lines if line["event"] == "exposure"]

    def failovers(self) -> list[tuple[str, str]]:
        return [(line["instead_of"], line["why"]) for line in self.lines if line.get("by") == "moved"]


def run(test: Callable[[Case], Awaitable[None]]) -> Callable[[], None]:
    """A test in an event loop of its own."""

    def wrapper() -> None:
        async def inside() -> None:
            await test(Case())

        asyncio.run(inside())

    wrapper.__name__ = getattr(test, "__name__", "test")
    return wrapper


@run
async def test_request_goes_to_its_own_arm_under_its_full_name(case: Case) -> None:
    arm, answer = await case.ask()
    assert arm.name == case.order[0]
    assert case.first().bodies[0].fields["model"] == arm.model
    assert case.first().bodies[0].fields["request_id"] == "id"
    assert case.exposures() == [(arm.name, "sticky")]
    answer.close(cancel=False)
    assert not case.first().calls[0].is_cancelled


@run
async def test_death_moves_a_request_on_under_another_id(case: Case) -> None:
    case.first().behaviour = dies
    arm, _ = await case.ask()
    assert case.exposures() == [(case.order[0], "sticky"), (case.order[1], "moved")]
    assert arm.name == case.order[1]
    assert case.first(1).bodies[0].fields["request_id"] == "id-1"
    assert case.failovers() == [(case.order[0], "arm_died")]
    assert case.meters.of(case.order[0])["moved"] == 1
    assert case.meters.of(case.order[0])["in_flight"] == 0
    assert case.meters.of(case.order[1])["in_flight"] == 1
    assert case.record.num_moves == 1


@run
async def test_no_first_byte_in_time_moves_a_request_on_and_ends_it_at_the_arm(case: Case) -> None:
    case.first().behaviour = waits
    arm, _ = await case.ask()
    assert arm.name == case.order[1]
    assert case.failovers() == [(case.order[0], "timeout")]
    assert case.first().calls[0].is_cancelled
    assert case.arms[case.order[0]].health.state == "up"  # once is no pattern


@run
async def test_request_that_waits_for_a_replica_leaves_when_none_answers_a_check(case: Case) -> None:
    """A whole answer has no time limit of its own, so nothing else would move it."""
    case.first().behaviour = waits
    case.first().answers_checks = False
    asking = asyncio.create_task(case.ask(stream=False))
    await asyncio.sleep(0.05)
    assert not await case.arms[case.order[0]].check()
    arm, _ = await asyncio.wait_for(asking, 0.2)
    assert arm.name == case.order[1]
    assert case.exposures()[-1] == (arm.name, "moved")


@run
async def test_request_moves_at_most_so_often(case: Case) -> None:
    for handle in case.handles.values():
        handle.behaviour = dies
    with pytest.raises(RequestError) as error:
        await case.ask()
    assert (error.value.status, error.value.reason) == (503, "arm_died")
    assert [arm for arm, _ in case.exposures()] == case.order
    assert case.failovers() == [(arm, "arm_died") for arm in case.order[:2]]
    assert case.lines[-1]["event"] == "outcome"
    assert (case.lines[-1]["status"], case.lines[-1]["error"], case.lines[-1]["num_moves"]) == (503, "arm_died", 2)
    assert all(case.meters.of(arm)["in_flight"] == 0 for arm in "abc")


@run
async def test_forced_request_stays_with_its_arm(case: Case) -> None:
    case.handles["b"].behaviour = dies
    with pytest.raises(RequestError):
        await case.ask(forced="b")
    assert case.exposures() == [("b", "forced"), ("b", "moved"), ("b", "moved")]  # to other replicas, in vain
    assert not case.handles["a"].calls
    assert not case.handles["c"].calls


@run
async def test_error_of_a_healthy_arm_moves_nothing(case: Case) -> None:
    case.first().behaviour = fails
    with pytest.raises(RequestError) as error:
        await case.ask()
    assert (error.value.status, error.value.reason) == (500, "arm_failed")
    assert len(case.exposures()) == 1


@run
async def test_error_of_an_arm_that_turns_out_dead_moves_the_request(case: Case) -> None:
    case.first().behaviour = fails
    case.first().is_well = False
    arm, _ = await case.ask()
    assert arm.name == case.order[1]
    assert case.arms[case.order[0]].health.state == "down"


@run
async def test_arm_that_sends_nothing_at_all_has_failed(case: Case) -> None:
    case.first().behaviour = ends_at_once
    with pytest.raises(RequestError) as error:
        await case.ask()
    assert error.value.status == 500


@run
async def test_wrong_request_says_nothing_against_the_arm(case: Case) -> None:
    case.first().behaviour = refuses
    for _ in range(10):
        with pytest.raises(RequestError) as error:
            await case.ask()
        assert error.value.status == 400
    assert case.arms[case.order[0]].health.state == "up"


@run
async def test_request_of_an_arm_that_is_out_goes_to_its_second_choice(case: Case) -> None:
    case.arms[case.order[0]].health.did_not_pass("gone")
    arm, _ = await case.ask()
    assert arm.name == case.order[1]
    assert case.exposures() == [(case.order[0], "sticky"), (case.order[1], "moved")]  # the draw is not lost
    assert case.record.num_moves == 1
    assert case.failovers() == [(case.order[0], "out")]
    assert not case.first().calls


@run
async def test_each_exposure_says_which_arms_were_out_when_it_was_made(case: Case) -> None:
    first, second, third = case.order
    await case.ask()
    case.arms[third].health.did_not_pass("gone")
    case.first().behaviour = dies
    await case.ask()
    outs = [(line["arm"], line["by"], line["out"]) for line in case.lines if line["event"] == "exposure"]
    # The state before the request: what it did to its arm itself stands in the next line.
    assert outs == [
        (first, "sticky", []),
        (first, "sticky", [third]),
        (second, "moved", sorted([first, third])),
    ]


@run
async def test_when_no_arm_is_sure_a_suspect_one_is_better_than_none(case: Case) -> None:
    for arm in case.arms.values():
        arm.health.failed(arm.health.began(), "arm_died", is_dead=True)
    arm, _ = await case.ask()
    assert arm.name == case.order[0]
    assert case.exposures() == [(case.order[0], "sticky")]


@run
async def test_when_all_are_down_the_request_fails_at_once_and_counts_for_its_own_arm(case: Case) -> None:
    for arm in case.arms.values():
        arm.health.passed()
        arm.health.did_not_pass("gone")
    with pytest.raises(RequestError) as error:
        await case.ask()
    assert (error.value.status, error.value.reason) == (503, "no_arm")
    assert error.value.retry_after_s == pytest.approx(0.1, abs=0.05)
    assert case.exposures() == [(case.order[0], "sticky")]
    assert case.lines[-1]["error"] == "no_arm"
    assert not any(handle.calls for handle in case.handles.values())


@run
async def test_first_request_of_an_arm_that_has_just_come_up_is_answered(case: Case) -> None:
    """The last check was before that, and clients come as soon as Serve calls the application running."""
    for arm in case.arms.values():
        arm.health.did_not_pass("starting")
    arm, _ = await case.ask()
    assert arm.name == case.order[0]
    assert case.exposures() == [(case.order[0], "sticky")]


@run
async def test_request_of_an_arm_that_still_starts_fails_after_one_check(case: Case) -> None:
    case.first().answers_checks = False
    for arm in case.arms.values():
        arm.health.did_not_pass("starting")
    began = asyncio.get_running_loop().time()
    with pytest.raises(RequestError, match="no arm is able"):
        await case.ask()
    assert asyncio.get_running_loop().time() - began == pytest.approx(LIMITS.probe_timeout_s, abs=0.3)


@run
async def test_whole_answer_gets_all_the_time_there_is_and_no_more(case: Case) -> None:
    case.first().behaviour = waits
    began = asyncio.get_running_loop().time()
    with pytest.raises(RequestError) as error:
        await case.ask(stream=False)
    assert (error.value.status, error.value.reason) == (504, "timeout")
    assert asyncio.get_running_loop().time() - began == pytest.approx(LIMITS.request_timeout_s, abs=0.3)
    assert len(case.exposures()) == 1


@run
async def test_client_that_leaves_while_an_arm_thinks_ends_the_request_there(case: Case) -> None:
    case.first().behaviour = waits
    asking = asyncio.create_task(case.ask())
    await asyncio.sleep(0.05)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert case.first().calls[0].is_cancelled
    assert case.arms[case.order[0]].health.state == "up"
