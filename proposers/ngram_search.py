"""Prompt lookup on the device: the drafts of `proposers.ngram_index`, found by comparing the whole history at once.

An index lives on the host, which in an asynchronous step does not know the newest tokens yet. The device does, and
compares a history of any usual length in less time than a step waits for anything. Nothing here waits for the device,
and nothing stays behind from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from proposers.ngram_confidence import AGREED, ALONE, DISPUTED, LONGEST
from vllm_specplug.proposer import Drafts, OnDevice

if TYPE_CHECKING:
    import torch


class NgramSearch:
    """Searches the histories of one engine."""

    def __init__(self, lengths: Sequence[int], min_confidence: float, device: str) -> None:
        """
        Args:
            lengths: of the windows, longest first.
        """
        import torch

        self._lengths = list(lengths)
        self._min_confidence = min_confidence
        tables = [torch.from_numpy(table).to(device) for table in (ALONE, AGREED, DISPUTED)]
        self._alone, self._agreed, self._disputed = tables

    def drafts(self, batch: OnDevice, width: int) -> Drafts:
        """What followed the most recent earlier occurrence of the longest window that has one.

        Args:
            width: most tokens to draft for a request.
        """
        import torch

        count = batch.num_tokens.long()
        text = batch.token_ids[:, : batch.longest][batch.lines]  # [num_reqs, longest]
        end = self._earlier(text, count - 1)  # [num_reqs], the last token of the occurrence, -1: none
        found = end >= 0
        end = end.clamp(min=0)
        start, period = end + 1, (count - 1 - end).clamp(min=1)
        column = torch.arange(width, device=text.device)
        # Past the end of the text the copy goes on into the draft: a loop of any period gets a full draft.
        token_ids = self._at(text, start[:, None] + column % period[:, None])

        back = torch.arange(LONGEST, device=text.device)
        same = self._at(text, end[:, None] - back) == self._at(text, (count - 1)[:, None] - back)
        matched = (same & (back <= end[:, None])).int().cumprod(1).sum(1)
        before = self._before(text, end, matched)  # [num_reqs], place behind the occurrence before that one, 0: none
        ahead = before[:, None] + column
        beyond = ahead - count[:, None]  # places in the draft
        drafted = token_ids.gather(1, beyond.clamp(0, max(width - 1, 0)))
        agrees = torch.where(beyond < 0, self._at(text, ahead), drafted) == token_ids
        so_far = torch.ones_like(agrees)
        so_far[:, 1:] = agrees[:, :-1].int().cumprod(1).bool()
        place = (matched[:, None] + column).clamp(max=LONGEST)
        heard = so_far & (before > 0)[:, None]
        factor = torch.where(agrees, self._agreed[place], self._disputed[place])
        confidence = torch.where(heard, factor, self._alone[place]).cumprod(1)
        lengths = (confidence >= self._min_confidence).sum(1)
        return Drafts(token_ids, torch.minimum(lengths, batch.max_drafts) * found)

    def _earlier(self, text: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Where the tokens that end at `query` ended last before, as many of them as possible.

        Args:
            text: [num_reqs, length]; query: [num_reqs] int64.
        Returns:
            [num_reqs] int64; -1: nowhere.
        """
        import torch

        place = torch.arange(text.shape[1], device=text.device, dtype=torch.int32)
        same = place < query[:, None]  # [num_reqs, length]: the tokens that end here equal those that end at `query`
        found = torch.full_like(query, -1)
        for back in range(self._lengths[0]):
            token = self._at(text, (query - back)[:, None])
            same[:, :back] = False
            same[:, back:] &= (text[:, : text.shape[1] - back] == token) & (query >= back)[:, None]
            if back + 1 in self._lengths:  # shortest first, and a longer one counts more
                ends = torch.where(same, place, -1).amax(1).long()
                found = torch.where(ends >= 0, ends, found)
        return found

    def _before(self, text: torch.Tensor, end: torch.Tensor, matched: torch.Tensor) -> torch.Tensor:
        """Place behind what the place that is copied from would itself have been copied from; 0: none, or a worse one.

        Args:
            end: [num_reqs], last token of the occurrence.
            matched: [num_reqs], how many tokens of it are those of the text's end.
        """
        import torch

        window = torch.zeros_like(end)
        for length in reversed(self._lengths):
            window = torch.where(matched >= length, length, window)
        before = self._earlier(text, end) + 1
        back = torch.arange(min(LONGEST, self._lengths[0]), device=text.device)
        same = self._at(text, (before - 1)[:, None] - back) == self._at(text, end[:, None] - back)
        enough = (same | (back >= window[:, None])).all(1) & (before >= window)
        return torch.where(enough, before, 0)

    @staticmethod
    def _at(text: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """text[row, places[row, ...]]; a place outside the text reads its first or last token."""
        return text.gather(1, places.clamp(0, text.shape[1] - 1))
