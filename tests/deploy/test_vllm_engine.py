"""`engine: vllm`: a replica whose engine is a real `vllm serve`; first without Ray, then as a deployment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
from deployments import chat, running, text_of
from test_run import ENGINE, ENGINE_ARGS, LOOKUP

from deploy.environment import arm_environment
from deploy.settings import read
from deploy.staging import Arm, Staging

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from models import tiny_llama

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_llama(tmp_path_factory.mktemp("model"), vocab_size=128, eos_token_id=127, with_tokenizer=True))


#: A replica without Ray: starts, answers what it reads, one JSON line each, until its input closes.
REPLICA = """
import asyncio, json, sys
from ray.serve.llm.openai_api_models import ChatCompletionRequest
from deploy.vllm_server import VllmServer

async def main(model, arguments):
    server = VllmServer.__new__(VllmServer)
    await server.__init__("m--a", model, arguments, 280)
    print(server._child.pid, flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            request = json.loads(line)
            if request == "health":
                answer = await server.check_health()
            elif request == "metrics":
                answer = {sample.name: sample.value for family in await server._metrics() for sample in family.samples}
            else:
                answer = [item async for item in await server.chat(ChatCompletionRequest(**request))]
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)
    await server.__del__()

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
"""


class Replica:
    def __init__(self, model: str, speculative: dict[str, Any]) -> None:
        arguments = {**ENGINE_ARGS, "speculative_config": speculative}
        arm = read(Arm, {}, "arm")
        env = arm_environment(read(Staging, {"model": "m", "arms": {"a": {}}}, "file"), arm)
        self.process = subprocess.Popen(
            [sys.executable, "-c", REPLICA, model, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **env, "HF_HUB_OFFLINE": "1"},
        )
        self.child = int(self._line())

    def ask(self, what: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return json.loads(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the replica ended"
        return line


@pytest.fixture
def replica(model: str) -> Iterator[Replica]:
    found = Replica(model, LOOKUP)
    yield found
    found.process.kill()
    found.process.wait()


def request(**more: Any) -> dict[str, Any]:
    return {
        "model": "m--a",
        "messages": [{"role": "user", "content": "abcabcabc"}],
        "max_tokens": 24,
        "temperature": 0,
        **more,
    }


def test_replica_passes_on_answers_errors_and_metrics_until_its_engine_dies(replica: Replica) -> None:
    (whole,) = replica.ask(request())
    events = replica.ask(request(stream=True))
    assert all(event.startswith("data: ") and event.endswith("\n\n") for event in events)
    assert events[-1] == "data: [DONE]\n\n"
    streamed = "".join(
        json.loads(event.removeprefix("data: "))["choices"][0]["delta"].get("content") or "" for event in events[:-1]
    )
    assert streamed == whole["choices"][0]["message"]["content"]

    (refused,) = replica.ask(request(max_tokens=-1))
    assert refused["error"]["code"] == 400
    assert replica.ask("health") is None
    counted = replica.ask("metrics")
    assert counted["specplug_draft_tokens_total"] > 0
    assert counted["vllm:generation_tokens_total"] >= 48

    (engine,) = processes.children_named(replica.child, ENGINE)
    os.kill(engine, signal.SIGKILL)
    processes.eventually(lambda: str(replica.ask("health")).startswith("EngineDeadError: m--a: `vllm serve` "), 30)
    assert str(replica.ask(request())).startswith("EngineDeadError: ")


def test_killed_replica_takes_vllm_with_it(replica: Replica) -> None:
    family = [replica.child, *processes.family(replica.child)]
    assert len(family) >= 2
    os.kill(replica.process.pid, signal.SIGKILL)
    processes.eventually(lambda: not any(map(processes.is_alive, family)), 10)


def test_deployment_serves_and_leaves_nothing(model: str, tmp_path: Path) -> None:
    arms = {"baseline": {}, "lookup": {"speculative_config": LOOKUP}}
    staging = {"model": "tiny", "source": model, "engine": "vllm", "engine_args": ENGINE_ARGS, "arms": arms}
    with running(staging, tmp_path) as run:
        url = run.wait_until_up()
        texts = {arm: text_of(chat(url, f"tiny--{arm}", "abcabcabc", max_tokens=64, temperature=0)) for arm in arms}
        assert texts["baseline"] == texts["lookup"]
        family = processes.family(run.pid)
        assert run.end(signal.SIGTERM, within_s=20) == 0
        assert not [name for pid, name in family.items() if processes.is_alive(pid)]
