"""One request of a client: what it asks, of whom, and how it is put to an arm.

Knows the bodies of OpenAI's API as Ray's LLM server takes them.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from ray.llm._internal.serve.core.ingress.utils import _sanitize_chat_completion_request
from ray.llm._internal.serve.core.protocol import RawRequestInfo
from ray.serve.llm.openai_api_models import CompletionRequest

from deploy import failures
from deploy.arm import Arm
from deploy.router_settings import RouterSettings
from deploy.routing import Routing, Target
from deploy.split import keyed_hash

#: Not for arms: our own clients' key, and an id that need not be unique.
_KEPT_BACK = ("authorization", "cookie", "x-request-id")

_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")

# An object of vLLM's class, which Ray does not pass on by name.
_WITH_USAGE = CompletionRequest.model_validate(
    {"model": "-", "prompt": "-", "stream": True, "stream_options": {"include_usage": True}}
).stream_options


@dataclass(frozen=True)
class Inquiry:
    """A request.

    Attributes:
        id: our own, unlike X-Request-Id, which clients may repeat; it is in the answer's `id` and in vLLM's log.
        call: a method of Ray's LLM server, such as "chat".
        body: what the client sent, as that method takes it.
        target: who is to serve it.
        unit: its session or user, as the exposure log has it; None: it names neither.
        session: for Serve's own choice among the replicas of an arm.
        raw_request: its headers.
    """

    id: str
    call: str
    body: Any
    target: Target
    unit: str | None
    session: str | None
    raw_request: RawRequestInfo

    @property
    def is_stream(self) -> bool:
        """Whether the client wants the answer in chunks."""
        return bool(getattr(self.body, "stream", False))

    @property
    def wants_usage(self) -> bool:
        """Whether the client asked for token counts at the end of the stream."""
        options = self.body.stream_options
        return bool(options and options.include_usage)

    def body_for(self, arm: Arm, attempt: str) -> Any:
        """A copy of the body for one arm.

        Args:
            attempt: the engine's id for it; an engine must not meet the same twice.
        """
        update: dict[str, Any] = {"model": arm.model}
        if "request_id" in type(self.body).model_fields:
            update["request_id"] = attempt  # not the client's own, which need not be unique
        if self.is_stream and not self.wants_usage:
            update["stream_options"] = _WITH_USAGE
        return self.body.model_copy(update=update)


async def refuse_half_characters(request: Request) -> None:
    """JSON can spell half of a pair of UTF-16, which is no text: a tokenizer fails on it.

    Raises:
        RequestError: there is one in the body.
    """
    body = await request.body()
    if _HALF_CHARACTER.search(body) is None:  # whole pairs are spelled like that too
        return
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise failures.invalid(
            f"the text holds {error.object[error.start]!r}, half of a surrogate pair; send whole characters"
        ) from error


def read_inquiry(
    call: str, body: Any, request: Request, settings: RouterSettings, routing: Routing, unit_key: bytes
) -> Inquiry:
    """Make one of what FastAPI has.

    Raises:
        RequestError: it asks for a model or an arm that does not exist, or its messages are wrong.
    """
    if hasattr(body, "messages"):
        try:
            body = _sanitize_chat_completion_request(body)  # checks content that pydantic leaves for later
        except ValueError as error:
            raise failures.invalid(str(error), "messages") from error
    forced = routing.forced_arm(body.model, request.headers.get(settings.arm_header))
    request_id = secrets.token_hex(16)
    session = request.headers.get(settings.session_header) or None
    user = getattr(body, "user", None) or None
    named = ("session", session) if session else ("user", user)
    who = None if named[1] is None else f"{named[0]} {named[1]}"
    return Inquiry(
        id=request_id,
        call=call,
        body=body,
        target=Target(forced, who or request_id, is_sticky=who is not None),
        unit=None if who is None else keyed_hash(unit_key, who),
        session=session,
        raw_request=RawRequestInfo(
            headers={name: value for name, value in request.headers.items() if name.lower() not in _KEPT_BACK}
        ),
    )
