"""Compiled kernels of `proposers.prompt_lookup`: an exact, incremental index of the n-grams of many requests.

For each request and each window length n a hash table with open addressing holds, for every n-gram seen, where it
ended last. An entry is 32 bits: the end position + 1 in the low bits (0: free) and a tag, bits of the n-gram's hash, in
the rest. The tag only saves comparisons: a hit counts after the n tokens themselves were compared, so a collision costs
time, never a wrong draft. Adding a token looks its n-grams up and overwrites them in the same probe, so the occurrence
before this one falls out of the insertion and a step costs what its new tokens cost, whatever the context. One more
line of the table keeps, for every position, the occurrence that was found there: so a draft can ask what the place it
copies from would itself have copied.

The kernels know addresses and rows; who owns the tables, and when they grow, is `PromptLookup`'s business.

Sources: prompt lookup decoding, Saxena 2023 (github.com/apoorvumang/prompt-lookup-decoding); overlapping copies,
Ziv & Lempel 1977; polynomial rolling hash, Karp & Rabin 1987.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import float64, int32, int64, njit, types, uint8, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from proposers.ngram_confidence import AGREED, ALONE, DISPUTED, LONGEST

# Columns of the state array [num_slots, STATE_WIDTH] int64, one line per request. Zeros are a request never seen.
TABLE = 0  # address of the table [num_lengths + 1, size] uint32
SIZE = 1  # entries per window length
INDEXED = 2  # tokens taken in
MATCH = 3  # end position + 1 of the earlier occurrence found for the last token taken in, 0: none
CHECK = 4  # hash of the last tokens taken in; another value now means that the history was rewritten
NEXT_TABLE = 5  # a larger table being filled beside the first, 0: none
NEXT_SIZE = 6
NEXT_INDEXED = 7
STATE_WIDTH = 8

# What a row asks of the owner of the tables (`todo`).
NOTHING = 0
NEW_TABLE = 1  # start over: the history got shorter or was rewritten, or outgrew the table at once
GROW = 2  # half full: start filling a larger table beside it
SWITCH = 3  # the larger table has caught up

BLOCK = 8  # tokens whose table lines are fetched together: hides the latency of memory
SMALL = 64  # backlog up to which tokens are taken in whatever the budget: what a decode step adds
PACE = 8  # tokens moved to a larger table for each new token; done after 1/7 more tokens, long before 3/4 full


def compiled(function: Callable[..., Any]) -> Any:
    """`numba.njit`, cached on disk where a place for the cache can be written."""
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError:  # read-only installation without a home directory: compile once per process
        return njit(nogil=True)(function)


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _pointer(_context: Any, _address: Any) -> Any:
    """Address (int64) of a uint32 array -> pointer; numba has no spelling for it."""
    signature = types.CPointer(types.uint32)(types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return signature, codegen


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _prefetch(_context: Any, pointer: Any, _index: Any) -> Any:
    """Ask for the cache line of pointer[index], to be written soon; does not wait for it."""
    signature = types.void(pointer, types.int64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        line = builder.bitcast(builder.gep(args[0], [args[1]]), cgutils.voidptr_t)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(prefetch, [line, i32(1), i32(3), i32(1)])
        return context.get_dummy_value()

    return signature, codegen


@compiled
def _hash_tail(tokens, end, lengths, base, hashes):  # type: ignore[no-untyped-def]
    """hashes[i] = sum_j (tokens[end - 1 - j] + 1) * base^j over the last min(lengths[i], end) tokens, modulo 2^64."""
    total = np.uint64(0)
    power = np.uint64(1)
    j = 0
    for i in range(len(lengths) - 1, -1, -1):  # shortest first: each longer window goes on where the shorter stopped
        while j < min(lengths[i], end):
            total += np.uint64(tokens[end - 1 - j] + 1) * power
            power *= base
            j += 1
        hashes[i] = total


@compiled
def _roll(tokens, t, pointer, size, lengths, powers, base, hashes, mixed):  # type: ignore[no-untyped-def]
    """Move the rolling hashes on to the windows that end at t, fill `mixed` with them and fetch their table lines."""
    for i in range(len(lengths)):
        n = lengths[i]
        h = hashes[i] * base + np.uint64(tokens[t] + 1)
        if t >= n:
            h -= powers[i] * np.uint64(tokens[t - n] + 1)
        hashes[i] = h
        mixed[i] = (h ^ (h >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
        _prefetch(pointer, i * size + _slot(mixed[i], size))


@compiled
def _slot(mixed, size):  # type: ignore[no-untyped-def]
    """Where a hash belongs in a table of `size` entries: its upper half scaled to the size, which need not be 2^k."""
    return np.int64(((mixed >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32))


@compiled
def _same(tokens, a, b, n):  # type: ignore[no-untyped-def]
    """Whether the n tokens ending at a equal the n tokens ending at b."""
    for j in range(n):
        if tokens[a - j] != tokens[b - j]:
            return False
    return True


@compiled
def _insert(tokens, t, pointer, size, lengths, mask, mixed, last):  # type: ignore[no-untyped-def]
    """Add the n-grams that end at t, overwriting their earlier occurrences.

    Args:
        mixed: their hashes, [num_lengths] uint64.
        last: what was found for the token before t, updated, [num_lengths] int64: an end position or -2.
    Returns:
        end position + 1 of the most recent earlier occurrence of the longest window that has one; 0: none.
    """
    match = np.int64(0)
    known = np.int64(-1)  # end of an occurrence already compared for a longer window
    for i in range(len(lengths)):
        n = lengths[i]
        if t + 1 < n:
            continue
        slot = _slot(mixed[i], size)
        entry = np.uint32((mixed[i] & np.uint64(0xFFFFFFFF)) & ~mask) | np.uint32(t + 1)
        found = np.int64(-2)
        while True:  # ends at a free entry: a quarter of the table is never filled
            other = pointer[i * size + slot]
            if other == 0:
                break
            if np.uint64(other ^ entry) <= mask:  # same tag
                p = np.int64(np.uint64(other) & mask) - 1
                # An occurrence one further than the one of the token before shares all but its last token.
                if p == known or _same(tokens, p, t, 1 if p == last[i] + 1 else n):
                    found = p
                    break
            slot += 1
            if slot == size:
                slot = 0
        pointer[i * size + slot] = entry
        last[i] = found
        if found >= 0:
            known = found
            if match == 0:
                match = found + 1
    pointer[len(lengths) * size + t] = match
    return match


@compiled
def _take_in(tokens, pointer, size, start, stop, lengths, powers, base, mask, hashes):  # type: ignore[no-untyped-def]
    """Add the n-grams that end at start .. stop - 1; returns what `_insert` returned for the last.

    Args:
        tokens: row of the request, [>= stop] int32.
        pointer, size: the table, [num_lengths + 1, size]; at most 3/4 of its entries may be taken afterwards.
        lengths: window lengths, longest first; powers: base^lengths.
        mask: bits of an entry that hold the position.
        hashes: rolling hashes at `start`, updated to `stop`, [num_lengths] uint64.
    """
    mixed = np.empty((BLOCK, len(lengths)), np.uint64)
    last = np.full(len(lengths), -2)
    match = np.int64(0)
    for first in range(start, stop, BLOCK):
        end = min(stop, first + BLOCK)
        for t in range(first, end):
            _roll(tokens, t, pointer, size, lengths, powers, base, hashes, mixed[t - first])
        for t in range(first, end):
            match = _insert(tokens, t, pointer, size, lengths, mask, mixed[t - first], last)
    return match


@compiled
def _plan(start, count, new, budgets):  # type: ignore[no-untyped-def]
    """How far to take in a row of `count` tokens now, of which `start` are in; charged to the budgets."""
    if count - start <= SMALL:
        return count
    kind = 0 if new == 0 else 1
    stop = min(count, start + max(budgets[kind], SMALL))
    budgets[kind] -= stop - start
    return stop


@compiled
def _fetch_text(text, pointer, size, lengths, mask, mixed):  # type: ignore[no-untyped-def]
    """Fetch the tokens that `_insert` will compare first; `text` points at the row."""
    for i in range(len(lengths)):
        entry = np.uint64(pointer[i * size + _slot(mixed[i], size)])
        if entry != 0 and (entry ^ mixed[i]) & np.uint64(0xFFFFFFFF) <= mask:
            _prefetch(text, np.int64(entry & mask) - 1)


@compiled
def _draft(tokens, count, limit, match, pointer, size, lengths, min_confidence, out):  # type: ignore[no-untyped-def]
    """Copy what followed the occurrence `match` into `out`, as long as it is likely enough to be right.

    How likely a token is depends on how many tokens matched before it, and on whether the occurrence before that one
    was followed by the same token. A draft's tokens count as matched for those behind them.

    Args:
        count: tokens of the row; limit: most to draft.
        match: end position + 1 of the occurrence.
        min_confidence: stop where all tokens so far are together less likely to be right.
        out: [>= limit] int32.
    Returns:
        number of tokens drafted.
    """
    end, matched = match - 1, 1
    while matched < LONGEST and end >= matched and tokens[end - matched] == tokens[count - 1 - matched]:
        matched += 1
    window = 0
    for n in lengths:  # longest first
        if n <= matched:
            window = n
            break
    before = np.int64(pointer[len(lengths) * size + end])  # end position + 1 of the occurrence before that one, or 0
    if before < window or not _same(tokens, before - 1, end, window):
        before = np.int64(0)
    confidence = 1.0
    for j in range(limit):
        # Past the end of the text the copy goes on into the draft: a loop of any period gets a full draft.
        token = tokens[match + j] if match + j < count else out[match + j - count]
        place = min(matched + j, LONGEST)
        if before == 0:
            confidence *= ALONE[place]
        elif (tokens[before + j] if before + j < count else out[before + j - count]) == token:
            confidence *= AGREED[place]
        else:
            confidence *= DISPUTED[place]
            before = np.int64(0)
        if confidence < min_confidence:
            return j
        out[j] = token
    return max(limit, 0)


@compiled
def step(  # type: ignore[no-untyped-def]
    token_ids,
    places,
    num_tokens,
    num_new,
    max_drafts,
    slots,
    state,
    lengths,
    powers,
    base,
    mask,
    budgets,
    min_confidence,
    out,
    counts,
    todo,
):
    """Take in what is new in each row and draft. Calling it again with the same rows gives the same drafts.

    Args:
        token_ids, places: see `DraftBatch.token_buffer`.
        num_tokens, num_new, max_drafts: [num_reqs] int32, as in `DraftBatch`.
        slots: line of `state` of each row, [num_reqs] int64.
        state: [num_slots, STATE_WIDTH] int64.
        lengths, powers, base, mask: see `_take_in`.
        budgets: [2] int64, most tokens of backlogs to take in now: of requests that read their prompt, and of requests
            that wait for drafts; what was taken in is subtracted.
        min_confidence: see `_draft`; 0: no limit.
        out: [num_reqs, width] int32 and counts: [num_reqs] int32, the drafts.
        todo: [num_reqs] uint8, what each row asks of its owner.
    Returns:
        number of rows that ask for something.
    """
    num_reqs, width = len(slots), len(lengths)
    stops = np.empty(num_reqs, np.int64)  # how far each row is taken in now, -1: leave it alone
    hashes = np.empty((num_reqs, width), np.uint64)
    mixed = np.empty((num_reqs, BLOCK, width), np.uint64)
    last = np.empty(width, np.int64)
    asked = 0
    # Tables and texts of the rows lie far apart. Waiting for memory row by row is what would cost, so the rows' table
    # lines are fetched first, then the tokens they point at, and only then used.
    for row in range(num_reqs):
        line, tokens, count = state[slots[row]], token_ids[places[row]], np.int64(num_tokens[row])
        start = line[INDEXED]
        counts[row], todo[row], stops[row] = 0, NOTHING, -1
        if count > np.int64(mask):  # longer than the engine said a text can be: entries cannot hold such positions
            continue
        ok = start <= count <= line[SIZE] * 3 // 4
        if ok:
            _hash_tail(tokens, start, lengths, base, hashes[row])
            ok = hashes[row, 0] == np.uint64(line[CHECK])
        if not ok:
            todo[row] = NEW_TABLE
            asked += 1
            continue
        stops[row] = _plan(start, count, num_new[row], budgets)
        if stops[row] <= start + BLOCK:
            pointer = _pointer(line[TABLE])
            for t in range(start, stops[row]):
                _roll(tokens, t, pointer, line[SIZE], lengths, powers, base, hashes[row], mixed[row, t - start])
    for row in range(num_reqs):
        line = state[slots[row]]
        start = line[INDEXED]
        if start < stops[row] <= start + BLOCK:
            text = _pointer(token_ids.ctypes.data + places[row] * token_ids.strides[0])
            for t in range(start, stops[row]):
                _fetch_text(text, _pointer(line[TABLE]), line[SIZE], lengths, mask, mixed[row, t - start])
    for row in range(num_reqs):
        if stops[row] < 0:
            continue
        line, count, stop = state[slots[row]], np.int64(num_tokens[row]), stops[row]
        tokens = token_ids[places[row]]
        start, pointer, size = line[INDEXED], _pointer(line[TABLE]), line[SIZE]
        if stop > start + BLOCK:
            line[MATCH] = _take_in(tokens, pointer, size, start, stop, lengths, powers, base, mask, hashes[row])
        else:
            last[:] = -2
            for t in range(start, stop):
                line[MATCH] = _insert(tokens, t, pointer, size, lengths, mask, mixed[row, t - start], last)
        line[INDEXED] = stop
        line[CHECK] = np.int64(hashes[row, 0])

        if line[NEXT_TABLE] != 0:
            begin = line[NEXT_INDEXED]
            end = min(stop, begin + PACE * (stop - start))
            if end > begin:
                _hash_tail(tokens, begin, lengths, base, hashes[row])
                pointer, size = _pointer(line[NEXT_TABLE]), line[NEXT_SIZE]
                _take_in(tokens, pointer, size, begin, end, lengths, powers, base, mask, hashes[row])
                line[NEXT_INDEXED] = end
            if end == stop:
                todo[row] = SWITCH
                asked += 1
        elif stop == count and count * 2 >= line[SIZE]:
            todo[row] = GROW
            asked += 1

        if stop < count or line[MATCH] == 0 or num_new[row] == 0:
            continue
        pointer, size = _pointer(line[TABLE]), line[SIZE]
        counts[row] = _draft(
            tokens, count, max_drafts[row], line[MATCH], pointer, size, lengths, min_confidence, out[row]
        )
    return asked


def _array(dtype: Any, ndim: int, layout: str, readonly: bool) -> Any:
    return types.Array(dtype, ndim, layout, readonly=readonly)


_INTS = _array(int32, 1, "C", True)
_SIGNATURE = int64(
    _array(int32, 2, "A", True),
    *(_INTS, _INTS, _INTS, _INTS),
    _array(int64, 1, "C", True),
    _array(int64, 2, "C", False),
    _array(int64, 1, "C", True),
    _array(uint64, 1, "C", True),
    *(uint64, uint64),
    _array(int64, 1, "C", False),
    float64,
    _array(int32, 2, "C", False),
    _array(int32, 1, "C", False),
    _array(uint8, 1, "C", False),
)
"""Types of `step`: fixed, so that no request ever waits for a compilation. Read-only and strided inputs fit too."""


def compile_kernels() -> None:
    """Compile `step`, or read it from the cache; then refuse to compile for any other types."""
    if _SIGNATURE.args not in step.overloads:  # not "no types at all": who drafts without it compiles others
        step.compile(_SIGNATURE)
        step.disable_compile()
