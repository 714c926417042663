"""The rendered configuration on a running cluster by Serve's own command, which imports nothing of ours."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import processes
import pytest
import yaml
from deployments import STUB, chat, text_of

from deploy.cluster import LOCAL, connected

pytestmark = pytest.mark.slow

SERVE = Path(sys.executable).with_name("serve")
Deploy = Callable[[Mapping[str, Any]], str]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def dashboard() -> Iterator[str]:
    """Address of the dashboard of a cluster with two CPUs."""
    folder, port = tempfile.mkdtemp(prefix="ray-"), free_port()
    try:
        with connected(LOCAL, num_cpus=2, include_dashboard=True, dashboard_port=port, _temp_dir=folder):
            yield f"http://127.0.0.1:{port}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def serve_deploy(dashboard: str, tmp_path_factory: pytest.TempPathFactory) -> Deploy:
    """serve_deploy(staging) -> base URL, by `python -m deploy render` and `serve deploy`."""
    folder, port = tmp_path_factory.mktemp("serve"), free_port()

    def deploy(staging: Mapping[str, Any]) -> str:
        file, rendered = folder / "staging.yaml", folder / "serve.yaml"
        common = {"model": "tiny", "source": "/none", "num_routers": 1, "http": {"port": port}}
        file.write_text(yaml.safe_dump({**common, **staging}))
        with rendered.open("w") as sink:
            subprocess.run([sys.executable, "-m", "deploy", "render", str(file)], stdout=sink, check=True)
        environment = {**os.environ, "no_proxy": "127.0.0.1"}
        subprocess.run([SERVE, "deploy", "-a", dashboard, str(rendered)], check=True, env=environment, timeout=60)
        return f"http://127.0.0.1:{port}/v1"

    return deploy


def application() -> dict[str, Any]:
    """What Serve knows of it."""
    from ray.serve.context import _get_global_client

    client = _get_global_client(raise_if_no_controller_running=False)
    found = client.get_serve_details() if client else {"applications": {}}
    return dict(found["applications"].get("specplug", {"status": "none", "message": ""}))


def wait_for(status: str, within_s: float = 240) -> dict[str, Any]:
    def is_there() -> bool:
        now = application()
        assert now["status"] in (status, "DEPLOYING", "none", "RUNNING"), now["message"]
        return bool(now["status"] == status)

    processes.eventually(is_there, within_s)
    return application()


def pid_of(url: str, arm: str) -> str:
    return text_of(chat(url, f"tiny--{arm}")).split()[1]


def test_weights_and_replicas_change_without_a_restart(serve_deploy: Deploy) -> None:
    a, b = {**STUB, "num_cpus": 0.5}, {**STUB, "num_cpus": 0.5}
    url = serve_deploy({"arms": {"a": {**a, "weight": 1}, "b": {**b, "weight": 0, "autoscaling": {"max_replicas": 1}}}})
    wait_for("RUNNING")
    before = {arm: pid_of(url, arm) for arm in ("a", "b")}
    assert chat(url, "tiny")["model"] == "tiny--a"

    scaled = {"a": {**a, "weight": 0, "replicas": 2}, "b": {**b, "weight": 1, "autoscaling": {"max_replicas": 2}}}
    serve_deploy({"arms": scaled})
    processes.eventually(lambda: bool(chat(url, "tiny")["model"] == "tiny--b"), 60)
    processes.eventually(lambda: len({pid_of(url, "a") for _ in range(10)}) == 2, 120)
    found = wait_for("RUNNING")
    assert pid_of(url, "b") == before["b"]
    assert before["a"] in {pid_of(url, "a") for _ in range(20)}
    autoscaling = found["deployments"]["ArmServer:b"]["deployment_config"]["autoscaling_config"]
    assert (autoscaling["min_replicas"], autoscaling["max_replicas"]) == (1, 2)
    assert autoscaling["target_ongoing_requests"] == 8.0
    assert found["deployments"]["ArmServer:a"]["deployment_config"]["health_check_period_s"] == 2.0


def test_arm_that_vllm_would_run_without_the_plugin_is_refused_before_it_starts(serve_deploy: Deploy) -> None:
    env = {**STUB["env"], "VLLM_PLUGINS": "other"}
    serve_deploy({"arms": {"a": {"env": env}, "b": STUB}})
    found = wait_for("DEPLOY_FAILED")
    assert "arm 'a': VLLM_PLUGINS='other' leaves us out, so vLLM does not load us" in found["message"]


def test_bundle_that_fits_nowhere_is_refused_and_no_placement_group_is_left(serve_deploy: Deploy) -> None:
    import ray

    serve_deploy({"arms": {"a": {**STUB, "num_cpus": 4}}})
    found = wait_for("DEPLOY_FAILED")
    here = ray.util.get_node_ip_address()
    assert f"arm 'a': a replica wants 4 CPU, which no machine of the cluster has: {here} has 2 CPU" in found["message"]
    groups = ray.util.placement_group_table().values()
    assert not [group for group in groups if group["state"] not in ("REMOVED",)]


@pytest.mark.usefixtures("dashboard")
def test_check_asks_the_cluster(tmp_path: Path) -> None:
    import ray

    file = tmp_path / "staging.yaml"
    file.write_text(yaml.safe_dump({"model": "tiny", "arms": {"a": {"num_cpus": 3}}}))
    address = ray.get_runtime_context().gcs_address
    run = subprocess.run(
        [sys.executable, "-m", "deploy", "check", str(file), "--address", address],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 1
    here = ray.util.get_node_ip_address()
    assert run.stdout == (
        f"{file}: arm 'a': a replica wants 3 CPU, which no machine of the cluster has: {here} has 2 CPU\n"
    )
