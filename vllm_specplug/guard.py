"""Between a proposer and the engine: whatever comes back, the engine only sees drafts it can verify.

Cuts what is malformed, counts what it cut, and turns an exception into a step without drafts. The rule that keeps
sampling exact is kept here: how a draft is judged, by its q or as one-hot, must not depend on the value drawn, nor on
a later one, which may depend on it. So a token that has to go takes the later ones with it and leaves the earlier ones
as they were; and from the first token with a false q on, a request's drafts go over as one-hot. Knows nothing of vLLM.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from vllm_specplug import guard_on_device
from vllm_specplug.deferred_counts import DeferredCounts
from vllm_specplug.errors import ProposerError, ShapeError
from vllm_specplug.guard_on_device import PROBS_TOLERANCE, CheckedOnDevice
from vllm_specplug.metrics import Counts
from vllm_specplug.proposer import DraftBatch, Drafts, EngineInfo, IntArray, Proposer

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

#: So many exceptions in a row switch a proposer off: it is broken, not unlucky.
MAX_FAILURES_IN_A_ROW = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Checked:
    """Drafts the engine can verify."""

    token_ids: list[list[int]]
    """One list per request, none longer than its max_drafts, all ids inside the vocabulary."""
    probs: torch.Tensor | None
    """[num_reqs, width, vocab_size] float32: the distribution each token was drawn from, one-hot where that is
    unknown; None when it is unknown for all."""


class Guard:
    """One proposer, made safe to call."""

    def __init__(self, name: str, proposer: Proposer, engine: EngineInfo, counts: Counts) -> None:
        self.proposer = proposer
        self.counts = counts
        self.off = False
        self._name = name
        self._engine = engine
        self._failures_in_a_row = 0
        self._said: set[str] = set()
        self.deferred = DeferredCounts(counts, engine.device)
        """For what only the device knows yet."""

    def propose(self, batch: DraftBatch, without_probs: Collection[int] = ()) -> Checked:
        """Ask the proposer, unless it is switched off, and check what it says.

        Args:
            batch: the step.
            without_probs: rows whose drafts must go over as one-hot, whatever the proposer says.
        """
        limits = batch.max_drafts.copy()  # the proposer may write into the batch's
        checked = self._ask(batch, lambda drafts: self._check(drafts, batch, limits, without_probs))
        if checked is None:
            return Checked([[] for _ in batch.req_ids], None)
        self.counts.add("draft_tokens", sum(map(len, checked.token_ids)))
        return checked

    def propose_on_device(self, batch: DraftBatch, without_probs: torch.Tensor | None = None) -> CheckedOnDevice | None:
        """The same for an asynchronous step: nothing of what it says is looked at on the host.

        Args:
            without_probs: [num_reqs] bool.
        Returns:
            None where there is no answer.
        """
        assert batch.on_device is not None
        limits = batch.on_device.max_drafts.clone()
        return self._ask(
            batch,
            lambda drafts: guard_on_device.check(drafts, limits, self._engine, without_probs, self.deferred),
        )

    def _ask(self, batch: DraftBatch, check: Callable[[Drafts], T]) -> T | None:
        if self.off:
            return None
        self.counts.add("steps")
        try:
            checked = check(self.proposer.propose(batch))
        except ShapeError as error:
            self.counts.add("dropped_bad_rows")
            self._failed(error)
            return None
        except (Exception, SystemExit) as error:  # a drafter may crash in any way; the request goes on
            self.counts.add("failures")
            self._failed(error)
            return None
        self._failures_in_a_row = 0
        return checked

    def forget(self, req_ids: Collection[str]) -> None:
        """Tell the proposer, which may fail at that too."""
        try:
            self.proposer.forget(req_ids)
        except Exception as error:
            self.counts.add("failures")
            self._failed(error)

    def _check(self, drafts: Drafts, batch: DraftBatch, limits: IntArray, without_probs: Collection[int]) -> Checked:
        token_ids, num_drafts = self._arrays(drafts, batch)
        width = token_ids.shape[1]
        column = np.arange(width)
        kept = np.minimum(num_drafts, limits)
        if (num_drafts > kept).any():
            row = int(np.argmax(num_drafts > kept))
            self.counts.add("dropped_too_many", int((num_drafts - kept).sum()))
            self._say_once(
                "too_many",
                f"returned {num_drafts[row]} tokens for request {batch.req_ids[row]}, at most "
                f"{limits[row]} were asked for; the last {num_drafts[row] - kept[row]} were dropped",
            )
        bad = (column < kept[:, None]) & ((token_ids < 0) | (token_ids >= self._engine.vocab_size))
        if bad.any():
            first_bad = np.where(bad.any(axis=1), bad.argmax(axis=1), kept)
            row = int(np.argmax(bad.any(axis=1)))
            self.counts.add("dropped_bad_id", int((kept - first_bad).sum()))
            self._say_once(
                "bad_id",
                f"returned token {token_ids[row, first_bad[row]]} for request {batch.req_ids[row]}, expected 0 to "
                f"{self._engine.vocab_size - 1}; drafts were dropped from there on",
            )
            kept = first_bad
        rows = [row[:count] for row, count in zip(token_ids.tolist(), kept.tolist(), strict=True)]
        probs = self._probs(drafts.probs, rows, without_probs, (batch.num_reqs, width))
        return Checked(rows, probs)

    def _arrays(self, drafts: Drafts, batch: DraftBatch) -> tuple[np.ndarray, np.ndarray]:
        if not isinstance(drafts, Drafts):
            raise ShapeError(f"returned {type(drafts).__name__}, expected vllm_specplug.Drafts")
        token_ids, num_drafts = _on_host(drafts.token_ids), _on_host(drafts.num_drafts)
        if token_ids.ndim != 2 or len(token_ids) != batch.num_reqs or token_ids.dtype.kind not in "iu":
            raise ShapeError(
                f"returned token_ids of shape {token_ids.shape} and type {token_ids.dtype}, expected whole numbers of "
                f"shape [{batch.num_reqs}, width]"
            )
        if num_drafts.shape != (batch.num_reqs,) or num_drafts.dtype.kind not in "iu":
            raise ShapeError(
                f"returned num_drafts of shape {num_drafts.shape} and type {num_drafts.dtype}, expected whole numbers "
                f"of shape [{batch.num_reqs}]"
            )
        return token_ids, np.clip(num_drafts.astype(np.int64), 0, token_ids.shape[1])

    def _probs(
        self,
        probs: torch.Tensor | None,
        rows: Sequence[Sequence[int]],
        without_probs: Collection[int],
        shape: tuple[int, int],
    ) -> torch.Tensor | None:
        places = [(row, column) for row, tokens in enumerate(rows) for column in range(len(tokens))]
        one_hot_from = dict.fromkeys(without_probs, 0)  # row -> first column whose distribution is unknown
        drafted = {row for row, _ in places}
        if probs is None or drafted <= set(without_probs):
            return None
        wanted = (*shape, self._engine.vocab_size)
        import torch

        if not isinstance(probs, torch.Tensor) or tuple(probs.shape) != wanted or not probs.is_floating_point():
            described = tuple(probs.shape) if isinstance(probs, torch.Tensor) else type(probs).__name__
            self._bad_probs(f"returned probabilities {described}, expected floats of shape {list(wanted)}")
            return None
        probs = probs.to(device=self._engine.device, dtype=torch.float32)
        row_at, column_at = torch.tensor(places, device=probs.device).T.unbind()
        tokens = torch.tensor([token for tokens in rows for token in tokens], device=probs.device)
        # One look at the device: a row that is no distribution would cost exactness, not only speed. Reductions over
        # the whole, since a copy of the drafted places alone would take as much memory again.
        is_distribution = ((probs.sum(-1) - 1).abs() <= PROBS_TOLERANCE) & (probs.amin(-1) >= 0)
        fine = is_distribution[row_at, column_at] & (probs[row_at, column_at, tokens] > 0)
        if not bool(fine.all()):
            self._bad_probs("returned probabilities that are negative, do not sum to 1, or are 0 for the token drawn")
            for (row, column), is_fine in zip(places, fine.tolist(), strict=True):
                if not is_fine:
                    one_hot_from[row] = min(one_hot_from.get(row, column), column)
        if all(one_hot_from.get(row) == 0 for row in drafted):
            return None
        if one_hot_from:
            probs = probs.clone()  # the proposer's own
            for row, first in one_hot_from.items():
                probs[row, first:] = 0
                for column, token in enumerate(rows[row][first:], first):
                    probs[row, column, token] = 1
        return probs.contiguous()

    def _bad_probs(self, what: str) -> None:
        self.counts.add("dropped_bad_probs")
        self._say_once("bad_probs", f"{what}; from there on, a request's drafts go over without probabilities")

    def _failed(self, error: BaseException) -> None:
        self._failures_in_a_row += 1
        kind = f"{type(error).__name__}: {error}"
        if kind not in self._said and len(self._said) < 20:
            self._said.add(kind)
            trace = None if isinstance(error, ProposerError) else error
            logger.error(
                "proposer %r failed, nothing was drafted in this step (counted in specplug_%s): %s",
                self._name,
                "drafts_dropped_total" if isinstance(error, ShapeError) else "proposer_failures_total",
                kind,
                exc_info=trace,
            )
        if self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW and not self.off:
            self.off = True
            self.counts.add("off")
            logger.error(
                "proposer %r failed %d times in a row and is switched off: this engine goes on without speculation. "
                "Fix the proposer and restart",
                self._name,
                self._failures_in_a_row,
            )

    def _say_once(self, reason: str, what: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            logger.warning("proposer %r %s (counted in specplug_drafts_dropped_total, said once)", self._name, what)


def _on_host(values: Any) -> np.ndarray[Any, Any]:
    """An array of what may be a tensor on a device."""
    return np.asarray(values.cpu() if hasattr(values, "cpu") else values)
