"""Staging files: what they may hold, and what is said of the rest."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from deploy.settings import read
from deploy.split import checked_weights
from deploy.staging import Staging, load_staging
from vllm_specplug.errors import DeployError

LOOKUP = {"method": "specplug:prompt_lookup", "num_speculative_tokens": 4}
RING: list[Any] = []
RING.append(RING)  # as YAML's aliases can make them


def staging(arms: dict[str, Any] | None = None, **more: Any) -> Staging:
    return read(Staging, {"model": "m", "arms": {"a": {}} if arms is None else arms, **more}, "file")


def test_arm_without_anything_is_a_baseline_on_one_cpu() -> None:
    arm = staging({"a": {}}).arms["a"]
    assert (arm.speculative_config, arm.weight, arm.num_gpus, arm.num_cpus, arm.min_replicas) == (None, 1, 0, 1, 1)


def test_listens_on_loopback_unless_told_otherwise() -> None:
    assert staging().http.host == "127.0.0.1"
    assert staging(http={"host": "0.0.0.0"}).http.host == "0.0.0.0"


def test_engine_arguments_of_an_arm_win_over_those_of_all() -> None:
    arm = {"engine_args": {"max_num_seqs": 2}, "speculative_config": LOOKUP, "tensor_parallel_size": 2}
    found = staging({"a": arm}, engine_args={"max_num_seqs": 8, "dtype": "float32"})
    assert found.engine_args_of("a") == {
        "max_num_seqs": 2,
        "dtype": "float32",
        "speculative_config": LOOKUP,
        "tensor_parallel_size": 2,
    }


@pytest.mark.parametrize(
    ("arm", "text"),
    [
        ({"wieght": 2}, "file: arms.a: unknown key 'wieght'; there are accelerator_type, "),
        ({"wieght": 2}, "Did you mean 'weight'?"),
        ({"weight": -1}, "file: arms.a.weight is -1: Input should be greater than or equal to 0"),
        ({"weight": float("inf")}, "file: arms.a.weight is inf: Input should be a finite number"),
        ({"weight": "2"}, "file: arms.a.weight is '2': Input should be a valid number"),
        ({"replicas": 0}, "file: arms.a.replicas is 0: Input should be greater than or equal to 1"),
        ({"replicas": 2, "autoscaling": {"max_replicas": 3}}, "arms.a: replicas and autoscaling are both given; give"),
        ({"autoscaling": {"min_replicas": 3, "max_replicas": 2}}, "min_replicas is 3, but max_replicas only 2; lower"),
        ({"autoscaling": {"max": 2}}, "arms.a.autoscaling: unknown key 'max'; there are downscale_delay_s, "),
        ({"num_gpus": 1, "tensor_parallel_size": 2}, "num_gpus is 1, but tensor_parallel_size 2 times pipeline_paral"),
        ({"num_gpus": 1, "tensor_parallel_size": 2}, "needs 2, one for each worker"),
        ({"num_gpus": 1.5}, "num_gpus is 1.5, but tensor_parallel_size 1 times pipeline_parallel_size 1 needs 1, or a"),
        ({"accelerator_type": "H100"}, "accelerator_type is 'H100', but num_gpus is 0; set num_gpus, or leave it out"),
        ({"engine_args": {"model": "x"}}, "arms.a.engine_args: model does not belong in engine_args; use 'source'"),
        ({"engine_args": {"speculative_config": {}}}, "speculative_config does not belong in engine_args; use the arm"),
        ([], "file: arms.a is []: Input should be a valid dictionary or instance of Arm"),
        ({"weight": 1e10}, "file: arms.a.weight is 10000000000.0: Input should be less than or equal to 1000000000"),
        ({"weight": math.nan}, "file: arms.a.weight is nan: Input should be a finite number"),
        ({"weight": "1e3"}, "arms.a.weight is '1e3': Input should be a valid number; write it as 1000 without quotes"),
        ({"replicas": 10**21}, f"file: arms.a.replicas is {10**21}: Input should be less than or equal to 10000"),
        ({"tensor_parallel_size": 10**21}, "Input should be less than or equal to 1024"),
        ({"num_cpus": math.inf}, "file: arms.a.num_cpus is inf: Input should be a finite number"),
        ({"resources": {"x": math.nan}}, "file: arms.a.resources.x is nan: Input should be a finite number"),
        ({"resources": {"x": -1}}, "arms.a.resources: 'x': -1 cannot be had; expected a name, and a number of 0 or"),
        ({"resources": {"GPU": 1}}, "file: arms.a.resources: 'GPU' is no custom resource; use num_gpus"),
        ({"env": {"A=B": "x"}}, "file: arms.a.env: 'A=B': 'x' cannot be an environment variable; expected a name w"),
        ({"env": {"A": "\0"}}, "file: arms.a.env: 'A': '\\x00' cannot be an environment variable"),
        ({"engine_args": {"x": math.nan}}, "file: arms.a.engine_args: holds what JSON cannot (Out of range float"),
        ({"engine_args": {"x": {1, 2}}}, "(Object of type set is not JSON serializable); expected texts, finite numb"),
        ({"engine_args": {"x": RING}}, "file: arms.a.engine_args: holds what JSON cannot (Circular reference"),
        ({"speculative_config": {"x": b"m"}}, "file: arms.a.speculative_config: holds what JSON cannot (Object of"),
        (["x" * 1000], "xxxxxx ...: Input should be a valid dictionary"),
    ],
)
def test_what_is_wrong_with_an_arm_is_said_in_one_line(arm: Any, text: str) -> None:
    with pytest.raises(DeployError) as caught:
        staging({"a": arm})
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"arms": {}}, "file: arms: no arms; expected at least one, e.g. 'baseline: {}'"),
        ({"arms": {"a--b": {}}}, "'a--b' cannot be the name of an arm; expected letters, digits, _ and - (no '--')"),
        ({"arms": {"a.b": {}}}, "'a.b' cannot be the name of an arm"),
        ({"arms": {"a": {"weight": 0}}}, "every arm has weight 0, so nobody would answer; give one a weight above 0"),
        ({"model": "m:1"}, "'m:1' cannot be the name of a model; expected letters, digits and _ . / - (no '--', "),
        ({"model": "m--a"}, "'m--a' cannot be the name of a model"),
        ({"engine": "sglang"}, "file: engine is 'sglang': Input should be 'ray' or 'vllm'"),
        ({"modle": "m"}, "file: unknown key 'modle'; there are arms, engine, engine_args, "),
        ({"http": {"prot": 1}}, "file: http: unknown key 'prot'; there are host, location, port. Did you mean 'port'?"),
        ({"http": {"port": 65536}}, "file: http.port is 65536: Input should be less than or equal to 65535"),
        ({"router": {"sed": 1}}, "file: router: unknown key 'sed'; there are "),
        ({"router": {"shadow": {"arm": "b", "share": 0.1}}}, "router.shadow.arm is 'b'; expected one of a"),
        ({"start_timeout_s": math.inf}, "file: start_timeout_s is inf: Input should be a finite number"),
        ({"health": {"check_period_s": math.inf}}, "file: health.check_period_s is inf: Input should be a finite"),
        ({"num_routers": "1e3"}, "num_routers is '1e3': Input should be a valid integer; write it as 1000 without quo"),
        ({"source": ""}, "file: source: '' cannot be a name; expected a printable text that is not empty"),
        ({"name": ""}, "file: name: '' cannot be a name"),
        ({"http": {"host": ""}}, "file: http.host: '' cannot be an address; expected for example 127.0.0.1, or 0.0"),
        ({"route_prefix": "x"}, "file: route_prefix: 'x' cannot be a route prefix; expected '/', or for example '/s"),
        ({"route_prefix": "/x/"}, "file: route_prefix: '/x/' cannot be a route prefix"),
        ({"router": {"exposure": {"directory": "log"}}}, "router.exposure.directory: 'log' is no folder that every ma"),
        ({"router": {"exposure": {"directory": ""}}}, "expected one that begins with '/' or '~/'"),
        ({"router": {"session_header": "X-A", "arm_header": "x-a"}}, "router: session_header and arm_header are both"),
        ({"start_timeout_s": 0}, "file: start_timeout_s is 0: Input should be greater than 0"),
    ],
)
def test_what_is_wrong_with_the_rest_is_said_in_one_line(values: dict[str, Any], text: str) -> None:
    with pytest.raises(DeployError) as caught:
        read(Staging, {"model": "m", "arms": {"a": {}}, **values}, "file")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_model_is_required_and_a_mapping_expected() -> None:
    with pytest.raises(DeployError, match=r"^file: model is missing$"):
        read(Staging, {"arms": {"a": {}}}, "file")
    with pytest.raises(DeployError, match=r"^file: expected a mapping of model, source, .*; found \[\]$"):
        read(Staging, [], "file")


def write(folder: Path, text: str) -> Path:
    file = folder / "staging.yaml"
    file.write_text(text)
    return file


def test_folders_are_relative_to_the_file_and_names_of_the_hub_stay(tmp_path: Path) -> None:
    text = """
