"""The bodies of the other files on the V2 model runner, in a process of their own: Triton's interpreter has to be there
before vllm is imported, and an engine of V1 in the same process would not do.

By hand: SPECPLUG_TEST_RUNNER=v2 pytest tests/engine/test_identity.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest
from runners import VARIABLE

from vllm_specplug.bridge import contract

pytestmark = [
    pytest.mark.v1_only,  # the process that starts the other one
    pytest.mark.skipif(
        "v2" not in contract.runners(contract.installed_version()), reason="V2 of this vLLM is not driven"
    ),
]

FOLDER = Path(__file__).parent
#: Files with bodies marked `v2`.
SHORT = (
    "test_asynchronous_v2",
    "test_faults",
    "test_identity",
    "test_lifecycle",
    "test_limits",
    "test_requests",
    "test_smoke",
    "test_startup_v2",
    "test_structured",
)
#: Files all of whose bodies run on V2, which takes each of them many minutes.
LONG = (*SHORT, "test_draft_model", "test_draft_model_options", "test_medusa", "test_sampling_v2")


def outcomes(files: tuple[str, ...], marks: str, out: Path) -> dict[str, dict[str, str]]:
    """By file and test: what went wrong, nothing where it passed."""
    report = out / "v2.xml"
    keep_out = ("PYTEST_", "COV_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(keep_out)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", marks, "-p", "no:cacheprovider", f"--junitxml={report}"]
        + [str(FOLDER / f"{name}.py") for name in files],
        env={**environment, VARIABLE: "v2"},
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = [child for child in case if child.tag in ("failure", "error")]
        if any(child.tag == "skipped" for child in case):
            continue
        name = case.get("classname", "").rpartition(".")[2]
        found[name][case.get("name", "")] = "\n".join(child.text or "" for child in wrong)
    return found


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """One process for all of them: they share its engines."""
    return outcomes(SHORT, "v2 and not slow", tmp_path_factory.mktemp("v2"))


def check(found: dict[str, str]) -> None:
    assert found, "no test ran"
    assert all("[v2" in name for name in found)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.timeout(1800)  # the first one waits for all of them
@pytest.mark.parametrize("name", SHORT)
def test_short_bodies_hold_on_v2(short: dict[str, dict[str, str]], name: str) -> None:
    check(short[name])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LONG)
def test_all_bodies_hold_on_v2(name: str, tmp_path: Path) -> None:
    check(outcomes((name,), "slow or not slow", tmp_path)[name])
