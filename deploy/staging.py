"""The staging file: one model, served by several arms at once, as YAML.

```
model: qwen                                # the name clients ask for
source: Qwen/Qwen2.5-1.5B-Instruct         # a model of the hub; a folder begins with "/", "./", "../" or "~"
engine_args: {max_model_len: 4096}         # of every arm, in vLLM's own names
arms:
  baseline: {num_gpus: 1}
  prompt_lookup:
    num_gpus: 1
    speculative_config: {method: "specplug:prompt_lookup", num_speculative_tokens: 8}
```

Knows what may stand in it and what goes together; knows neither Ray nor vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from deploy.router_settings import RouterOptions
from deploy.settings import Settings, read
from deploy.split import MOST_WEIGHT
from deploy.values import check_env, check_host, check_name, check_plain, check_resources, check_route_prefix
from vllm_specplug.errors import DeployError
from vllm_specplug.strict_yaml import load_mapping

#: `source` of the small model of `specplug demo`, which each machine makes for itself.
DEMO_MODEL = "specplug:demo"

#: Between the model's name and the arm's in the name that forces an arm.
SEPARATOR = "--"

#: Settings of an arm that Ray has to know too, so they have keys of their own.
_NOT_ENGINE_ARGS = {
    "model": "'source'",
    "served_model_name": "'model'",
    "speculative_config": "the arm's 'speculative_config'",
    "tensor_parallel_size": "the arm's 'tensor_parallel_size'",
    "pipeline_parallel_size": "the arm's 'pipeline_parallel_size'",
    "distributed_executor_backend": "nothing: Ray decides it",
}


def _checked_engine_args(value: dict[str, Any]) -> dict[str, Any]:
    for key in value:
        place = _NOT_ENGINE_ARGS.get(key)
        if place is not None:
            raise ValueError(f"{key} does not belong in engine_args; use {place}")
    check_plain(value)
    return value


_EngineArgs = Annotated[dict[str, Any], AfterValidator(_checked_engine_args)]
_MOST_REPLICAS = 10_000
_MOST_WORKERS = 1_024
_ARM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]*")


class Autoscaling(Settings):
    """Between how many replicas an arm may have, and when it gets more."""

    min_replicas: int = Field(default=1, ge=1)
    """Not 0: to Serve the router's health checks are requests, so an arm would never get there."""
    max_replicas: int = Field(ge=1, le=_MOST_REPLICAS)
    target_ongoing_requests: float = Field(default=8.0, gt=0)
    """Requests under way per replica that Serve aims at. Ray's own default for models, 1e9, never adds a replica."""
    upscale_delay_s: float = Field(default=30.0, ge=0)
    downscale_delay_s: float = Field(default=600.0, ge=0)

    @model_validator(mode="after")
    def _in_order(self) -> Autoscaling:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas is {self.min_replicas}, but max_replicas only {self.max_replicas}; lower the one or "
                "raise the other"
            )
        return self


class Arm(Settings):
    """One way to serve the model."""

    speculative_config: Annotated[dict[str, Any] | None, AfterValidator(check_plain)] = None
    """As in `--speculative-config`; None: no speculation."""
    engine_args: _EngineArgs = {}
    """In vLLM's own names; they win over those of all arms."""
    weight: float = Field(default=1.0, ge=0, le=MOST_WEIGHT)
    """Share of the requests, relative to the other arms'; 0: only requests that force this arm."""
    replicas: int = Field(default=1, ge=1, le=_MOST_REPLICAS)
    autoscaling: Autoscaling | None = None
    tensor_parallel_size: int = Field(default=1, ge=1, le=_MOST_WORKERS)
    pipeline_parallel_size: int = Field(default=1, ge=1, le=_MOST_WORKERS)
    num_gpus: float = Field(default=0.0, ge=0)
    """GPUs of one replica: as many as it has workers, or a fraction of one for its only worker; 0: CPUs alone."""
    num_cpus: float = Field(default=1.0, gt=0)
    """CPUs Ray reserves for each worker of a replica."""
    accelerator_type: str | None = None
    """In Ray's names, e.g. "H100"."""
    resources: Annotated[dict[str, float], AfterValidator(check_resources)] = {}
    """Custom Ray resources of each worker."""
    env: Annotated[dict[str, str], AfterValidator(check_env)] = {}
    """Environment variables of the replica and its workers."""

    @model_validator(mode="after")
    def _fits_together(self) -> Arm:
        if self.autoscaling is not None and "replicas" in self.model_fields_set:
            raise ValueError("replicas and autoscaling are both given; give one")
        if self.accelerator_type is not None and not self.num_gpus:
            raise ValueError(
                f"accelerator_type is {self.accelerator_type!r}, but num_gpus is 0; set num_gpus, or leave it out"
            )
        if not self.num_gpus or self.num_gpus == self.num_workers or (self.num_workers == 1 and self.num_gpus < 1):
            return self
        expected = "1, or a fraction of it" if self.num_workers == 1 else f"{self.num_workers}, one for each worker"
        raise ValueError(
            f"num_gpus is {self.num_gpus:g}, but tensor_parallel_size {self.tensor_parallel_size} times "
            f"pipeline_parallel_size {self.pipeline_parallel_size} needs {expected}"
        )

    @property
    def num_workers(self) -> int:
        """Worker processes of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def min_replicas(self) -> int:
        """Replicas that must be placed before the arm serves."""
        return self.replicas if self.autoscaling is None else self.autoscaling.min_replicas


class Http(Settings):
    """Where clients connect."""

    host: Annotated[str, AfterValidator(check_host)] = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    """0: any free one (`python -m deploy run` alone)."""
    location: Literal["HeadOnly", "EveryNode"] = "HeadOnly"
    """In Serve's words. EveryNode: each machine with a replica also listens, as KubeRay expects."""


