"""Prompt lookup against an independent brute-force reference, without an engine."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from proposers import ngram_index, prompt_lookup
from proposers.prompt_lookup import PromptLookup, PromptLookupOptions
from vllm_specplug.proposer import DraftBatch, EngineInfo
from vllm_specplug.testing import batch_of, engine_of

NUM_DRAFTS = 6
UNDEFINED = -(2**31)  # what the columns beyond num_tokens hold: a draft that shows it has read too far


def make(min_ngram: int = 1, max_ngram: int = 4, max_model_len: int = 4096) -> PromptLookup:
    engine = EngineInfo(
        vocab_size=50_000,
        hidden_size=1,
        max_model_len=max_model_len,
        max_num_reqs=4,
        num_speculative_tokens=NUM_DRAFTS,
        device="cpu",
        dtype="float32",
        seed=0,
    )
    proposer = PromptLookup(PromptLookupOptions(min_ngram=min_ngram, max_ngram=max_ngram, min_confidence=0), engine)
    proposer.load(None)  # type: ignore[arg-type]
    return proposer


def make_batch(
    texts: dict[str, list[int]], new: list[int] | None = None, max_drafts: list[int] | None = None, width: int = 0
) -> DraftBatch:
    longest = max([width, 1, *(len(text) + 1 for text in texts.values())])
    token_ids = np.full((len(texts), longest), UNDEFINED, np.int32)
    for row, text in zip(token_ids, texts.values(), strict=True):
        row[: len(text)] = text
    token_ids.flags.writeable = False
    return DraftBatch(
        req_ids=list(texts),
        token_ids=token_ids,
        num_tokens=np.array([len(text) for text in texts.values()], np.int32),
        num_new_tokens=np.array(new or [1] * len(texts), np.int32),
        max_drafts=np.array(max_drafts or [NUM_DRAFTS] * len(texts), np.int32),
    )


def draft(proposer: PromptLookup, text: list[int], req_id: str = "a", max_drafts: int = NUM_DRAFTS) -> list[int]:
    return proposer.propose(make_batch({req_id: text}, max_drafts=[max_drafts])).to_lists()[0]


def reference(text: list[int], lengths: list[int], max_drafts: int) -> list[int]:
    """The rule, literally: longest window first, most recent earlier occurrence, copy that may run into itself."""
    for n in sorted(lengths, reverse=True):
        if n > len(text):
            continue
        for end in range(len(text) - 1, n - 1, -1):
            if text[end - n : end] == text[len(text) - n :]:
                copied = list(text)
                for j in range(max_drafts):
                    copied.append(copied[end + j])
                return copied[len(text) :]
    return []


def long_text(kind: str, length: int, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    if kind == "random":
        return rng.integers(0, 50_000, length, np.int32)
    return np.tile(rng.integers(0, 50_000, 300, np.int32), length // 300 + 1)[:length]


@pytest.mark.parametrize("window", [(1, 4), (1, 1), (2, 5), (3, 3), (1, 16), (2, 40)], ids=str)
@pytest.mark.parametrize("alphabet", [2, 3, 8])
def test_drafts_equal_brute_force_while_rows_move_and_requests_come_and_go(
    window: tuple[int, int], alphabet: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_lookup, "MIN_HEADROOM", 8)  # tables grow again and again
    rng = np.random.default_rng([*window, alphabet])
    proposer = make(*window)
    lengths = proposer.options.lengths()
    texts: dict[str, list[int]] = {}
    drafted = 0
    for step in range(150):
        if len(texts) < 7 and rng.random() < 0.3:
            texts[f"request-{step}"] = rng.integers(0, alphabet, rng.integers(0, 60)).tolist()
        if texts and rng.random() < 0.1:
            gone = str(rng.choice(list(texts)))
            del texts[gone]
            proposer.forget([gone])
        texts = {req_id: texts[req_id] for req_id in rng.permutation(list(texts)).tolist()}
        new = rng.integers(0, 9, len(texts)).tolist()
        caps = rng.integers(0, NUM_DRAFTS + 1, len(texts)).tolist()
        for text, count in zip(texts.values(), new, strict=True):
            text += rng.integers(0, alphabet, count).tolist()
        batch = make_batch(texts, new, caps)
        expected = [
            reference(text, lengths, cap) if count else []
            for text, count, cap in zip(texts.values(), new, caps, strict=True)
        ]
        assert proposer.propose(batch).to_lists() == expected
        assert proposer.propose(batch).to_lists() == expected, "the same step asked again"
        drafted += sum(map(len, expected))
        assert proposer.num_requests == len(texts)
    assert drafted > 200


def test_drafts_equal_brute_force_when_every_hash_collides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lookup.secrets, "randbits", lambda bits: 0)  # base 1: a window hashes to its sum
    rng = np.random.default_rng(5)
    proposer = make(2, 4)
    text: list[int] = []
    for _ in range(300):
        text += rng.integers(0, 3, rng.integers(1, 4)).tolist()
        assert draft(proposer, text) == reference(text, [2, 3, 4], NUM_DRAFTS)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5])
def test_texts_shorter_than_or_as_long_as_the_window_find_only_real_earlier_occurrences(length: int) -> None:
    text = [7] * length
    assert draft(make(3, 4), text) == ([7] * NUM_DRAFTS if length >= 4 else [])
    assert draft(make(1, 4), text) == ([7] * NUM_DRAFTS if length >= 2 else [])
    assert draft(make(1, 4), list(range(length))) == []


@pytest.mark.parametrize("period", [1, 2, 3])
def test_loop_gets_a_full_draft_by_copying_into_itself(period: int) -> None:
    loop = [11, 12, 13][:period]
    text = [1, 2, *(loop * 8)[: period + 4]]
    start = period + 4
    assert draft(make(1, 4), text) == [loop[(start + j) % period] for j in range(NUM_DRAFTS)]


def test_longest_window_wins_over_a_more_recent_shorter_one() -> None:
    assert draft(make(1, 3), [1, 2, 3, 50, 3, 60, 1, 2, 3], max_drafts=1) == [50]


def test_most_recent_occurrence_wins_among_equal_windows() -> None:
    assert draft(make(2, 2), [1, 2, 50, 1, 2, 60, 1, 2], max_drafts=1) == [60]


def test_windows_longer_than_max_ngram_do_not_count() -> None:
    assert draft(make(1, 2), [9, 1, 2, 50, 8, 1, 2, 60, 9, 1, 2], max_drafts=1) == [60]
    assert draft(make(1, 3), [9, 1, 2, 50, 8, 1, 2, 60, 9, 1, 2], max_drafts=1) == [50]


def test_windows_shorter_than_min_ngram_draft_nothing() -> None:
    assert draft(make(2, 4), [5, 1, 2, 5, 3, 4, 5]) == []


def test_matches_are_found_in_the_prompt_and_in_the_output() -> None:
    proposer = make(2, 4)
    text = [1, 2, 3, 4, 5]
    assert draft(proposer, text) == []
    text += [2, 3]
    assert draft(proposer, text, max_drafts=2) == [4, 5], "in the prompt"
    text += [30, 31, 2, 3]
    assert draft(proposer, text, max_drafts=2) == [30, 31], "in the output"


def test_draft_never_exceeds_max_drafts() -> None:
    proposer = make()
    texts = {f"r{cap}": [1, 2, 3] * 5 for cap in range(NUM_DRAFTS + 1)}
    drafts = proposer.propose(make_batch(texts, max_drafts=list(range(NUM_DRAFTS + 1))))
    assert drafts.num_drafts.tolist() == list(range(NUM_DRAFTS + 1))
    assert drafts.token_ids.shape == (NUM_DRAFTS + 1, NUM_DRAFTS)


def test_rows_without_new_tokens_draft_nothing_but_are_taken_in() -> None:
    proposer = make()
    assert proposer.propose(make_batch({"a": [1, 2] * 4, "b": [3, 4] * 4}, new=[0, 1])).num_drafts.tolist() == [0, 6]
    assert draft(proposer, [1, 2] * 4 + [1]) == [2, 1, 2, 1, 2, 1]


def test_columns_beyond_num_tokens_are_never_read() -> None:
    batch = make_batch({"a": [1, 2, 3, 1, 2], "b": [4, 4]}, width=64)
    assert make().propose(batch).to_lists() == [[3, 1, 2, 3, 1, 2], [4] * 6]
    wide = np.full((2, 200), UNDEFINED, np.int32)
    wide[:, :64] = batch.token_ids
    view = DraftBatch(batch.req_ids, wide[:, :64], batch.num_tokens, batch.num_new_tokens, batch.max_drafts)
    assert make().propose(view).to_lists() == [[3, 1, 2, 3, 1, 2], [4] * 6], "a strided view"


def test_empty_batch_drafts_nothing() -> None:
    assert make().propose(make_batch({})).to_lists() == []


@pytest.mark.parametrize("kept", [0, 5, 17])
def test_history_that_got_shorter_is_indexed_anew(kept: int) -> None:
    proposer = make(1, 3)
    text = np.random.default_rng(0).integers(0, 4, 40).tolist()
    draft(proposer, text)
    assert draft(proposer, text[:kept]) == reference(text[:kept], [1, 2, 3], NUM_DRAFTS)
    batch = make_batch({"a": text})
    proposer.propose(batch)
    counts = (np.array([kept], np.int32), batch.num_new_tokens, batch.max_drafts)
    shorter = DraftBatch(["a"], batch.token_ids, *counts)  # the old tokens still stand in the row
    assert proposer.propose(shorter).to_lists() == [reference(text[:kept], [1, 2, 3], NUM_DRAFTS)]


def test_history_that_was_rewritten_is_indexed_anew() -> None:
    proposer = make(1, 3)
    rng = np.random.default_rng(1)
    draft(proposer, rng.integers(0, 4, 40).tolist())
    other = rng.integers(0, 4, 45).tolist()
    assert draft(proposer, other) == reference(other, [1, 2, 3], NUM_DRAFTS)


def test_history_rewritten_unnoticed_still_gives_only_copies_of_real_occurrences() -> None:
    proposer = make(2, 2)
    draft(proposer, [1, 2, 50, 51, 7, 8, 9])
    assert draft(proposer, [1, 3, 50, 51, 7, 8, 9, 1, 2]) == [], "the index still knows (1, 2), the text does not"


def test_text_longer_than_the_engine_allows_is_left_alone() -> None:
    proposer = make(max_model_len=50)  # entries hold positions up to 63
    assert draft(proposer, [1, 2] * 25) == [1, 2, 1, 2, 1, 2]
    assert draft(proposer, [1, 2] * 40) == []


def test_forget_frees_everything_and_a_reused_id_starts_blank() -> None:
    proposer = make(2, 3)
    texts = {f"r{i}": [1, 2, 3, 4] for i in range(9)}  # more than max_num_reqs
    proposer.propose(make_batch(texts))
    assert proposer.num_requests == 9
    assert proposer.num_bytes > 0
    proposer.forget(["unknown", *texts])
    assert (proposer.num_requests, proposer.num_bytes) == (0, 0)
    assert draft(proposer, [9, 9, 1, 2], "r3") == [], "the earlier r3 had a 3 after (1, 2)"
    proposer.forget(["r3"])
    draft(proposer, [9, 9, 1, 2], "r3")
    assert proposer.num_bytes > 0, "the same text again needs a table again"
    proposer.forget(["r3"])
    proposer.forget(["r3"])
    assert (proposer.num_requests, proposer.num_bytes) == (0, 0)


def test_growth_keeps_drafts_right_and_memory_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lookup, "MIN_HEADROOM", 16)
    proposer = make(1, 3, max_model_len=3000)
    rng = np.random.default_rng(3)
    text: list[int] = rng.integers(0, 40, 10).tolist()
    sizes = set()
    while len(text) < 2900:
        text += rng.integers(0, 40, rng.integers(1, 6)).tolist()
        got = draft(proposer, text)
        if len(text) < 400 or rng.random() < 0.05:
            assert got == reference(text, [1, 2, 3], NUM_DRAFTS)
        sizes.add(proposer.num_bytes)
        assert proposer.num_bytes <= 3 * 4 * 2 * 4 * (len(text) + 26), "24 bytes per line and token while growing"
    assert len(sizes) > 12, "the table grew through many sizes"
    assert proposer.num_bytes <= 4 * 4 * 2 * 3000, "no room beyond the longest text"


def test_memory_per_prompt_token_is_what_the_docstring_says() -> None:
    proposer = make(1, 4, max_model_len=200_000)
    proposer.propose(make_batch({"a": [1, 2, 3, 4] * 5000}))
    assert proposer.num_bytes == 50 * 20_000
    proposer.propose(make_batch({"b": [1, 2, 3]}))
    assert proposer.num_bytes == 50 * 20_000 + 40 * (3 + 1024)


def test_backlogs_are_taken_in_within_the_budget_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_lookup, "READING_BUDGET", 4 * 100)
    monkeypatch.setattr(prompt_lookup, "DRAFTING_BUDGET", 4 * 250)
    proposer = make(1, 4)
    texts = {"reading": [1, 2] * 200, "short": [5, 6] * 4, "drafting": [3, 4] * 250}
    new, caps = [0, 1, 1], [6, 6, 6]
    counts = [proposer.propose(make_batch(texts, new, caps)).num_drafts.tolist() for _ in range(2)]
    assert counts == [[0, 6, 0], [0, 6, 6]], "250 tokens per step; a short row never waits"
    indexed = {
        req_id: int(proposer._state[proposer._slots[req_id], proposer._kernels.INDEXED]) for req_id in proposer._slots
    }
    assert indexed == {"reading": 200, "short": 8, "drafting": 500}
    proposer.propose(make_batch(texts, new, caps))
    texts["reading"] += [1]
    assert proposer.propose(make_batch(texts, [1, 1, 1], caps)).to_lists()[0] == [2, 1, 2, 1, 2, 1]


@pytest.mark.bench
@pytest.mark.parametrize("kind", ["random", "repetitive"])
def test_prompt_of_131072_tokens_is_taken_in_within_two_steps_and_60_ms(kind: str) -> None:
    tokens = long_text(kind, 131_072)[None, :]
    counts = (np.array([131_072], np.int32), np.ones(1, np.int32), np.full(1, NUM_DRAFTS, np.int32))
    proposer = make(1, 4, max_model_len=140_000)
    times = []
    for i in range(5):
        start = time.perf_counter()
        drafts = [proposer.propose(DraftBatch([f"r{i}"], tokens, *counts)) for _ in range(2)]
        times.append(time.perf_counter() - start)
        assert drafts[0].num_drafts[0] == 0
        assert kind == "random" or drafts[1].num_drafts[0] == NUM_DRAFTS
    assert min(times) < 0.060


@pytest.mark.bench
@pytest.mark.parametrize("window", [(2, 4), (10, 500)], ids=str)
def test_step_costs_the_same_at_any_length_and_ingest_is_near_linear(window: tuple[int, int]) -> None:
    """The report in vllm#16883: a window of 10 to 500 on a long text without matches."""
    ingest, step = {}, {}
    for length in (1_000, 8_000, 32_000):
        tokens = long_text("random", length + 100)[None, :]
        one, caps = np.ones(1, np.int32), np.full(1, NUM_DRAFTS, np.int32)
        proposer = make(*window, max_model_len=40_000)
        ingests = []
        for i in range(3):
            start = time.perf_counter()
            for _ in range(2):  # the longest backlog of 16 lengths is taken in by two steps
                proposer.propose(DraftBatch([f"r{i}"], tokens, one * length, one, caps))
            ingests.append(time.perf_counter() - start)
        steps = []
        for count in range(length + 1, length + 60):
            start = time.perf_counter()
            proposer.propose(DraftBatch(["r0"], tokens, one * count, one, caps))
            steps.append(time.perf_counter() - start)
        assert proposer._state[proposer._slots["r0"], proposer._kernels.INDEXED] == length + 59
        ingest[length], step[length] = min(ingests), min(steps)
    assert ingest[32_000] < 0.060
    assert ingest[32_000] < 4 * 4 * ingest[8_000]
    assert step[32_000] < 3 * step[1_000] + 20e-6
    assert step[32_000] < 500e-6


