"""One replica of an arm whose engine is `vllm serve` in a child process: for releases Ray's LLM module cannot load.

Has the methods of Ray's LLM server that the router calls, and passes each request on over a Unix socket in a folder of
its own: no port that others could take, or reach. Knows vLLM's HTTP interface and nothing of its insides.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from deploy.arm_meters import ArmMeters
from vllm_specplug import plugin
from vllm_specplug.error_lines import last_error_line, one_line
from vllm_specplug.errors import DeployError

_POLL_S = 0.5
_HEALTH_TIMEOUT_S = 10.0
#: How long `vllm serve` may take to end by itself.
_END_S = 5.0
_KEPT_LINES = 200
#: Where the classes of requests are.
_BODIES = "ray.serve.llm.openai_api_models"


class EngineDeadError(RuntimeError):
    """The child is gone, or says that its engine is; by the name that vLLM gives this."""


class VllmServer:
    """A Serve deployment. The constructor returns when the child serves."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, model: str, source: str, engine_args: Mapping[str, Any], start_timeout_s: float
    ) -> None:
        """
        Args:
            model: the name under which the arm answers.
            source: the weights, as `vllm serve` takes them.
            engine_args: its options, spelt with underscores.
        Raises:
            DeployError: it does not come up in time, or ends.
        """
        problem = plugin.why_not_loaded()
        if problem is not None:
            raise DeployError(f"{model}: {problem}")
        self._model = model
        self._folder = Path(tempfile.mkdtemp(prefix="specplug-vllm-"))
        socket = self._folder / "http.sock"
        options = {**engine_args, "served_model_name": model, "uds": str(socket)}
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "deploy.vllm_child", source, *command_line(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        threading.Thread(target=self._copy_output, daemon=True).start()
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(socket), limits=httpx.Limits(max_connections=None)),
            base_url="http://vllm",
            timeout=None,
        )
        try:
            # The first request would have it imported, torch with it: many seconds in which no check is answered.
            await asyncio.to_thread(importlib.import_module, _BODIES)
            await self._wait_until_healthy(start_timeout_s)
        except BaseException:
            self._kill()
            raise
        self._passing_on = asyncio.create_task(ArmMeters(model).keep_passing_on(self._metrics))

    async def chat(self, body: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        """OpenAI's chat completions: events of a stream, or one object."""
        return self._post("/v1/chat/completions", body)

    async def completions(self, body: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        """OpenAI's completions."""
        return self._post("/v1/completions", body)

    async def tokenize(self, body: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        """vLLM's /tokenize."""
        return self._post("/tokenize", body)

    async def detokenize(self, body: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        """vLLM's /detokenize."""
        return self._post("/detokenize", body)

    async def check_health(self) -> None:
        """
        Raises:
            EngineDeadError: the child is gone or unwell.
        """
        if self._child.poll() is not None:
            raise EngineDeadError(self._how_it_ended())
        try:
            answer = await self._client.get("/health", timeout=_HEALTH_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise EngineDeadError(f"{self._model}: `vllm serve` does not answer ({type(error).__name__})") from error
        if answer.status_code != 200:
            raise EngineDeadError(f"{self._model}: `vllm serve` says it is unwell (status {answer.status_code})")

    async def __del__(self) -> None:
        """End the child; Serve calls this when the replica is to end."""
        if hasattr(self, "_passing_on"):  # it came up
            self._passing_on.cancel()
            self._child.terminate()
            await asyncio.to_thread(self._wait_or_kill)
            await self._client.aclose()

    async def _metrics(self) -> Iterable[Metric]:
        """vLLM's metrics and the plugin's."""
        answer = await self._client.get("/metrics", timeout=_HEALTH_TIMEOUT_S)
        return [
            family
            for family in text_string_to_metric_families(answer.text)
            if family.name.startswith(("vllm:", "specplug_"))
        ]

    async def _post(self, path: str, body: Any) -> AsyncIterator[Any]:
        text = body.model_dump_json(exclude_unset=True)
        headers = {"Content-Type": "application/json"}
        try:
            async with self._client.stream("POST", path, content=text, headers=headers) as answer:
                if answer.headers.get("content-type", "").startswith("text/event-stream"):
                    async for event in _events(answer):
                        yield event
                else:
                    found = await answer.aread()
                    if answer.status_code >= 500:
                        await self.check_health()  # a dead engine's server still answers for a while
                    yield json.loads(found)
        except httpx.HTTPError as error:
            await self.check_health()
            raise RuntimeError(f"{self._model}: `vllm serve` broke off ({type(error).__name__}: {error})") from error

    async def _wait_until_healthy(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            if self._child.poll() is not None:
                raise DeployError(self._how_it_ended())
            try:
                await self.check_health()
                return
            except EngineDeadError:
                if time.monotonic() > deadline:
                    raise DeployError(f"{self._model}: `vllm serve` was not up within {timeout_s:g} s") from None
            await asyncio.sleep(_POLL_S)

    def _copy_output(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            sys.stderr.write(line)
            self._last_lines.append(line)

    def _how_it_ended(self) -> str:
        why = one_line(last_error_line("".join(self._last_lines)))
        return f"{self._model}: `vllm serve` ended with code {self._child.returncode}: {why}"

    def _wait_or_kill(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(_END_S)
        self._kill()

    def _kill(self) -> None:
        """With the pipe, whatever the child started ends."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.kill()
        self._child.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def command_line(options: Mapping[str, Any]) -> list[str]:
    """Options of `vllm serve` as it reads them: `{"max_model_len": 64}` is `--max-model-len 64`."""
    found: list[str] = []
    for key, value in options.items():
        flag = f"--{key.replace('_', '-')}"
        if value is None:
            continue
        if isinstance(value, bool):
            found.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, Mapping):
            found += [flag, json.dumps(value)]
        elif isinstance(value, list):
            found += [flag, *map(str, value)]
        else:
            found += [flag, str(value)]
    return found


async def _events(answer: httpx.Response) -> AsyncIterator[str]:
    """The SSE events of an answer, each with the empty line that ends it."""
    rest = ""
    async for text in answer.aiter_text():
        *whole, rest = (rest + text).split("\n\n")
        for event in whole:
            yield f"{event}\n\n"
