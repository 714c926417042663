"""What Ray has to reserve for one replica of an arm.

A bundle is what one worker needs on one machine. Knows nothing of a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from deploy.staging import Arm, Staging

Bundle = dict[str, float]

#: How Ray spells "a machine with such a GPU" as a resource; machines have 1 of it.
ACCELERATOR = "accelerator_type:"
_A_LITTLE = 0.001


@dataclass(frozen=True, slots=True)
class Wanted:
    """The bundles of one replica, all of which must be there before it starts."""

    arm: str
    bundles: tuple[Bundle, ...]
    on_one_machine: bool
    replicas: int = 1
    """How many replicas the arm starts with."""


def wanted_by(name: str, arm: Arm, engine: str = "ray") -> Wanted:
    """What the arm's replicas reserve.

    Args:
        engine: as in the staging file.
    """
    bundle: Bundle = {"CPU": arm.num_cpus, **arm.resources}
    if arm.num_gpus:
        bundle["GPU"] = arm.num_gpus / arm.num_workers
    if engine == "vllm":  # one process tree, which uses what the replica itself has reserved
        bundle = {key: amount * arm.num_workers for key, amount in bundle.items()}
    if arm.accelerator_type is not None:
        bundle[f"{ACCELERATOR}{arm.accelerator_type}"] = _A_LITTLE
    if engine == "vllm":
        return Wanted(name, (bundle,), True, arm.min_replicas)
    # On CPUs the workers are processes of the replica itself, not actors that Ray could place elsewhere.
    return Wanted(name, (bundle,) * arm.num_workers, not arm.num_gpus, arm.min_replicas)


def wanted_of(staging: Staging) -> list[Wanted]:
    """What all arms' replicas reserve. The router reserves nothing."""
    return [wanted_by(name, arm, staging.engine) for name, arm in staging.arms.items()]
