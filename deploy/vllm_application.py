"""The same application with `vllm serve` in each replica (`engine: vllm`): for a vLLM that Ray's LLM module rejects.

Of that module only the ingress is used, which the router is made of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploy.application import ROUTER, deployment_name, router_options, router_settings, source
from deploy.bundles import wanted_by
from deploy.environment import arm_environment
from deploy.staging import Staging

if TYPE_CHECKING:
    from ray.serve import Application

_NO_LIMIT = 1_000_000  # vLLM queues requests itself


def assembled(staging: Staging) -> Application:
    """Make the application."""
    from ray import serve
    from ray.llm._internal.serve.core.configs.openai_api_models import ModelCard
    from ray.serve.llm.ingress import make_fastapi_ingress

    from deploy.router import ArmRouter

    names = {arm: staging.arm_id(arm) for arm in staging.arms}
    cards = {
        name: ModelCard(id=name, object="model", owned_by="vllm-specplug", permission=[], metadata={})
        for name in names.values()
    }
    router = serve.deployment(
        make_fastapi_ingress(ArmRouter), name=ROUTER, max_ongoing_requests=_NO_LIMIT, **router_options(staging)
    )
    return router.bind(
        llm_deployments={name: _arm(staging, arm) for arm, name in names.items()},
        model_cards=cards,
        settings=router_settings(staging).model_dump(),
    )


def _arm(staging: Staging, arm: str) -> Application:
    from ray import serve

    from deploy.vllm_server import VllmServer

    settings = staging.arms[arm]
    (bundle,) = wanted_by(arm, settings, staging.engine).bundles
    options: dict[str, Any] = {
        "name": deployment_name(arm),
        "num_replicas": settings.replicas,
        "max_ongoing_requests": _NO_LIMIT,
        "ray_actor_options": {
            "num_cpus": bundle.pop("CPU"),
            "num_gpus": bundle.pop("GPU", 0),
            "resources": bundle,
            "runtime_env": {"env_vars": arm_environment(staging, settings)},
        },
    }
    return serve.deployment(VllmServer, **options).bind(
        model=staging.arm_id(arm),
        source=source(staging),
        engine_args=staging.engine_args_of(arm),
        start_timeout_s=staging.start_timeout_s,
    )
