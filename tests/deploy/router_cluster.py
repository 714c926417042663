"""A local Ray cluster with stub arms behind the router, on loopback alone; started, used and stopped by the tests."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from deploy.cluster import LOCAL, connected

ROOT = Path(__file__).resolve().parents[2]
MODEL = "tiny"
KEY = "a-key-of-the-tests"
KEY_VARIABLE = "ROUTER_TEST_KEY"
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def ray_cluster() -> Iterator[str]:
    """Ray with two CPUs, and Serve's proxy; yields the URL of the proxy."""
    from ray import serve

    env = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
        "OMP_NUM_THREADS": "1",
        KEY_VARIABLE: KEY,
    }
    port = free_port()
    with connected(LOCAL, num_cpus=2, include_dashboard=False, runtime_env={"env_vars": env}):
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            serve.shutdown()


FAST: dict[str, Any] = {
    "health_check_period_s": 1,
    "graceful_shutdown_wait_loop_s": 0.1,
    "max_ongoing_requests": 10_000,
    "ray_actor_options": {"num_cpus": 0},
}


def build(args: dict[str, Any]) -> Any:
    """The application: a stub for each arm, the router in front of them, as Ray's builder would put them together."""
    from ray import serve
    from ray.serve.llm.ingress import make_fastapi_ingress

    from deploy.router import ArmRouter

    settings = {"model": MODEL, **args["settings"]}
    arms, cards = arms_and_cards(settings["arms"], args["step_s"], args["replicas"])
    router = serve.deployment(make_fastapi_ingress(ArmRouter), name="ArmRouter", **FAST)
    return router.bind(llm_deployments=arms, model_cards=cards, settings=settings)


def arms_and_cards(arms: Sequence[str], step_s: float, replicas: Mapping[str, int]) -> tuple[Any, Any]:
    """Stub arms, and what an ingress lists of them, by full name."""
    from ray import serve
    from ray.llm._internal.serve.core.configs.openai_api_models import ModelCard
    from stub_arm import StubArm

    models = {arm: f"{MODEL}--{arm}" for arm in arms}
    bound = {
        model: serve.deployment(
            StubArm, name=arm, num_replicas=replicas.get(arm, 1), health_check_timeout_s=30, **FAST
        ).bind(step_s)
        for arm, model in models.items()
    }
    cards = {
        model: ModelCard(id=model, object="model", owned_by="x", permission=[], metadata={})
        for model in models.values()
    }
    return bound, cards


def deploy(
    user_config: Any,
    settings: Mapping[str, Any],
    *,
    step_s: float = 0.0,
    replicas: Mapping[str, int] | None = None,
    num_routers: int = 1,
) -> None:
    """Have Serve run it, as `serve deploy` would; a second time it changes only what differs."""
    from ray import serve
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    config = {
        "name": "router",
        "route_prefix": "/",
        "import_path": "router_cluster:build",
        "args": {"settings": dict(settings), "step_s": step_s, "replicas": dict(replicas or {})},
        "deployments": [{"name": "ArmRouter", "num_replicas": num_routers, "user_config": user_config}],
    }
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": [config]}))
    time.sleep(0.5)

    def is_up() -> bool:
        application = serve.status().applications["router"]
        assert application.status != "DEPLOY_FAILED", application.message
        return application.status == "RUNNING"

    wait_for(is_up, 240)


def call_arm(arm: str, method: str, *args: Any) -> Any:
    """Call a method of (some replica of) a stub arm."""
    from ray import serve

    return getattr(serve.get_deployment_handle(arm, app_name="router"), method).remote(*args).result(timeout_s=30)


def lines(directory: Path) -> list[dict[str, Any]]:
    """All lines of an exposure log."""
    return [json.loads(line) for file in sorted(directory.glob("*.jsonl")) for line in file.read_text().splitlines()]


def wait_for(what: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Until a function says so."""
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end, f"waited {timeout_s} s in vain"
        time.sleep(0.05)


def chat_body(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}


def post(url: str, body: Mapping[str, Any], path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
    sent = AUTHORIZED | {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{url}{path}", json=dict(body), headers=sent, timeout=60)


def arms_of(url: str) -> dict[str, Any]:
    """What the route for operators says."""
    response = httpx.get(f"{url}/-/specplug/arms", headers=AUTHORIZED, timeout=30)
    assert response.status_code == 200
    return dict(response.json())


def settings_of(arms: Sequence[str], directory: Path, **more: Any) -> dict[str, Any]:
    return {"arms": list(arms), "api_key_env": KEY_VARIABLE, "exposure": {"directory": str(directory)}, **more}
