"""Checks of values read from JSON, and of objects of such values, with errors that name the place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from vllm_specplug.errors import CompareError

Check = Callable[[Any], bool]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_object(value: Any) -> bool:
    return isinstance(value, dict)


def is_list(value: Any) -> bool:
    return isinstance(value, list)


def is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_number, value))


def is_interval(value: Any) -> bool:
    return is_numbers(value) and len(value) == 2 and value[0] <= value[1]


def is_percentiles(value: Any) -> bool:
    return isinstance(value, dict) and all(is_number(value.get(key)) for key in ("p50", "p90", "p99"))


def is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


Field: TypeAlias = tuple[Check, str]
"""A check of a value, and what it expects, for errors."""
Fields: TypeAlias = Mapping[str, Field]
"""By key of an object."""


def nullable(field: Field) -> Field:
    """The same, or null."""
    check, expected = field
    return or_null(check), f"{expected} or null"


TEXT: Field = (is_text, "a text")
NUMBER: Field = (is_number, "a number")
COUNT: Field = (is_count, "a count")
SHARE: Field = (is_share, "a number from 0 to 1")
FLAG: Field = (is_flag, "true or false")
OBJECT: Field = (is_object, "an object")
LIST: Field = (is_list, "a list")
NUMBERS: Field = (is_numbers, "a list of numbers")
INTERVAL: Field = (is_interval, "[low, high]")
PERCENTILES: Field = (is_percentiles, "p50, p90 and p99")


def check_fields(value: Any, fields: Fields, where: str) -> None:
    """Check an object's fields; further ones are allowed.

    Args:
        fields: those that must be there.
        where: the object's place, "report" for the whole.
    Raises:
        CompareError: naming the first field that is missing or wrong, what it holds and what was expected.
    """
    if not isinstance(value, dict):
        raise CompareError(f"{where} is {short(value)}, expected an object")
    for key, (check, expected) in fields.items():
        name = key if where == "report" else f"{where}.{key}"
        if key not in value:
            raise CompareError(f"{name} is missing; expected {expected}")
        if not check(value[key]):
            raise CompareError(f"{name} is {short(value[key])}, expected {expected}")


def check_present(value: Any, fields: Fields, where: str) -> None:
    """`check_fields` of those fields that are there."""
    present = {key: field for key, field in fields.items() if not isinstance(value, dict) or key in value}
    check_fields(value, present, where)


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:56] + " ..."
