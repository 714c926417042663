"""Shadow traffic: copies of some requests for one arm, whose answers nobody sees.

A copy never delays the request it was made of, and there are never more than so many of them.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping

from deploy import failures, sse
from deploy.arm import Answer, Arm
from deploy.inquiry import Inquiry
from deploy.meters import Meters
from deploy.record import Record
from deploy.router_settings import Limits, Shadow
from deploy.split import uniform


class ShadowTraffic:
    """The copies of one router."""

    def __init__(self, settings: Shadow, arm: Arm, seed: int, limits: Limits, meters: Meters) -> None:
        self._settings = settings
        self._arm = arm
        self._seed = seed
        self._limits = limits
        self._meters = meters
        self._tasks: set[asyncio.Task[None]] = set()

    def offer(self, inquiry: Inquiry, arm: str, new_record: Callable[[], Record], weights: Mapping[str, float]) -> None:
        """Copy a request, if it is one of the share that is to be copied and there is room.

        Args:
            arm: the one that answers it.
            new_record: makes the record of a copy.
        """
        if arm == self._arm.name or uniform(self._seed, "shadow", inquiry.id) >= self._settings.share:
            return
        if len(self._tasks) >= self._settings.max_in_flight or not self._arm.health.is_candidate:
            self._meters.count("shadow_dropped", self._arm.name)
            return
        record = new_record()
        record.exposed(self._arm.name, "shadow", weights)
        # A context of its own: Serve cancels what a request has called when its client goes away.
        task = asyncio.create_task(self._run(inquiry, record), context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, inquiry: Inquiry, record: Record) -> None:
        body = inquiry.body_for(self._arm, f"{inquiry.id}-shadow")
        answer: Answer | None = None
        try:
            async with asyncio.timeout(self._limits.request_timeout_s):
                answer = await self._arm.ask(
                    inquiry.call, body, inquiry.raw_request, None, self._limits.request_timeout_s
                )
                await self._read(answer, inquiry.is_stream, record)
            record.ended(200)
        except failures.RequestError as failure:
            record.ended(failure.status, failure.reason)
        except TimeoutError:
            record.ended(504, "timeout")
        finally:
            if answer is not None:
                answer.close(cancel=inquiry.is_stream)
            record.cancelled()  # unless it has ended already

    async def _read(self, answer: Answer, is_stream: bool, record: Record) -> None:
        if not is_stream:
            record.used(sse.usage_of_object(answer.first))
            return
        record.first_chunk()
        async for item in answer.items(self._limits.chunk_timeout_s):
            for event in sse.events(item):
                error = sse.error_of(event)
                if error is not None:
                    raise failures.of_error_object(error, self._arm.name)
                usage = sse.usage_of(event)
                if usage is not None:
                    record.used(usage["usage"])
