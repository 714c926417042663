"""What a replica's proposer counts, on Ray's metrics.

vLLM's own metrics are there already (`ray_vllm_...`, label `model_name`): Ray's LLM server sees to that. The plugin's
are in files that a front-end reads when its /metrics is scraped, which a replica does not have. So they are read every
few seconds and passed on, as `ray_specplug_...` with the same label.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

from ray.util.metrics import Counter, Gauge

from vllm_specplug import metrics

logger = logging.getLogger(__name__)

_PERIOD_S = 5.0
#: What vLLM is to copy to workers that are Ray actors, so that those of this machine count in the same folder.
_COPIED_VARIABLE = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"


class ProposerMeters:
    """Made before the engine starts, since its processes inherit where to count."""

    def __init__(self, model: str) -> None:
        """
        Args:
            model: the label of all of them: the name under which the arm answers.
        """
        folder = metrics.prepare_front_end()
        self._collector = None if folder is None else metrics.CountsCollector(Path(folder))
        copied = [name for name in (os.environ.get(_COPIED_VARIABLE), metrics.FOLDER_VARIABLE) if name]
        os.environ[_COPIED_VARIABLE] = ",".join(copied)
        self._model = model
        self._meters: dict[str, Any] = {}
        self._passed_on: dict[tuple[str, ...], float] = {}

    async def keep_passing_on(self) -> None:
        """For ever, until it is cancelled."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            try:
                self.pass_on()
            except Exception:  # a replica should not die of its counters
                logger.warning("the proposer's counts could not be passed on", exc_info=True)

    def pass_on(self) -> None:
        """Add to Ray's metrics what was counted since the last time."""
        if self._collector is None:
            return
        for family in self._collector.collect():
            for sample in family.samples:
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
            self._meters[name] = kind(name, text, tuple(tags))
        return self._meters[name]
