"""Passing an arm's stream on to a client, chunk by chunk, as it comes.

The router asks for token counts that the client did not ask for. The event with them is taken out again, and
`system_fingerprint`, which vLLM then puts there instead of into the last event with text, goes back to its place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from deploy import failures, sse
from deploy.arm import Answer, Arm
from deploy.record import Record


class Relay(StreamingResponse):
    """The answer to one streamed request."""

    def __init__(
        self, arm: Arm, answer: Answer, record: Record, headers: dict[str, str], chunk_timeout_s: float, has_usage: bool
    ) -> None:
        """Nothing is sent before Starlette calls the response.

        Args:
            has_usage: whether the client asked for token counts itself.
        """
        # Proxies such as nginx keep chunks back otherwise.
        headers = {**headers, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(self._chunks(), headers=headers, media_type="text/event-stream")
        self._arm = arm
        self._answer = answer
        self._record = record
        self._chunk_timeout_s = chunk_timeout_s
        self._has_usage = has_usage
        self._is_done = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; however that ends, the arm is let go and the end is recorded."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.close()
            self._record.cancelled()  # unless it has ended already

    async def _chunks(self) -> AsyncIterator[str]:
        try:
            async for item in self._answer.items(self._chunk_timeout_s):
                chunk = "".join(map(self._passed_on, sse.events(item)))
                if chunk:
                    yield chunk
        except failures.RequestError as failure:
            self._record.ended(failure.status, failure.reason)
            yield failure.event()
            return
        if not self._is_done:
            self._record.ended(200)
            yield f"{sse.DONE}\n\n"

    def _passed_on(self, event: str) -> str:
        """What the client gets of an event: mostly the same, sometimes nothing."""
        if event.startswith(sse.DONE):
            self._is_done = True
            self._record.ended(200)  # now, since clients close the connection when they have read it
            return event
        error = sse.error_of(event)
        if error is not None:  # the engine gave up in the middle of the stream, and says so itself
            failure = failures.of_error_object(error, self._arm.name)
            self._record.ended(failure.status, failure.reason)
            self._answer.broke(failure)
            return event
        usage = sse.usage_of(event)
        if usage is not None:
            self._record.used(usage["usage"])
            self._arm.fingerprint = usage.get("system_fingerprint") or self._arm.fingerprint
            return event if self._has_usage else ""
        if not self._has_usage and self._arm.fingerprint:
            return sse.with_fingerprint(event, self._arm.fingerprint)
        return event
