"""The Serve configuration of a staging file, and the files that ship."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.application import router_settings
from deploy.rendering import serve_config
from deploy.settings import read
from deploy.staging import Staging, load_staging
from vllm_specplug.options import is_ours, resolve

FOLDER = Path(__file__).parents[2] / "deploy"
STAGING_FILES = sorted(path for path in FOLDER.glob("*.yaml") if path.name != "rayservice.yaml")


def staging(**changes: Any) -> Staging:
    arms = {"a": {"weight": 3}, "b": {"num_cpus": 2}}
    return read(Staging, {"model": "m", "arms": arms, **changes}, "file")


def only_application(config: dict[str, Any]) -> dict[str, Any]:
    (application,) = config["applications"]
    return dict(application)


def test_arguments_and_options_together_hold_all_of_the_file() -> None:
    config = serve_config(staging(http={"port": 9000}, num_routers=3, health={"check_period_s": 1}))
    assert config["http_options"] == {"host": "127.0.0.1", "port": 9000}
    application = only_application(config)
    assert application["import_path"] == "deploy.application:build"
    assert application["args"] == {"model": "m", "arms": {"a": {}, "b": {"num_cpus": 2.0}}}
    router, a, b = application["deployments"]
    assert (router["name"], router["num_replicas"], router["user_config"]) == (
        "ArmRouter",
        3,
        {"weights": {"a": 3.0, "b": 1.0}},
    )
    assert [(arm["name"], arm["num_replicas"], arm["health_check_period_s"]) for arm in (a, b)] == [
        ("ArmServer:a", 1, 1.0),
        ("ArmServer:b", 1, 1.0),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"arms": {"a": {"weight": 1}, "b": {"num_cpus": 2}}},
        {"arms": {"a": {"weight": 3, "replicas": 2}, "b": {"num_cpus": 2}}},
        {"num_routers": 3},
        {"health": {"check_period_s": 1}},
        {"http": {"port": 9000}},
    ],
)
def test_what_may_change_at_run_time_leaves_the_arguments_alone(changes: dict[str, Any]) -> None:
    # Serve restarts every replica when they change.
    before, after = (only_application(serve_config(staging(**given))) for given in ({}, changes))
    assert before["args"] == after["args"]


def test_arguments_are_a_staging_file_again_and_plain_data() -> None:
    config = json.loads(json.dumps(serve_config(staging(source="/x", engine_args={"dtype": "float32"}))))
    again = read(Staging, only_application(config)["args"], "args")
    assert (again.source, again.engine_args, list(again.arms)) == ("/x", {"dtype": "float32"}, ["a", "b"])


def test_autoscaling_takes_the_place_of_a_number_of_replicas() -> None:
    arms = {"a": {"autoscaling": {"max_replicas": 4}}}
    deployment = only_application(serve_config(staging(arms=arms)))["deployments"][1]
    assert "num_replicas" not in deployment
    assert deployment["autoscaling_config"]["target_ongoing_requests"] == 8.0


def test_router_is_told_the_model_and_the_arms() -> None:
    settings = router_settings(staging(router={"seed": 7}))
    assert (settings.model, settings.arms, settings.seed) == ("m", ["a", "b"], 7)


@pytest.mark.parametrize("file", STAGING_FILES, ids=lambda file: file.stem)
def test_shipped_file_is_valid_and_its_proposers_are_known(file: Path) -> None:
    found = load_staging(file)
    assert serve_config(found)["applications"]
    for arm in found.arms.values():
        if arm.speculative_config is not None and is_ours(arm.speculative_config["method"]):
            resolve(arm.speculative_config)


def test_shipped_files_are_all_there() -> None:
    assert [file.stem for file in STAGING_FILES] == ["cpu-demo", "eight-gpus", "kubernetes", "one-gpu", "two-nodes"]


def test_rayservice_holds_what_render_prints() -> None:
    manifest = yaml.safe_load((FOLDER / "rayservice.yaml").read_text())
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayService")
    held = yaml.safe_load(manifest["spec"]["serveConfigV2"])
    assert held == serve_config(load_staging(FOLDER / "kubernetes.yaml"))


def test_rayservice_has_workers_for_every_bundle() -> None:
    manifest = yaml.safe_load((FOLDER / "rayservice.yaml").read_text())
    (workers,) = manifest["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    (container,) = workers["template"]["spec"]["containers"]
    gpus = int(container["resources"]["limits"]["nvidia.com/gpu"]) * workers["replicas"]
    arms = load_staging(FOLDER / "kubernetes.yaml").arms.values()
    assert gpus == sum(arm.num_gpus * arm.min_replicas for arm in arms)
