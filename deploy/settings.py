"""What all settings of a deployment have in common: they cannot be changed, and an unknown key is refused by name.

Knows pydantic, and nothing of what is set.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from vllm_specplug.errors import DeployError

_T = TypeVar("_T", bound="Settings")


class Settings(BaseModel):
    """A group of settings: exact types (no "2" for 2), no unknown keys, frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def read(model: type[_T], values: object, where: str) -> _T:
    """The settings that `values` hold.

    Args:
        model: the class of them.
        values: a mapping, as YAML or JSON has it.
        where: how an error names the place, e.g. "staging.yaml"; may be empty.
    Raises:
        DeployError: the first thing that is wrong, in one line.
    """
    place = f"{where}: " if where else ""
    if not isinstance(values, Mapping):
        raise DeployError(f"{place}expected a mapping of {', '.join(model.model_fields)}; found {values!r}")
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise DeployError(f"{place}{_explained(model, error)}") from error


def _explained(model: type[BaseModel], error: ValidationError) -> str:
    found: list[dict[str, Any]] = [dict(one) for one in error.errors(include_url=False)]
    # An unknown key before a missing one: it may be that one, misspelt.
    first = min(found, key=lambda one: one["type"] != "extra_forbidden")
    location = [str(part) for part in first["loc"] if not str(part).startswith(("function-", "nullable["))]
    if first["type"] == "extra_forbidden":
        return _unknown_key(model, location)
    what = str(first["msg"]).removeprefix("Value error, ")
    if not location:
        return what
    path = ".".join(location)
    if first["type"] == "missing":
        return f"{path} is missing"
    if first["type"] == "value_error":  # our own rules say which value they are about
        return f"{path}: {what}"
    return f"{path} is {_short(first['input'])}: {what}{_number_hint(first['input'], first['type'])}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:96]} ..."


def _number_hint(value: Any, kind: str) -> str:
    """YAML takes 1e10 for a text, which nobody expects."""
    try:
        number = float(value) if isinstance(value, str) and kind in ("int_type", "float_type") else math.nan
    except ValueError:
        return ""
    return (
        f"; write it as {number:.15g} without quotes" if math.isfinite(number) and "e" not in f"{number:.15g}" else ""
    )


def _unknown_key(model: type[BaseModel], location: list[str]) -> str:
    """What is said of a key that nobody knows, at a place such as ["arms", "lookup", "wieght"]."""
    *path, key = location
    known = sorted(_fields_at(model, path))
    close = difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    place = f"{'.'.join(path)}: " if path else ""
    return f"{place}unknown key {key!r}; there are {', '.join(known)}.{hint}"


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    current: type[BaseModel] | None = model
    for part in path:
        if current is None:
            return []
        field = current.model_fields.get(part)
        if field is not None:  # else `part` is a key of a mapping whose values are models: stay there
            current = _model_in(field.annotation)
    return [] if current is None else list(current.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The settings class in an annotation such as `dict[str, Arm]` or `Autoscaling | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(argument) for argument in getattr(annotation, "__args__", ()))
    return next((one for one in found if one is not None), None)
