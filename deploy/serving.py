"""A deployment on a connected cluster: put there, watched until it is up and while it serves, taken away again."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from deploy import resources
from deploy.bundles import wanted_of
from deploy.cluster import Cluster
from deploy.progress import Progress
from deploy.rendering import serve_config
from deploy.staging import Staging
from vllm_specplug.errors import DeployError

_POLL_S = 1.0

Say = Callable[[str], None]


@contextlib.contextmanager
def deployed(staging: Staging, cluster: Cluster) -> Iterator[None]:
    """Have the application deployed while the block runs; it need not be up at its beginning.

    Raises:
        DeployError: the cluster can never hold it, or serves something else that this would replace.
    """
    resources.require(wanted_of(staging), wait_s=staging.start_timeout_s if staging.wait_for_nodes else 0)
    serve_was_there = _refuse_others(staging)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # which was set by its import
    try:
        apply(staging)
        yield
    finally:
        _take_away(staging, and_serve=not cluster.is_ours and not serve_was_there)


def apply(staging: Staging) -> None:
    """Deploy, or change what is deployed: weights, replicas and health checks without a restart."""
    from ray.serve._private.api import serve_start
    from ray.serve.schema import ServeDeploySchema

    config = ServeDeploySchema.model_validate(serve_config(staging))
    client = serve_start(http_options=config.http_options.model_dump(), proxy_location=config.proxy_location)
    client.deploy_apps(config, _blocking=False)


def wait_until_up(staging: Staging, progress: Progress, say: Say) -> None:
    """Wait until every arm and the router serve.

    Raises:
        DeployError: one failed, or they are not up within `start_timeout_s`.
    """
    timeout_s = staging.start_timeout_s
    deadline = time.monotonic() + timeout_s
    while True:
        application = status(staging)
        if application is not None:
            for line in progress.changes(application):
                say(line)
            if application.status.value == "RUNNING":
                return
            if application.status.value == "DEPLOY_FAILED":
                raise DeployError(progress.failure(application))
        if time.monotonic() > deadline:
            raise DeployError(f"not up within start_timeout_s, {timeout_s:g} s: {_still_missing(staging)}")
        time.sleep(_POLL_S)


def status(staging: Staging) -> Any:
    """The application's status as Serve has it; None: it does not know it."""
    from ray import serve

    return serve.status().applications.get(staging.name)


def _still_missing(staging: Staging) -> str:
    wanted = "; ".join(
        f"{arm.arm} {arm.replicas} x ({' + '.join(resources.spelt(bundle) for bundle in arm.bundles)})"
        for arm in wanted_of(staging)
    )
    free = "; ".join(f"{machine.name} {resources.spelt(machine.free)}" for machine in resources.machines())
    return f"wanted {wanted}; still free {free}"


def _refuse_others(staging: Staging) -> bool:
    """A configuration takes the place of all that was deployed by one: do not do that to others.

    Returns:
        Whether Serve runs there.
    """
    from ray import serve

    found = serve.status()
    others = sorted(set(found.applications) - {staging.name})
    if others:
        raise DeployError(
            f"the cluster already serves {', '.join(others)}, which this would take away; "
            "use `python -m deploy render` and add its application to that configuration"
        )
    return bool(found.proxies)


def _take_away(staging: Staging, *, and_serve: bool) -> None:
    """End the application, in bounded time: what hangs is ended with the cluster."""
    from ray import serve

    def end() -> None:
        with contextlib.suppress(Exception):  # of a cluster that is gone or going
            serve.delete(staging.name)
            if and_serve:  # at the end of a cluster of our own it goes anyway
                serve.shutdown()

    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    thread.join(staging.health.shutdown_wait_s + 2)
