"""What the arms want against what the cluster has, before anything is reserved.

Ray lets a placement group that fits nowhere wait for ever. What can be proved not to fit is refused here instead: a
bundle larger than every machine, workers that must share one, or more in all than there is. What may fit is left to
Ray. Knows numbers only; `machines` asks Ray for them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from deploy.bundles import ACCELERATOR, Bundle, Wanted
from vllm_specplug.errors import DeployError

logger = logging.getLogger(__name__)

_POLL_S = 5.0


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of the cluster."""

    name: str
    total: Mapping[str, float]
    free: Mapping[str, float] = field(default_factory=dict)
    """Of `total`, what nobody has reserved."""


def machines() -> list[Machine]:
    """The nodes of the cluster that this process is connected to."""
    import ray
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    return [
        Machine(node["NodeManagerAddress"], node["Resources"], free.get(node["NodeID"], {}))
        for node in ray.nodes()
        if node["Alive"]
    ]


def problems(wanted: Sequence[Wanted], cluster: Sequence[Machine]) -> Iterator[str]:
    """Why the arms can never run on these machines, one line each; nothing where they may."""
    found = False
    for arm in wanted:
        problem = _too_large(arm, cluster)
        if problem is not None:
            found = True
            yield problem
    if not found:
        yield from _too_much(wanted, cluster)


def require(wanted: Sequence[Wanted], *, wait_s: float) -> None:
    """Refuse what the connected cluster cannot hold.

    Args:
        wait_s: how long more machines may take to come.
    Raises:
        DeployError: the first of `problems`.
    """
    deadline = time.monotonic() + wait_s
    while True:
        problem = next(problems(wanted, machines()), None)
        if problem is None:
            return
        if time.monotonic() >= deadline:
            waited = f" (after waiting {wait_s:g} s for more machines)" if wait_s else ""
            raise DeployError(problem + waited)
        logger.info("waiting for machines: %s", problem)
        time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))


def spelt(resources: Mapping[str, float]) -> str:
    """Resources as people read them: `4 CPU, 1 GPU (H100)`."""
    gpus = [key.removeprefix(ACCELERATOR) for key in resources if key.startswith(ACCELERATOR)]
    hidden = ("node:", ACCELERATOR, "memory", "object_store_memory", "bundle_group")
    parts = []
    for key, value in sorted(resources.items()):
        if not key.startswith(hidden) and "_group_" not in key:  # parts of placement groups
            kind = f" ({', '.join(gpus)})" if gpus and key == "GPU" else ""
            parts.append(f"{value:g} {key}{kind}")
    return ", ".join(parts) or "nothing"


def _too_large(arm: Wanted, cluster: Sequence[Machine]) -> str | None:
    what = "a replica" if len(arm.bundles) == 1 else "each of the replica's workers"
    bundle = arm.bundles[0]
    if arm.on_one_machine and len(arm.bundles) > 1:
        what, bundle = "a replica, on one machine,", _sum(arm.bundles)
    if any(_holds(machine.total, bundle) for machine in cluster):
        return None
    has = "; ".join(f"{machine.name} has {spelt(machine.total)}" for machine in cluster) or "there are no machines"
    return f"arm {arm.arm!r}: {what} wants {spelt(bundle)}, which no machine of the cluster has: {has}"


def _too_much(wanted: Sequence[Wanted], cluster: Sequence[Machine]) -> Iterator[str]:
    needed = _sum([bundle for arm in wanted for bundle in arm.bundles * arm.replicas])
    there = _sum([machine.total for machine in cluster])
    for key, amount in needed.items():
        if amount > there.get(key, 0) + 1e-6:
            each = ", ".join(
                f"{arm.arm} {_sum(arm.bundles * arm.replicas).get(key, 0):g}" for arm in wanted if arm.replicas
            )
            yield f"the arms want {amount:g} {key} ({each}), the whole cluster has {there.get(key, 0):g}"


def _holds(has: Mapping[str, float], wants: Bundle) -> bool:
    return all(has.get(key, 0) + 1e-6 >= amount for key, amount in wants.items())


def _sum(all_of_them: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in all_of_them:
        for key, amount in one.items():
            total[key] = total.get(key, 0) + amount
    return total
