"""A step of vLLM's V2 model runner as a `DraftBatch`.

V2 keeps the state of its requests on the device and in lines that do not move. What a proposer wants on the host is
fetched at its first look, together; a proposer that stays on the device never looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from vllm_specplug.proposer import DraftBatch, IntArray, OnDevice


class HostTokens:
    """The token histories of V2's lines, on the host; a step adds to them what it brought."""

    def __init__(self, token_ids: torch.Tensor, recent: int) -> None:
        """
        Args:
            token_ids: the device's, [lines, max_model_len] int32.
            recent: so many of the last tokens are fetched along with a step's numbers; the most that one step adds.
        """
        self._on_device = token_ids
        self._num_recent = recent
        self._known = np.zeros(len(token_ids), np.int32)
        self._lines: IntArray | None = None

    @property
    def num_recent(self) -> int:
        """How many of the last tokens a step should bring; 0 as long as nobody reads any."""
        return 0 if self._lines is None else self._num_recent

    def forget(self, line: int) -> None:
        """Another request gets the line."""
        self._known[line] = 0

    def read(self, lines: IntArray, num_tokens: IntArray, recent: IntArray) -> IntArray:
        """All lines, of which these are up to date.

        Args:
            lines, num_tokens: [num_reqs].
            recent: [num_reqs, num_recent], the last tokens, newest last.
        Returns:
            [lines, max_model_len] int32.
        """
        if self._lines is None:
            self._lines = np.zeros(tuple(self._on_device.shape), np.int32)
        for row in np.flatnonzero(self._known[lines] < num_tokens):
            line, count = lines[row], num_tokens[row]
            known = self._known[line]
            missing = count - known
            if missing <= recent.shape[1]:
                self._lines[line, known:count] = recent[row, recent.shape[1] - missing :]
            else:
                self._lines[line, known:count] = self._on_device[int(line), int(known) : int(count)].cpu().numpy()
            self._known[line] = count
        view = self._lines.view()
        view.flags.writeable = False  # a proposer must not write into it
        return view


@dataclass(slots=True)
class StepTensors:
    """What V2 hands over of a step, all on the device but for `lines`."""

    lines: IntArray
    """[num_reqs], line of each request."""
    index: torch.Tensor
    """The same as [num_reqs] int64."""
    num_sampled: torch.Tensor
    """[num_reqs], tokens accepted in this step."""
    num_tokens: torch.Tensor
    """[num_reqs] int32, tokens so far."""
    newest: torch.Tensor
    """[num_reqs] int64, the last of them."""
    token_ids: torch.Tensor
    """[lines, max_model_len] int32."""
    longest: int
    """None of `num_tokens` is larger."""


class StepOnHost:
    """The host's view of a step: fetched once, when first asked for."""

    def __init__(
        self, step: StepTensors, tokens: HostTokens, limit_drafts: Callable[[IntArray, IntArray], IntArray]
    ) -> None:
        """
        Args:
            limit_drafts: from num_tokens and num_new_tokens to max_drafts.
        """
        self._step = step
        self._tokens = tokens
        self._limit_drafts = limit_drafts

    @cached_property
    def _numbers(self) -> IntArray:
        """[num_reqs, 2 + num_recent]: tokens accepted now, tokens so far, the last ones. Waits for the device."""
        step = self._step
        columns = [step.num_sampled[:, None].int(), step.num_tokens[:, None]]
        if recent := self._tokens.num_recent:
            back = torch.arange(-recent, 0, device=step.index.device)
            places = (step.num_tokens[:, None] + back).clamp_(min=0)
            columns.append(step.token_ids[step.index[:, None], places])
        numbers: IntArray = torch.cat(columns, dim=1).cpu().numpy()
        return numbers

    @cached_property
    def num_new_tokens(self) -> IntArray:
        return self._numbers[:, 0].copy()

    @cached_property
    def num_tokens(self) -> IntArray:
        return self._numbers[:, 1].copy()

    @cached_property
    def max_drafts(self) -> IntArray:
        return self._limit_drafts(self.num_tokens, self.num_new_tokens)

    @cached_property
    def token_lines(self) -> IntArray:
        numbers = self._numbers
        return self._tokens.read(self._step.lines, numbers[:, 1], numbers[:, 2:])


class V2Batch(DraftBatch):
    """A `DraftBatch` whose arrays are read when somebody looks at them."""

    _step: StepTensors
    _on_host: StepOnHost
    _width: int | None

    def __init__(
        self,
        req_ids: Sequence[str],
        step: StepTensors,
        on_host: StepOnHost,
        width: int | None = None,
        temperatures: torch.Tensor | None = None,
        hidden_states: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        generators: Mapping[int, torch.Generator] | None = None,
        on_device: OnDevice | None = None,
    ) -> None:
        """
        Args:
            width: upper end of `max_drafts`; None: to be found on the host.
        """
        self.__dict__.update(_step=step, _on_host=on_host, _width=width)
        given: dict[str, Any] = {
            "req_ids": req_ids,
            "temperatures": temperatures,
            "hidden_states": hidden_states,
            "generator": generator,
            "generators": generators or {},
            "on_device": on_device,
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)

    @property
    def num_tokens(self) -> IntArray:
        return self._on_host.num_tokens

    @property
    def num_new_tokens(self) -> IntArray:
        return self._on_host.num_new_tokens

    @property
    def max_drafts(self) -> IntArray:
        return self._on_host.max_drafts

    @property
    def token_ids(self) -> IntArray:
        aligned: IntArray = self._on_host.token_lines[self._step.lines]
        aligned.flags.writeable = False
        return aligned

    @property
    def width(self) -> int:
        return super().width if self._width is None else self._width

    def tokens(self, row: int) -> IntArray:
        view: IntArray = self._on_host.token_lines[self._step.lines[row], : self.num_tokens[row]]
        return view

    def token_buffer(self) -> tuple[IntArray, IntArray]:
        return self._on_host.token_lines, self._step.lines

    def newest_tokens(self, device: str) -> torch.Tensor:
        return self._step.newest.to(device)
