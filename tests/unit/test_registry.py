"""The catalogue of proposers."""

from __future__ import annotations

import pytest

from vllm_specplug.errors import ConfigError, UnknownProposerError
from vllm_specplug.registry import Entry, Registry, installed

LOOKUP = Entry("prompt_lookup", "proposers.prompt_lookup:PromptLookup", "vllm-specplug 1")
OTHER = Entry("other", "vllm_specplug.testing:Scripted", "other 2")


def test_name_claimed_twice_is_refused_by_both_distributions() -> None:
    twin = Entry("prompt_lookup", "theirs:Lookup", "theirs 3")
    with pytest.raises(ConfigError) as caught:
        Registry([LOOKUP, twin])
    assert str(caught.value) == (
        "proposer name 'prompt_lookup' is claimed by theirs 3 (theirs:Lookup) and by vllm-specplug 1 "
        "(proposers.prompt_lookup:PromptLookup); uninstall one of them"
    )


def test_same_entry_found_twice_is_one() -> None:
    """An editable installation beside a wheel shows the same entry point twice."""
    assert list(Registry([LOOKUP, LOOKUP])) == ["prompt_lookup"]


def test_catalogue_is_sorted_and_read_only() -> None:
    registry = Registry([LOOKUP, OTHER])
    assert list(registry) == ["other", "prompt_lookup"]
    with pytest.raises(TypeError):
        registry["x"] = OTHER  # type: ignore[index]


def test_unknown_name_lists_the_known_and_suggests() -> None:
    with pytest.raises(UnknownProposerError) as caught:
        Registry([LOOKUP, OTHER]).find("prompt_lokup")
    assert str(caught.value) == (
        "unknown proposer 'prompt_lokup'; installed: other, prompt_lookup. Did you mean 'prompt_lookup'? Others "
        "register under the entry point 'vllm_specplug.proposers', or are named by a dotted path "
        "'package.module.Class'"
    )


@pytest.mark.parametrize("name", ["medusa", "draft_model", "cascade"])
def test_shipped_name_that_is_not_built_says_so(name: str) -> None:
    with pytest.raises(UnknownProposerError, match=f"proposer '{name}' is not built in this version"):
        Registry([LOOKUP]).find(name)


@pytest.mark.parametrize("path", ["vllm_specplug.testing.Scripted", "vllm_specplug.testing:Scripted"])
def test_dotted_path_needs_no_registration(path: str) -> None:
    from vllm_specplug.testing import Scripted

    assert Registry([]).find(path).load() is Scripted


def test_broken_package_is_named_and_leaves_the_others_alone() -> None:
    registry = Registry([OTHER, Entry("broken", "no_such_package:Class", "broken 1")])
    assert registry["other"].load().__name__ == "Scripted"
    with pytest.raises(ConfigError, match=r"proposer 'broken' of broken 1 cannot be imported from 'no_such_package:Cl"):
        registry["broken"].load()


def test_this_environment_has_prompt_lookup_through_the_door_outsiders_use() -> None:
    assert installed()["prompt_lookup"].load().__name__ == "PromptLookup"
