"""The router's HTTP: which routes there are, who may use them, and errors in OpenAI's shape.

There is no CORS: with Ray's default, which allows every origin, any page that an operator's browser visits could ask a
server on loopback and read its answers. Nor are there pages of documentation.

Knows FastAPI; not what the routes do.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from deploy.failures import RequestError, invalid

ADMIN_PATH = "/-/specplug/arms"

#: Path to method of HTTP and name of the endpoint.
ROUTES = {
    "/v1/models": ("GET", "models"),
    "/v1/models/{model:path}": ("GET", "model_data"),
    "/v1/chat/completions": ("POST", "chat"),
    "/v1/completions": ("POST", "completions"),
    "/tokenize": ("POST", "tokenize"),
    "/detokenize": ("POST", "detokenize"),
}


def build_app(
    endpoints: Mapping[str, Callable[..., Awaitable[Any]]],
    *,
    key: str | None,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
    admin: Callable[[], Mapping[str, Any]] | None = None,
    refusals: Iterable[type[Exception]] = (),
) -> FastAPI:
    """Make the application.

    Args:
        endpoints: those that `ROUTES` names.
        key: what clients must send as `Authorization: Bearer`; None: nothing.
        lifespan: around the application's life.
        admin: what the route for operators answers; None: there is no such route.
        refusals: what checks of a body raise, beside pydantic's own errors.
    """
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    for path, (method, name) in ROUTES.items():
        app.add_api_route(path, endpoints[name], methods=[method], response_model=None)
    if admin is not None:

        async def arms() -> Response:
            return JSONResponse(dict(admin()))

        app.add_api_route(ADMIN_PATH, arms, methods=["GET"], response_model=None)
    app.add_exception_handler(RequestError, _request_failure)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _http_exception)
    for refusal in refusals:
        app.add_exception_handler(refusal, _refusal)
    app.add_exception_handler(Exception, _unexpected)
    if key is not None:
        app.add_middleware(_KeyGuard, key=key)
    return app


class _KeyGuard:
    """Lets nobody in without the key; before anything of the request is read."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_known(scope):
            await self._app(scope, receive, send)
            return
        failure = RequestError(
            "refused", 401, "invalid_api_key", "missing or wrong API key; send 'Authorization: Bearer KEY'"
        )
        await failure.response({"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        found = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        scheme, _, key = (found[0] if len(found) == 1 else b"").partition(b" ")
        # Constant time: how long it takes says nothing of how much of the key was right.
        return hmac.compare_digest(key.strip(), self._key) and scheme.lower() == b"bearer"


async def _request_failure(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error.response()


async def _bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = [str(part) for part in first["loc"] if part != "body"]
    where = f"{'.'.join(place)}: " if place and first["type"] != "json_invalid" else ""
    detail = f" ({first['ctx']['error']})" if first["type"] == "json_invalid" and "ctx" in first else ""
    param = ".".join(place) if where else None
    return invalid(f"{where}{first['msg']}{detail}", param).response()


async def _refusal(request: Request, error: Exception) -> Response:
    return invalid(str(error), getattr(error, "parameter", None)).response()


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = f"{request.method} {request.url.path}: "
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, f"http_{error.status_code}")
    failure = RequestError("refused", error.status_code, code, f"{path}{error.detail}")
    return failure.response(dict(error.headers or {}))


async def _unexpected(request: Request, error: Exception) -> Response:
    """Our own fault; Starlette raises it once more, so that Serve logs it."""
    return RequestError("error", 500, "internal_error", "the router failed; its log says why").response()
