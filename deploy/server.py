"""One replica of an arm: Ray's LLM server, which refuses to serve without the speculation it was asked for.

Knows the few private names of Ray that `contract` checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ray.serve.llm.deployment import LLMServer

from deploy.arm_meters import ArmMeters, proposer_counts
from vllm_specplug import options, plugin
from vllm_specplug.bridge.config import proposer_spec
from vllm_specplug.errors import DeployError


class ArmServer(LLMServer):
    """Ray's LLM server with checks around the engine's life."""

    _passing_on: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the engine.

        Raises:
            DeployError: it would serve, or serves, without the proposer it was asked for.
        """
        problem = plugin.why_not_loaded()
        if problem is not None:
            raise DeployError(f"{self._arm}: {problem}")
        read = proposer_counts() if self._is_ours else None
        await super().start()
        self._find_tokenization()
        if read is None:
            return
        self._require_proposer()
        # vLLM's own metrics are on Ray's already: Ray's LLM server sees to that.
        self._passing_on = asyncio.create_task(ArmMeters(self._arm).keep_passing_on(read))

    async def __del__(self) -> None:
        """End the engine's processes; Ray would leave that to their own end."""
        if self._passing_on is not None:
            self._passing_on.cancel()
        client = self._engine_client
        if client is not None:
            await asyncio.to_thread(client.shutdown)
        await super().__del__()

    @property
    def _arm(self) -> str:
        return str(self._llm_config.model_id)

    @property
    def _engine_client(self) -> Any:
        """vLLM's client of its engine process; None before that was started."""
        return getattr(getattr(self, "engine", None), "_engine_client", None)

    @property
    def _asked_for(self) -> Mapping[str, Any]:
        """Its speculative config; empty: none."""
        return self._llm_config.engine_kwargs.get("speculative_config") or {}

    @property
    def _is_ours(self) -> bool:
        return options.is_ours(self._asked_for.get("method"))

    def _find_tokenization(self) -> None:
        """Ray 2.60 looks for what answers /tokenize by a name that vLLM 0.32 has changed, and then refuses requests."""
        engine: Any = getattr(self, "engine", None)
        if getattr(engine, "_oai_serving_tokenization", self) is None:
            engine._oai_serving_tokenization = getattr(engine._app_state, "serving_tokenization", None)

    def _require_proposer(self) -> None:
        spec = proposer_spec(self._engine_client.vllm_config.speculative_config)
        name = self._asked_for["method"].removeprefix(options.PREFIX)
        if spec is None or spec.name != name:
            found = "none" if spec is None else repr(spec.name)
            raise DeployError(f"{self._arm}: its engine came up with proposer {found}, expected {name!r}; not serving")
