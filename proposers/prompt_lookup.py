"""Prompt lookup: draft what followed the last tokens the last time they were seen in the same request.

No model, no training: the request's own prompt and output are the draft model. It pays where answers repeat their
input (code editing, summaries, forms) or themselves.

Rule: take the last n tokens, longest n first, from `max_ngram` down to `min_ngram`; find their most recent earlier
occurrence; draft a copy of what followed it. Where the copy reaches the end of the text it goes on into the draft
itself, so a text that loops with period 2 still gets a full draft. A short match is a weak hint, and so is one whose
continuation changed from time to time: the draft ends where it is likely to be wrong (`min_confidence`).

This module knows when to index what and who owns the memory; `proposers.ngram_index` holds the compiled kernels. Under
asynchronous scheduling the host learns of the newest tokens too late: `proposers.ngram_search` finds the same drafts on
the device.

Source: Saxena 2023, prompt lookup decoding (github.com/apoorvumang/prompt-lookup-decoding). vLLM's own proposer
(vllm/v1/spec_decode/ngram_proposer.py) scans the whole context at each step and takes the earliest occurrence.
"""

from __future__ import annotations

import mmap
import secrets
from collections.abc import Collection
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, model_validator

from proposers.ngram_search import NgramSearch
from vllm_specplug.proposer import Capabilities, DraftBatch, Drafts, EngineInfo, Proposer, ProposerOptions, Target

MAX_LENGTHS = 16
"""Most window lengths indexed per request; each costs memory and time."""
ENTRIES_PER_TOKEN = 2
"""Table entries for each token of room: half full when the next larger table is begun."""
MIN_HEADROOM = 1024
"""Room for at least so many tokens of output before a table has to grow."""
READING_BUDGET = 65_536
"""Most n-grams added per step for prompts that the engine is still reading (2 ms): no draft waits for them. With four
window lengths, 16,384 tokens."""
DRAFTING_BUDGET = 262_144
"""Most n-grams added per step for requests that wait for drafts, beyond what decode steps add; the rest is taken in at
the next steps. With four window lengths, 65,536 tokens: about 8 ms, twice that where the memory is all new."""
MAPPED_BYTES = 1 << 20
"""Size from which a table gets a memory mapping of its own."""
HUGE_PAGE = 1 << 21


class PromptLookupOptions(ProposerOptions):
    """How many of the last tokens must match."""

    min_ngram: int = Field(default=1, ge=1, le=1024)
    """Shortest match to draft from. 1 drafts nearly always; 2 or 3 drafts more rarely and more surely."""
    max_ngram: int = Field(default=4, ge=1, le=1024)
    """Longest match to look for. A window of more than 16 lengths is indexed at 16 lengths spread evenly by ratio."""

    min_confidence: float = Field(default=0.15, ge=0, lt=1)
    """Stop a draft where all of it is less likely to be right: a long match is a surer hint than a short one, and two
    occurrences with the same continuation a surer one than one. Checking a token has to pay for itself: lower it where
    that is free (a GPU at low load: 0.05), raise it where it is not (0.25). 0: always as many as allowed."""

    @model_validator(mode="after")
    def _ordered(self) -> PromptLookupOptions:
        if self.min_ngram > self.max_ngram:
            raise ValueError(
                f"min_ngram {self.min_ngram} is larger than max_ngram {self.max_ngram}; "
                f"lower min_ngram or raise max_ngram (defaults: 1 and 4)"
            )
        return self

    def lengths(self) -> list[int]:
        """Window lengths that are indexed, longest first: all of them up to `MAX_LENGTHS`, else a spread of them."""
        if self.max_ngram - self.min_ngram < MAX_LENGTHS:
            return list(range(self.max_ngram, self.min_ngram - 1, -1))
        spread = np.geomspace(self.min_ngram, self.max_ngram, MAX_LENGTHS).round().astype(int)
        return sorted({int(length) for length in spread}, reverse=True)


