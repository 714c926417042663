"""Two arms with real engines on a real cluster: `python -m deploy run`, from nothing to nothing."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import processes
import psutil
import pytest
import yaml
from deployments import Run, chat, running, text_of, wait_for_line
from openai import NotFoundError, OpenAI

from vllm_specplug import metrics

sys.path.append(str(Path(__file__).parents[1] / "engine"))
from models import tiny_llama

pytestmark = pytest.mark.slow  # a Ray cluster for nearly every test: minutes

ENGINE_ARGS = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 1 << 26,
}
LOOKUP = {"method": "specplug:prompt_lookup", "num_speculative_tokens": 4, "min_confidence": 0.0}
ENGINE = "VLLM::EngineCore"
REPLICA = "ServeReplica:specplug:ArmServer:"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("run")
    model = tiny_llama(folder / "model", vocab_size=128, eos_token_id=127, with_tokenizer=True)
    staging = {
        "model": "tiny",
        "source": str(model),
        "engine_args": ENGINE_ARGS,
        "arms": {"baseline": {"weight": 0}, "lookup": {"speculative_config": LOOKUP}},
    }
    with running(staging, folder) as found:
        yield found


@pytest.fixture(scope="module")
def url(run: Run) -> str:
    return run.wait_until_up()


def replica(run: Run, arm: str) -> int:
    """Process id of an arm's only replica."""
    (found,) = processes.children_named(run.pid, f"{REPLICA}{arm}")
    return found


def test_cluster_of_its_own_is_on_loopback_alone(run: Run, url: str) -> None:
    """But for a port of Serve's that each replica opens, which nothing can move."""
    assert "s  Ray 127.0.0.1:" in run.said()
    assert not {
        connection.laddr.ip
        for pid, name in processes.family(run.pid).items()
        if not name.startswith("ray::ServeRepli")
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    } - {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_client_gets_a_streamed_answer_from_each_arm(url: str) -> None:
    client = OpenAI(base_url=url, api_key="none")
    for model in ("tiny", "tiny--baseline", "tiny--lookup"):
        stream = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "abcabcabc"}], max_tokens=24, temperature=0, stream=True
        )
        chunks = [chunk for chunk in stream if chunk.choices]
        # Not batched: prompt lookup may give several tokens a step, no speculation one.
        assert len(chunks) > (20 if model == "tiny--baseline" else 4)


def test_arms_give_the_same_greedy_text(url: str) -> None:
    texts = {
        arm: text_of(chat(url, f"tiny--{arm}", "abcabcabc", max_tokens=64, temperature=0))
        for arm in ("baseline", "lookup")
    }
    assert texts["baseline"] == texts["lookup"]


def test_tokens_of_a_conversation_are_the_same_from_each_arm(url: str) -> None:
    body = {"messages": [{"role": "user", "content": "abc"}]}
    found = [
        httpx.post(f"{url.removesuffix('/v1')}/tokenize", json={**body, "model": model}, timeout=60).json()["tokens"]
        for model in ("tiny", "tiny--baseline", "tiny--lookup")
    ]
    assert found[0]
    assert found[0] == found[1] == found[2]


