"""When requests are handed in and what is timed, on a clock of the test's own. Hand-computed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from vllm_specplug.compare.endpoint_pacing import send_paced
from vllm_specplug.compare.pacing import Given, drive


class Clock:
    def __init__(self) -> None:
        self.now = 100.0  # a clock need not begin at 0
        self.slept: list[float] = []

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class OneSecondSteps:
    """Each step takes a second and gives every request in it the next of its parts; one past `seats` has to wait."""

    def __init__(self, clock: Clock, parts: Sequence[Sequence[int]], seats: int = 99) -> None:
        self.clock = clock
        self.seats = seats
        self.left = [list(sizes) for sizes in parts]
        self.inside: list[int] = []
        self.added: list[tuple[int, float]] = []
        self.most = 0

    def add(self, index: int) -> None:
        self.added.append((index, self.clock.now - 100.0))
        self.inside.append(index)
        self.most = max(self.most, len(self.inside))

    def step(self) -> list[Given]:
        self.clock.now += 1.0
        given = []
        for index in list(self.inside[: self.seats]):
            size = self.left[index].pop(0)
            done = not self.left[index]
            given.append(Given(index, [7] * size, done, "length" if done else None))
            if done:
                self.inside.remove(index)
        return given


def run(
    parts: Sequence[Sequence[int]], arrival_s: Sequence[float], at_once: int | None = None, seats: int = 99
) -> tuple[OneSecondSteps, Clock, float, list[dict[str, Any]]]:
    clock = Clock()
    engine = OneSecondSteps(clock, parts, seats)
    seconds, outputs = drive(engine, arrival_s, at_once, clock.read, clock.sleep)
    return engine, clock, seconds, outputs


def times(outputs: Sequence[dict[str, Any]]) -> list[tuple[float, ...]]:
    return [tuple(output[key] for key in ("arrival_s", "sent_s", "ttft_s", "e2e_s")) for output in outputs]


def test_closed_loop_hands_in_the_next_request_when_one_is_answered() -> None:
    """Two at once. 0 takes three steps, 1 one, 2 two, 3 one: 2 follows 1 at 1 s, 3 follows 0 or 2 at 3 s."""
    engine, clock, seconds, outputs = run([[1, 1, 1], [1], [1, 1], [1]], [0.0] * 4, at_once=2)
    assert engine.added == [(0, 0.0), (1, 0.0), (2, 1.0), (3, 3.0)]
    assert engine.most == 2
    assert clock.slept == []
    assert seconds == 4.0
    assert times(outputs) == [(0.0, 0.0, 1.0, 3.0), (0.0, 0.0, 1.0, 1.0), (1.0, 1.0, 1.0, 2.0), (3.0, 3.0, 1.0, 1.0)]


def test_open_loop_hands_in_after_the_step_in_which_a_request_came_and_sleeps_when_there_is_none() -> None:
    """1 comes half way through the first step and waits until it ends; 2 comes when the engine has long been idle."""
    engine, clock, seconds, outputs = run([[1, 1], [1, 1], [1]], [0.0, 0.5, 7.25])
    assert engine.added == [(0, 0.0), (1, 1.0), (2, 7.25)]
    assert clock.slept == [4.25]
    assert seconds == 8.25
    assert times(outputs) == [(0.0, 0.0, 1.0, 2.0), (0.5, 1.0, 1.5, 2.5), (7.25, 7.25, 1.0, 1.0)]


def test_time_to_first_token_holds_the_wait_in_the_engines_queue() -> None:
    _, _, seconds, outputs = run([[1, 1], [1]], [0.0, 0.0], seats=1)
    assert seconds == 3.0
    assert times(outputs) == [(0.0, 0.0, 1.0, 2.0), (0.0, 0.0, 3.0, 3.0)]


def test_step_of_several_tokens_is_one_forward_and_one_of_none_is_not() -> None:
    """A step without tokens is one of a long prompt that is read in parts."""
    _, _, _, outputs = run([[0, 1, 3]], [0.0])
    (output,) = outputs
    assert output["token_ids"] == [7] * 4
    assert output["num_forwards"] == 2
    assert (output["ttft_s"], output["e2e_s"]) == (2.0, 3.0)
    assert output["finish_reason"] == "length"


def test_nothing_to_do_takes_no_time() -> None:
    assert run([], [])[2:] == (0.0, [])


# To servers, on the real clock: bounds are wide, orders are exact


class Server:
    """Answers after `seconds`; counts who is in it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.lock = threading.Lock()
        self.inside = self.most = 0
        self.came: dict[int, float] = {}

    def answer(self, index: int, came: float) -> dict[str, Any]:
        with self.lock:
            self.came[index] = came
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(self.seconds)
        with self.lock:
            self.inside -= 1
        return {"index": index}


def test_closed_loop_holds_so_many_requests_at_the_server() -> None:
    server = Server(0.02)
    outputs = send_paced(server.answer, [0.0] * 12, at_once=3)
    assert server.most == 3
    assert [output["index"] for output in outputs] == list(range(12))
    assert all(output["arrival_s"] == output["sent_s"] for output in outputs)
    # Four rounds of three: the last one cannot be sent before three times 20 ms.
    assert outputs[-1]["sent_s"] >= 0.06


def test_open_loop_sends_at_the_time_of_arrival_whoever_is_still_answered() -> None:
    server = Server(0.3)
    due = [0.0, 0.05, 0.05, 0.1]
    start = time.perf_counter()
    outputs = send_paced(server.answer, due)
    assert server.most == 4
    assert [output["arrival_s"] for output in outputs] == due
    assert all(output["sent_s"] >= output["arrival_s"] for output in outputs)
    came = [server.came[index] - server.came[0] for index in range(4)]
    assert came == pytest.approx(due)  # times to the first token count from here
    assert time.perf_counter() - start >= 0.4


def test_who_has_given_up_does_not_wait_for_the_next_arrival() -> None:
    start = time.perf_counter()
    outputs = send_paced(Server(0.0).answer, [0.0, 60.0], hurry=lambda: True)
    assert time.perf_counter() - start < 30
    assert outputs[1]["arrival_s"] == 60.0


def test_error_in_a_thread_is_raised() -> None:
    def broken(index: int, came: float) -> dict[str, Any]:
        raise ValueError(f"broken {index}")

    with pytest.raises(ValueError, match="broken 0"):
        send_paced(broken, [0.0, 0.0], at_once=1)
