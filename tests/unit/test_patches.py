"""Wrapping somebody else's attribute."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest

from vllm_specplug.bridge import patches
from vllm_specplug.errors import ContractError


def theirs() -> types.SimpleNamespace:
    class Theirs:
        def twice(self, value: int) -> int:
            return 2 * value

    return types.SimpleNamespace(cls=Theirs, original=Theirs.twice)


def add_one(original: Callable[..., int]) -> Callable[..., int]:
    def wrapper(self: object, value: int) -> int:
        return original(self, value) + 1

    return wrapper


def test_applying_twice_is_harmless_and_undo_brings_the_original_back() -> None:
    target = theirs()
    undo = patches.wrap(target.cls, "twice", add_one)
    again = patches.wrap(target.cls, "twice", add_one)
    assert target.cls().twice(3) == 7
    assert patches.is_wrapped(target.cls, "twice")
    assert patches.original(target.cls.twice) is target.original
    undo()
    again()
    assert target.cls.twice is target.original
    assert not patches.is_wrapped(target.cls, "twice")


def test_missing_attribute_is_refused_by_name() -> None:
    with pytest.raises(ContractError, match=r"Theirs has no attribute 'thrice'.*run `specplug doctor`"):
        patches.wrap(theirs().cls, "thrice", add_one)
