"""Wrapping an attribute of somebody else's class or module, so that it can be seen and undone.

Knows nothing of vLLM. A patch keeps the original, refuses an attribute that is missing, is harmless when applied twice,
and has an undo; `contract` checks before that the attribute takes the parameters relied on.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from vllm_specplug.errors import ContractError

#: Where a replacement keeps the original.
MARK = "__specplug_original__"


def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """Replace `owner.name` by `make(original)`.

    Args:
        owner: a class or module.
        name: an attribute of it that is a function.
        make: gets the original, returns the replacement.
    Returns:
        A function that puts the original back; harmless when called twice.
    Raises:
        ContractError: the attribute does not exist.
    """
    current = getattr(owner, name, None)
    if current is None:
        raise ContractError(
            f"{_path(owner)} has no attribute {name!r}, which this version of vllm-specplug relies on; "
            "run `specplug doctor` and install a supported vLLM"
        )
    if is_wrapped(owner, name):  # applied before, in this process
        return functools.partial(_restore, owner, name)
    replacement = make(current)
    if inspect.isfunction(current) and inspect.isfunction(replacement):
        functools.update_wrapper(replacement, current)
    setattr(replacement, MARK, current)
    setattr(owner, name, replacement)
    return functools.partial(_restore, owner, name)


def is_wrapped(owner: Any, name: str) -> bool:
    """Whether `owner.name` is ours at present."""
    return original(getattr(owner, name, None)) is not getattr(owner, name, None)


def original(attribute: Any) -> Any:
    """What `attribute` replaced, or itself."""
    try:
        return vars(attribute).get(MARK, attribute)  # not getattr: a replacement may forward unknown names
    except TypeError:
        return attribute


def _restore(owner: Any, name: str) -> None:
    setattr(owner, name, original(getattr(owner, name)))


def _path(owner: Any) -> str:
    module = getattr(owner, "__module__", None)
    return f"{module}.{owner.__qualname__}" if isinstance(owner, type) else getattr(owner, "__name__", repr(owner))
