"""What the contract may ask of a vLLM's symbols, and the answers of the installed one, which is imported for them.

`source_symbols` answers the same questions from source files.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
from collections.abc import Collection, Sequence
from typing import Any, Protocol, get_args

from vllm_specplug.bridge import patches


class Vllm(Protocol):
    """A vLLM that can be asked for its symbols."""

    def find(self, module: str, attributes: Sequence[str]) -> Any:
        """The symbol `attributes[-1]` of ... of `attributes[0]` of `module`, to be handed to the methods below.

        Raises:
            LookupError: it is not there; its text says what is missing.
        """

    def parameters(self, symbol: Any) -> Collection[str] | None:
        """Names of a function's parameters, or of those that make an object of a class; None: they cannot be told."""

    def attributes(self, symbol: Any) -> Collection[str]:
        """What objects of a class have: methods, fields, and whatever its methods set on `self`."""

    def literals(self, symbol: Any) -> Collection[str]:
        """The strings of a Literal, also of Literals in it."""


class Installed:
    """The vLLM of this environment."""

    def find(self, module: str, attributes: Sequence[str]) -> Any:
        """See `Vllm`."""
        try:
            found: Any = importlib.import_module(module)
        except Exception as error:  # a broken installation fails in many ways
            raise LookupError(f"module {module} cannot be imported: {error}") from error
        for number, attribute in enumerate(attributes, 1):
            is_field = inspect.isclass(found) and attribute in _fields(found)  # without a default it is no attribute
            if not hasattr(found, attribute) and not is_field:
                raise LookupError(f"{module}:{'.'.join(attributes[:number])} is missing")
            found = getattr(found, attribute, None)
        return found

    def parameters(self, symbol: Any) -> Collection[str] | None:
        """See `Vllm`."""
        try:
            return list(inspect.signature(patches.original(symbol)).parameters)
        except (TypeError, ValueError):
            return None

    def attributes(self, symbol: Any) -> Collection[str]:
        """See `Vllm`."""
        owner: Any = symbol
        return _attributes(owner) if inspect.isclass(symbol) else ()

    def literals(self, symbol: Any) -> Collection[str]:
        """See `Vllm`."""
        found: set[str] = set()
        for value in get_args(symbol):
            found |= {value} if isinstance(value, str) else set(self.literals(value))
        return found


def _fields(owner: type) -> set[str]:
    return {name for each in owner.__mro__ for name in vars(each).get("__annotations__", ())}


@functools.cache
def _attributes(owner: type[Any]) -> frozenset[str]:
    found = {*dir(owner), *_fields(owner)}
    for member in (member for each in owner.__mro__ for member in vars(each).values()):
        code = getattr(inspect.unwrap(patches.original(member)), "__code__", None)
        if code is not None:
            found |= {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR"}
    return frozenset(found)