def test_wide_window_is_indexed_at_sixteen_lengths_spread_by_ratio() -> None:
    assert PromptLookupOptions(min_ngram=2, max_ngram=5).lengths() == [5, 4, 3, 2]
    assert PromptLookupOptions(min_ngram=1, max_ngram=16).lengths() == list(range(16, 0, -1))
    lengths = PromptLookupOptions(min_ngram=10, max_ngram=500).lengths()
    assert (len(lengths), lengths[0], lengths[-1]) == (16, 500, 10)


def test_min_ngram_above_max_ngram_is_refused_with_both_values_and_the_remedy() -> None:
    with pytest.raises(ValidationError) as caught:
        PromptLookupOptions(min_ngram=5, max_ngram=3)
    [error] = caught.value.errors()
    assert error["msg"] == (
        "Value error, min_ngram 5 is larger than max_ngram 3; lower min_ngram or raise max_ngram (defaults: 1 and 4)"
    )


@pytest.mark.parametrize("options", [{"min_ngram": 0}, {"max_ngram": 1025}, {"max_ngram": "4"}, {"ngram": 3}], ids=str)
def test_options_out_of_range_of_wrong_type_or_unknown_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PromptLookupOptions(**options)


def test_kernels_are_compiled_by_load_and_for_no_other_types_later() -> None:
    proposer = make()
    step = proposer._kernels.step
    compiled = list(step.overloads)  # also for the types of tests that drafted before without it
    assert proposer._kernels._SIGNATURE.args in compiled
    draft(proposer, [1, 2, 1])
    assert list(step.overloads) == compiled


