"""Counters of what proposers did, from the worker process to the server's /metrics.

Workers and the front-end are different processes, and vLLM has no channel for a plugin's numbers between them. Each
worker therefore keeps its counts in a small memory-mapped file of its own, under a folder that the front-end made and
whose path its children inherit; the front-end reads the files when it is scraped. A count survives the death of its
worker. Where prometheus_client is in its own multi-process mode (several API servers), its counters are used directly.

Counts of a worker on another machine are not seen; the drafts that count come from the first tensor-parallel rank.
"""

from __future__ import annotations

import atexit
import functools
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

#: Inherited by engine and worker processes, so that all of a server's counts meet in one folder.
FOLDER_VARIABLE = "SPECPLUG_COUNTERS_DIR"

DropReason: TypeAlias = Literal["too_many", "bad_id", "bad_rows", "bad_probs", "ranks_differ"]
DROP_REASONS: tuple[DropReason, ...] = ("too_many", "bad_id", "bad_rows", "bad_probs", "ranks_differ")

_DROP_HELP = (
    "What was dropped of a proposer's answers: draft tokens beyond the limit (too_many), from the first id outside the "
    "vocabulary on (bad_id), answers of the wrong shape (bad_rows), probabilities that are none (bad_probs) or differ "
    "between tensor-parallel ranks (ranks_differ)."
)
_OFF_HELP = "Workers in which the proposer was switched off."
_COUNTERS = {
    "steps": ("specplug_propose_steps", "Steps in which the proposer was asked for drafts."),
    "draft_tokens": ("specplug_draft_tokens", "Draft tokens handed to vLLM, before it trims them."),
    "filler": (
        "specplug_filler_tokens",
        "Tokens verified where there was no draft, since asynchronous scheduling checks as many for every request.",
    ),
    "withheld": ("specplug_drafts_withheld", "Requests not drafted for in a step since their length limit was near."),
    "failures": ("specplug_proposer_failures", "Exceptions a proposer raised; each cost one step's drafts."),
    "draft_us": (
        "specplug_draft_seconds",
        "Time in which a step waited for its drafts, all that stands between the verdict on the last ones and these.",
    ),
}
#: What a count is divided by where it is shown; slots hold whole numbers.
_SHOWN_PER = {"draft_us": 1_000_000}
_shown_on: set[CollectorRegistry] = set()
_SLOTS = (*_COUNTERS, "off", *(f"dropped_{reason}" for reason in DROP_REASONS))


class Counts:
    """The counts of one proposer in one worker process."""

    def __init__(self, proposer: str, folder: Path | None = None, *, native: bool = False) -> None:
        """
        Args:
            proposer: its name, the label of every count.
            folder: where to keep them; None: in memory only.
            native: count in prometheus_client's own counters too.
        """
        self._values: np.ndarray[Any, np.dtype[np.int64]]
        if folder is None:
            self._values = np.zeros(len(_SLOTS), np.int64)
        else:
            stem = f"{os.getpid()}-{len(list(folder.glob('*.json')))}"
            self._values = np.memmap(folder / f"{stem}.counts", np.int64, "w+", shape=(len(_SLOTS),))
            temporary = folder / f"{stem}.tmp"
            temporary.write_text(json.dumps({"proposer": proposer, "slots": _SLOTS}))
            temporary.rename(folder / f"{stem}.json")  # last: a reader only sees complete pairs
        self._index = {slot: index for index, slot in enumerate(_SLOTS)}
        self._native = _native_counters(proposer) if native else {}

    def add(self, slot: str, amount: int = 1) -> None:
        """Count `amount` more under `slot`, one of steps, draft_tokens, filler, withheld, failures, draft_us
        (microseconds), off, dropped_<reason>."""
        self._values[self._index[slot]] += amount
        native = self._native.get(slot)
        if native is not None:
            native.inc(_shown(slot, amount))

    def value(self, slot: str) -> int:
        return int(self._values[self._index[slot]])


