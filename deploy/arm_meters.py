"""What an arm's replica counts, on Ray's metrics, under the label `model_name`: the name under which the arm answers.

A replica has no /metrics that could be scraped, so what would stand there is read every few seconds and passed on:
`specplug_draft_tokens_total` is `ray_specplug_draft_tokens_total` there, `vllm:...` is `ray_vllm_...`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from prometheus_client import Metric
from ray.util.metrics import Counter, Gauge

from vllm_specplug import metrics

logger = logging.getLogger(__name__)

_PERIOD_S = 5.0
#: What vLLM is to copy to workers that are Ray actors, so that those of this machine count in the same folder.
_COPIED_VARIABLE = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"


def proposer_counts() -> Callable[[], Awaitable[Iterable[Metric]]]:
    """Have the plugin count for this process: a function that reads the counts.

    To be called before an engine starts: its processes inherit where to count.
    """
    folder = metrics.prepare_front_end()
    copied = [name for name in (os.environ.get(_COPIED_VARIABLE), metrics.FOLDER_VARIABLE) if name]
    os.environ[_COPIED_VARIABLE] = ",".join(copied)
    collector = None if folder is None else metrics.CountsCollector(Path(folder))

    async def read() -> Iterable[Metric]:
        return [] if collector is None else collector.collect()

    return read


class ArmMeters:
    """Ray's metrics of one replica."""

    def __init__(self, model: str) -> None:
        """
        Args:
            model: the label of all of them.
        """
        self._model = model
        self._meters: dict[str, Any] = {}
        self._passed_on: dict[tuple[str, ...], float] = {}

    async def keep_passing_on(self, read: Callable[[], Awaitable[Iterable[Metric]]]) -> None:
        """Pass on what `read` gives, for ever, until it is cancelled."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            try:
                self.pass_on(await read())
            except Exception:  # a replica should not die of its counters
                logger.warning("counts could not be passed on", exc_info=True)

    def pass_on(self, families: Iterable[Metric]) -> None:
        """Bring Ray's metrics up to date. Histograms and the like are left out."""
        for family in families:
            if family.type not in ("counter", "gauge"):
                continue
            for sample in family.samples:
                if sample.name.endswith("_created"):
                    continue
                tags = {**sample.labels, "model_name": self._model}
                if family.type == "gauge":
                    self._meter(Gauge, sample.name, family.documentation, tags).set(sample.value, tags)
                    continue
                key = (sample.name, *tags.values())
                gained = sample.value - self._passed_on.get(key, 0)
                if gained > 0:
                    self._meter(Counter, sample.name, family.documentation, tags).inc(gained, tags)
                    self._passed_on[key] = sample.value

    def _meter(self, kind: type[Any], name: str, text: str, tags: dict[str, str]) -> Any:
        if name not in self._meters:
            self._meters[name] = kind(re.sub(r"\W", "_", name), text, tuple(tags))
        return self._meters[name]
