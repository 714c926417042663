"""Values of a staging file that a type alone does not check: what Ray, Serve or an operating system would refuse later.

Each raises ValueError, with the value and the remedy, as pydantic's validators do.
"""

from __future__ import annotations

import json
from typing import Any

#: Resources that Ray counts by itself, and the key of an arm that is meant.
_RAYS_OWN = {"CPU": "num_cpus", "GPU": "num_gpus"}


def check_plain(value: dict[str, Any] | None) -> dict[str, Any] | None:
    """Arguments that travel to other processes as JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"holds what JSON cannot ({str(error) or type(error).__name__}); expected texts, finite numbers, true, "
            "false, null, lists and mappings"
        ) from error
    return value


def check_env(value: dict[str, str]) -> dict[str, str]:
    """Environment variables."""
    for name, text in value.items():
        if not name or "=" in name or "\0" in name + text:
            raise ValueError(f"{name!r}: {text!r} cannot be an environment variable; expected a name without '='")
    return value


def check_resources(value: dict[str, float]) -> dict[str, float]:
    """Custom resources of Ray."""
    for name, amount in value.items():
        if name in _RAYS_OWN:
            raise ValueError(f"{name!r} is no custom resource; use {_RAYS_OWN[name]}")
        if not name or amount < 0:
            raise ValueError(f"{name!r}: {amount:g} cannot be had; expected a name, and a number of 0 or more")
    return value


def check_host(value: str) -> str:
    """An address to listen at. An empty one would be all addresses there are."""
    if not value or not value.isprintable() or " " in value:
        raise ValueError(
            f"{value!r} cannot be an address; expected for example 127.0.0.1, or 0.0.0.0 for all there are"
        )
    return value


def check_route_prefix(value: str) -> str:
    """Where the application's routes begin, as Serve takes it."""
    if not value.startswith("/") or (value != "/" and value.endswith("/")) or {"{", "}", " "} & set(value):
        raise ValueError(f"{value!r} cannot be a route prefix; expected '/', or for example '/staging'")
    return value


def check_folder(value: str) -> str:
    """A folder on other machines, where a relative one would be nobody knows where."""
    if not value.startswith(("/", "~/")) or "\0" in value:
        raise ValueError(f"{value!r} is no folder that every machine has; expected one that begins with '/' or '~/'")
    return value


def check_name(value: str) -> str:
    """A text that names something."""
    if not value or not value.isprintable():
        raise ValueError(f"{value!r} cannot be a name; expected a printable text that is not empty")
    return value
