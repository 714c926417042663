"""HTTP with one endpoint: JSON questions, streamed answers, and every way to fail as an `EndpointError` of one kind."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Generator, Mapping
from typing import Any

from vllm_specplug.compare.endpoint_address import Endpoint
from vllm_specplug.errors import CompareError, EndpointError

_MAX_BODY_CHARS = 300
_KEEP_ALIVE_S = 4.0
"""Servers close a connection that is idle for 5 s (uvicorn) or more; a request must not fall into that."""


class Http:
    """A client of one endpoint; may be used by several threads at once."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        """Open no connection yet.

        Args:
            timeout_s: longest wait for a connection, and for each part of an answer.
        Raises:
            CompareError: httpx is not installed, or the key is not there.
        """
        try:
            import httpx
        except ImportError as error:
            raise CompareError(
                "endpoints need httpx, which is not installed; pip install 'vllm-specplug[compare]'"
            ) from error
        self.timeout_s = timeout_s
        headers = endpoint.secret_headers()
        self._secrets = [value.removeprefix("Bearer ") for value in headers.values() if value]
        try:
            self._client = httpx.Client(
                headers=headers,
                timeout=httpx.Timeout(timeout_s),
                limits=httpx.Limits(keepalive_expiry=_KEEP_ALIVE_S),
            )
        except ValueError as error:  # a header that HTTP cannot carry; the value is not for a log
            raise CompareError(f"the headers or the key for {endpoint.url} hold what HTTP cannot carry") from error
        self._failures = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError)

    def ask(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> str:
        """One question and the text of its answer.

        Raises:
            EndpointError: there was none, or its status is not 2xx.
        """
        try:
            answer = self._client.request(method, url, json=body)
        except self._failures as error:
            raise self._failed(url, error) from error
        if not answer.is_success:
            raise self._status(url, answer.status_code, answer.text)
        return str(answer.text)

    def ask_json(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The same, for an answer that is a JSON object.

        Raises:
            EndpointError: as `ask`, or it is something else.
        """
        text = self.ask(method, url, body)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise EndpointError("malformed", f"{url} answered no JSON: {self._shown(text)}") from error
        if not isinstance(found, dict):
            raise EndpointError("malformed", f"{url} answered no JSON object: {self._shown(text)}")
        return found

    def stream(self, url: str, body: Mapping[str, Any]) -> Generator[tuple[float, str], None, None]:
        """The events of a streamed answer as they come: `time.perf_counter` at arrival, and the event's data.

        Ends behind `[DONE]`, which is not given.

        Raises:
            EndpointError: there is no answer, it stops before `[DONE]`, or nothing but signs of life comes for
                `timeout_s`.
        """
        try:
            with self._client.stream("POST", url, json=body) as answer:
                if not answer.is_success:
                    answer.read()
                    raise self._status(url, answer.status_code, answer.text)
                last = time.perf_counter()
                pending = b""
                for part in answer.iter_bytes():
                    now = time.perf_counter()
                    # Lines end at \n. httpx's own iter_lines also splits at U+2028, which may stand in a token's text.
                    *lines, pending = (pending + part).split(b"\n")
                    for line in lines:
                        if not line.startswith(b"data:"):
                            continue  # a comment that keeps the connection open, an event's name, an empty line
                        data = line[5:].strip()
                        if data == b"[DONE]":
                            return
                        last = now
                        yield now, data.decode("utf-8", errors="replace")
                    if now - last > self.timeout_s:
                        raise EndpointError("timeout", f"{url}: no token for {self.timeout_s:g} s; see --timeout-s")
        except self._failures as error:
            raise self._failed(url, error) from error
        rest = f", last: {self._shown(pending.decode(errors='replace'))}" if pending.strip() else ""
        raise EndpointError("stopped", f"{url}: the answer ended before its [DONE]{rest}")

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _status(self, url: str, status: int, body: str) -> EndpointError:
        remedies = {401: "; is the key in 'api_key_env' right?", 403: "; may this key use the model?"}
        hint = remedies.get(status, "")
        if status == 404 and not url.removesuffix("/completions").removesuffix("/models").endswith("/v1"):
            hint = "; should the address end in /v1?"
        return EndpointError(f"http_{status}", f"{url} answered {status}: {self._shown(body)}{hint}")

    def _failed(self, url: str, error: Exception) -> EndpointError:
        """What httpx raised, by the error below it that says why."""
        import httpx

        causes: list[BaseException] = []
        cause: BaseException | None = error
        while cause is not None and cause not in causes:
            causes.append(cause)
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, httpx.TimeoutException):
            return EndpointError("timeout", f"{url}: no answer within {self.timeout_s:g} s; see --timeout-s")
        # A failed look-up is an OSError too, so the order counts.
        for kind, classes, text in (
            (
                "tls",
                ssl.SSLError,
                "TLS failed; does it speak https, and does SSL_CERT_FILE vouch for its certificate?",
            ),
            ("dns", socket.gaierror, "the host's name is not known; is the address right?"),
            ("refused", ConnectionRefusedError, "nothing listens there; is the server running?"),
        ):
            if any(isinstance(one, classes) for one in causes):
                return EndpointError(kind, f"{url}: {text} ({self._shown(str(error))})")
        if isinstance(error, httpx.RemoteProtocolError):
            return EndpointError("stopped", f"{url}: the connection ended in the middle ({self._shown(str(error))})")
        return EndpointError("connection", f"{url}: {type(error).__name__}: {self._shown(str(error))}")

    def _shown(self, text: str) -> str:
        """On one line, not too long, without secrets: servers repeat the key they refuse."""
        flat = " ".join(text.split())
        for secret in self._secrets:
            flat = flat.replace(secret, "***")
        return flat if len(flat) <= _MAX_BODY_CHARS else flat[: _MAX_BODY_CHARS - 4] + " ..."