def confident_reference(text: list[int], lengths: list[int], max_drafts: int, min_confidence: float) -> list[int]:
    """`reference`, cut where the product of the tables' entries falls below the limit; all by scanning the text."""

    def occurrence(end: int) -> tuple[int, int] | None:
        """For the text up to `end`: where its longest window ended last before, and that window."""
        for n in sorted(lengths, reverse=True):
            for other in range(end - 1, n - 1, -1):
                if n <= end and text[other - n : other] == text[end - n : end]:
                    return other, n
        return None

    found = occurrence(len(text))
    if found is None:
        return []
    at, _ = found
    matched = 0
    while matched < min(16, at) and text[at - 1 - matched] == text[len(text) - 1 - matched]:
        matched += 1
    window = max(n for n in lengths if n <= matched)
    before = occurrence(at)
    second = (
        before[0] if before is not None and text[before[0] - window : before[0]] == text[at - window : at] else None
    )
    if second is not None and second < window:
        second = None
    copied, confidence = list(text), 1.0
    for j in range(max_drafts):
        token = copied[at + j]
        table = ngram_index.ALONE
        if second is not None:
            table = ngram_index.AGREED if copied[second + j] == token else ngram_index.DISPUTED
            second = second if table is ngram_index.AGREED else None
        confidence *= table[min(matched + j, 16)]
        if confidence < min_confidence:
            break
        copied.append(token)
    return copied[len(text) :]


