"""How the router shares out requests, on a real local Ray cluster with stub arms."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
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
    wait_for,
)
from router_cluster import settings_of as base_settings
from scipy.stats import binom, binomtest
from stub_arm import FINGERPRINT

STEP_S = 0.02
WEIGHTS = {"a": 3.0, "b": 1.0, "c": 0.0}
SECRET_TEXT = "a prompt that nobody logs"
SECRET_USER = "alice@example.org"


class Service:
    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self.log = log
        self.settings = base_settings(
            ["a", "b", "c"], log, shadow={"arm": "c", "share": 0.25, "max_in_flight": 2}, seed=12
        )

    def set_weights(self, **weights: float) -> None:
        self.apply({"weights": WEIGHTS | weights})

    def apply(self, user_config: Any) -> None:
        deploy(user_config, self.settings, step_s=STEP_S)

    def outcomes(self) -> dict[str, dict[str, Any]]:
        return {line["request_id"]: line for line in lines(self.log) if line["event"] == "outcome"}

    def exposures(self, *by: str) -> list[dict[str, Any]]:
        return [line for line in lines(self.log) if line["event"] == "exposure" and line["by"] in by]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with ray_cluster() as url:
        found = Service(url, tmp_path_factory.mktemp("exposure"))
        found.set_weights()
        yield found


@pytest.fixture
def client(service: Service) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key=KEY, max_retries=0, timeout=30)


def served(url: str, users: list[str | None], num_clients: int = 16) -> list[str]:
    """The arm that served one request of each user, in order."""

    async def run() -> list[str]:
        gate = asyncio.Semaphore(num_clients)
        limits = httpx.Limits(max_connections=num_clients)
        async with httpx.AsyncClient(timeout=60, limits=limits, headers=AUTHORIZED) as http:

            async def one(user: str | None) -> str:
                async with gate:
                    headers = {} if user is None else {"X-Session-Id": user}
                    response = await http.post(
                        f"{url}/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 0}, headers=headers
                    )
                    assert response.status_code == 200, response.text
                    arm = response.headers["x-specplug-arm"]
                    assert response.json()["model"] == f"{MODEL}--{arm}"
                    return str(arm)

            return await asyncio.gather(*(one(user) for user in users))

    return asyncio.run(run())


def inside_99_percent(count: int, num: int, share: float) -> bool:
    low, high = binom.interval(0.99, num, share)
    return bool(low <= count <= high)


def test_2000_requests_are_split_by_weight_and_users_stay_until_an_arm_is_added(service: Service) -> None:
    users = [f"user {number}" for number in range(1000)]
    by_user = served(service.url, list(users))
    by_request = served(service.url, [None] * 1000)
    assert inside_99_percent(by_user.count("a"), 1000, 0.75)
    assert inside_99_percent(by_request.count("a"), 1000, 0.75)
    assert not {"c"} & {*by_user, *by_request}
    assert served(service.url, list(users[:300])) == by_user[:300]

    service.set_weights(c=1.0)
    after = served(service.url, list(users))
    moved = [new for old, new in zip(by_user, after, strict=True) if old != new]
    assert set(moved) == {"c"}
    assert inside_99_percent(len(moved), 1000, 1 / 5)
    service.set_weights()
    assert served(service.url, list(users[:300])) == by_user[:300]

    wait_for(lambda: len(service.exposures("sticky")) >= 2600)
    units = {(line["unit"], line["arm"]) for line in service.exposures("sticky") if line["weights"]["c"] == 0}
    assert len(units) == 1000
    assert Counter(arm for _, arm in units) == Counter(by_user)
    assert all(line["unit"] is None for line in service.exposures("weight"))
    assert len(service.exposures("weight")) == 1000


def test_user_of_the_body_is_as_sticky_as_a_session(service: Service) -> None:
    arms = {
        post(service.url, chat_body(max_tokens=0, user=user)).headers["x-specplug-arm"]
        for user in ("u1",)
        for _ in range(12)
    }
    assert len(arms) == 1


def test_arm_is_forced_by_header_or_full_name_even_at_weight_0(service: Service) -> None:
    by_header = post(service.url, chat_body(max_tokens=0), X_Specplug_Arm="c")
    by_name = post(service.url, chat_body(max_tokens=0, model=f"{MODEL}--c"))
    for response in (by_header, by_name):
        assert response.status_code == 200
        assert (response.headers["x-specplug-arm"], response.json()["model"]) == ("c", f"{MODEL}--c")
    assert [line["arm"] for line in service.exposures("forced")[-2:]] == ["c", "c"]


def test_official_client_raises_its_own_errors(service: Service, client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.NotFoundError, match="'nope' does not exist; there are tiny, tiny--a, tiny--b, tiny--c"):
        client.chat.completions.create(model="nope", messages=messages)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model=f"{MODEL}--nope", messages=messages)
    with pytest.raises(openai.BadRequestError, match="X-Specplug-Arm is 'z'; expected one of a, b, c"):
        client.chat.completions.create(model=MODEL, messages=messages, extra_headers={"X-Specplug-Arm": "z"})
    with pytest.raises(openai.BadRequestError, match="name one arm"):
        client.chat.completions.create(model=f"{MODEL}--a", messages=messages, extra_headers={"X-Specplug-Arm": "b"})
    with pytest.raises(openai.BadRequestError, match="as asked"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "refuse"}])
    with pytest.raises(openai.InternalServerError, match="as asked"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "fail"}])
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.chat.completions.create(model=MODEL, messages=messages, max_tokens="many")  # type: ignore[call-overload]
    with pytest.raises(openai.BadRequestError, match="content"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": [{"type": "nonsense"}]}])  # type: ignore[typeddict-item]
    for stream in (False, True):
        with pytest.raises(openai.AuthenticationError, match="API key"):
            client.with_options(api_key="wrong").chat.completions.create(model=MODEL, messages=messages, stream=stream)
    assert [model.id for model in client.models.list()] == [MODEL, *(f"{MODEL}--{arm}" for arm in "abc")]
    assert client.models.retrieve(f"{MODEL}--b").id == f"{MODEL}--b"


def test_without_the_key_only_the_health_route_opens(service: Service) -> None:
    for path in ("/v1/models", "/-/specplug/arms", "/docs", "/metrics"):
        assert httpx.get(f"{service.url}{path}").status_code == 401, path
    assert httpx.get(f"{service.url}/-/healthz").status_code == 200


@pytest.mark.parametrize("call", ["chat", "completions"])
def test_official_client_reads_the_stream_and_its_end(service: Service, client: openai.OpenAI, call: str) -> None:
    if call == "chat":
        chunks = list(client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], max_tokens=5, stream=True))  # fmt: skip
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    else:
        texts = list(client.completions.create(model=MODEL, prompt="x", max_tokens=5, stream=True))
        text = "".join(chunk.choices[0].text for chunk in texts)
    assert text == "w0 w1 w2 w3 w4 "


def stream(service: Service, **more: Any) -> tuple[list[str], list[float], httpx.Headers]:
    """Events of a streamed answer as they came, when each came, and the headers."""
    events, times = [], []
    with httpx.stream(
        "POST",
        f"{service.url}/v1/chat/completions",
        json=chat_body(stream=True, **more),
        headers=AUTHORIZED,
        timeout=30,
    ) as response:
        for part in response.iter_text():
            events.append(part)
            times.append(time.monotonic())
        return events, times, response.headers


def without_id(event: str) -> Any:
    data = event.removeprefix("data: ").strip()
    return data if data == "[DONE]" else {**json.loads(data), "id": None}


def test_stream_is_what_the_arm_alone_would_send_and_its_tokens_are_counted(service: Service) -> None:
    """The router asks the engine for token counts; the client must not see that it did."""
    for _ in range(2):  # the fingerprint is learnt from the first
        events, _, headers = stream(service, max_tokens=4, model=f"{MODEL}--a")
    assert headers["x-specplug-arm"] == "a"
    assert headers["x-accel-buffering"] == "no"
    found = [without_id(event) for event in events]
    choice = [{"index": 0, "finish_reason": None, "delta": {"content": f"w{step} "}} for step in range(4)]
    choice[3]["finish_reason"] = "length"
    head = {"id": None, "object": "chat.completion.chunk", "created": 1, "model": f"{MODEL}--a"}
    expected: list[Any] = [head | {"choices": [one]} for one in choice]
    expected[3]["system_fingerprint"] = FINGERPRINT
    assert found == [*expected, "[DONE]"]
    wait_for(lambda: list(service.outcomes().values())[-1]["num_output_tokens"] == 4)
    outcome = list(service.outcomes().values())[-1]
    assert (outcome["num_prompt_tokens"], outcome["status"], outcome["error"]) == (7, 200, None)
    assert 0 < outcome["ttft_s"] < outcome["e2e_s"]


def test_client_that_asks_for_usage_gets_it(service: Service) -> None:
    events, _, _ = stream(service, max_tokens=4, stream_options={"include_usage": True})
    usage = without_id(events[-2])
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 4)


def test_one_engine_output_is_one_chunk_at_its_own_time(service: Service) -> None:
    gaps: list[float] = []
    for _ in range(3):
        events, times, _ = stream(service, max_tokens=30)
        assert len(events) == 31
        gaps += [later - sooner for sooner, later in itertools.pairwise(times[:30])]
    assert statistics.median(gaps) == pytest.approx(STEP_S, rel=0.5)
    # Put together in pairs or more, at least half of the gaps would be next to nothing.
    assert sum(gap < STEP_S / 4 for gap in gaps) < len(gaps) / 4


@pytest.mark.parametrize("is_stream", [True, False])
def test_client_that_goes_away_ends_the_request_at_the_arm(service: Service, is_stream: bool) -> None:
    before = call_arm("a", "seen")["num_cancelled"]
    body = chat_body(stream=is_stream, max_tokens=500, model=f"{MODEL}--a")
    with httpx.Client(headers=AUTHORIZED, timeout=0.5) as http:
        if is_stream:
            with http.stream("POST", f"{service.url}/v1/chat/completions", json=body) as response:
                next(response.iter_text())
        else:
            with pytest.raises(httpx.ReadTimeout):
                http.post(f"{service.url}/v1/chat/completions", json=body)
    wait_for(lambda: call_arm("a", "seen")["num_cancelled"] == before + 1, 10)
    wait_for(lambda: list(service.outcomes().values())[-1]["error"] == "cancelled", 10)
    assert list(service.outcomes().values())[-1]["status"] == 499
    wait_for(lambda: arms_of(service.url)["arms"]["a"]["in_flight"] == 0, 10)


def test_change_of_weights_under_load_loses_no_request_and_an_arm_at_0_drains(service: Service) -> None:
    stop = threading.Event()
    ended: list[tuple[float, str]] = []

    def load(number: int) -> None:
        with httpx.Client(headers=AUTHORIZED, timeout=60) as http:
            while not stop.is_set():
                body = chat_body(stream=number % 2 == 0, max_tokens=10)
                response = http.post(f"{service.url}/v1/chat/completions", json=body)
                assert response.status_code == 200, response.text
                assert response.text.count("w9") == 1
                ended.append((time.monotonic(), response.headers["x-specplug-arm"]))

    threads = [threading.Thread(target=load, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    routers = {line["router"] for line in service.exposures("weight")}
    pids = {arm: call_arm(arm, "seen")["pid"] for arm in "ab"}
    time.sleep(2)
    service.set_weights(a=0.0)
    changed = time.monotonic()
    time.sleep(3)
    num_before = len(ended)
    service.set_weights()
    wait_for(lambda: "a" in [arm for _, arm in ended[num_before:]], 20)
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    late = [arm for when, arm in ended[:num_before] if when > changed + 1.0]  # a request takes 0.2 s
    assert len(late) > 20
    assert set(late) == {"b"}
    assert {arm: call_arm(arm, "seen")["pid"] for arm in "ab"} == pids
    assert {line["router"] for line in service.exposures("weight")} == routers  # nothing was restarted


def test_wrong_weights_are_refused_and_the_old_ones_stay(service: Service) -> None:
    service.apply({"weights": {"a": 1.0, "b": -1.0, "c": 0.0}})
    wait_for(lambda: arms_of(service.url)["weights_error"])
    found = arms_of(service.url)
    assert found["weights_error"] == "weights: 'b' is -1.0; expected a number from 0 to 1e+09"
    assert found["weights"] == WEIGHTS
    assert post(service.url, chat_body(max_tokens=0)).status_code == 200
    service.set_weights()
    wait_for(lambda: arms_of(service.url)["weights_error"] is None)


def test_shadow_copies_are_a_bounded_share_and_delay_nobody(service: Service) -> None:
    before = arms_of(service.url)["arms"]["c"]
    took: list[float] = []
    call_arm("c", "set_mode", "hang")  # the copies never end
    for _ in range(60):
        began = time.monotonic()
        assert post(service.url, chat_body(max_tokens=0)).status_code == 200
        took.append(time.monotonic() - began)
    after = arms_of(service.url)["arms"]["c"]
    call_arm("c", "set_mode", "")
    num_sent = after["shadow_requests"] - before["shadow_requests"]
    num_dropped = after["shadow_dropped"] - before["shadow_dropped"]
    assert after["in_flight"] - before["in_flight"] == num_sent <= 2
    assert num_dropped > 0
    assert binomtest(num_sent + num_dropped, 60, 0.25).pvalue > 0.001
    assert statistics.median(took) < 0.5
    shadows = service.exposures("shadow")
    assert {line["arm"] for line in shadows} == {"c"}
    assert all(line["request_id"].endswith("-shadow") for line in shadows)
    ended = [service.outcomes().get(line["request_id"]) for line in shadows]
    assert any(outcome and outcome["status"] == 200 for outcome in ended)  # those of earlier tests


def test_arms_see_neither_the_key_nor_a_name_of_their_own_choice(service: Service) -> None:
    body = chat_body(max_tokens=0, model=f"{MODEL}--b", request_id="same")
    post(service.url, body, X_Request_Id="same", traceparent="00-1-1-01")
    seen = call_arm("b", "seen")["bodies"][-1]
    assert seen["model"] == f"{MODEL}--b"
    assert seen["headers"]["traceparent"] == "00-1-1-01"
    assert not {"authorization", "x-request-id"} & set(seen["headers"])
    assert seen["id"] == service.exposures("forced")[-1]["request_id"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stream_options": {"include_usage": True}}, "Stream options can only be defined when `stream=True`"),
        ({"messages": [{"role": "user", "content": "a \ud800 b"}]}, "half of a surrogate pair"),
    ],
)
def test_what_vllm_refuses_late_is_the_clients_fault(service: Service, changes: dict[str, Any], said: str) -> None:
    content = json.dumps(chat_body() | changes)  # httpx would not spell half a character
    headers = {**AUTHORIZED, "Content-Type": "application/json"}
    answer = httpx.post(f"{service.url}/v1/chat/completions", content=content, headers=headers, timeout=60)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
    assert post(service.url, chat_body("whole: \U0001f600", max_tokens=1)).status_code == 200


def test_log_has_every_request_once_and_nothing_of_its_text_or_user(service: Service) -> None:
    for body in (chat_body(SECRET_TEXT, user=SECRET_USER), chat_body(SECRET_TEXT, user=SECRET_USER, stream=True)):
        assert post(service.url, body, X_Session_Id=SECRET_USER).status_code == 200
    wait_for(lambda: not [arm for arm in arms_of(service.url)["arms"].values() if arm["in_flight"] > 2])
    time.sleep(0.5)
    text = "".join(file.read_text() for file in service.log.glob("*.jsonl"))
    assert not [secret for secret in (SECRET_TEXT, SECRET_USER, "alice", KEY, "w0") if secret in text]
    found = lines(service.log)
    exposed = [line["request_id"] for line in found if line["event"] == "exposure" and line["by"] != "shadow"]
    ended = [line["request_id"] for line in found if line["event"] == "outcome" and "shadow" not in line["request_id"]]
    assert len(exposed) == len(set(exposed)) > 3000  # nothing was moved in this file of tests
    assert sorted(exposed) == sorted(ended)
    assert arms_of(service.url)["exposure_log"]["num_dropped"] == 0


def test_counts_come_out_among_rays_metrics_by_arm(service: Service) -> None:
    import ray

    node = ray.nodes()[0]
    url = f"http://127.0.0.1:{node['MetricsExportPort']}/metrics"

    def metrics() -> list[str]:
        return httpx.get(url, timeout=10).text.splitlines()

    def has(name: str) -> bool:
        return any(line.startswith(f"ray_specplug_router_{name}{{") and 'arm="a"' in line for line in metrics())

    for name in ("requests_total", "errors_total", "in_flight", "ttft_s_bucket"):
        wait_for(functools.partial(has, name), 40)
