"""What Serve says, as lines for people."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deploy.progress import Progress, cause
from deploy.settings import read
from deploy.staging import Staging

STAGING = read(Staging, {"model": "m", "arms": {"a": {}, "b": {}}}, "file")

#: As a replica's message reads (cut).
FAILED = """The deployment failed to start 3 times in a row. See controller logs for details. Error:
\x1b[36mray::ServeReplica:specplug:ArmServer:a.initialize_and_get_metadata()\x1b[39m (pid=1, ip=127.0.0.1)
  File "/x/replica.py", line 1, in initialize
    await self._user_callable_wrapper.initialize_callable()
  File "/x/server.py", line 30, in start
    raise DeployError(f"{self._arm}: {problem}")
vllm_specplug.errors.DeployError: m--a: VLLM_PLUGINS='x' leaves us out

The above exception was the direct cause of the following exception:
RuntimeError: Traceback (most recent call last):
  File "/x/replica.py", line 2, in y
RuntimeError: it did not start
"""


def deployment(states: dict[str, int], status: str = "HEALTHY", message: str = "") -> Any:
    return SimpleNamespace(
        status=SimpleNamespace(value=status),
        replica_states=dict(states),
        message=message,
    )


def application(message: str = "", **deployments: Any) -> Any:
    names = {"a": "ArmServer:a", "b": "ArmServer:b", "router": "ArmRouter"}
    return SimpleNamespace(message=message, deployments={names[name]: one for name, one in deployments.items()})


def test_only_what_changed_is_said() -> None:
    progress = Progress(STAGING)
    starting = deployment({"STARTING": 1}, "UPDATING")
    assert list(progress.changes(application(a=starting, router=starting))) == ["a: 1 starting", "router: 1 starting"]
    assert list(progress.changes(application(a=starting, router=starting))) == []
    up = deployment({"RUNNING": 1})
    assert list(progress.changes(application(a=up, b=starting, router=starting))) == ["a: 1 up", "b: 1 starting"]


def test_replacement_is_said() -> None:
    (line,) = Progress(STAGING).changes(application(a=deployment({"STOPPING": 1, "STARTING": 1}, "UNHEALTHY")))
    assert line == "a: 1 stopping, 1 starting (unhealthy)"
    (line,) = Progress(STAGING).changes(application(b=deployment({"RUNNING": 1, "STARTING": 1})))
    assert line == "b: 1 up, 1 starting"


def test_reason_of_a_replica_that_failed_is_our_own_line() -> None:
    assert cause(FAILED) == "m--a: VLLM_PLUGINS='x' leaves us out"
    (line,) = Progress(STAGING).changes(application(a=deployment({"STARTING": 1}, "UPDATING", FAILED)))
    assert line == "a: 1 starting: m--a: VLLM_PLUGINS='x' leaves us out"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("", ""),
        ("Traceback (most recent call last):\n  File x\nValueError: bad\n", "ValueError: bad"),
        ("pydantic.ValidationError: 1 problem\nx\n  y", "pydantic.ValidationError: 1 problem"),
        ("something else\nand more", "something else"),
    ],
)
def test_reason_without_a_line_of_ours_is_the_error_itself(message: str, expected: str) -> None:
    assert cause(message) == expected


def test_reason_is_that_of_the_deployment_that_failed() -> None:
    slow = deployment({"STARTING": 1}, "UPDATING", "a has 1 replica that has taken more than 30s to start")
    failed = application("Failed to update the deployments ['ArmServer:b'].", a=slow, b=deployment({}, message=FAILED))
    progress = Progress(STAGING)
    assert progress.failure(failed) == "b: m--a: VLLM_PLUGINS='x' leaves us out"
    assert progress.failure(application("Deploying app failed:\nValueError: bad")) == "ValueError: bad"


def test_failure_without_any_message_says_so() -> None:
    assert Progress(STAGING).failure(application()) == "Ray gives no reason"
