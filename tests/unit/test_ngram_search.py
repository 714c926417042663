"""The search on the device finds the drafts of the index on the host, for the same text."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from proposers.ngram_search import NgramSearch
from proposers.prompt_lookup import PromptLookup, PromptLookupOptions
from vllm_specplug.proposer import DraftBatch, OnDevice
from vllm_specplug.testing import batch_of, engine_of

WIDTH = 8


def on_device(batch: DraftBatch, lines: list[int] | None = None) -> OnDevice:
    """The same batch with its histories in the lines of a device's buffer, in another order."""
    lines = list(range(batch.num_reqs)) if lines is None else lines
    buffer = torch.full((max(lines) + 2, batch.token_ids.shape[1]), 3, dtype=torch.int32)
    buffer[lines] = torch.tensor(batch.token_ids)
    return OnDevice(
        buffer,
        torch.tensor(lines),
        torch.tensor(batch.num_tokens),
        int(batch.num_tokens.max()) + 1,
        torch.tensor(batch.max_drafts),
    )


def texts(seed: int, num_texts: int, vocab_size: int) -> list[list[int]]:
    """Of 1 to 120 tokens: random ones, ones that repeat themselves now and then, and loops, by turns."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(num_texts):
        length = int(random.integers(1, 120))
        text = random.integers(0, vocab_size, length)
        loop = np.resize(text[: int(random.integers(1, 12))], length)
        text = np.where(random.random(length) < (0, 0.9, 1)[number % 3], loop, text)
        found.append(text.tolist())
    return found


@pytest.mark.parametrize("min_confidence", [0.0, 0.15, 0.6])
@pytest.mark.parametrize("window", [(1, 4), (2, 2), (1, 1), (3, 7), (1, 40), (17, 20)])
@pytest.mark.parametrize("vocab_size", [2, 5, 30])
def test_search_finds_what_the_index_finds(vocab_size: int, window: tuple[int, int], min_confidence: float) -> None:
    options = PromptLookupOptions(min_ngram=window[0], max_ngram=window[1], min_confidence=min_confidence)
    proposer = PromptLookup(options, engine_of(vocab_size=vocab_size))
    search = NgramSearch(options.lengths(), min_confidence, "cpu")
    num_drafts = 0
    for seed in range(4):
        random = np.random.default_rng(seed)
        batch = batch_of(texts(seed, 24, vocab_size), max_drafts=random.integers(0, WIDTH + 1, 24).tolist())
        expected = proposer.propose(batch).to_lists()
        proposer.forget(batch.req_ids)
        lines = random.permutation(40)[:24].tolist()
        assert search.drafts(on_device(batch, lines), WIDTH).to_lists() == expected
        num_drafts += sum(map(len, expected))
    assert num_drafts >= 50


def test_text_that_grows_keeps_its_drafts() -> None:
    """The index has taken in a text token by token; the search sees it for the first time at each step."""
    options = PromptLookupOptions(min_confidence=0.0)
    proposer = PromptLookup(options, engine_of())
    search = NgramSearch(options.lengths(), 0.0, "cpu")
    text = texts(5, 2, 4)[1] * 2
    for length in range(1, len(text)):
        batch = batch_of([text[:length]], max_drafts=WIDTH)
        assert search.drafts(on_device(batch), WIDTH).to_lists() == proposer.propose(batch).to_lists()


def test_a_loop_is_copied_beyond_its_end() -> None:
    """After 0 1 2 0 1 the longest match is 0 1 at the start; what follows is 2 0 1, then the draft itself."""
    search = NgramSearch([4, 3, 2, 1], 0.0, "cpu")
    batch = batch_of([[0, 1, 2, 0, 1]], max_drafts=7)
    assert search.drafts(on_device(batch), 7).to_lists() == [[2, 0, 1, 2, 0, 1, 2]]


def test_a_request_that_may_not_draft_and_a_text_of_one_token_get_nothing() -> None:
    search = NgramSearch([2, 1], 0.0, "cpu")
    batch = batch_of([[0, 0, 0], [5]], max_drafts=[0, 4])
    assert search.drafts(on_device(batch), 4).to_lists() == [[], []]
