"""Counters of speculation from a server's /metrics, over all of its engines. They count everybody's requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

_GENERATED = "vllm:generation_tokens_total"
_COUNTS = {
    "num_drafts": "vllm:spec_decode_num_drafts_total",
    "num_draft_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "num_accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
    "num_steps": "specplug_propose_steps_total",
    "draft_s": "specplug_draft_seconds_total",
}
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


@dataclass(frozen=True, slots=True)
class Counters:
    """What was counted since the server started."""

    generated: float
    """Output tokens of all requests."""
    counts: Mapping[str, float]
    """By name in `measure.DraftCounts`; those of ours are 0 with vLLM's own drafters."""
    accepted_per_position: Mapping[int, float]

    def since(self, before: Counters, num_tokens: int) -> dict[str, Any] | None:
        """What was gained, as `worker.Worker.generate` has it.

        Args:
            num_tokens: output tokens of our own requests in between.
        Returns:
            None where the server was started anew, or answered others too: then nothing can be said of ours.
        """
        gained = {name: value - before.counts[name] for name, value in self.counts.items()}
        places = [
            value - before.accepted_per_position.get(place, 0.0)
            for place, value in sorted(self.accepted_per_position.items())
        ]
        if min(*gained.values(), *places, 0.0) < 0 or not 0 <= self.generated - before.generated <= num_tokens:
            return None
        whole: dict[str, Any] = {name: value if name == "draft_s" else int(value) for name, value in gained.items()}
        return {**whole, "accepted_per_position": [int(value) for value in places]}


def read_counters(text: str) -> Counters | None:
    """Read the text of /metrics.

    Returns:
        None where the server does not speculate, or is not vLLM.
    Raises:
        ValueError: it is no text of Prometheus.
    """
    totals = dict.fromkeys((_GENERATED, *_COUNTS.values()), 0.0)
    positions: dict[int, float] = {}
    seen: set[str] = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in totals:
                totals[sample.name] += sample.value
                seen.add(sample.name)
            elif sample.name == _PER_POSITION:
                place = int(sample.labels["position"])
                positions[place] = positions.get(place, 0.0) + sample.value
    if not {_GENERATED, _COUNTS["num_drafts"], _COUNTS["num_draft_tokens"], _COUNTS["num_accepted_tokens"]} <= seen:
        return None
    return Counters(totals[_GENERATED], {name: totals[metric] for name, metric in _COUNTS.items()}, positions)
