"""A replica's counts on Ray's metrics."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from deploy import arm_meters
from deploy.arm_meters import ArmMeters, proposer_counts
from vllm_specplug import metrics


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What Ray's metrics hold: name and labels, to value."""
    held: dict[str, float] = {}

    class Meter:
        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
            self.name, self.tag_keys = name, tag_keys

        def _key(self, tags: dict[str, str]) -> str:
            assert set(tags) == set(self.tag_keys)
            return f"{self.name} {' '.join(f'{key}={value}' for key, value in sorted(tags.items()))}"

        def inc(self, amount: float, tags: dict[str, str]) -> None:
            assert amount > 0
            held[self._key(tags)] = held.get(self._key(tags), 0) + amount

        def set(self, value: float, tags: dict[str, str]) -> None:
            held[self._key(tags)] = value

    monkeypatch.setattr(arm_meters, "Counter", Meter)
    monkeypatch.setattr(arm_meters, "Gauge", Meter)
    return held


def test_totals_become_what_was_gained_and_gauges_stay_what_they_are(ray: dict[str, float]) -> None:
    registry = CollectorRegistry()
    tokens = Counter("vllm:tokens", "Tokens.", ["engine"], registry=registry)
    running = Gauge("vllm:running", "Requests.", registry=registry)
    Histogram("vllm:ttft", "Seconds.", registry=registry).observe(1)
    meters = ArmMeters("m--a")
    tokens.labels("0").inc(3)
    running.set(2)
    meters.pass_on(registry.collect())
    meters.pass_on(registry.collect())
    tokens.labels("0").inc(4)
    tokens.labels("1").inc(1)
    running.set(1)
    meters.pass_on(registry.collect())
    assert ray == {
        "vllm_tokens_total engine=0 model_name=m--a": 7,
        "vllm_tokens_total engine=1 model_name=m--a": 1,
        "vllm_running model_name=m--a": 1,
    }


def test_counts_of_a_worker_started_later_arrive(ray: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(metrics.FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("VLLM_RAY_EXTRA_ENV_VARS_TO_COPY", "MINE")
    read = proposer_counts()
    assert os.environ["VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"] == f"MINE,{metrics.FOLDER_VARIABLE}"
    metrics.counts_for_worker("lookup").add("draft_tokens", 5)  # as a worker that inherits the environment
    ArmMeters("m--a").pass_on(asyncio.run(_read(read)))
    assert ray["specplug_draft_tokens_total model_name=m--a proposer=lookup"] == 5


async def _read(read: Any) -> Any:
    return await read()


def test_failure_to_read_costs_nothing_but_that_reading(
    ray: dict[str, float], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(arm_meters, "_PERIOD_S", 0.01)
    gauge = Gauge("specplug_off", "Off.", registry=(registry := CollectorRegistry()))
    gauge.set(1)
    calls: list[int] = []

    async def read() -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("gone")
        return registry.collect()

    async def pass_on_for_a_while() -> None:
        task = asyncio.create_task(ArmMeters("m--a").keep_passing_on(read))
        while len(calls) < 3:
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(pass_on_for_a_while())
    assert ray == {"specplug_off model_name=m--a": 1}
    assert "counts could not be passed on" in caplog.text
