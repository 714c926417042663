"""An engine without a model, for what does not depend on one: Ray's LLM server starts it in place of vLLM's.

Named by RAYLLM_VLLM_ENGINE_CLS in an arm's `env`. What it does is set by environment variables too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from ray.serve.llm.openai_api_models import ChatCompletionResponse


class StubEngine:
    """Says its arm's name and process id. STUB_START_S: how long a start takes. STUB_FAILS: it raises that instead."""

    def __init__(self, llm_config: Any) -> None:
        self._model = llm_config.model_id

    async def start(self) -> None:
        if "STUB_FAILS" in os.environ:
            raise RuntimeError(os.environ["STUB_FAILS"])
        await asyncio.sleep(float(os.environ.get("STUB_START_S", "0")))

    async def check_health(self) -> None:
        pass

    async def shutdown(self) -> None:
        pass

    def routing_stats(self) -> dict[str, Any]:
        return {}

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        await asyncio.sleep(float(os.environ.get("STUB_ANSWER_S", "0")))
        message = {"role": "assistant", "content": f"{self._model} {os.getpid()}"}
        yield ChatCompletionResponse.model_validate(
            {
                "id": "stub",
                "model": self._model,
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
            }
        )