class Health(Settings):
    """How soon a dead engine is noticed, and how long a replica that ends may finish its requests."""

    check_period_s: float = Field(default=2.0, gt=0)
    check_timeout_s: float = Field(default=30.0, gt=0)
    """A replica is replaced after three checks in a row that failed or did not end in so many seconds."""
    shutdown_wait_s: float = Field(default=10.0, ge=0)


class Staging(Settings):
    """All of a staging file."""

    model: str
    """The name clients ask for; one arm alone answers to `<model>--<arm>`."""
    source: Annotated[str, AfterValidator(check_name)] | None = None
    """Weights: a model of the hub, a folder, "specplug:demo"; by default the hub's model of the name `model`."""
    name: Annotated[str, AfterValidator(check_name)] = "specplug"
    """Of the Serve application."""
    route_prefix: Annotated[str, AfterValidator(check_route_prefix)] = "/"
    engine: Literal["ray", "vllm"] = "ray"
    """ray: vLLM inside the replica, by Ray's LLM module. vllm: the replica runs `vllm serve` and passes requests on,
    for releases of vLLM which that module cannot load."""
    engine_args: _EngineArgs = {}
    arms: dict[str, Arm]
    router: RouterOptions = RouterOptions()
    num_routers: int = Field(default=2, ge=1, le=_MOST_REPLICAS)
    """Replicas of the router: while one is replaced, another one works."""
    http: Http = Http()
    health: Health = Health()
    start_timeout_s: float = Field(default=1800.0, gt=0)
    """Until every arm must be up."""
    wait_for_nodes: bool = False
    """The cluster may still grow (an autoscaler, nodes on their way), so wait as long as that for what does not fit."""

    @field_validator("model")
    @classmethod
    def _model_name(cls, value: str) -> str:
        if not _MODEL_NAME.fullmatch(value) or SEPARATOR in value:
            raise ValueError(
                f"{value!r} cannot be the name of a model; expected letters, digits and _ . / - (no {SEPARATOR!r}, "
                "which stands before an arm's name)"
            )
        return value

    @field_validator("arms")
    @classmethod
    def _arms(cls, value: dict[str, Arm]) -> dict[str, Arm]:
        if not value:
            raise ValueError("no arms; expected at least one, e.g. 'baseline: {}'")
        for name in value:
            if not _ARM_NAME.fullmatch(name) or SEPARATOR in name:
                raise ValueError(
                    f"{name!r} cannot be the name of an arm; expected letters, digits, _ and - (no {SEPARATOR!r})"
                )
        if not any(arm.weight for arm in value.values()):
            raise ValueError("every arm has weight 0, so nobody would answer; give one a weight above 0")
        return value

    @model_validator(mode="after")
    def _shadow_is_an_arm(self) -> Staging:
        shadow = self.router.shadow
        if shadow is not None and shadow.arm not in self.arms:
            raise ValueError(f"router.shadow.arm is {shadow.arm!r}; expected one of {', '.join(self.arms)}")
        return self

    @property
    def weights(self) -> dict[str, float]:
        """Arm to its share of the requests."""
        return {name: arm.weight for name, arm in self.arms.items()}

    def arm_id(self, arm: str) -> str:
        """The name under which one arm alone answers."""
        return f"{self.model}{SEPARATOR}{arm}"

    def engine_args_of(self, arm: str) -> dict[str, Any]:
        """vLLM's arguments of one arm, its parallel sizes and speculative config among them."""
        settings = self.arms[arm]
        args = {**self.engine_args, **settings.engine_args}
        if settings.speculative_config is not None:
            args["speculative_config"] = settings.speculative_config
        for key in ("tensor_parallel_size", "pipeline_parallel_size"):
            if getattr(settings, key) != 1:
                args[key] = getattr(settings, key)
        return args


def load_staging(path: str | Path) -> Staging:
    """Read a staging file; folders named in it are relative to its own.

    Raises:
        DeployError: it cannot be read, or the first thing that is wrong in it.
    """
    file = Path(path)
    rows = load_mapping(file, "the staging file", DeployError, "a mapping of model, arms and more")
    try:
        found = _with_absolute_folders(rows, file.resolve().parent)
    except DeployError as error:
        raise DeployError(f"{file}: {error}") from error
    return read(Staging, found, str(file))


def _with_absolute_folders(rows: Mapping[Any, Any], base: Path) -> dict[Any, Any]:
    """The same with folders spelt in full, since Ray's workers run elsewhere."""
    found = dict(rows)
    found["source"] = _absolute(found.get("source"), base)
    arms = found.get("arms")
    if isinstance(arms, dict):
        found["arms"] = {name: _arm_with_absolute_folder(arm, base) for name, arm in arms.items()}
    return found


def _arm_with_absolute_folder(arm: Any, base: Path) -> Any:
    if arm is None:
        return {}  # "baseline:" alone
    config = arm.get("speculative_config") if isinstance(arm, dict) else None
    if not isinstance(config, dict) or "model" not in config:
        return arm
    return {**arm, "speculative_config": {**config, "model": _absolute(config["model"], base)}}


def _absolute(value: Any, base: Path) -> Any:
    is_folder = isinstance(value, str) and value.startswith(("/", "./", "../", "~"))
    try:
        return str((base / Path(value).expanduser()).resolve()) if is_folder else value
    except (OSError, RuntimeError, ValueError) as error:
        raise DeployError(f"{value!r} cannot be a folder ({error}); write it in full") from error
