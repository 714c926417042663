"""What does not fit is refused in time, naming what is wanted and what there is, and leaves nothing behind."""

from __future__ import annotations

import time
from pathlib import Path

import processes
import pytest
from deployments import STUB, running, wait_for_line

pytestmark = pytest.mark.slow  # a Ray cluster for nearly every test: minutes


def test_bundle_that_fits_no_machine_is_refused_at_once(tmp_path: Path) -> None:
    staging = {"model": "tiny", "source": "/none", "arms": {"a": STUB, "b": {**STUB, "num_cpus": 64}}}
    with running(staging, tmp_path) as run:
        assert run.process.wait(120) == 2
        error = run.said().splitlines()[-1]
        assert error == (
            "deploy: error: arm 'b': a replica wants 64 CPU, which no machine of the cluster has: 127.0.0.1 has 2 CPU"
        )
        assert not processes.family(run.pid)


def test_arms_that_fit_only_one_by_one_are_refused_at_once(tmp_path: Path) -> None:
    staging = {"model": "tiny", "source": "/none", "arms": {"a": STUB, "b": {**STUB, "num_cpus": 2}}}
    with running(staging, tmp_path) as run:
        assert run.process.wait(120) == 2
        assert "the arms want 3 CPU (a 1, b 2), the whole cluster has 2" in run.said()


def test_cluster_that_may_grow_is_given_its_time(tmp_path: Path) -> None:
    arm = {**STUB, "num_cpus": 4}
    staging = {"model": "tiny", "source": "/none", "arms": {"a": arm}, "wait_for_nodes": True, "start_timeout_s": 8}
    with running(staging, tmp_path) as run:
        wait_for_line(run, "Ray 127.0.0.1", 120)
        started = time.monotonic()
        assert run.process.wait(60) == 2
        assert time.monotonic() - started > 7
        assert "wants 4 CPU" in run.said()
        assert "(after waiting 8 s for more machines)" in run.said()
