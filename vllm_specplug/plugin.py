"""`register()`: vLLM calls it in every process it starts (entry point `vllm.general_plugins`).

Cheap, repeatable, and silent for people who do not ask for our methods. If the door cannot be opened, a configuration
that asks for a `specplug:` method is refused by vLLM itself, and the reason stands in the log.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys

logger = logging.getLogger(__name__)


def excluded_by() -> str | None:
    """Value of VLLM_PLUGINS if it keeps vLLM from loading us, else None."""
    allowed = os.environ.get("VLLM_PLUGINS")
    return allowed if allowed is not None and "specplug" not in allowed.split(",") else None


def register() -> None:
    """Open vLLM's door for our methods in this process."""
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
