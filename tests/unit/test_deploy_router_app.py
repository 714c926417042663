"""The router's HTTP without Ray: the key, the routes, and errors in OpenAI's shape."""

from __future__ import annotations

import hmac
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.testclient import TestClient

from deploy.failures import RequestError, unknown_model
from deploy.router_app import ADMIN_PATH, ROUTES, build_app

KEY = "correct horse"


class Body(BaseModel):
    model: str
    n: int = 1


async def generate(body: Body) -> dict[str, Any]:
    if body.model == "boom":
        raise ValueError("secret of the inside")
    if body.model != "tiny":
        raise unknown_model(body.model, ["tiny"])
    return {"n": body.n}


async def listed() -> dict[str, Any]:
    return {"data": []}


async def one(model: str) -> dict[str, Any]:
    return {"id": model}


ENDPOINTS = {"models": listed, "model_data": one} | dict.fromkeys(
    ("chat", "completions", "tokenize", "detokenize"), generate
)


def client(key: str | None = None, admin: bool = False) -> TestClient:
    app = build_app(ENDPOINTS, key=key, admin=(lambda: {"arms": {}}) if admin else None)
    return TestClient(app, raise_server_exceptions=False)


def error(response: Any) -> dict[str, Any]:
    found = response.json()
    assert list(found) == ["error"]
    assert set(found["error"]) == {"message", "type", "param", "code"}
    return dict(found["error"])


@pytest.mark.parametrize("path", [*ROUTES, ADMIN_PATH, "/docs", "/openapi.json", "/metrics", "/nowhere"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer ö".encode("latin-1")},
    ],
)
def test_no_route_opens_without_the_key(path: str, headers: dict[str, Any]) -> None:
    for method in ("GET", "POST", "OPTIONS", "HEAD"):
        response = client(KEY, admin=True).request(method, path, headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        if method != "HEAD":
            assert error(response)["code"] == "invalid_api_key"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_key_opens_every_route(scheme: str) -> None:
    with_key = client(KEY, admin=True)
    for path, (method, _) in [*ROUTES.items(), (ADMIN_PATH, ("GET", ""))]:
        response = with_key.request(
            method,
            path.replace("{model:path}", "x/y"),
            headers={"Authorization": f"{scheme} {KEY}"},
            json={"model": "tiny"},
        )
        assert response.status_code == 200, path


def test_two_authorization_headers_open_nothing() -> None:
    headers = [("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer x")]
    assert client(KEY).get("/v1/models", headers=headers).status_code == 401


def test_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def spy(a: bytes, b: bytes) -> bool:
        seen.append((a, b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    client(KEY).get("/v1/models", headers={"Authorization": "Bearer guess"})
    assert seen == [(b"guess", KEY.encode())]


def test_route_for_operators_is_not_there_unless_asked_for() -> None:
    assert client().get(ADMIN_PATH).status_code == 404
    assert client(admin=True).get(ADMIN_PATH).json() == {"arms": {}}


def test_no_page_of_another_origin_may_read_an_answer() -> None:
    headers = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
    for method in ("GET", "OPTIONS"):
        response = client().request(method, "/v1/models", headers=headers)
        assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
def test_there_are_no_pages_of_documentation(path: str) -> None:
    assert client().get(path).status_code == 404


@pytest.mark.parametrize(
    ("content", "status", "code", "message", "param"),
    [
        (b'{"model": "no"}', 404, "model_not_found", "the model 'no' does not exist; there are tiny", "model"),
        (b"{oops", 400, "invalid_request", "JSON decode error (Expecting property name", None),
        (b'{"model": "tiny", "n": "many"}', 400, "invalid_request", "n: Input should be a valid integer", "n"),
        (b"{}", 400, "invalid_request", "model: Field required", "model"),
        (b'{"model": "boom"}', 500, "internal_error", "the router failed; its log says why", None),
    ],
)  # fmt: skip
def test_errors_have_openais_shape_and_say_nothing_of_the_inside(
    content: bytes, status: int, code: str, message: str, param: str | None
) -> None:
    response = client().post("/v1/chat/completions", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == status
    found = error(response)
    assert found == {
        "message": found["message"],
        "type": "invalid_request_error" if status < 500 else "server_error",
        "param": param,
        "code": code,
    }
    assert found["message"].startswith(message)
    assert "secret" not in response.text


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/v1/completions", 405)])
def test_unknown_routes_and_methods_have_openais_shape(method: str, path: str, status: int) -> None:
    response = client().request(method, path)
    assert response.status_code == status
    assert error(response)["message"].startswith(f"{method} {path}: ")


def test_retry_after_is_whole_seconds_and_at_least_one() -> None:
    headers = [
        RequestError("busy", 503, "x", "x", retry_after_s=wait_s).response().headers.get("retry-after")
        for wait_s in (None, 0.0, 0.2, 1.2)
    ]
    assert headers == [None, "1", "1", "2"]
