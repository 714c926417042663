"""The contract held against source files: small made-up vLLMs in which one thing differs."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from vllm_specplug.bridge.contract import HookPoint
from vllm_specplug.bridge.source_files import open_sources, release
from vllm_specplug.bridge.source_symbols import SourceSymbols
from vllm_specplug.errors import ConfigError


def problem(folder: Path, files: dict[str, str], point: HookPoint) -> str | None:
    """What is wrong with `point` in a vLLM of these files."""
    for name, text in {"__init__.py": "", **files}.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for parent in path.relative_to(folder / "vllm").parents:
            (folder / "vllm" / parent / "__init__.py").touch()
    return point.problem(SourceSymbols(open_sources(folder)))


RUNNER = """
class Base:
    def inherited(self, scheduler_output): ...

class Runner(Base):
    field: int
    def step(self, tokens, *, metadata=None): ...
    def load(self):
        self.drafter, self._probs = 1, None
        self.requests: dict = {}
"""


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (HookPoint("vllm.runner:Runner.step", ("tokens", "metadata")), None),
        (HookPoint("vllm.runner:Runner.inherited", ("scheduler_output",)), None),
        (HookPoint("vllm.runner:Runner.field"), None),
        (HookPoint("vllm.runner:Runner", attributes=("_probs", "drafter", "field", "inherited", "requests")), None),
        (HookPoint("vllm.runner:Runner", ("field",)), None),  # as a dataclass is made
        (HookPoint("vllm.runner:Runner.__init__", ("field",)), None),
        (HookPoint("vllm.gone:Runner.step"), "vllm.gone:Runner.step is missing: module vllm.gone is missing"),
        (HookPoint("vllm.runner:Gone.step"), "vllm.runner:Gone.step is missing: vllm.runner:Gone is missing"),
        (HookPoint("vllm.runner:Runner.gone"), "vllm.runner:Runner.gone is missing"),
        (
            HookPoint("vllm.runner:Runner.step", ("tokens", "gone", "too")),
            "vllm.runner:Runner.step no longer takes gone, too",
        ),
        (HookPoint("vllm.runner:Runner.field", ("x",)), "vllm.runner:Runner.field: its parameters cannot be told"),
        (
            HookPoint("vllm.runner:Runner", attributes=("drafter", "renamed")),
            "vllm.runner:Runner no longer has renamed",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else f"{value.path}{value.parameters}" if value else "ok",
)
def test_a_symbol_is_found_or_named(tmp_path: Path, point: HookPoint, expected: str | None) -> None:
    assert problem(tmp_path, {"runner.py": RUNNER}, point) == expected


def test_where_a_moved_symbol_is_now_is_said(tmp_path: Path) -> None:
    files = {"runner.py": "", "v1/worker.py": "class Runner:\n    async def step(self): ...\n"}
    assert problem(tmp_path, files, HookPoint("vllm.runner:Runner")) == (
        "vllm.runner:Runner is missing; one of that name is in vllm/v1/worker.py"
    )


def test_a_base_class_outside_the_sources_is_named(tmp_path: Path) -> None:
    files = {"runner.py": "import torch\nclass Runner(torch.nn.Module): ...\n"}
    assert problem(tmp_path, files, HookPoint("vllm.runner:Runner.forward")) == (
        "vllm.runner:Runner.forward is missing, unless it comes from torch.nn.Module, outside these sources"
    )


@pytest.mark.parametrize(
    "files",
    {
        "re-export": {"a.py": "from vllm.b import f", "b.py": "def f(x): ..."},
        "renamed on import": {"a.py": "from vllm.b import g as f", "b.py": "def g(x): ..."},
        "relative": {"a.py": "from .b import f", "b.py": "def f(x): ..."},
        "relative in a package": {"a/__init__.py": "from .b import f", "a/b.py": "def f(x): ..."},
        "relative to the parent": {"a/__init__.py": "from ..b import f", "b.py": "def f(x): ..."},
        "star": {"a.py": "from vllm.b import *", "b.py": "def f(x): ..."},
        "another name": {"a.py": "import vllm.b as b\nf = b.f", "b.py": "def f(x): ..."},
        "a module of a package": {"a.py": "from vllm import b\nf = b.g", "b.py": "def g(x): ..."},
        "conditional": {"a.py": "import sys\nif sys.argv:\n    def f(x): ...\nelse:\n    def f(x, y): ..."},
        "with a fallback": {
            "a.py": "try:\n    from vllm.b import f\nexcept ImportError:\n    f = None",
            "b.py": "def f(x): ...",
        },
        "decorated": {"a.py": "import functools\n@functools.cache\ndef f(x): ..."},
        "asynchronous": {"a.py": "async def f(x): ..."},
        "keyword only": {"a.py": "def f(*, x): ..."},
        "redefined": {"a.py": "from typing import overload\n@overload\ndef f(y): ...\ndef f(x): ..."},
        "made when asked, in another branch": {
            "a/__init__.py": "import typing\nif typing.TYPE_CHECKING:\n    from vllm.b import f\n"
            "else:\n    def __getattr__(name): ...",
            "b.py": "def f(x): ...",
        },
        "made when asked": {
            "a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vllm.b import f\n"
            "def __getattr__(name): ...",
            "b.py": "def f(x): ...",
        },
    }.values(),
    ids=lambda files: "-".join(files),
)
def test_every_way_to_define_a_function_is_followed(tmp_path: Path, files: dict[str, str]) -> None:
    assert problem(tmp_path, files, HookPoint("vllm.a:f", ("x",))) is None
    assert problem(tmp_path, {}, HookPoint("vllm.a:f", ("z",))) == "vllm.a:f no longer takes z"


def test_a_name_for_type_checkers_only_is_missing(tmp_path: Path) -> None:
    files = {"a.py": "import typing\nif typing.TYPE_CHECKING:\n    from vllm.b import f\n", "b.py": "def f(x): ..."}
    assert problem(tmp_path, files, HookPoint("vllm.a:f")) == "vllm.a:f is missing; one of that name is in vllm/b.py"


def test_a_parameter_that_one_branch_lacks_is_missed(tmp_path: Path) -> None:
    files = {"a.py": "if 1:\n    def f(x, y): ...\nelse:\n    def f(x): ..."}
    assert problem(tmp_path, files, HookPoint("vllm.a:f", ("x", "y"))) == "vllm.a:f no longer takes y"


def test_a_methods_second_name_is_followed(tmp_path: Path) -> None:
    files = {"a.py": "class C:\n    def f(self, x): ...\n    g = f\n"}
    assert problem(tmp_path, files, HookPoint("vllm.a:C.g", ("x",))) is None


def test_modules_that_import_each_other_end_the_search(tmp_path: Path) -> None:
    files = {"a.py": "from vllm.b import f", "b.py": "from vllm.a import f"}
    assert problem(tmp_path, files, HookPoint("vllm.a:f")) == "vllm.a:f is missing"


def test_a_base_class_of_another_module_is_followed(tmp_path: Path) -> None:
    files = {
        "a.py": "from typing import Generic\nfrom vllm import b\nclass C(b.Base[int], Generic[int]): ...",
        "b.py": "class Base:\n    def __init__(self, x):\n        self.y = x\n",
    }
    assert problem(tmp_path, files, HookPoint("vllm.a:C", ("x",), attributes=("y",))) is None


def test_sources_for_a_newer_python_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^vllm/a\.py of .* cannot be parsed by Python 3\..*; use a newer Python$"):
        problem(tmp_path, {"a.py": "class C: to come\n"}, HookPoint("vllm.a:C"))


LITERALS = """
from typing import Literal
Inner = Literal["a", "b"]
Method = Literal["c", Inner]
"""


def test_words_of_a_literal_are_found_through_other_literals(tmp_path: Path) -> None:
    files = {"a.py": LITERALS}
    assert problem(tmp_path, files, HookPoint("vllm.a:Method", literals=("a", "b", "c"))) is None
    assert problem(tmp_path, {}, HookPoint("vllm.a:Method", literals=("d", "c"))) == "vllm.a:Method no longer allows d"


FILES = {
    "vllm/__init__.py": b"",
    "vllm/_version.py": b"__version__ = version = '0.99.1+cpu'\n",
    "vllm/a.py": b"x = 1\n",
}


def folder(place: Path, top: str) -> Path:
    for name, content in FILES.items():
        path = place / "checkout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return place / "checkout" / top


def wheel(place: Path) -> Path:
    path = place / "vllm-0.99.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
        archive.writestr("vllm/_C.so", b"\x7fELF")
    return path


def sdist(place: Path) -> Path:
    path = place / "vllm-0.99.1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in FILES.items():
            member = tarfile.TarInfo(f"vllm-0.99.1/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    "make", [lambda place: folder(place, ""), lambda place: folder(place, "vllm"), wheel, sdist],
    ids=["folder", "package", "wheel", "sdist"],
)  # fmt: skip
def test_sources_are_read_wherever_they_are(tmp_path: Path, make) -> None:
    files = open_sources(make(tmp_path))
    assert (files.paths, files.version()) == (frozenset(FILES), "0.99.1")
    assert files.read("vllm/a.py") == b"x = 1\n"


def test_what_holds_no_vllm_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.whl").write_bytes(b"PK")
    with pytest.raises(ConfigError, match=r"broken\.whl cannot be read as sources of vLLM: File is not a zip file"):
        open_sources(tmp_path / "broken.whl")
    with pytest.raises(ConfigError, match=r"nothing\.tar\.gz cannot be read as sources of vLLM: .*No such file"):
        open_sources(tmp_path / "nothing.tar.gz")
    with pytest.raises(ConfigError, match="holds no package vllm; name the folder vllm"):
        open_sources(tmp_path)


@pytest.mark.parametrize("version", ["", "--index-url=x", "latest", "0.33.0 evil", ">=0.33"])
def test_what_is_no_release_never_reaches_pip(version: str) -> None:
    with pytest.raises(ConfigError, match=r"is no release of vLLM; expected something like 0\.33\.0"):
        release(version)


def test_a_release_that_was_fetched_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fetched = []

    def download(version: str, place: Path) -> Path:
        fetched.append(version)
        return wheel(place)

    monkeypatch.setattr("vllm_specplug.bridge.source_files._download", download)
    for _ in range(2):
        kept = release("0.99.1")
        assert open_sources(kept).paths == frozenset(FILES)  # and not the compiled part
    assert fetched == ["0.99.1"]
    assert [path.name for path in kept.parent.iterdir()] == ["vllm-0.99.1.zip"]  # the wheel itself is gone