@pytest.mark.parametrize("min_confidence", [0.05, 0.15, 0.4])
@pytest.mark.parametrize("window", [(1, 4), (2, 3), (1, 20)], ids=str)
def test_drafts_end_where_brute_force_doubts_them(
    window: tuple[int, int], min_confidence: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_lookup, "MIN_HEADROOM", 8)
    rng = np.random.default_rng([*window, int(100 * min_confidence)])
    options = PromptLookupOptions(min_ngram=window[0], max_ngram=window[1], min_confidence=min_confidence)
    proposer = PromptLookup(options, engine_of(num_speculative_tokens=16))
    proposer.load(None)  # type: ignore[arg-type]
    text: list[int] = rng.integers(0, 4, 20).tolist()
    lengths: set[int] = set()
    while len(text) < 240:
        if rng.random() < 0.5 and len(text) > 30:  # come back to something said before
            start = int(rng.integers(0, len(text) - 12))
            text += text[start : start + int(rng.integers(1, 12))]
        else:
            text += rng.integers(0, 4, rng.integers(1, 4)).tolist()
        expected = confident_reference(text, options.lengths(), 16, min_confidence)
        assert proposer.propose(batch_of([text], max_drafts=16)).to_lists() == [expected]
        lengths.add(len(expected))
    assert len(lengths) >= 3, "drafts of several lengths"


