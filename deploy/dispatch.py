"""Getting one request answered: by its arm, or, when that is out, by the next one.

Knows when a request may move; not HTTP.
"""

from __future__ import annotations

from deploy import failures
from deploy.arm import Answer, Arm
from deploy.inquiry import Inquiry
from deploy.meters import Meters
from deploy.record import Record, Sink, Subject
from deploy.router_settings import RouterSettings
from deploy.routing import Routing
from deploy.shadow import ShadowTraffic


class Dispatch:
    """What the requests of one router go through."""

    def __init__(
        self,
        settings: RouterSettings,
        routing: Routing,
        meters: Meters,
        sink: Sink | None,
        router: str,
        shadow: ShadowTraffic | None,
    ) -> None:
        self._settings = settings
        self._routing = routing
        self._meters = meters
        self._sink = sink
        self._router = router
        self._shadow = shadow

    def record(self, inquiry: Inquiry, request_id: str | None = None) -> Record:
        """A new record of a request, or of a copy of it with an id of its own."""
        subject = Subject(
            request_id or inquiry.id,
            self._settings.model,
            inquiry.call,
            inquiry.is_stream,
            inquiry.unit,
            self._router,
        )
        return Record(subject, self._sink, self._meters)

    async def answer(self, inquiry: Inquiry, record: Record) -> tuple[Arm, Answer]:
        """Ask arms until one answers.

        A request moves on when a replica or engine died under it or did not answer in time. It does not when an arm
        answered with an error: the next one would probably do the same, and one request could go through all of them.

        Raises:
            RequestError: nobody answered, or it is the request that is wrong.
        """
        limits = self._settings.limits
        tried: list[str] = []
        why = "out"
        if (starting := self._routing.starting(inquiry.target)) is not None:
            await starting.check()  # it may be up since the last one: Serve calls it running, so clients come
        while True:
            arm = self._choose(inquiry, record, tried, why)
            try:
                return arm, await arm.ask(
                    inquiry.call,
                    inquiry.body_for(arm, f"{inquiry.id}-{len(tried)}" if tried else inquiry.id),
                    inquiry.raw_request,
                    inquiry.session,
                    self._timeout_s(inquiry, record),
                )
            except failures.RequestError as failure:
                tried.append(arm.name)
                why = failure.reason
                may_move = failure.kind in ("dead", "timeout") and len(tried) <= limits.max_moves
                if not may_move or record.elapsed_s >= limits.request_timeout_s:
                    raise

    def _choose(self, inquiry: Inquiry, record: Record, tried: list[str], why: str) -> Arm:
        weights, out = self._routing.weights, self._routing.out
        first = self._routing.first_choice(inquiry.target)
        if not tried:  # whether or not it can have the request: the log must not lose the draw
            record.exposed(first.name, inquiry.target.by, weights, out)
        arm = self._routing.choose(inquiry.target, tried)
        if tried or arm is not first:
            before = tried[-1] if tried else first.name
            self._meters.count("moved", before)
            record.exposed(arm.name, "moved", weights, out, (before, why))
        if self._shadow is not None and not tried and inquiry.target.forced is None:
            self._shadow.offer(inquiry, arm.name, lambda: self.record(inquiry, f"{inquiry.id}-shadow"), weights)
        return arm

    def _timeout_s(self, inquiry: Inquiry, record: Record) -> float:
        """Until an arm must have begun to answer, if it is to stream, else until it must have answered."""
        limits = self._settings.limits
        left_s = limits.request_timeout_s - record.elapsed_s
        return min(left_s, limits.first_byte_timeout_s) if inquiry.is_stream else left_s
