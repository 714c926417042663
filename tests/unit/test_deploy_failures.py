"""What errors of Ray and of engines mean for a request."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    NodeDiedError,
    ObjectLostError,
    RayTaskError,
    TaskCancelledError,
    WorkerCrashedError,
)
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RequestCancelledError
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError

from deploy import failures


def as_raised(cause: Exception) -> Exception:
    """The error of a task as its caller gets it."""
    return RayTaskError("chat", "a traceback", cause).as_instanceof_cause()


def invalid() -> ValidationError:
    with pytest.raises(ValidationError) as error:
        TypeAdapter(int).validate_python("x")
    return error.value


@pytest.mark.parametrize(
    "error",
    [
        ActorDiedError(),
        ActorUnavailableError("gone", None),
        NodeDiedError("gone"),
        WorkerCrashedError(),
        ObjectLostError("00" * 28, None, ""),
        TaskCancelledError(),
        RequestCancelledError(),
        DeploymentUnavailableError(None),
        EngineDeadError(),
        as_raised(EngineDeadError()),
        as_raised(ActorDiedError()),
        failures.died("a"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_death_is_known_however_it_is_told(error: Exception) -> None:
    found = failures.of_exception(error, "a")
    assert (found.kind, found.status, found.reason) == ("dead", 503, "arm_died")
    assert str(found) == "arm 'a' died before it answered; try again"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (as_raised(VLLMValidationError("max_tokens is too large")), "max_tokens is too large"),
        (as_raised(invalid()), "1 validation error for int"),
    ],
    ids=["vllm", "pydantic"],
)
def test_fault_of_the_client_is_400_in_the_engines_words(error: Exception, message: str) -> None:
    found = failures.of_exception(error, "a")
    assert (found.kind, found.status, str(found)) == ("refused", 400, message)


def test_full_arm_is_busy_and_says_when_to_come_back() -> None:
    found = failures.of_exception(BackPressureError(3, 3, retry_after_s=7.0), "a")
    assert (found.kind, found.status, found.retry_after_s) == ("busy", 503, 7.0)


@pytest.mark.parametrize("error", [ValueError("x"), as_raised(KeyError("secret")), RuntimeError("x")])
def test_anything_else_is_500_and_its_text_stays_inside(error: Exception) -> None:
    found = failures.of_exception(error, "a")
    assert (found.kind, found.status) == ("error", 500)
    assert found.body["error"]["message"] == "arm 'a' failed; the log of its replica says why"


@pytest.mark.parametrize(
    ("code", "kind", "status"),
    [(400, "refused", 400), (404, "refused", 404), (500, "error", 500), (503, "busy", 503), ("odd", "error", 500)],
)
def test_error_that_an_arm_answers_is_passed_on_in_its_own_words(code: Any, kind: str, status: int) -> None:
    fields = {"message": "why", "type": "T", "param": None, "code": code}
    found = failures.of_error_object(fields, "a")
    assert (found.kind, found.status, found.body) == (kind, status, {"error": fields})


def test_error_in_a_stream_ends_it_as_vllm_does() -> None:
    event = failures.died("a").event()
    assert event.startswith('data: {"error": {"message": "arm \'a\' died')
    assert event.endswith("}\n\ndata: [DONE]\n\n")
