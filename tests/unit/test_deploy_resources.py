"""What is wanted against what a cluster has."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.bundles import Wanted, wanted_by
from deploy.resources import Machine, problems, spelt
from deploy.settings import read
from deploy.staging import Arm

TWO_CPUS = Machine("10.0.0.1", {"CPU": 2.0, "node:10.0.0.1": 1.0, "memory": 1e9, "object_store_memory": 1e8})
H100 = Machine("10.0.0.2", {"CPU": 64.0, "GPU": 8.0, "accelerator_type:H100": 1.0})


def wanted(name: str = "a", **settings: Any) -> Wanted:
    return wanted_by(name, read(Arm, settings, "arm"))


def test_no_gpu_asked_for_means_cpus_alone_on_one_machine() -> None:
    found = wanted(tensor_parallel_size=2, num_cpus=3)
    assert found == Wanted("a", ({"CPU": 3.0}, {"CPU": 3.0}), on_one_machine=True, replicas=1)


def test_each_worker_gets_its_share_of_the_gpus_and_may_be_on_another_machine() -> None:
    found = wanted(tensor_parallel_size=8, pipeline_parallel_size=2, num_gpus=16, accelerator_type="H100")
    assert found.bundles == ({"CPU": 1.0, "GPU": 1.0, "accelerator_type:H100": 0.001},) * 16
    assert not found.on_one_machine


def test_a_gpu_may_be_shared() -> None:
    assert wanted(num_gpus=0.5).bundles == ({"CPU": 1.0, "GPU": 0.5},)


@pytest.mark.parametrize(
    ("arms", "cluster", "text"),
    [
        (
            [wanted(num_cpus=4)],
            [TWO_CPUS],
            "arm 'a': a replica wants 4 CPU, which no machine of the cluster has: 10.0.0.1 has 2 CPU",
        ),
        (
            [wanted(num_cpus=2, tensor_parallel_size=2)],
            [TWO_CPUS, TWO_CPUS],
            "arm 'a': a replica, on one machine, wants 4 CPU, which no machine",
        ),
        (
            [wanted(num_gpus=2, tensor_parallel_size=2, accelerator_type="A100")],
            [TWO_CPUS, H100],
            "arm 'a': each of the replica's workers wants 1 CPU, 1 GPU (A100), which no machine of the cluster has: "
            "10.0.0.1 has 2 CPU; 10.0.0.2 has 64 CPU, 8 GPU (H100)",
        ),
        (
            [wanted(resources={"disk": 1.0})],
            [TWO_CPUS],
            "arm 'a': a replica wants 1 CPU, 1 disk, which no machine of the cluster has: 10.0.0.1 has 2 CPU",
        ),
        (
            [wanted("a"), wanted("b", replicas=2)],
            [TWO_CPUS],
            "the arms want 3 CPU (a 1, b 2), the whole cluster has 2",
        ),
        ([wanted()], [], "arm 'a': a replica wants 1 CPU, which no machine of the cluster has: there are no machines"),
    ],
)
def test_what_can_never_fit_is_named_with_what_there_is(arms: list[Wanted], cluster: list[Machine], text: str) -> None:
    (found,) = problems(arms, cluster)
    assert found.startswith(text)


@pytest.mark.parametrize(
    ("arms", "cluster"),
    [
        ([wanted("a"), wanted("b")], [TWO_CPUS]),
        ([wanted(tensor_parallel_size=8, num_gpus=8, accelerator_type="H100")], [TWO_CPUS, H100]),
        ([wanted(num_gpus=0.5), wanted("b", num_gpus=0.5)], [H100]),
        ([wanted(autoscaling={"min_replicas": 1, "max_replicas": 50})], [TWO_CPUS]),
    ],
)
def test_what_may_fit_is_left_to_ray(arms: list[Wanted], cluster: list[Machine]) -> None:
    assert not list(problems(arms, cluster))


def test_resources_are_spelt_without_what_ray_adds_to_each_machine() -> None:
    assert spelt(TWO_CPUS.total) == "2 CPU"
    assert spelt(H100.total) == "64 CPU, 8 GPU (H100)"
    assert spelt({"CPU": 1.0, "CPU_group_0_ab": 1.0, "CPU_group_ab": 1.0, "bundle_group_ab": 999.9}) == "1 CPU"
    assert spelt({}) == "nothing"