model: m
source: ../weights
arms:
  baseline:
  heads: {speculative_config: {method: "specplug:medusa", model: ./heads, num_speculative_tokens: 3}}
  draft: {speculative_config: {method: draft_model, model: Qwen/Qwen2.5-0.5B, num_speculative_tokens: 3}}
"""
    folder = tmp_path / "conf"
    folder.mkdir()
    found = load_staging(write(folder, text))
    assert found.source == str(tmp_path / "weights")
    assert list(found.arms) == ["baseline", "heads", "draft"]
    configs = [arm.speculative_config for arm in found.arms.values()]
    assert configs[0] is None
    assert [config["model"] for config in configs[1:] if config] == [str(folder / "heads"), "Qwen/Qwen2.5-0.5B"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", r"staging\.yaml: 'a' is there 2 times in what begins at line 1"),
        ("arms: {x", r"staging\.yaml:1: not YAML"),
        ("- a\n", r"staging\.yaml: expected a mapping of model, arms and more; found \['a'\]"),
    ],
)
def test_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DeployError, match=message):
        load_staging(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 20_000, "{file}: nested too deep to be read"),
        ("model: m\0", "{file}: not YAML (unacceptable character #x0000: special characters are not allowed in "),
        ("a: 2026-13-45", "{file}: a value cannot be read (month must be in 1..12)"),
        (
            "a: &a {b: 1}\nc: {<<: *a}",
            "{file}: merge keys ('<<') are not read, as in what begins at line 2; write them",
        ),
        ("source: ~nobody-of-this-name/x", "{file}: '~nobody-of-this-name/x' cannot be a folder (Could not determine"),
        ('source: "/a\\0b"', "{file}: '/a\\x00b' cannot be a folder (embedded null byte); write it in full"),
        ("model: !!python/object/apply:os.getcwd []", "{file}:1: not YAML (could not determine a constructor for the"),
    ],
)
def test_file_that_only_surprises_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(DeployError) as caught:
        load_staging(file)
    assert str(caught.value).startswith(message.format(file=file))
    assert "\n" not in str(caught.value)


def test_weights_that_a_file_may_have_are_those_that_a_router_takes() -> None:
    found = staging({"a": {"weight": 1e9}, "b": {"weight": 0}}).weights
    assert checked_weights(found, ["a", "b"]) == found


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=r"cannot read the staging file .*none\.yaml: No such file"):
        load_staging(tmp_path / "none.yaml")
