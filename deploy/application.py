"""From a staging file to a Ray Serve application: Ray's LLM server for each arm, the router in front of them.

`build` is the import path in the Serve configuration that `deploy.rendering` writes. What may change while the
application runs (weights, replicas, health checks) is not among its arguments but in that configuration, since Serve
restarts every replica when the arguments change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploy import preflight, resources
from deploy.bundles import wanted_by, wanted_of
from deploy.environment import arm_environment
from deploy.router_settings import RouterSettings
from deploy.settings import read
from deploy.staging import DEMO_MODEL, Staging

if TYPE_CHECKING:
    from ray.serve import Application

IMPORT_PATH = "deploy.application:build"
ROUTER = "ArmRouter"


def deployment_name(arm: str) -> str:
    """How Serve calls an arm's deployment."""
    return f"ArmServer:{arm}"


def build(args: dict[str, Any]) -> Application:
    """Make the application; Serve calls this on the cluster.

    Args:
        args: a staging file's content, without what may change at run time.
    Raises:
        DeployError: it cannot be served with the Ray, vLLM and plugin that are installed here.
    """
    staging = read(Staging, args, "the application's args")
    preflight.require(staging)
    resources.require(wanted_of(staging), wait_s=staging.start_timeout_s if staging.wait_for_nodes else 0)
    if staging.engine == "vllm":
        from deploy.vllm_application import assembled

        return assembled(staging)
    from ray.serve.llm import build_openai_app

    return build_openai_app(serving_args(staging))


def serving_args(staging: Staging) -> dict[str, Any]:
    """What `ray.serve.llm.build_openai_app` takes."""
    settings = router_settings(staging)
    return {
        "llm_configs": [_llm_config(staging, arm) for arm in staging.arms],
        "ingress_cls_config": {
            "ingress_cls": f"deploy.router:{ROUTER}",
            "ingress_extra_kwargs": {"settings": settings.model_dump()},
        },
        "ingress_deployment_config": router_options(staging),
    }


def router_options(staging: Staging) -> dict[str, Any]:
    """How Serve deploys the router."""
    return {
        "num_replicas": staging.num_routers,
        "ray_actor_options": {"num_cpus": 0},
        "user_config": {"weights": staging.weights},
    }


def router_settings(staging: Staging) -> RouterSettings:
    """What the router is started with."""
    return RouterSettings(**dict(staging.router), model=staging.model, arms=list(staging.arms))


def _llm_config(staging: Staging, arm: str) -> dict[str, Any]:
    settings = staging.arms[arm]
    wanted = wanted_by(arm, settings)
    return {
        "model_loading_config": {"model_id": staging.arm_id(arm), "model_source": source(staging)},
        "engine_kwargs": staging.engine_args_of(arm),
        "accelerator_type": settings.accelerator_type,
        "placement_group_config": {
            "bundles": [dict(bundle) for bundle in wanted.bundles],
            "strategy": "STRICT_PACK" if wanted.on_one_machine else "PACK",
        },
        "deployment_config": {
            "name": arm,
            "num_replicas": settings.replicas,
            # The bundles hold all that a replica needs: itself and its workers.
            "ray_actor_options": {"num_cpus": 0},
        },
        "runtime_env": {"env_vars": arm_environment(staging, settings)},
        "server_cls": "deploy.server:ArmServer",
        # Ray's default, 50 ms, would hand tokens out in bunches and spoil every client's inter-token times.
        "experimental_configs": {"stream_batching_interval_ms": 0},
    }


def source(staging: Staging) -> str:
    """The weights, as vLLM takes them."""
    if staging.source != DEMO_MODEL:
        return staging.source or staging.model
    from vllm_specplug.demo_model import demo_model_path

    return str(demo_model_path())