def counts_for_worker(proposer: str) -> Counts:
    """Counts that reach /metrics from this process, if the front-end made a place for them."""
    if _multiprocess_mode():
        return Counts(proposer, native=True)
    folder = os.environ.get(FOLDER_VARIABLE)
    return Counts(proposer, Path(folder) if folder and Path(folder).is_dir() else None)


def prepare_front_end(registry: CollectorRegistry = REGISTRY) -> Path | None:
    """Make the folder that workers started from here will count in, and show it on `registry`. Repeatable.

    Returns:
        The folder, removed when this process ends; None where there is no place to write: workers then count for
        themselves, since a server should not die of its counters.
    """
    known = os.environ.get(FOLDER_VARIABLE)
    if known and Path(known).is_dir():
        folder = Path(known)
    else:
        try:
            folder = Path(tempfile.mkdtemp(prefix="specplug-counters-"))
        except OSError as error:
            logger.warning("no specplug_ metrics on /metrics: no temporary folder can be made (%s); set TMPDIR", error)
            return None
        os.environ[FOLDER_VARIABLE] = str(folder)
        atexit.register(_remove_if_owner, folder, os.getpid())
    if registry not in _shown_on:
        _shown_on.add(registry)
        registry.register(CountsCollector(folder))
    return folder


class CountsCollector(Collector):
    """Sums the files of a folder into Prometheus metrics, when scraped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def describe(self) -> list[Metric]:
        return []  # names are checked at scrape; nothing else may use our prefix

    def collect(self) -> Iterator[Metric]:
        totals = read_totals(self._folder)
        for slot, (name, text) in _COUNTERS.items():
            family = CounterMetricFamily(name, text, labels=["proposer"])
            for proposer, values in totals.items():
                family.add_metric([proposer], _shown(slot, values[slot]))
            yield family
        dropped = CounterMetricFamily("specplug_drafts_dropped", _DROP_HELP, labels=["proposer", "reason"])
        off = GaugeMetricFamily("specplug_proposer_off", _OFF_HELP, labels=["proposer"])
        for proposer, values in totals.items():
            for reason in DROP_REASONS:
                dropped.add_metric([proposer, reason], values[f"dropped_{reason}"])
            off.add_metric([proposer], values["off"])
        yield dropped
        yield off


def read_totals(folder: Path) -> dict[str, dict[str, int]]:
    """Proposer -> slot -> count, summed over all workers that counted in `folder`."""
    totals: dict[str, dict[str, int]] = {}
    for description in sorted(folder.glob("*.json")):
        about = json.loads(description.read_text())
        values = np.fromfile(description.with_suffix(".counts"), np.int64)
        into = totals.setdefault(about["proposer"], dict.fromkeys(_SLOTS, 0))
        for slot, value in zip(about["slots"], values.tolist(), strict=True):
            into[slot] += value
    return totals


def _shown(slot: str, count: int) -> float:
    return count / _SHOWN_PER.get(slot, 1)


def _multiprocess_mode() -> bool:
    return "PROMETHEUS_MULTIPROC_DIR" in os.environ


@functools.cache
def _native_metrics() -> dict[str, Counter | Gauge]:
    """prometheus_client's own counters; its multi-process mode brings them to whoever is scraped."""
    metrics: dict[str, Counter | Gauge] = {
        slot: Counter(name, text, ["proposer"]) for slot, (name, text) in _COUNTERS.items()
    }
    metrics["off"] = Gauge("specplug_proposer_off", _OFF_HELP, ["proposer"], multiprocess_mode="livesum")
    return metrics | {"dropped": Counter("specplug_drafts_dropped", _DROP_HELP, ["proposer", "reason"])}


def _native_counters(proposer: str) -> dict[str, Any]:
    metrics = _native_metrics()
    native = {slot: metrics[slot].labels(proposer) for slot in (*_COUNTERS, "off")}
    return native | {f"dropped_{reason}": metrics["dropped"].labels(proposer, reason) for reason in DROP_REASONS}


def _remove_if_owner(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)
