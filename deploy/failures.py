"""What can go wrong with a request, and how clients are told: in the shape of OpenAI's errors.

Knows the errors of Ray and of arms; not what the router does about them.
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from starlette.responses import Response

Kind = Literal["refused", "busy", "dead", "timeout", "error"]
"""refused: the request is wrong. busy: the arm wants no more just now. dead: a replica or engine is gone. timeout: no
answer in time. error: the arm failed, for whatever reason. The first two say nothing against an arm."""


class RequestError(Exception):
    """A request that gets an error instead of an answer, or instead of the rest of one.

    Attributes:
        kind: what the router decides by.
        status: of HTTP.
        body: `{"error": {...}}`.
        reason: in a word or two, for logs and counts; never anything of the request.
        retry_after_s: when to try again; None: nothing is known.
    """

    def __init__(
        self,
        kind: Kind,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: Kind = kind
        self.status = status
        self.reason = code
        self.retry_after_s = retry_after_s
        type_ = "invalid_request_error" if status < 500 else "server_error"
        self.body: dict[str, Any] = {"error": {"message": message, "type": type_, "param": param, "code": code}}

    def response(self, headers: dict[str, str] | None = None) -> Response:
        """The answer where none has begun."""
        found = dict(headers or {})
        if self.retry_after_s is not None:
            found["Retry-After"] = str(max(1, math.ceil(self.retry_after_s)))
        return Response(json.dumps(self.body), self.status, found, "application/json")

    def event(self) -> str:
        """The end of a stream that has begun."""
        return f"data: {json.dumps(self.body)}\n\ndata: [DONE]\n\n"


def of_exception(error: BaseException, arm: str) -> RequestError:
    """What an exception of a call to an arm means."""
    if isinstance(error, RequestError):
        return error
    cause = error.cause if isinstance(error, RayTaskError) else None
    # By name: vLLM's own, which may be that of another version.
    names = {cls.__name__ for one in (error, cause) for cls in type(one).__mro__}
    is_rays = isinstance(cause, RayError) or (isinstance(error, RayError) and not isinstance(error, RayTaskError))
    is_unavailable = isinstance(error, DeploymentUnavailableError | ReplicaUnavailableError)
    if is_rays or is_unavailable or "EngineDeadError" in names:
        return died(arm)
    if isinstance(error, BackPressureError):
        message = f"arm {arm!r} has no room for more requests; try again later"
        return RequestError("busy", error.status_code, "arm_busy", message, retry_after_s=error.retry_after_s)
    if names & {"VLLMClientError", "ValidationError"}:
        message = str(cause or error).strip().partition("\n")[0]
        return invalid(message)
    return failed(arm)


def of_error_object(error: Any, arm: str) -> RequestError:
    """What an error means that an arm answered, `ErrorInfo` or the same as a dictionary."""
    fields = error if isinstance(error, dict) else error.model_dump()
    code = fields.get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    if status == 503:
        kind: Kind = "busy"
    else:
        kind = "refused" if status < 500 else "error"
    failure = RequestError(kind, status, f"http_{status}", str(fields.get("message")))
    failure.body = {"error": fields}  # the engine's own words, as `vllm serve` would pass them on
    return failure


def invalid(message: str, param: str | None = None) -> RequestError:
    """The request is wrong."""
    return RequestError("refused", 400, "invalid_request", message, param=param)


def died(arm: str) -> RequestError:
    """A replica or engine of the arm is gone."""
    return RequestError("dead", 503, "arm_died", f"arm {arm!r} died before it answered; try again", retry_after_s=1.0)


def failed(arm: str) -> RequestError:
    """The arm failed, and only its own log says why."""
    return RequestError("error", 500, "arm_failed", f"arm {arm!r} failed; the log of its replica says why")


def timed_out(arm: str, what: str, limit_s: float) -> RequestError:
    """No answer in time."""
    return RequestError("timeout", 504, "timeout", f"arm {arm!r} sent {what} within {limit_s:g} s")


def no_arm(retry_after_s: float) -> RequestError:
    """Every arm that may have the request is out."""
    return RequestError(
        "dead", 503, "no_arm", "no arm is able to answer just now; try again later", retry_after_s=retry_after_s
    )


def unknown_model(model: str, known: list[str]) -> RequestError:
    """Clients asked for something that nobody serves."""
    return RequestError(
        "refused",
        404,
        "model_not_found",
        f"the model {model!r} does not exist; there are {', '.join(known)}",
        param="model",
    )


def unknown_arm(header: str, arm: str, known: list[str]) -> RequestError:
    """A header forces an arm that does not exist."""
    return RequestError("refused", 400, "unknown_arm", f"{header} is {arm!r}; expected one of {', '.join(known)}")
