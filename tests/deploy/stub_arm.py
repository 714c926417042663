"""An arm without a model: what Ray's LLM server is to the router, in vLLM's manner of streaming.

The text of a request says what it does; `set_mode` says what every request does.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

FINGERPRINT = "stub-0"


class StubArm:
    """Answers with words "w0 w1 ..." as many as `max_tokens`, one each `step_s`.

    Words in the prompt that change that: "die" (the process ends), "die-at-3" (after three chunks), "hang",
    "hang-at-3", "fail" (status 500), "fail-at-3", "refuse" (400), "dead" (what vLLM raises without its engine).
    """

    def __init__(self, step_s: float = 0.0) -> None:
        self._step_s = step_s
        self._mode = ""
        self._bodies: list[dict[str, Any]] = []
        self._num_cancelled = 0
        self._num_asked = 0
        importlib.import_module("ray.serve.llm.openai_api_models")  # else the first request takes seconds to unpickle

    async def check_health(self) -> None:
        if self._mode in ("unwell", "hang-and-unwell"):
            raise RuntimeError("unwell")
        if self._mode == "frozen":
            await asyncio.sleep(3600)

    async def set_mode(self, mode: str) -> None:
        self._mode = mode

    async def seen(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "num_asked": self._num_asked,
            "num_cancelled": self._num_cancelled,
            "bodies": self._bodies[-20:],
        }

    async def tokenize(self, body: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        yield {"tokens": [1, 2, 3], "count": 3, "max_model_len": 100}

    async def chat(self, body: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        text = " ".join(str(message.get("content")) for message in body.messages)
        return self._run(body, raw_request_info, text, is_chat=True)

    async def completions(self, body: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        return self._run(body, raw_request_info, str(body.prompt), is_chat=False)

    async def _run(self, body: Any, raw_request_info: Any, text: str, is_chat: bool) -> AsyncIterator[Any]:
        self._num_asked += 1
        headers = dict(raw_request_info.headers) if raw_request_info else {}
        self._bodies.append({"model": body.model, "id": body.request_id, "headers": headers, "stream": body.stream})
        num_words = body.max_tokens or 4
        try:
            async for item in self._answer(body, text.split() + self._mode.split(), num_words, is_chat):
                yield item
        except (asyncio.CancelledError, GeneratorExit):
            self._num_cancelled += 1
            raise

    async def _answer(self, body: Any, words: list[str], num_words: int, is_chat: bool) -> AsyncIterator[Any]:
        for word in words:
            await self._do(word.removesuffix("-and-unwell"))
        if "refuse" in words or "fail" in words:
            yield _error(400 if "refuse" in words else 500)
            return
        if not body.stream:
            await asyncio.sleep(num_words * self._step_s)
            yield _whole(body, num_words, is_chat)
            return
        for step in range(num_words):
            for word in words:
                if word == f"fail-at-{step}":
                    yield f"data: {json.dumps({'error': _error(500)['error']})}\n\n"
                    yield "data: [DONE]\n\n"
                    return
                await self._do(word.removesuffix(f"-at-{step}"))
            await asyncio.sleep(self._step_s)
            yield _chunk(body, step, step == num_words - 1, is_chat)
        if body.stream_options and body.stream_options.include_usage:
            yield _event(
                _head(body, is_chat) | {"choices": [], "usage": _usage(num_words), "system_fingerprint": FINGERPRINT}
            )
        yield "data: [DONE]\n\n"

    async def _do(self, word: str) -> None:
        if word == "die":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        if word == "hang":
            await asyncio.sleep(3600)
        if word == "dead":
            raise EngineDeadError("EngineCore encountered an issue.")


class EngineDeadError(Exception):
    """As vLLM calls it."""


def _error(status: int) -> dict[str, Any]:
    kind = "BadRequestError" if status == 400 else "InternalServerError"
    return {"error": {"message": "as asked", "type": kind, "param": None, "code": status}}


def _usage(num_words: int) -> dict[str, int]:
    return {"prompt_tokens": 7, "completion_tokens": num_words, "total_tokens": 7 + num_words}


def _head(body: Any, is_chat: bool) -> dict[str, Any]:
    kind = "chat.completion" if is_chat else "text_completion"
    return {"id": f"x-{body.request_id}", "object": f"{kind}.chunk" if is_chat and body.stream else kind,
            "created": 1, "model": body.model}  # fmt: skip


def _chunk(body: Any, step: int, is_last: bool, is_chat: bool) -> str:
    text = f"w{step} "
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if is_last else None}
    choice |= {"delta": {"content": text}} if is_chat else {"text": text}
    fields = _head(body, is_chat) | {"choices": [choice]}
    if is_last and not (body.stream_options and body.stream_options.include_usage):
        fields["system_fingerprint"] = FINGERPRINT
    return _event(fields)


def _event(fields: dict[str, Any]) -> str:
    return f"data: {json.dumps(fields, separators=(',', ':'))}\n\n"


def _whole(body: Any, num_words: int, is_chat: bool) -> Any:
    from ray.serve.llm.openai_api_models import ChatCompletionResponse, CompletionResponse

    text = " ".join(f"w{step}" for step in range(num_words))
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
    choice |= {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
    fields = _head(body, is_chat) | {"choices": [choice], "usage": _usage(num_words), "system_fingerprint": FINGERPRINT}
    return (ChatCompletionResponse if is_chat else CompletionResponse).model_validate(fields)
