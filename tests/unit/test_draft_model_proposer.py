"""Drafts are what the draft model says, pass by pass, and no pass is run for nothing or left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from proposers.draft_model import DraftModelOptions, DraftModelProposer
from vllm_specplug import ConfigError, DraftBatch
from vllm_specplug.errors import OptionsError
from vllm_specplug.options import resolve
from vllm_specplug.testing import batch_of, engine_of

VOCAB = 12
CUT = [1, 4, 5, 8, 11]


class Chain:
    """A draft model whose logits are a row of a table, that of the newest token; states are one-hot tokens."""

    vocab_size = VOCAB

    def __init__(self, newest: list[int], vocab_size: int = VOCAB) -> None:
        self.table = 2 * torch.randn((VOCAB, VOCAB), generator=torch.Generator().manual_seed(3))
        self.newest, self.vocab_size = newest, vocab_size
        self.calls: list[str] = []
        self.read: list[list[int]] = []

    def begin(self) -> torch.Tensor:
        self.calls.append("begin")
        return self._states(torch.tensor(self.newest))

    def advance(self, token_ids: torch.Tensor) -> torch.Tensor:
        assert token_ids.dtype == torch.int64
        self.calls.append("advance")
        self.read.append(token_ids.tolist())
        return self._states(token_ids)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return (states @ self.table)[:, : self.vocab_size]

    def logits_of(self, token_ids: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda states: states @ self.table[:, token_ids]

    def to_target_ids(self, token_ids: torch.Tensor) -> torch.Tensor:
        return token_ids

    def _states(self, token_ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(token_ids, VOCAB).float()


def proposer_of(model: Any, engine: dict[str, Any] | None = None, **options: Any) -> DraftModelProposer:
    fields = {"vocab_size": VOCAB, "max_num_reqs": 400, "num_speculative_tokens": 4, **(engine or {})}
    proposer = DraftModelProposer(DraftModelOptions(model="nowhere", **options), engine_of(**fields))
    proposer.load(SimpleNamespace(draft_model=model))  # type: ignore[arg-type]
    return proposer


def batch(texts: list[list[int]], max_drafts: Any = 4, temperatures: list[float] | None = None) -> DraftBatch:
    return replace(
        batch_of(texts, max_drafts=max_drafts),
        temperatures=None if temperatures is None else torch.tensor(temperatures),
        generator=torch.Generator().manual_seed(0),
    )


@pytest.fixture
def cut(tmp_path: Path) -> str:
    (tmp_path / "list.json").write_text(json.dumps(CUT))
    return str(tmp_path / "list.json")


def best(model: Chain, newest: int, among: list[int], count: int) -> list[int]:
    """One token after the other."""
    found = [newest]
    for _ in range(count):
        found.append(max(among, key=lambda token: float(model.table[found[-1], token])))
    return found[1:]


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "cut"])
def test_greedy_drafts_are_the_best_tokens_one_after_the_other(cut: str, is_cut: bool) -> None:
    model = Chain([3, 9, 0])
    proposer = proposer_of(model, draft_vocab=cut if is_cut else None)
    drafts = proposer.propose(batch([[1, 3], [9], [5, 5, 0]]))
    among = CUT if is_cut else list(range(VOCAB))
    assert drafts.to_lists() == [best(model, newest, among, 4) for newest in (3, 9, 0)]
    assert drafts.probs is None
    assert model.calls == ["begin", "advance", "advance", "advance"]
    assert np.array_equal(np.array(model.read).T, drafts.token_ids[:, :3])


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "cut"])
def test_sampled_drafts_come_with_the_distribution_they_were_drawn_from(cut: str, is_cut: bool) -> None:
    model = Chain([3] * 400)
    proposer = proposer_of(model, draft_sample_method="probabilistic", draft_vocab=cut if is_cut else None)
    drafts = proposer.propose(batch([[3]] * 400, 2, [0.7] * 400))
    assert drafts.probs is not None
    assert drafts.probs.shape == (400, 2, VOCAB)
    among = CUT if is_cut else list(range(VOCAB))
    expected = torch.zeros((VOCAB, VOCAB))
    expected[:, among] = (model.table[:, among] / 0.7).softmax(-1)
    torch.testing.assert_close(drafts.probs[0, 0], expected[3])
    for row, (first, second) in enumerate(drafts.token_ids.tolist()):
        torch.testing.assert_close(drafts.probs[row, 1], expected[first])
        assert drafts.probs[row, 1, second] > 0
    counts = np.bincount(drafts.token_ids[:, 0], minlength=VOCAB)
    wanted = 400 * expected[3].numpy()
    assert ((counts - wanted) ** 2 / np.maximum(wanted, 1)).sum() < 35  # 11 degrees of freedom at most: p < 3e-4


def test_each_request_is_drafted_for_at_its_own_temperature() -> None:
    model = Chain([3, 3, 3])
    drafts = proposer_of(model, draft_sample_method="probabilistic").propose(batch([[3]] * 3, 1, [0.0, 0.5, 2.0]))
    assert drafts.probs is not None
    greedy, cool, hot = drafts.probs[:, 0]
    assert greedy.max() == 1
    assert greedy.argmax() == model.table[3].argmax() == drafts.token_ids[0, 0]
    torch.testing.assert_close(cool, hot**4 / (hot**4).sum())


def test_a_batch_of_greedy_requests_gets_no_probabilities() -> None:
    drafts = proposer_of(Chain([3, 9]), draft_sample_method="probabilistic").propose(batch([[3], [9]]))
    assert drafts.probs is None
    greedy = proposer_of(Chain([3, 9])).propose(batch([[3], [9]], 4, [1.0, 1.0]))
    assert greedy.probs is None
    assert greedy.to_lists() == drafts.to_lists()


def test_only_sampled_drafts_ask_for_what_probabilities_cost() -> None:
    assert not proposer_of(Chain([])).capabilities.gives_probs
    assert proposer_of(Chain([]), draft_sample_method="probabilistic").capabilities.gives_probs
    assert DraftModelProposer.capabilities.gives_probs
    assert proposer_of(Chain([])).capabilities.runs_draft_model


def test_a_smaller_drafts_distribution_is_0_for_what_it_does_not_know() -> None:
    model = Chain([3, 1], vocab_size=9)
    drafts = proposer_of(model, draft_sample_method="probabilistic").propose(batch([[3], [1]], 3, [5.0, 1.0]))
    assert drafts.probs is not None
    assert drafts.probs.shape == (2, 3, VOCAB)
    assert drafts.probs[..., 9:].sum() == 0
    torch.testing.assert_close(drafts.probs.sum(-1), torch.ones(2, 3))
    assert drafts.token_ids.max() < 9


@pytest.mark.parametrize("tp_size", [1, 2])
def test_the_first_pass_is_run_once_where_nothing_may_be_drafted(tp_size: int) -> None:
    """It reads new tokens, whose keys and values would be missing later."""
    model = Chain([3, 9])
    proposer = proposer_of(model, {"tp_size": tp_size}, min_confidence=0.5)
    assert proposer.propose(batch([[3], [9]], 0)).to_lists() == [[], []]
    assert model.calls == ["begin"]


@pytest.mark.parametrize(("max_drafts", "num_passes"), [([1, 1], 1), ([0, 1], 1), ([3, 0], 3), ([2, 4], 4)])
def test_no_more_passes_than_the_longest_limit(max_drafts: list[int], num_passes: int) -> None:
    model = Chain([3, 9])
    drafts = proposer_of(model).propose(batch([[3], [9]], max_drafts))
    assert [len(tokens) for tokens in drafts.to_lists()] == max_drafts
    assert model.calls == ["begin", *["advance"] * (num_passes - 1)]


def kept(model: Chain, tokens: list[int], newest: int, limit: float, temperature: float = 1.0) -> int:
    """How many of these drafts stand: up to and with the first that the draft gives less than `limit`."""
    for place, token in enumerate(tokens):
        if float((model.table[newest] / temperature).softmax(-1)[token]) < limit:
            return place + 1
        newest = token
    return len(tokens)


@pytest.mark.parametrize("method", ["greedy", "probabilistic"])
@pytest.mark.parametrize("tp_size", [1, 2])
def test_a_draft_ends_behind_its_first_doubtful_token(method: str, tp_size: int) -> None:
    """The doubtful token stays. Ranks that share the model run every pass, or one would wait for the other."""
    newest = list(range(VOCAB))
    texts = [[token] for token in newest]
    temperatures = [0.8] * VOCAB if method == "probabilistic" else None
    whole = proposer_of(Chain(newest), draft_sample_method=method).propose(batch(texts, 4, temperatures))
    model = Chain(newest)
    proposer = proposer_of(model, {"tp_size": tp_size}, draft_sample_method=method, min_confidence=0.6)
    drafts = proposer.propose(batch(texts, 4, temperatures))
    lengths = [
        kept(model, tokens, token, 0.6, 0.8 if temperatures else 1.0)
        for token, tokens in zip(newest, whole.to_lists(), strict=True)
    ]
    assert drafts.to_lists() == [tokens[:length] for tokens, length in zip(whole.to_lists(), lengths, strict=True)]
    assert len(set(lengths)) >= 3
    if temperatures:
        assert whole.probs is not None
        assert drafts.probs is not None
        for row, length in enumerate(lengths):
            torch.testing.assert_close(drafts.probs[row, :length], whole.probs[row, :length])
    assert drafts.token_ids.shape[1] == (4 if tp_size == 2 else max(lengths))


@pytest.mark.parametrize(("tp_size", "num_passes"), [(1, 1), (2, 4)])
def test_passes_end_once_every_request_is_in_doubt(tp_size: int, num_passes: int) -> None:
    model = Chain([3, 9])
    drafts = proposer_of(model, {"tp_size": tp_size}, min_confidence=0.999).propose(batch([[3], [9]]))
    assert [len(tokens) for tokens in drafts.to_lists()] == [1, 1]
    assert model.calls == ["begin", *["advance"] * (num_passes - 1)]


def test_a_request_that_may_not_draft_keeps_no_pass_going() -> None:
    """Its drafts would never be in doubt: what counts is what may still be drafted."""
    sure = Chain([3, 9])
    sure.table[9] = 0
    sure.table[9, 9] = 50  # the second request's draft is certain for ever
    drafts = proposer_of(sure, min_confidence=0.9).propose(batch([[3], [9]], [4, 0]))
    assert [len(tokens) for tokens in drafts.to_lists()][1] == 0
    assert len(sure.calls) == drafts.num_drafts.max()


def test_a_request_with_a_seed_gets_the_same_drafts_in_any_company() -> None:
    def drafts_of(texts: list[list[int]], row: int) -> tuple[list[int], torch.Tensor]:
        model = Chain([text[-1] for text in texts])
        given = replace(batch(texts, 4, [1.0] * len(texts)), generators={row: torch.Generator().manual_seed(77)})
        found = proposer_of(model, draft_sample_method="probabilistic").propose(given)
        assert found.probs is not None
        return found.to_lists()[row], found.probs[row]

    alone, q = drafts_of([[1, 2, 3]], 0)
    beside, other_q = drafts_of([[9], [4, 4], [3]], 2)
    assert alone == beside
    torch.testing.assert_close(q, other_q)


def test_another_tokenizers_list_is_not_taken_for_the_targets(tmp_path: Path) -> None:
    (tmp_path / "draft_vocab.json").write_text(json.dumps(CUT))
    model = Chain([3])
    options = {"method": "draft_model", "num_speculative_tokens": 2, "model": str(tmp_path)}
    with pytest.raises(OptionsError, match="use_heterogeneous_vocab drafts greedily only"):
        resolve({**options, "use_heterogeneous_vocab": True, "draft_sample_method": "probabilistic"})
    with pytest.raises(OptionsError, match="draft_vocab lists tokens of the target"):
        resolve({**options, "use_heterogeneous_vocab": True, "draft_vocab": "list.json"})
    heterogeneous = DraftModelOptions(model=str(tmp_path), use_heterogeneous_vocab=True)
    DraftModelProposer.check(heterogeneous, engine_of(vocab_size=6))
    proposer = DraftModelProposer(heterogeneous, engine_of(vocab_size=VOCAB))
    proposer.load(SimpleNamespace(draft_model=model))  # type: ignore[arg-type]
    assert proposer.propose(batch([[3]], 2)).to_lists() == [best(model, 3, list(range(VOCAB)), 2)]


def test_a_list_that_does_not_fit_names_the_proposer(cut: str) -> None:
    options = DraftModelOptions(model="nowhere", draft_vocab=cut)
    DraftModelProposer.check(options, engine_of(vocab_size=12))
    with pytest.raises(ConfigError, match=r"^proposer 'draft_model': draft_vocab .*list\.json holds token 11, but"):
        DraftModelProposer.check(options, engine_of(vocab_size=11))
