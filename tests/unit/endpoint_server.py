"""A server that speaks vLLM's streaming protocol without a model, and breaks it on demand."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

MODEL = "tiny"


def ordinary(prompt: list[int], max_tokens: int) -> list[list[int]]:
    """A token a chunk: the prompt's last token, counted up."""
    return [[(prompt[-1] + step) % 100] for step in range(1, max_tokens + 1)]


@dataclass
class Fake:
    """What the server does; tests change it while it runs."""

    url: str = ""
    key: str | None = None
    version: str | None = "0.32.0"
    owned_by: str = "vllm"
    has_tokenize: bool = True
    refuses_tokenize: bool = False
    """As Ray's LLM server does where it cannot find what answers that."""
    has_template: bool = True
    shift: int = 0
    """Added to every token that /tokenize gives, as another tokenizer would."""
    tells_ids: bool = True
    tells_usage: bool = True
    strict: bool = False
    """Refuses what OpenAI's API does not have."""
    chunks: Callable[[list[int], int], list[list[int]]] = ordinary
    faults: list[str] = field(default_factory=list)
    """Of the next completions, one each; "" is none. `always` follows them."""
    always: str = ""
    spoilt: list[list[int]] = field(default_factory=list)
    """Prompts that are always answered with 500."""
    counters: dict[str, float] | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)

    def fault(self, prompt: list[int]) -> str:
        if prompt in self.spoilt:
            return "500"
        return self.faults.pop(0) if self.faults else self.always


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # as real servers do; else each chunk waits 40 ms for the one before
    fake: Fake

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if not self._let_in():
            return
        if self.path == "/v1/models":
            self._json({"data": [{"id": MODEL, "owned_by": self.fake.owned_by, "max_model_len": 128}]})
        elif self.path == "/version" and self.fake.version:
            self._json({"version": self.fake.version})
        elif self.path == "/metrics" and self.fake.counters is not None:
            lines = [f"{name} {value}" for name, value in self.fake.counters.items()]
            self._send(200, "\n".join(lines) + "\n")
        else:
            self._json({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self._let_in():
            return
        if self.path == "/tokenize" and self.fake.has_tokenize:
            self._tokenize(body)
        elif self.path == "/v1/completions":
            self.fake.bodies.append(body)
            self.fake.headers.append(dict(self.headers))
            self._complete(body, self.fake.fault(body["prompt"]))
        else:
            self._json({"detail": "Not Found"}, 404)

    def _let_in(self) -> bool:
        wanted = self.fake.key
        given = self.headers.get("authorization")
        if wanted is None or given == f"Bearer {wanted}":
            return True
        self._json({"error": {"message": f"Incorrect API key provided: {given}"}}, 401)
        return False

    def _tokenize(self, body: dict[str, Any]) -> None:
        if self.fake.refuses_tokenize:
            self._json({"error": {"message": "This model does not support the 'tokenization' task."}}, 400)
            return
        if "messages" in body:
            if not self.fake.has_template:
                self._json({"error": {"message": "default chat template is no longer allowed"}}, 400)
                return
            text = "".join(f"{one['role'][0]}:{one['content']};" for one in body["messages"])
        else:
            text = body["prompt"]
        self._json({"tokens": [ord(character) % 100 + self.fake.shift for character in text], "max_model_len": 128})

    def _complete(self, body: dict[str, Any], fault: str) -> None:
        if self.fake.strict and ("return_token_ids" in body or "cache_salt" in body):
            self._json({"error": {"message": "Unrecognized request argument"}}, 400)
            return
        if fault.isdigit():
            self._json({"error": {"message": f"injected {fault}"}}, int(fault))
            return
        chunks = self.fake.chunks(body["prompt"], body["max_tokens"])
        tokens = [token for chunk in chunks for token in chunk]
        if not body.get("stream"):
            top = {f"token_id:{token}": -0.1 * place for place, token in enumerate((tokens[0], 7, 8))}
            self._json({"choices": [{"logprobs": {"top_logprobs": [top]}}]})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for index, ids in enumerate(chunks):
            if fault == "cut" and index:
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            if fault == "ends early" and index:
                self._chunk("")
                return
            if fault == "broken" and index:
                self._event('{"choices": [{"text": "half')
                continue
            if fault == "error" and index:
                self._event('{"error": {"message": "engine died", "code": 500}}')
                break
            if fault == "silent" and index:
                self.fake.release.wait(5)
                return
            while fault == "slow" and index:
                self._chunk(": still here\n\n")
                if self.fake.release.wait(0.02):
                    return
            last = index == len(chunks) - 1
            choice: dict[str, Any] = {"index": 0, "text": "".join(map(_spelt, ids))}
            choice["finish_reason"] = "length" if last else None
            if self.fake.tells_ids and body.get("return_token_ids"):
                choice["token_ids"] = ids[:-1] if fault == "wrong count" and last else ids
            self._event(json.dumps({"choices": [choice], "usage": None}, ensure_ascii=False))
        if self.fake.tells_usage and body.get("stream_options", {}).get("include_usage"):
            self._event(json.dumps({"choices": [], "usage": {"completion_tokens": len(tokens)}}))
        if self.fake.counters is not None:
            self._count(len(tokens), len(chunks))
        self._event("[DONE]")
        self._chunk("")

    def _count(self, num_tokens: int, num_chunks: int) -> None:
        counters = self.fake.counters
        assert counters is not None
        counters["vllm:generation_tokens_total"] += num_tokens
        if "vllm:spec_decode_num_drafts_total" in counters:
            counters["vllm:spec_decode_num_drafts_total"] += num_chunks
            counters["vllm:spec_decode_num_draft_tokens_total"] += 2 * num_chunks
            counters["vllm:spec_decode_num_accepted_tokens_total"] += num_tokens - num_chunks
            counters['vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}'] += num_tokens - num_chunks
            counters['vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"}'] += 0

    def _event(self, data: str) -> None:
        self._chunk(f"data: {data}\n\n")

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value))

    def _send(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _spelt(token: int) -> str:
    # A line separator may stand in an answer's text and must not end an event.
    return "\u2028" if token == 50 else chr(97 + token % 26)


def counters(*, speculating: bool) -> dict[str, float]:
    """Counters of a server that has answered others before."""
    found = {"vllm:generation_tokens_total": 1000.0}
    if speculating:
        names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        found |= {f"vllm:spec_decode_{name}_total": 500.0 for name in names}
        found |= {
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}}': 250.0 for place in (0, 1)
        }
    return found


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is what some tests are about."""


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    handler = type("Bound", (Handler,), {"fake": fake})
    server = _Server(("127.0.0.1", 0), handler)
    fake.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        fake.release.set()
        server.shutdown()
        server.server_close()
        thread.join()


def closed_port() -> int:
    """A port where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """To be imported by tests that ask this machine: a proxy would answer for it."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serving(Fake()) as one:
        yield one


@pytest.fixture
def two() -> Iterator[tuple[Fake, Fake]]:
    with ExitStack() as stack:
        yield stack.enter_context(serving(Fake())), stack.enter_context(serving(Fake()))
