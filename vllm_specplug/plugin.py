"""`register()`: vLLM calls it in every process it starts (entry point `vllm.general_plugins`).

Cheap, repeatable, and silent for people who do not ask for our methods. If the door cannot be opened, a configuration
that asks for a `specplug:` method is refused by vLLM itself, and the reason stands in the log.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points

from vllm_specplug import parent

logger = logging.getLogger(__name__)

GROUP = "vllm.general_plugins"
NAME = "specplug"


def excluded_by(environ: Mapping[str, str] = os.environ) -> str | None:
    """Value of VLLM_PLUGINS if it keeps vLLM from loading us, else None."""
    allowed = environ.get("VLLM_PLUGINS")
    return allowed if allowed is not None and NAME not in allowed.split(",") else None


def why_not_loaded(environ: Mapping[str, str] = os.environ) -> str | None:
    """Why a vLLM with this environment would not load us, and the remedy; None: it does."""
    if not any(point.name == NAME for point in entry_points(group=GROUP)):
        return (
            f"vLLM will not find us: no entry point {NAME!r} in group {GROUP}; "
            "install vllm-specplug into this environment"
        )
    allowed = excluded_by(environ)
    if allowed is not None:
        return f"VLLM_PLUGINS={allowed!r} leaves us out, so vLLM does not load us; add {NAME!r} or unset it"
    return None


def register() -> None:
    """Open vLLM's door for our methods in this process, and let it end with its parent where that is asked for."""
    parent.end_with_parent_if_asked()
    try:
        _register()
    except Exception:  # a plugin must not take down a server that does not use it
        logger.warning("vllm-specplug could not hook into this vLLM; `specplug doctor` says why", exc_info=True)


def _register() -> None:
    from vllm_specplug.bridge import sampling

    if sampling.mend_all_asked_for():
        sampling.mend_when_first_used()
    # Engine and worker processes get their configuration ready-made and never parse arguments.
    is_front_end = multiprocessing.parent_process() is None or "vllm.engine.arg_utils" in sys.modules
    if is_front_end:
        from vllm_specplug.bridge import config

        config.install()
