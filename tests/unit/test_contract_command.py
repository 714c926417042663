"""`specplug doctor --sources` and `--release`: a vLLM that is not installed, held against the contract."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import vllm

from vllm_specplug.bridge import contract, source_files
from vllm_specplug.cli import main

INSTALLED = str(Path(vllm.__file__).parent)


def findings(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, str]]]:
    code = main(["doctor", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_the_installed_vllms_sources_have_everything(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = findings(capsys, "--sources", INSTALLED)
    assert code == 0
    version = contract.installed_version()
    assert found[0] == {
        "what": "vLLM",
        "status": "ok",
        "detail": f"{version}, tested on {' and '.join(contract.TESTED[version]).upper()}",
    }
    names = [point.path.partition(":")[2] for point in contract.needed(version)]
    assert [row["what"] for row in found[1 : len(names) + 1]] == names
    assert {row["status"] for row in found[1 : len(names) + 1]} == {"ok"}


def test_what_is_missing_is_named_and_the_exit_code_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "vllm" / "engine").mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()
    (tmp_path / "vllm" / "engine" / "__init__.py").touch()
    (tmp_path / "vllm" / "engine" / "arg_utils.py").write_text(
        "class EngineArgs:\n    def create_speculative_config(self, target_model_config): ...\n"
        "    def create_engine_config(self): ...\n"
    )
    code, found = findings(capsys, "--sources", str(tmp_path))
    assert code == 1
    by_name = {row["what"]: row for row in found}
    assert by_name["vLLM"] == {
        "what": "vLLM",
        "status": "note",
        "detail": "of unknown version, not tested: the contract is checked, nothing is run",
    }
    assert by_name["EngineArgs.create_engine_config"]["status"] == "ok"
    assert by_name["EngineArgs.create_speculative_config"] == {
        "what": "EngineArgs.create_speculative_config",
        "status": "missing",
        "detail": "vllm.engine.arg_utils:EngineArgs.create_speculative_config no longer takes target_parallel_config "
        "(a specplug: method becomes vLLM's SpeculativeConfig here)",
    }
    # No version says what is driven in it, so everything is asked for.
    assert len([row for row in found if row["status"] == "missing"]) == len(contract.HOOK_POINTS) - 1


def test_only_the_runners_that_we_drive_in_a_version_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    (tmp_path / "vllm" / "_version.py").write_text("__version__ = version = '0.31.0'\n")
    _, found = findings(capsys, "--sources", str(tmp_path))
    assert found[0]["detail"] == "0.31.0, tested on V1 AND V2"
    assert found[-1] == {
        "what": "V2 model runner",
        "status": "note",
        "detail": "vLLM 0.31.0: proposers that run a draft model have V1",
    }
    assert len(found) == 2 + len(list(contract.needed("0.31.0")))
    assert len(found) < 2 + len(contract.HOOK_POINTS)
    assert not any("StandaloneARSpeculator" in row["what"] for row in found)


def test_a_release_is_fetched_and_examined(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []
    monkeypatch.setattr(source_files, "release", lambda version: asked.append(version) or Path(INSTALLED))
    code, _ = findings(capsys, "--release", "0.99.1")
    assert (code, asked) == (0, ["0.99.1"])


def test_what_cannot_be_read_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--sources", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"specplug: error: {tmp_path} holds no package vllm; name the folder vllm, one that holds it, a wheel or a "
        "source distribution\n"
    )
