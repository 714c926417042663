"""The Ray cluster that a deployment runs on: one that is there already, or one on this machine, started and ended here.

A cluster of our own listens on the loopback interface alone, and nothing of it is left when the block ends.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vllm_specplug.errors import DeployError

LOCAL = "local"

#: Ray's stores are for objects between tasks, of which serving has hardly any; its default is a third of the memory.
_OBJECT_STORE_BYTES = 256 << 20
#: Ray's own name for "this machine only" where it is 0: its processes then talk over, and listen on, 127.0.0.1.
_NOT_ON_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_SYSTEM_CONFIG = {
    # Whatever a worker process started ends with it, even when it was killed.
    "process_group_cleanup_enabled": True,
    # By default Ray's workers give way to everything else on the machine (15): here they are the service.
    "worker_niceness": 0,
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is known of it."""

    address: str
    is_ours: bool
    """Started here, so ended here."""
    log_folder: str

    @property
    def metrics(self) -> list[str]:
        """Addresses where Prometheus reads the metrics of each machine: Ray's, vLLM's and ours."""
        import ray

        return [
            f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
            for node in ray.nodes()
            if node["Alive"]
        ]


def find(address: str | None) -> str:
    """The address of a running cluster; "local": there is none to be used, so a new one has to be started.

    Args:
        address: one of the two; None: RAY_ADDRESS, else the cluster that `ray start` started on this machine.
    """
    return address or os.environ.get("RAY_ADDRESS") or _started_here() or LOCAL


@contextlib.contextmanager
def connected(address: str, **options: Any) -> Iterator[Cluster]:
    """Be connected to a cluster while the block runs.

    Args:
        address: of a running one; "local": a new one.
        options: further arguments of `ray.init` for a new one.
    Raises:
        DeployError: there is no answer from that address, or a new one cannot be started.
    """
    with _started(options) if address == LOCAL else _joined(address) as cluster:
        yield cluster


@contextlib.contextmanager
def _joined(address: str) -> Iterator[Cluster]:
    import ray

    try:
        context = ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise DeployError(
            f"no Ray cluster answers at {address} ({_first_line(error)}); start it, name another one with --address, "
            f"or --address {LOCAL} for one of its own"
        ) from error
    try:
        yield Cluster(context.address_info["gcs_address"], False, context.address_info["session_dir"] + "/logs")
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _started(options: dict[str, Any]) -> Iterator[Cluster]:
    os.environ[_NOT_ON_LOOPBACK] = "0"  # handed on to Ray's processes
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False  # the same for this process, where Ray may have been imported before
    settings: dict[str, Any] = {
        "object_store_memory": _OBJECT_STORE_BYTES,
        "log_to_driver": False,
        "logging_level": "error",
        "_node_ip_address": "127.0.0.1",
        "_system_config": _SYSTEM_CONFIG,
    }
    try:
        try:
            context = _init(settings | options)
        except Exception as error:  # Ray raises that class itself
            raise DeployError(f"Ray cannot be started on this machine: {_first_line(error)}") from error
        host = context.address_info["node_ip_address"]
        if not ipaddress.ip_address(host).is_loopback:
            raise DeployError(f"Ray listens on {host}, expected the loopback interface alone; start a cluster yourself")
        yield Cluster(context.address_info["gcs_address"], True, context.address_info["session_dir"] + "/logs")
    finally:
        started = descendants()
        ray.shutdown()
        _end(started)


def _init(settings: dict[str, Any]) -> Any:
    """Start Ray; once more where it gave up on a busy machine, for it waits for half a minute only."""
    import ray

    try:
        return ray.init(address=LOCAL, **settings)
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        ray.shutdown()
    return ray.init(address=LOCAL, **settings)


def _started_here() -> str | None:
    """Address of the cluster that `ray start` started on this machine, if one runs."""
    from ray._private.services import find_bootstrap_address

    address: str | None = find_bootstrap_address(None)
    return address


def descendants() -> set[Any]:
    """All processes that this one started, and they in turn."""
    import psutil

    return set(psutil.Process().children(recursive=True))


def _end(processes: set[Any], patience_s: float = 5.0) -> None:
    """See to it that processes are gone: give them a moment, then kill them."""
    import psutil

    _, alive = psutil.wait_procs(processes, timeout=patience_s)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(alive, timeout=patience_s)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
