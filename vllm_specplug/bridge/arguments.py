"""Which arguments the installed vLLM's server takes."""

from __future__ import annotations

import dataclasses


def serve_arguments() -> frozenset[str]:
    """Names of the options of `vllm serve`, spelt with underscores, but for the model itself."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    try:
        from vllm.entrypoints.launchers.cli_args import FrontendArgs
    except ImportError:  # 0.33 and later
        from vllm.entrypoints.common.cli_args import FrontendArgs
    return frozenset(field.name for owner in (AsyncEngineArgs, FrontendArgs) for field in dataclasses.fields(owner))
