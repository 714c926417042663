"""`vllm serve` as a child: its command line, and what is read of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from deploy.vllm_server import EngineDeadError, VllmServer, _events, command_line
from vllm_specplug.errors import DeployError


def test_options_are_spelt_as_vllm_reads_them() -> None:
    options = {
        "max_model_len": 64,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "speculative_config": {"method": "ngram"},
        "quantization": None,
        "allowed_origins": ["a", "b"],
    }
    assert command_line(options) == [
        *("--max-model-len", "64"),
        "--enforce-eager",
        "--no-enable-prefix-caching",
        *("--speculative-config", '{"method": "ngram"}'),
        *("--allowed-origins", "a", "b"),
    ]


def test_events_are_whole_wherever_the_network_cuts_them() -> None:
    text = 'data: {"a": 1}\n\ndata: {"b": "x\\n"}\n\ndata: [DONE]\n\n'

    class Pieces(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for start in range(0, len(text), 5):
                yield text[start : start + 5].encode()

    async def all_events() -> list[str]:
        return [event async for event in _events(httpx.Response(200, stream=Pieces()))]

    assert asyncio.run(all_events()) == ['data: {"a": 1}\n\n', 'data: {"b": "x\\n"}\n\n', "data: [DONE]\n\n"]


async def start(source: str, timeout_s: float) -> VllmServer:
    server = VllmServer.__new__(VllmServer)
    await server.__init__("m--a", source, {}, timeout_s)  # type: ignore[misc]  # as Serve does
    return server


def test_child_that_ends_is_told_with_its_last_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(DeployError, match=r"^m--a: `vllm serve` ended with code 1: it printed nothing$"):
        asyncio.run(start("/none", 30))


def test_child_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "sleeps"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(script))
    with pytest.raises(DeployError, match=r"^m--a: `vllm serve` was not up within 1 s$"):
        asyncio.run(start("/none", 1))


def test_replica_that_would_not_load_the_plugin_starts_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    with pytest.raises(DeployError, match="leaves us out"):
        asyncio.run(start("/none", 1))


def test_dead_engine_goes_by_the_name_vllm_gives_it() -> None:
    assert EngineDeadError.__name__ == "EngineDeadError"  # the router knows it by that
