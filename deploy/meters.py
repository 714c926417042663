"""What a router counts of each arm: for Ray's metrics and for the route that shows it.

Knows names of metrics; nothing of requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from ray.util.metrics import Counter, Gauge, Histogram

_COUNTERS = {
    "requests": "Requests drawn for or forced to an arm, or moved to it; shadow copies not.",
    "errors": "Requests that ended with an error, by the arm they were on then.",
    "cancelled": "Requests whose client went away.",
    "moved": "Requests that left an arm, or passed it by, because it was unhealthy.",
    "outages": "Times an arm lost its traffic.",
    "shadow_requests": "Copies sent to an arm whose answers nobody sees.",
    "shadow_dropped": "Copies not sent: too many were under way, or the arm was unhealthy.",
}
_TTFT_BOUNDARIES_S = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120]


class Meters:
    """Counts of one router, by arm."""

    def __init__(self, arms: Sequence[str]) -> None:
        self._counters = {
            name: Counter(f"specplug_router_{name}", description, tag_keys=("arm",))
            for name, description in _COUNTERS.items()
        }
        self._in_flight = Gauge("specplug_router_in_flight", "Requests an arm is at work on.", tag_keys=("arm",))
        self._ttft = Histogram(
            "specplug_router_ttft_s",
            "Seconds from a streamed request's arrival to the first chunk of its answer.",
            boundaries=_TTFT_BOUNDARIES_S,
            tag_keys=("arm",),
        )
        self._counts = {arm: dict.fromkeys((*_COUNTERS, "in_flight"), 0) for arm in arms}

    def count(self, name: str, arm: str) -> None:
        """Add one to a counter."""
        self._counts[arm][name] += 1
        self._counters[name].inc(tags={"arm": arm})

    def in_flight(self, arm: str, change: int) -> None:
        """A request begins (1) or ends (-1) at an arm."""
        self._counts[arm]["in_flight"] += change
        self._in_flight.set(self._counts[arm]["in_flight"], tags={"arm": arm})

    def ttft(self, arm: str, seconds: float) -> None:
        """A stream has begun."""
        self._ttft.observe(seconds, tags={"arm": arm})

    def of(self, arm: str) -> dict[str, int]:
        """All counts of an arm."""
        return dict(self._counts[arm])
