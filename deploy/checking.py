"""`python -m deploy check`: whether a staging file can be served, before anything is started for it."""

from __future__ import annotations

import os
from pathlib import Path

from deploy import preflight, resources
from deploy.bundles import wanted_of
from deploy.resources import Machine
from deploy.staging import Staging, load_staging


def main(path: str, address: str | None) -> int:
    """Print what is wrong, or what would be served.

    Args:
        path: the staging file.
        address: of the cluster it is for; None: this machine.
    Returns:
        0, or 1 when something is wrong.
    Raises:
        DeployError: the file is wrong, or no cluster answers.
    """
    staging = load_staging(path)
    found = list(preflight.problems(staging))
    if address is None:
        cluster = [this_machine()]
    else:
        from deploy.cluster import connected

        with connected(address):
            cluster = resources.machines()
    found += resources.problems(wanted_of(staging), cluster)
    for problem in found:
        print(f"{path}: {problem}")
    if not found:
        print(f"{path}: ok; {_described(staging)}")
    return 1 if found else 0


def this_machine() -> Machine:
    """What a Ray started here would offer."""
    gpus = len([path for path in Path("/dev").glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit()])
    return Machine("this machine", {"CPU": float(os.cpu_count() or 1), "GPU": float(gpus)})


def _described(staging: Staging) -> str:
    arms = ", ".join(
        f"{arm.arm} ({arm.replicas} x {' + '.join(resources.spelt(bundle) for bundle in arm.bundles)})"
        for arm in wanted_of(staging)
    )
    return f"{staging.model} by {len(staging.arms)} arms: {arms}"
