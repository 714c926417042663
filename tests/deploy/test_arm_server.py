"""An arm's replica without a cluster: when it refuses to serve."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.serve.llm import LLMConfig

from deploy.server import ArmServer
from vllm_specplug.errors import DeployError
from vllm_specplug.options import ProposerSpec


@pytest.fixture(autouse=True, scope="module")
def no_ray_behind() -> Iterator[None]:
    """Ray starts by itself when something asks for a cluster, and then refuses to be started on purpose."""
    yield
    if ray.is_initialized():
        ray.shutdown()


LOOKUP = {"method": "specplug:prompt_lookup", "num_speculative_tokens": 4}


class Engine:
    """Stands for vLLM's engine, as far as the replica looks at it: `found` is the proposer it came up with."""

    found: ProposerSpec | None = None
    num_starts = 0
    num_shutdowns = 0

    def __init__(self, llm_config: Any) -> None:
        config = SimpleNamespace() if self.found is None else SimpleNamespace(specplug=self.found)
        self._engine_client = SimpleNamespace(
            vllm_config=SimpleNamespace(speculative_config=config), shutdown=self._shut_down
        )

    async def start(self) -> None:
        type(self).num_starts += 1

    async def shutdown(self) -> None:
        pass

    def _shut_down(self) -> None:
        type(self).num_shutdowns += 1


def server(found: str | None, speculative_config: dict[str, Any] | None) -> tuple[ArmServer, type[Engine]]:
    spec = None if found is None else ProposerSpec(found, "x:Y", {}, 4, {})
    engine = type("OneEngine", (Engine,), {"found": spec, "num_starts": 0, "num_shutdowns": 0})
    config = LLMConfig(
        model_loading_config={"model_id": "m--a", "model_source": "/none"},
        engine_kwargs={} if speculative_config is None else {"speculative_config": speculative_config},
        placement_group_config={"bundles": [{"CPU": 1}]},
    )
    return ArmServer.sync_init(config, engine_cls=engine), engine


@pytest.mark.parametrize(("found", "asked"), [("prompt_lookup", LOOKUP), (None, None), (None, {"method": "ngram"})])
def test_replica_serves_with_what_it_was_asked_for(found: str | None, asked: dict[str, Any] | None) -> None:
    replica, engine = server(found, asked)
    asyncio.run(replica.start())
    assert engine.num_starts == 1


@pytest.mark.parametrize(("found", "said"), [(None, "none"), ("medusa", "'medusa'")])
def test_replica_without_its_proposer_does_not_serve(found: str | None, said: str) -> None:
    replica, _ = server(found, LOOKUP)
    with pytest.raises(DeployError, match=rf"^m--a: its engine came up with proposer {said}, expected 'prompt_lookup'"):
        asyncio.run(replica.start())


def test_replica_that_would_not_load_the_plugin_starts_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    replica, engine = server(None, None)
    with pytest.raises(DeployError, match=r"^m--a: VLLM_PLUGINS='other' leaves us out"):
        asyncio.run(replica.start())
    assert engine.num_starts == 0


def test_engine_is_shut_down_with_its_replica() -> None:
    replica, engine = server("prompt_lookup", LOOKUP)
    asyncio.run(replica.start())
    asyncio.run(replica.__del__())
    assert engine.num_shutdowns == 1


def test_replica_whose_engine_never_started_ends_in_peace() -> None:
    replica, engine = server(None, None)
    asyncio.run(replica.__del__())
    assert engine.num_shutdowns == 0
