"""From a staging file to the Serve configuration that `serve run`, `serve deploy` and KubeRay take.

The application's arguments hold what restarts replicas when it changes; `deployments` holds what does not: weights,
replicas, health checks. (Serve also counts which deployments scale by themselves as a part of the version.)
"""

from __future__ import annotations

from typing import Any

from deploy.application import IMPORT_PATH, ROUTER, deployment_name
from deploy.staging import Staging

#: Of a staging file and of an arm: what stands elsewhere in a Serve configuration.
_NOT_ARGS = {"http", "health", "name", "route_prefix", "num_routers"}
_NOT_ARGS_OF_ARM = {"weight", "replicas", "autoscaling"}


def serve_config(staging: Staging) -> dict[str, Any]:
    """The configuration, ready to be written as YAML or JSON."""
    return {
        "proxy_location": staging.http.location,
        "http_options": {"host": staging.http.host, "port": staging.http.port},
        "applications": [
            {
                "name": staging.name,
                "route_prefix": staging.route_prefix,
                "import_path": IMPORT_PATH,
                "args": _args(staging),
                "deployments": [_router(staging), *(_arm(staging, name) for name in staging.arms)],
            }
        ],
    }


def _args(staging: Staging) -> dict[str, Any]:
    args = staging.model_dump(exclude_defaults=True, exclude=_NOT_ARGS)
    args["arms"] = {
        name: arm.model_dump(exclude_defaults=True, exclude=_NOT_ARGS_OF_ARM) for name, arm in staging.arms.items()
    }
    return args


def _router(staging: Staging) -> dict[str, Any]:
    return {
        "name": ROUTER,
        "num_replicas": staging.num_routers,
        "user_config": {"weights": staging.weights},
        **_health(staging),
    }


def _arm(staging: Staging, name: str) -> dict[str, Any]:
    arm = staging.arms[name]
    if arm.autoscaling is None:
        replicas: dict[str, Any] = {"num_replicas": arm.replicas}
    else:
        replicas = {"autoscaling_config": arm.autoscaling.model_dump()}
    return {"name": deployment_name(name), **replicas, **_health(staging)}


def _health(staging: Staging) -> dict[str, Any]:
    return {
        "health_check_period_s": staging.health.check_period_s,
        "health_check_timeout_s": staging.health.check_timeout_s,
        "graceful_shutdown_timeout_s": staging.health.shutdown_wait_s,
    }
