"""The contract with the installed vLLM: nothing is missing, and what goes missing is named. No engine is started."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import vllm

from vllm_specplug.bridge import contract
from vllm_specplug.bridge.hook_points import HookPoint
from vllm_specplug.bridge.source_files import open_sources
from vllm_specplug.bridge.source_symbols import SourceSymbols
from vllm_specplug.errors import ContractError, UnsupportedVersionError

NEEDED = list(contract.needed(contract.installed_version()))
EACH_POINT = pytest.mark.parametrize("point", NEEDED, ids=lambda point: f"{point.path}-{point.only_for}")


@pytest.fixture(scope="module")
def sources() -> SourceSymbols:
    """The installed vLLM's own folder, read and not imported."""
    return SourceSymbols(open_sources(Path(vllm.__file__).parent))


@EACH_POINT
def test_sources_and_imported_vllm_agree(sources: SourceSymbols, point: HookPoint) -> None:
    assert point.problem() is None
    assert point.problem(sources) is None


@EACH_POINT
def test_sources_and_imported_vllm_miss_the_same(sources: SourceSymbols, point: HookPoint) -> None:
    wrong = {
        "parameters": (*point.parameters, "no_such"),
        "attributes": (*point.attributes, "no_such"),
        "literals": (*point.literals, "no_such"),
    }
    for kind in (kind for kind in wrong if getattr(point, kind)):
        changed = replace(point, **{kind: wrong[kind]})
        assert changed.problem() is not None
        assert changed.problem() == changed.problem(sources)


class Gone:
    """In the place of an attribute: there is none."""

    def __get__(self, instance: Any, owner: type) -> Any:
        raise AttributeError


@EACH_POINT
def test_a_symbol_that_is_gone_stops_the_start_by_name(point: HookPoint, monkeypatch: pytest.MonkeyPatch) -> None:
    if point.earlier and replace(point, path=point.earlier, earlier="").problem() is None:
        pytest.skip("this vLLM has it in the earlier place too, which will do")
    where = [point.only_for] if point.only_for else []
    contract.require(*where)
    module, _, path = point.path.partition(":")
    owner, (*above, name) = importlib.import_module(module), path.split(".")
    for attribute in above:
        owner = getattr(owner, attribute)
    if above:  # not delattr: a base class may have one too
        monkeypatch.setattr(owner, name, Gone())
    else:
        monkeypatch.delattr(owner, name)
    with pytest.raises(ContractError) as error:
        contract.require(*where)
    assert f"{point.path} is missing" in str(error.value)
    assert str(error.value).endswith(f"install a tested version ({', '.join(contract.TESTED)})")


def test_what_one_runner_needs_does_not_stop_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    monkeypatch.delattr(GPUModelRunner, "_update_states")
    with pytest.raises(ContractError, match=r"GPUModelRunner\._update_states is missing"):
        contract.require(contract.V1)
    contract.require()


class Base:
    plain: int

    def __init__(self) -> None:
        self.kept, (self.one, self.two) = 0, (1, 2)


class Derived(Base):
    def change(self, other: Any) -> None:
        self.changed: int = 1
        other.not_ours.deep = 2


Letters = Literal["b", "c"]
Words = Literal["a", Letters]


def test_attributes_of_objects_are_known_without_an_object() -> None:
    def problem(**asked: Any) -> str | None:
        return HookPoint(f"{__name__}:Derived", **asked).problem()

    assert problem(attributes=("kept", "one", "two", "changed", "plain", "change")) is None
    assert problem(attributes=("kept", "gone")) == f"{__name__}:Derived no longer has gone"


def test_words_of_a_literal_are_known() -> None:
    assert HookPoint(f"{__name__}:Words", literals=("a", "b", "c")).problem() is None
    assert HookPoint(f"{__name__}:Words", literals=("d",)).problem() == f"{__name__}:Words no longer allows d"


def test_an_earlier_place_will_do() -> None:
    assert HookPoint(f"{__name__}:Renamed", earlier=f"{__name__}:Derived").problem() is None
    neither = HookPoint(f"{__name__}:Renamed", earlier=f"{__name__}:Nowhere")
    assert neither.problem() == f"{__name__}:Renamed is missing"


def test_every_version_with_an_environment_is_tested_or_checked() -> None:
    locks = {path.stem for path in (Path(__file__).parents[2] / "deploy" / "setup" / "versions").glob("*.lock")}
    assert locks <= {*contract.TESTED, *contract.CHECKED_VERSIONS}
    assert not set(contract.CHECKED_VERSIONS) & set(contract.TESTED)


def test_a_version_that_was_only_checked_is_refused_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "installed_version", lambda: contract.CHECKED_VERSIONS[0])
    monkeypatch.delenv(contract.ANY_VERSION_VARIABLE, raising=False)
    with pytest.raises(
        UnsupportedVersionError,
        match=r"to try \(its sources have all we rely on; the engine tests were not run on it\)$",
    ):
        contract.require()