@pytest.mark.parametrize(
    ("min_confidence", "matched", "expected"),
    [(0.15, 1, 1), (0.15, 2, 4), (0.25, 2, 2), (0.25, 1, 0), (0.05, 1, 3), (0.4, 4, 3), (0, 1, 8)],
)
def test_a_longer_match_is_believed_further(min_confidence: float, matched: int, expected: int) -> None:
    """From the table of a continuation seen once; e.g. 0.22 * 0.49 = 0.11 is below 0.15 after one match."""
    phrase = list(range(1, matched + 1))
    text = [90, *phrase, *range(20, 32), 91, *phrase]
    proposer = PromptLookup(PromptLookupOptions(min_confidence=min_confidence), engine_of(vocab_size=100))
    proposer.load(None)  # type: ignore[arg-type]
    assert proposer.propose(batch_of([text], max_drafts=8)).to_lists() == [list(range(20, 20 + expected))]


def test_a_continuation_that_changed_is_believed_less_than_one_that_did_not() -> None:
    proposer = PromptLookup(PromptLookupOptions(), engine_of(vocab_size=100))
    proposer.load(None)  # type: ignore[arg-type]
    same = [1, 20, 21, 22, 90, 1, 20, 21, 22, 91, 1]
    changed = [1, 30, 31, 32, 90, 1, 20, 21, 22, 91, 1]
    once = [2, 30, 31, 32, 90, 1, 20, 21, 22, 91, 1]
    drafts = [proposer.propose(batch_of([text], req_ids=[str(text)])).to_lists()[0] for text in (same, once, changed)]
    assert drafts == [[20, 21, 22], [20], []]


def test_loop_gets_a_full_draft_whatever_its_period() -> None:
    proposer = PromptLookup(PromptLookupOptions(), engine_of(vocab_size=100))
    proposer.load(None)  # type: ignore[arg-type]
    for period in (1, 2, 3):
        loop = [index % period + 5 for index in range(20)]
        drafts = proposer.propose(batch_of([loop], max_drafts=8, req_ids=[f"period {period}"])).to_lists()
        assert drafts == [[index % period + 5 for index in range(20, 28)]]