class PromptLookup(Proposer):
    """Drafts copied from the request's own text.

    A step costs what its new tokens cost, not what the contexts cost. Memory: 4 bytes per table entry, 8 bytes for each
    window length and one more, per token of room; with the default window of 1 to 4 that is 50 bytes per prompt token
    plus 40 KiB per request when it joins (room for a quarter more), at most 120 bytes per token at the moment when a
    table of twice the size is filled. A table grows by filling its successor from the text, 8 tokens for each new one,
    so no step pays for a rehash.
    """

    Options: ClassVar[type[ProposerOptions]] = PromptLookupOptions
    capabilities = Capabilities(stays_on_device=True, runners=frozenset({"v1", "v2"}))

    _search: NgramSearch | None = None

    def __init__(self, options: PromptLookupOptions, engine: EngineInfo) -> None:
        super().__init__(options, engine)
        self._slots: dict[str, int] = {}  # request id -> line of _state
        self._tables: list[list[np.ndarray[Any, Any]]] = []  # of each line: its table, and the one being filled
        if engine.asynchronous:
            self._search = NgramSearch(options.lengths(), options.min_confidence, engine.device)
            return
        # Here, not at the top: numba takes half a second to import, and listing proposers must not pay for it.
        from proposers import ngram_index

        self._kernels = ngram_index
        lengths = options.lengths()
        # Drafts do not depend on the base; a random one keeps prompts from being built to collide.
        base = secrets.randbits(64) | 1
        powers = [pow(base, length, 1 << 64) for length in lengths]
        position_bits = (engine.max_model_len + engine.num_speculative_tokens).bit_length()
        self._window = (np.array(lengths), np.array(powers, np.uint64), np.uint64(base))
        self._mask = np.uint64((1 << position_bits) - 1)
        self._budgets = np.array([READING_BUDGET, DRAFTING_BUDGET]) // len(lengths)
        self._free: list[int] = []
        self._state = np.zeros((0, ngram_index.STATE_WIDTH), np.int64)

    @property
    def num_requests(self) -> int:
        """Requests that hold an index."""
        return len(self._slots)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tables."""
        return sum(table.nbytes for tables in self._tables for table in tables)

    def load(self, target: Target) -> None:
        """Compile the kernels, or read them from numba's cache: no request waits for that."""
        if self._search is None:
            self._kernels.compile_kernels()

    def propose(self, batch: DraftBatch) -> Drafts:
        if self._search is not None:
            assert batch.on_device is not None, "the engine is asynchronous"
            return self._search.drafts(batch.on_device, batch.width)
        num_reqs = batch.num_reqs
        if num_reqs == 0:
            return Drafts.none(0)
        token_ids, places = batch.token_buffer()
        places, num_tokens, num_new, max_drafts = (
            np.ascontiguousarray(numbers[:num_reqs], np.int32)
            for numbers in (places, batch.num_tokens, batch.num_new_tokens, batch.max_drafts)
        )
        try:
            slots = np.array([self._slots[req_id] for req_id in batch.req_ids])
        except KeyError:
            slots = np.array([self._slot(req_id) for req_id in batch.req_ids])
        out = np.zeros((num_reqs, max(int(max_drafts.max()), 0)), np.int32)
        counts = np.empty(num_reqs, np.int32)
        todo = np.empty(num_reqs, np.uint8)
        budgets = self._budgets.copy()
        confidence = float(self.options.min_confidence)

        def step() -> int:
            rows = (token_ids, places, num_tokens, num_new, max_drafts, slots, self._state)
            return int(self._kernels.step(*rows, *self._window, self._mask, budgets, confidence, out, counts, todo))

        if step() and self._serve(slots, todo, num_tokens):
            step()  # again, now that every row has a table: rows that had one give the same drafts as before
        return Drafts(out, counts)

    def forget(self, req_ids: Collection[str]) -> None:
        for req_id in req_ids:
            slot = self._slots.pop(req_id, None)
            if slot is not None:
                self._state[slot] = 0
                self._tables[slot] = []
                self._free.append(slot)

    def _slot(self, req_id: str) -> int:
        """Line of a request in `_state`, a blank one for a new request."""
        slot = self._slots.get(req_id)
        if slot is not None:
            return slot
        if not self._free:
            lines = len(self._state)
            added = max(lines, self.engine.max_num_reqs, 1)
            self._state = np.concatenate([self._state, np.zeros((added, self._state.shape[1]), np.int64)])
            self._tables += [[] for _ in range(added)]
            self._free = list(range(lines + added - 1, lines - 1, -1))
        slot = self._slots[req_id] = self._free.pop()
        return slot

    def _serve(self, slots: np.ndarray[Any, Any], todo: np.ndarray[Any, Any], num_tokens: np.ndarray[Any, Any]) -> bool:
        """Give the rows what they asked for; whether any started over and has to be drafted for again."""
        k = self._kernels
        again = False
        for row in np.flatnonzero(todo):
            slot = int(slots[row])
            line = self._state[slot]
            tables = self._tables[slot]
            match todo[row]:
                case k.NEW_TABLE:
                    count = int(num_tokens[row])
                    # Room for the answer, but not beyond the longest text this engine allows.
                    room = min(count + max(count // 4, MIN_HEADROOM), self.engine.max_model_len)
                    table = self._new_table(max(room, count), at_once=True)
                    self._tables[slot] = [table]
                    line[:] = 0
                    line[k.TABLE], line[k.SIZE] = table.ctypes.data, table.shape[1]
                    again = True
                case k.GROW:
                    room = int(line[k.SIZE]) // ENTRIES_PER_TOKEN
                    larger = min(2 * room, self.engine.max_model_len)
                    if larger > room:
                        table = self._new_table(larger, at_once=False)
                        tables.append(table)
                        line[k.NEXT_TABLE], line[k.NEXT_SIZE] = table.ctypes.data, table.shape[1]
                        line[k.NEXT_INDEXED] = 0
                case k.SWITCH:
                    del tables[0]
                    line[k.TABLE], line[k.SIZE] = line[k.NEXT_TABLE], line[k.NEXT_SIZE]
                    line[k.NEXT_TABLE] = 0
        return again

    def _new_table(self, room: int, at_once: bool) -> np.ndarray[Any, Any]:
        """[num_lengths + 1, entries] zeros; the system hands over their memory page by page, when it is first touched.

        A large table is mapped by itself: an allocator may reuse freed memory, which it has to clear at once, in one
        step, and it may keep what `forget` gives back. Filled at once, it gets huge pages where the system has them:
        look-ups are random, and with small pages most of their time goes into address translation. Filled along the
        way it does not, because clearing a huge page takes 0.1 ms or more, which no decode step should pay.
        """
        shape = (len(self._window[0]) + 1, ENTRIES_PER_TOKEN * room)
        num_bytes = 4 * shape[0] * shape[1]
        if num_bytes < MAPPED_BYTES:
            return np.zeros(shape, np.uint32)
        memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        flat = np.frombuffer(memory, np.uint8)
        skip = -flat.ctypes.data % HUGE_PAGE
        if at_once and num_bytes >= 2 * HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without them
                # Whole pages of the table only: what lies around it is never touched and takes no memory.
                memory.madvise(mmap.MADV_HUGEPAGE, skip, num_bytes // HUGE_PAGE * HUGE_PAGE)
        return flat[skip : skip + num_bytes].view(np.uint32).reshape(shape)