def test_error_is_what_the_official_client_expects(url: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        OpenAI(base_url=url, api_key="none", max_retries=0).models.retrieve("nobody")
    assert "nobody" in str(caught.value)


def test_proposer_drafts_in_the_worker_process_though_the_driver_never_imported_it(run: Run, url: str) -> None:
    chat(url, "tiny--lookup", "abcabcabc", max_tokens=64, temperature=0)
    (engine,) = processes.children_named(replica(run, "lookup"), ENGINE)
    totals = metrics.read_totals(Path(psutil.Process(engine).environ()[metrics.FOLDER_VARIABLE]))
    assert totals["prompt_lookup"]["draft_tokens"] > 50
    (plain,) = processes.children_named(replica(run, "baseline"), ENGINE)
    assert metrics.FOLDER_VARIABLE not in psutil.Process(plain).environ()


def test_weights_change_without_a_restart(run: Run, url: str) -> None:
    before = {arm: replica(run, arm) for arm in ("baseline", "lookup")}
    assert chat(url, "tiny", max_tokens=1)["model"] == "tiny--lookup"
    staging = yaml.safe_load(run.file.read_text())
    staging["arms"]["baseline"]["weight"], staging["arms"]["lookup"]["weight"] = 1, 0
    run.file.write_text(yaml.safe_dump(staging))
    os.kill(run.pid, signal.SIGHUP)
    wait_for_line(run, "weights: baseline 1, lookup 0", 60)
    processes.eventually(lambda: bool(chat(url, "tiny", max_tokens=1)["model"] == "tiny--baseline"), 60)
    assert {arm: replica(run, arm) for arm in ("baseline", "lookup")} == before


def test_file_that_is_wrong_changes_nothing(run: Run, url: str) -> None:
    good = run.file.read_text()
    run.file.write_text(good + "nonsense: 1\n")
    os.kill(run.pid, signal.SIGHUP)
    wait_for_line(run, "going on as before", 60)
    assert "unknown key 'nonsense'" in run.said()
    run.file.write_text(good)
    assert chat(url, "tiny", max_tokens=1)["model"] == "tiny--baseline"


@pytest.mark.parametrize("name", [ENGINE, "VLLM::Worker"])
def test_dead_engine_is_noticed_when_idle_and_replaced(run: Run, url: str, name: str) -> None:
    before = replica(run, "lookup")
    (victim,) = processes.children_named(before, name)
    os.kill(victim, signal.SIGKILL)
    noticed = processes.eventually(lambda: not processes.is_alive(before), 60)
    print(f"{name}: its replica ended {noticed:.1f} s after it")
    wait_for_replacement(run, url, before)


def test_killed_replica_takes_its_engine_with_it_and_is_replaced(run: Run, url: str) -> None:
    before = replica(run, "lookup")
    engines = processes.family(before)
    assert len(engines) >= 2  # the engine and its worker
    os.kill(before, signal.SIGKILL)
    processes.eventually(lambda: not any(map(processes.is_alive, engines)), 10)
    wait_for_replacement(run, url, before)


def test_replica_killed_while_its_engine_starts_takes_that_with_it(run: Run, url: str) -> None:
    before = replica(run, "lookup")
    os.kill(before, signal.SIGKILL)

    def starting() -> tuple[int, list[int]]:
        found = [pid for pid in processes.children_named(run.pid, f"{REPLICA}lookup") if pid != before]
        return (found[0], list(processes.family(found[0]))) if found else (0, [])

    processes.eventually(lambda: bool(starting()[1]), 150)
    again, engine = starting()
    os.kill(again, signal.SIGKILL)
    processes.eventually(lambda: not any(map(processes.is_alive, engine)), 10)
    wait_for_replacement(run, url, again)


@pytest.mark.timeout(3600)
def test_arms_that_start_at_once_ten_times_over_share_no_port(run: Run, url: str) -> None:
    for _ in range(10):
        before = {arm: replica(run, arm) for arm in ("baseline", "lookup")}
        for victim in before.values():
            os.kill(victim, signal.SIGKILL)
        processes.eventually(lambda: all(answers(url, f"tiny--{arm}") for arm in ("baseline", "lookup")), 300)
        after = {arm: replica(run, arm) for arm in before}
        assert not set(after.values()) & set(before.values())
        ports = {arm: listening(pid) for arm, pid in after.items()}
        assert not ports["baseline"] & ports["lookup"]
    logs = Path(run.said().split("logs in ")[1].splitlines()[0])
    files = [*logs.glob("worker-*"), *logs.glob("serve/*.log")]  # not of Ray's agent, whose port is always the same
    said = "".join(file.read_text(errors="replace") for file in files)
    assert "Started vLLM engine" in said
    assert "Address already in use" not in said
    assert "EADDRINUSE" not in said


def listening(pid: int) -> set[int]:
    """TCP ports that a process and its descendants listen on."""
    return {
        connection.laddr.port
        for one in [pid, *processes.family(pid)]
        for connection in psutil.Process(one).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def wait_for_replacement(run: Run, url: str, before: int) -> None:
    """The arm's next replica answers within 150 s, and the other arm within 10 s all the while."""
    started = time.monotonic()

    def is_back() -> bool:
        assert chat(url, "tiny--baseline", max_tokens=1, timeout_s=10)["model"] == "tiny--baseline"
        found = processes.children_named(run.pid, f"{REPLICA}lookup")
        return bool(found) and found[0] != before and answers(url, "tiny--lookup")

    processes.eventually(is_back, 150)
    print(f"replaced in {time.monotonic() - started:.1f} s")


def answers(url: str, model: str) -> bool:
    try:
        return bool(chat(url, model, max_tokens=1, timeout_s=10)["choices"])
    except Exception:
        return False


def test_nothing_is_left_after_a_signal(run: Run, url: str) -> None:
    family: dict[int, Any] = processes.family(run.pid)
    assert any(ENGINE in name for name in family.values())
    assert run.end(signal.SIGTERM, within_s=15) == 0
    left = [family[pid] for pid in family if processes.is_alive(pid)]
    assert not left
    port = int(url.split(":")[2].split("/")[0])
    assert port not in {connection.laddr.port for connection in psutil.net_connections("tcp") if connection.laddr}
    assert "ended" in run.said().splitlines()[-1]
