"""What becomes of requests when arms and routers fail, on a real local Ray cluster with stub arms."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
import ray
from router_cluster import (
    AUTHORIZED,
    KEY,
    MODEL,
    arms_of,
    call_arm,
    chat_body,
    deploy,
    lines,
    post,
    ray_cluster,
    settings_of,
    wait_for,
)

pytestmark = pytest.mark.slow  # a Ray cluster for nearly every test: minutes

STEP_S = 0.05
LIMITS = {
    "first_byte_timeout_s": 2.0,
    "chunk_timeout_s": 2.0,
    "request_timeout_s": 6.0,
    "probe_timeout_s": 2.0,
    "probe_period_s": 2.0,
    "retry_s": 0.5,
    "max_retry_s": 2.0,
}
REPLACED_WITHIN_S = 150


@dataclass
class Service:
    url: str
    log: Path

    def set_routers(self, num_routers: int) -> None:
        settings = settings_of(["a", "b"], self.log, limits=LIMITS)
        deploy({"weights": {"a": 1.0, "b": 1.0}}, settings, step_s=STEP_S, num_routers=num_routers)

    def outcomes(self) -> list[dict[str, Any]]:
        return [line for line in lines(self.log) if line["event"] == "outcome"]

    def arm(self, name: str) -> dict[str, Any]:
        return dict(arms_of(self.url)["arms"][name])

    def user_of(self, arm: str) -> str:
        """A session that belongs to an arm which is up."""
        for number in range(50):
            response = post(self.url, chat_body(max_tokens=1), X_Session_Id=f"s{number}")
            if response.headers["x-specplug-arm"] == arm:
                return f"s{number}"
        raise AssertionError(f"no session of 50 belongs to {arm}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with ray_cluster() as url:
        log = tmp_path_factory.mktemp("exposure")
        found = Service(url, log)
        found.set_routers(1)
        yield found


@pytest.fixture
def service(cluster: Service) -> Service:
    """With both arms well."""
    for arm in "ab":
        wait_for(lambda arm=arm: revived(arm), REPLACED_WITHIN_S)
    wait_for(lambda: all(cluster.arm(arm)["state"] == "up" for arm in "ab"), 30)
    return cluster


def revived(arm: str) -> bool:
    try:
        call_arm(arm, "set_mode", "")
    except Exception:
        return False
    return True


def read_stream(service: Service, text: str, **headers: str) -> tuple[str, httpx.Headers]:
    response = post(service.url, chat_body(text, stream=True, max_tokens=6), **headers)
    assert response.status_code == 200, response.text
    return response.text, response.headers


def test_request_that_hangs_before_its_first_byte_moves_on_and_is_counted(service: Service) -> None:
    user = service.user_of("a")
    before = service.arm("a")["moved"]
    call_arm("a", "set_mode", "hang")
    began = time.monotonic()
    text, headers = read_stream(service, "x", X_Session_Id=user)
    assert 2.0 <= time.monotonic() - began < 5.0
    assert headers["x-specplug-arm"] == "b"
    assert f"{MODEL}--b" in text
    assert service.arm("a")["moved"] == before + 1
    wait_for(lambda: service.outcomes()[-1]["num_moves"] == 1)
    *_, first, second = [line for line in lines(service.log) if line["event"] == "exposure"]
    assert first["request_id"] == second["request_id"] == service.outcomes()[-1]["request_id"]
    assert [(one["arm"], one["by"]) for one in (first, second)] == [("a", "sticky"), ("b", "moved")]
    wait_for(lambda: call_arm("a", "seen")["num_cancelled"] > 0)  # the one that hung was ended there


def test_arm_that_fails_again_and_again_loses_its_traffic_and_gets_it_back(service: Service) -> None:
    user = service.user_of("a")
    call_arm("a", "set_mode", "hang")
    for _ in range(3):
        read_stream(service, "x", X_Session_Id=user)
    assert service.arm("a")["state"] in ("suspect", "trial")
    began = time.monotonic()
    read_stream(service, "x")
    read_stream(service, "x")
    took = time.monotonic() - began
    assert took < 2 * 2.0 + 2.0  # of two requests at most one, the trial, waits for the arm that hangs
    call_arm("a", "set_mode", "")

    def is_back() -> bool:
        return read_stream(service, "x", X_Session_Id=user)[1]["x-specplug-arm"] == "a"

    wait_for(is_back, 20)


def test_arm_that_is_unwell_while_idle_is_passed_by(service: Service) -> None:
    user = service.user_of("a")
    call_arm("a", "set_mode", "unwell")
    wait_for(lambda: service.arm("a")["state"] == "down", 20)
    began = time.monotonic()
    _, headers = read_stream(service, "x", X_Session_Id=user)
    assert time.monotonic() - began < 2.0
    assert headers["x-specplug-arm"] == "b"
    wait_for(lambda: service.outcomes()[-1]["num_moves"] == 1)
    forced = post(service.url, chat_body(), X_Specplug_Arm="a")
    assert (forced.status_code, forced.json()["error"]["code"]) == (503, "no_arm")
    assert int(forced.headers["retry-after"]) >= 1


def test_stream_that_has_begun_and_hangs_ends_with_an_error_in_openais_shape(service: Service) -> None:
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key=KEY, max_retries=0, timeout=30)
    began = time.monotonic()
    stream = client.chat.completions.create(
        model=f"{MODEL}--a", messages=[{"role": "user", "content": "hang-at-3"}], stream=True, max_tokens=6
    )
    seen = [next(stream).choices[0].delta.content for _ in range(3)]
    with pytest.raises(openai.APIError, match="no further chunk within 2 s") as error:
        next(stream)
    assert seen == ["w0 ", "w1 ", "w2 "]
    assert error.value.code == "timeout"
    assert time.monotonic() - began < 5.0
    wait_for(lambda: (service.outcomes()[-1]["status"], service.outcomes()[-1]["error"]) == (504, "timeout"))


def test_error_of_the_engine_in_a_stream_is_passed_on_as_it_is(service: Service) -> None:
    text, _ = read_stream(service, "fail-at-2")
    assert text.endswith(
        'data: {"error": {"message": "as asked", "type": "InternalServerError", "param": null, "code": 500}}\n\n'
        "data: [DONE]\n\n"
    )
    wait_for(lambda: (service.outcomes()[-1]["status"], service.outcomes()[-1]["error"]) == (500, "http_500"))


def test_error_before_the_first_chunk_is_an_http_error_and_moves_nothing(service: Service) -> None:
    before = {arm: service.arm(arm)["requests"] for arm in "ab"}
    response = post(service.url, chat_body("fail-at-0", stream=True))
    assert (response.status_code, response.json()["error"]["message"]) == (500, "as asked")
    after = {arm: service.arm(arm)["requests"] for arm in "ab"}
    assert sum(after.values()) == sum(before.values()) + 1


def test_wrong_requests_never_count_against_an_arm(service: Service) -> None:
    user = service.user_of("a")
    for _ in range(10):
        assert post(service.url, chat_body("refuse"), X_Session_Id=user).status_code == 400
    assert service.arm("a")["state"] == "up"


def test_whole_answer_that_takes_too_long_is_504(service: Service) -> None:
    began = time.monotonic()
    response = post(service.url, chat_body("hang"))
    assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
    assert 5.9 < time.monotonic() - began < 9.0


def test_dead_engine_is_told_by_its_error_and_its_requests_move(service: Service) -> None:
    user = service.user_of("a")
    call_arm("a", "set_mode", "dead unwell")
    response = post(service.url, chat_body(max_tokens=1), X_Session_Id=user)
    assert (response.status_code, response.headers["x-specplug-arm"]) == (200, "b")
    assert service.arm("a")["state"] in ("suspect", "down", "up")


def test_no_arm_left_is_503_at_once_with_a_time_to_come_back(service: Service) -> None:
    for arm in "ab":
        call_arm(arm, "set_mode", "unwell")
    wait_for(lambda: all(service.arm(arm)["state"] == "down" for arm in "ab"), 20)
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key=KEY, max_retries=0, timeout=30)
    began = time.monotonic()
    with pytest.raises(openai.InternalServerError, match="no arm is able to answer") as error:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])
    assert time.monotonic() - began < 2.0
    assert error.value.status_code == 503
    assert int(error.value.response.headers["retry-after"]) >= 1


def test_stream_of_a_replica_that_dies_ends_with_an_error(service: Service) -> None:
    text, headers = read_stream(service, "die-at-3", X_Specplug_Arm="b")
    assert headers["x-specplug-arm"] == "b"
    assert "w1" in text  # what the replica had sent; its third chunk may have died with it
    assert '"code": "arm_died"' in text
    assert text.endswith("data: [DONE]\n\n")
    wait_for(lambda: (service.outcomes()[-1]["status"], service.outcomes()[-1]["error"]) == (503, "arm_died"))


@dataclass
class Load:
    """Eight clients that ask one request after the other, every second of them streamed."""

    url: str
    stop: threading.Event = field(default_factory=threading.Event)
    answered: list[tuple[float, float, str]] = field(default_factory=list)
    """When it ended, how long it took, which arm."""
    failed: list[tuple[float, float, str]] = field(default_factory=list)
    """The same, and why."""
    threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Load:
        self.threads = [threading.Thread(target=self._run, args=(number,)) for number in range(8)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self.threads)  # no request hangs

    def _run(self, number: int) -> None:
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                arm = self._ask(number)
            except (httpx.HTTPError, AssertionError) as error:
                now = time.monotonic()
                self.failed.append((now, now - began, f"{type(error).__name__}: {error}"))
                time.sleep(0.1)
            else:
                now = time.monotonic()
                self.answered.append((now, now - began, arm))

    def _ask(self, number: int) -> str:
        body = chat_body(stream=number % 2 == 0, max_tokens=8)
        response = httpx.post(f"{self.url}/v1/chat/completions", json=body, headers=AUTHORIZED, timeout=25)
        assert response.status_code == 200, f"{response.status_code} {response.text}"
        assert "w7" in response.text, response.text
        assert '"error"' not in response.text
        return str(response.headers["x-specplug-arm"])


def test_sigkill_of_an_arms_replica_under_load_hangs_no_request(service: Service) -> None:
    num_before = len(service.outcomes())
    with Load(service.url) as load:
        time.sleep(3)
        pid = call_arm("a", "seen")["pid"]
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        time.sleep(10)
        survivors = [(when, took) for when, took, arm in load.answered if when > killed + 0.5]
        wait_for(lambda: any(when > killed + 1 and arm == "a" for when, _, arm in load.answered), REPLACED_WITHIN_S)
    assert survivors, "the arm that is left answers meanwhile"
    assert max(took for _, took in survivors) < 10.0
    assert [why for _, _, why in load.failed if "arm_died" not in why] == []
    assert all(took < 10.0 for _, took, _ in load.failed)
    assert call_arm("a", "seen")["pid"] != pid

    num_ended = len(load.answered) + len(load.failed)
    wait_for(lambda: len(service.outcomes()) >= num_before + num_ended, 10)
    ours = service.outcomes()[num_before:]
    assert len(ours) == num_ended
    assert sum(one["error"] is not None for one in ours) == len(load.failed)
    assert sum(one["num_moves"] > 0 for one in ours) > 0
    assert service.arm("a")["outages"] > 0


def test_sigkill_of_a_routers_replica_under_load_hangs_no_request(service: Service) -> None:
    service.set_routers(2)
    before = {line["request_id"] for line in lines(service.log)}
    old = router_pids()
    assert len(old) == 2
    with Load(service.url) as load:
        time.sleep(3)
        os.kill(old[0], signal.SIGKILL)
        killed = time.monotonic()
        time.sleep(5)
        wait_for(lambda: len(router_pids()) == 2, REPLACED_WITHIN_S)
        time.sleep(2)
    assert len(set(router_pids()) - set(old)) == 1
    assert [took for when, took, _ in load.answered if when > killed + 0.5], "the router that is left goes on"
    assert max(took for _, took, _ in [*load.answered, *load.failed]) < 10.0
    assert len(load.failed) <= 8  # those that were on the dead one

    time.sleep(1)
    found = [line for line in lines(service.log) if line["request_id"] not in before]
    exposed = {line["request_id"] for line in found if line["event"] == "exposure"}
    ended = {line["request_id"]: line["error"] for line in found if line["event"] == "outcome"}
    assert set(ended) <= exposed
    # What a router had under way when it was killed has no outcome: its client got an error, and the log has a gap.
    assert len(exposed) - len(ended) <= len(load.failed)
    num_answered = sum(error is None for error in ended.values())
    assert len(load.answered) <= num_answered <= len(load.answered) + len(load.failed)
    service.set_routers(1)


def router_pids() -> list[int]:
    """Processes of router replicas of this cluster: another one may run on the machine."""
    session = ray.get_runtime_context().get_session_name()
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any("ServeReplica:router:ArmRouter" in part for part in process.info["cmdline"] or [])
        and any(session in part for part in raylet_of(process))
    ]


def raylet_of(replica: psutil.Process) -> list[str]:
    """The command line of the process that started a replica; empty where either has gone."""
    with contextlib.suppress(psutil.Error):
        parent = replica.parent()
        return parent.cmdline() if parent else []
    return []
