"""One arm as a router sees it: asking it, waiting for it, checking it.

Knows Serve's handles and the arm's health; not how arms are chosen, nor HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import AsyncIterator
from typing import Any

from ray.serve.handle import DeploymentHandle

from deploy import failures, sse
from deploy.arm_health import ArmHealth, State
from deploy.meters import Meters
from deploy.router_settings import Limits

logger = logging.getLogger(__name__)


class Arm:
    """An arm's deployment.

    Attributes:
        name: as in the staging file.
        model: the name under which it alone answers.
        health: whether it should get requests.
        fingerprint: the engine's `system_fingerprint`, once it is known.
    """

    def __init__(self, name: str, model: str, handle: DeploymentHandle[Any], limits: Limits, meters: Meters) -> None:
        self.name = name
        self.model = model
        self.health = ArmHealth(limits, on_change=self._note_change)
        self.fingerprint: str | None = None
        self._limits = limits
        self._meters = meters
        self._checks = handle
        self._requests = handle.options(stream=True)
        self._check: asyncio.Task[bool] | None = None
        self._is_due = asyncio.Event()
        self._is_down: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask(self, call: str, body: Any, raw_request: Any, session: str | None, timeout_s: float) -> Answer:
        """Send one request and wait for the first item of its answer.

        Args:
            call: a method of Ray's LLM server, such as "chat".
            timeout_s: until that first item.
        Raises:
            RequestError: there is none; the arm's health knows.
        """
        handle = self._requests if session is None else self._requests.options(session_id=session)
        began = self.health.began()
        items = getattr(handle, call).remote(body, raw_request)
        answer = Answer(self, items, began)
        try:
            answer.first = await self._first(items, timeout_s)
        except BaseException as error:
            answer.close()
            if isinstance(error, Exception):
                raise await self.judge(error, began) from error
            raise
        error_object = sse.error_of(answer.first)
        if error_object is not None:
            answer.close()
            raise await self.judge(failures.of_error_object(error_object, self.name), began)
        self.health.answered(began)
        return answer

    async def judge(self, error: Exception, began: float) -> failures.RequestError:
        """What the error of a request means, told to the arm's health."""
        failure = failures.of_exception(error, self.name)
        if failure.kind == "error" and not await self.check():
            failure = failures.died(self.name)  # an engine that died says so in many ways
        if failure.kind in ("refused", "busy"):
            self.health.answered(began)
        else:
            self.health.failed(began, failure.reason, failure.kind == "dead")
        if self.health.state == "suspect":
            self._is_due.set()
        return failure

    async def check(self) -> bool:
        """Ask whether the arm is well, once for all who want to know at a time; its health is told."""
        if self._check is None or self._check.done():
            # A context of its own: Serve cancels what a request has called when its client goes away.
            self._check = asyncio.create_task(self._ask_for_health(), context=contextvars.Context())
        return await asyncio.shield(self._check)

    def look_after(self) -> None:
        """Have the arm checked now."""
        self.health.check_soon()
        self._is_due.set()

    async def watch(self) -> None:
        """Check the arm whenever it is due, for ever."""
        while True:
            self._is_due.clear()
            wait_s = self.health.check_in_s
            if wait_s <= 0:
                await self.check()
                continue
            try:
                await asyncio.wait_for(self._is_due.wait(), wait_s)
            except TimeoutError:
                continue  # an answer may have put the check off meanwhile

    async def _ask_for_health(self) -> bool:
        response = self._checks.check_health.remote()
        try:
            await asyncio.wait_for(response, self._limits.probe_timeout_s)
        except Exception as error:
            _cancel(response)
            is_late = isinstance(error, TimeoutError)
            self.health.did_not_pass("no replica answered a check" if is_late else "a check found its engine dead")
            if not self._is_down.done():
                self._is_down.set_result(None)
            return False
        self.health.passed()
        if self._is_down.done():
            self._is_down = asyncio.get_running_loop().create_future()
        return True

    def _note_change(self, before: State, now: State, reason: str) -> None:
        if before == "up":
            self._meters.count("outages", self.name)
        logger.warning("arm %s is %s%s", self.name, now, f": {reason}" if reason else "")

    async def _first(self, items: AsyncIterator[Any], timeout_s: float) -> Any:
        first = asyncio.ensure_future(anext(items))
        first.add_done_callback(_forget)
        try:
            await asyncio.wait({first, self._is_down}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if first.done():
                return first.result()
        except (asyncio.CancelledError, StopAsyncIteration) as error:
            if isinstance(error, StopAsyncIteration):
                raise failures.failed(self.name) from error
            if _is_cancelled_from_outside():
                raise
            raise failures.died(self.name) from error
        finally:
            first.cancel()
        if self._is_down.done():
            raise failures.died(self.name)
        raise failures.timed_out(self.name, "nothing", timeout_s)


class Answer:
    """What an arm sends for one request.

    Attributes:
        first: its first item, which is there.
    """

    def __init__(self, arm: Arm, items: Any, began: float) -> None:
        self.first: Any = None
        self._arm = arm
        self._items = items
        self._began = began
        self._is_over = False

    async def items(self, chunk_timeout_s: float) -> AsyncIterator[Any]:
        """All items, the first one included.

        Args:
            chunk_timeout_s: between two of them.
        Raises:
            RequestError: they break off; the arm's health knows.
        """
        yield self.first
        while True:
            try:
                async with asyncio.timeout(chunk_timeout_s):
                    item = await anext(self._items)
            except StopAsyncIteration:
                self.close(cancel=False)
                return
            except asyncio.CancelledError as error:
                if _is_cancelled_from_outside():
                    raise
                raise await self._arm.judge(failures.died(self._arm.name), self._began) from error
            except TimeoutError as error:
                late = failures.timed_out(self._arm.name, "no further chunk", chunk_timeout_s)
                raise await self._arm.judge(late, self._began) from error
            except Exception as error:
                raise await self._arm.judge(error, self._began) from error
            yield item

    def broke(self, failure: failures.RequestError) -> None:
        """The arm itself ended the answer with an error."""
        if failure.kind == "error":
            self._arm.health.failed(self._began, failure.reason, is_dead=False)
            self._arm.look_after()

    def close(self, *, cancel: bool = True) -> None:
        """The request is over; one that the arm is still at work on is cancelled there."""
        if self._is_over:
            return
        self._is_over = True
        self._arm.health.ended(self._began)
        if cancel:
            _cancel(self._items)


def _cancel(response: Any) -> None:
    with contextlib.suppress(Exception):  # it raises what the call itself raised
        response.cancel()


def _forget(task: asyncio.Task[Any]) -> None:
    """Of a task that nobody waits for any more, asyncio would log the error."""
    if not task.cancelled():
        task.exception()


def _is_cancelled_from_outside() -> bool:
    """Rather than by the arm, whose cancelled requests raise the same."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
