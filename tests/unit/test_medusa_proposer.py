"""Medusa's drafts are what its heads say, and the probabilities are those the drafts were drawn from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proposers.medusa import Medusa, MedusaOptions
from vllm_specplug import ConfigError, DraftBatch
from vllm_specplug.medusa import checkpoint
from vllm_specplug.medusa.heads import HeadsConfig, MedusaHeads
from vllm_specplug.testing import batch_of, engine_of

VOCAB, HIDDEN = 32, 16
DRAFT_VOCAB = [0, 3, 4, 7, 11, 12, 13, 20, 25, 31]


class TargetOfTensors:
    """A target that is its two tables."""

    def __init__(self, vocab_size: int = VOCAB) -> None:
        generator = torch.Generator().manual_seed(5)
        self.embeddings = torch.randn((vocab_size, HIDDEN), generator=generator)
        self.output = torch.randn((vocab_size, HIDDEN), generator=generator)
        self.module = torch.nn.Module()

    def input_embeddings(self) -> torch.Tensor:
        return self.embeddings

    def output_embeddings(self, token_ids: torch.Tensor | None = None) -> torch.Tensor:
        return self.output if token_ids is None else self.output[token_ids]


def random_heads(**changes: Any) -> MedusaHeads:
    config = HeadsConfig(**{"num_heads": 3, "hidden_size": HIDDEN, "vocab_size": VOCAB, **changes})
    ids = torch.tensor(DRAFT_VOCAB) if config.draft_vocab_size else None
    heads = MedusaHeads(config, ids)
    generator = torch.Generator().manual_seed(2)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return heads


def proposer_of(
    folder: Path, method: str = "greedy", target: TargetOfTensors | None = None, engine: Any = None, **changes: Any
) -> Medusa:
    checkpoint.write(folder / "heads", random_heads(**changes), {})
    options = MedusaOptions(model=str(folder / "heads"), draft_sample_method=method)  # type: ignore[arg-type]
    engine = engine or engine_of(vocab_size=VOCAB, hidden_size=HIDDEN, num_speculative_tokens=3, max_num_reqs=400)
    Medusa.check(options, engine)
    proposer = Medusa(options, engine)
    proposer.load(target or TargetOfTensors())
    return proposer


def batch(texts: list[list[int]], temperatures: list[float] | None = None, seed: int = 0, **changes: Any) -> DraftBatch:
    generator = torch.Generator().manual_seed(9)
    states = torch.randn((max(len(texts), 8), HIDDEN), generator=generator)[: len(texts)]
    return replace(
        batch_of(texts, max_drafts=changes.pop("max_drafts", 3)),
        hidden_states=states,
        temperatures=None if temperatures is None else torch.tensor(temperatures),
        generator=torch.Generator().manual_seed(seed),
        **changes,
    )


KINDS = pytest.mark.parametrize(
    "changes",
    [
        {"kind": "sequential"},
        {"kind": "sequential", "draft_vocab_size": len(DRAFT_VOCAB), "num_layers": 2},
        {"kind": "independent", "output": "own"},
        {"kind": "independent", "output": "shared", "draft_vocab_size": len(DRAFT_VOCAB), "bias": False},
    ],
    ids=["sequential", "sequential-cut", "independent-own", "independent-shared-cut"],
)


@KINDS
def test_greedy_drafts_are_what_each_head_thinks_best(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Request by request, head by head, with nothing but the formula of the papers."""
    target = TargetOfTensors()
    proposer = proposer_of(tmp_path, target=target, **changes)
    given = batch([[1, 2, 3], [9], [30, 4]])
    drafts = proposer.propose(given)
    heads = random_heads(**changes)
    ids = DRAFT_VOCAB if "draft_vocab_size" in changes else list(range(VOCAB))

    def unit(x: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean() + 1e-6).sqrt()

    for row, newest in enumerate([3, 9, 4]):
        assert given.hidden_states is not None
        state, chosen = given.hidden_states[row], [newest]
        for index, head in enumerate(heads.heads):
            x = state
            for number, block in enumerate(head.blocks):
                y = x
                if number == 0 and changes["kind"] == "sequential":
                    y = torch.cat([unit(state), *(unit(target.embeddings[token]) for token in chosen[: index + 1])])
                x = x + torch.nn.functional.silu(block.linear(y))
            layer = head.output or heads.output
            rows = target.output[ids] if layer is None else layer.weight
            chosen.append(ids[int((rows @ x).argmax())])
        assert drafts.to_lists()[row] == chosen[1:]
    assert drafts.probs is None


@KINDS
def test_sampled_drafts_come_with_the_distribution_they_were_drawn_from(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """400 equal requests: the first tokens follow the first distribution, which is the same for all."""
    proposer = proposer_of(tmp_path, "probabilistic", **changes)
    given = batch([[1, 2, 3]] * 400, [0.7] * 400)
    assert given.hidden_states is not None
    given = replace(given, hidden_states=given.hidden_states[:1].expand(400, -1))
    drafts = proposer.propose(given)
    assert drafts.probs is not None
    assert drafts.probs.shape == (400, 3, VOCAB)
    torch.testing.assert_close(drafts.probs.sum(-1), torch.ones(400, 3))
    assert (drafts.probs.gather(2, torch.from_numpy(drafts.token_ids).long()[:, :, None]) > 0).all()
    assert torch.equal(drafts.probs[0, 0], drafts.probs[399, 0])
    counts = np.bincount(drafts.token_ids[:, 0], minlength=VOCAB)
    expected = 400 * drafts.probs[0, 0].numpy()
    assert ((counts - expected) ** 2 / np.maximum(expected, 1)).sum() < 70  # 31 degrees of freedom at most: p < 1e-4
    if changes["kind"] == "sequential":  # the second head has seen what the first drew
        by_first = {int(token): probs for token, probs in zip(drafts.token_ids[:, 0], drafts.probs[:, 1], strict=True)}
        assert len(by_first) > 1
        first, second = list(by_first.values())[:2]
        assert not torch.equal(first, second)


def test_each_request_is_drafted_for_at_its_own_temperature(tmp_path: Path) -> None:
    proposer = proposer_of(tmp_path, "probabilistic")
    given = batch([[1, 2, 3]] * 3, [0.0, 0.5, 2.0])
    assert given.hidden_states is not None
    drafts = proposer.propose(replace(given, hidden_states=given.hidden_states[:1].expand(3, -1)))
    assert drafts.probs is not None
    greedy, cool, hot = drafts.probs[:, 0]
    assert greedy.max() == 1
    assert greedy.argmax() == cool.argmax() == hot.argmax() == drafts.token_ids[0, 0]
    # q at temperature 0.5 is the fourth power of q at temperature 2, normalised.
    torch.testing.assert_close(cool, hot**4 / (hot**4).sum())


def test_the_greedy_method_hands_over_nothing_to_sampled_requests(tmp_path: Path) -> None:
    drafts = proposer_of(tmp_path, "greedy").propose(batch([[1, 2], [3]], [1.0, 0.0]))
    assert drafts.probs is None
    assert drafts.to_lists() == proposer_of(tmp_path, "greedy").propose(batch([[1, 2], [3]])).to_lists()


def test_a_request_with_a_seed_gets_the_same_drafts_in_any_company(tmp_path: Path) -> None:
    proposer = proposer_of(tmp_path, "probabilistic")

    def drafts_of(texts: list[list[int]], row: int, seed: int) -> tuple[list[int], torch.Tensor]:
        given = batch(texts, [1.0] * len(texts), seed, generators={row: torch.Generator().manual_seed(77)})
        assert given.hidden_states is not None
        states = given.hidden_states.clone()
        states[row] = 0.5
        found = proposer.propose(replace(given, hidden_states=states))
        assert found.probs is not None
        return found.to_lists()[row], found.probs[row].clone()

    alone, q = drafts_of([[1, 2, 3]], 0, seed=0)
    beside, other_q = drafts_of([[9], [4, 4], [1, 2, 3]], 2, seed=1)
    assert alone == beside
    torch.testing.assert_close(q, other_q)


def test_only_sampled_drafts_ask_for_what_probabilities_cost(tmp_path: Path) -> None:
    """Greedy drafts need no generators, no room for q, and no work on other tensor-parallel ranks."""
    assert not proposer_of(tmp_path, "greedy").capabilities.gives_probs
    assert proposer_of(tmp_path, "probabilistic").capabilities.gives_probs
    assert Medusa.capabilities.gives_probs


def test_probabilities_of_one_step_do_not_depend_on_the_step_before(tmp_path: Path) -> None:
    """They are kept in the same place."""
    for changes in ({}, {"draft_vocab_size": len(DRAFT_VOCAB)}):
        proposer = proposer_of(tmp_path, "probabilistic", **changes)
        given = batch([[1, 2], [3], [4, 5]], [1.0, 0.0, 2.0])
        proposer.propose(batch([[9]] * 8, [3.0] * 8))
        first = proposer.propose(given).probs
        assert first is not None
        first = first.clone()
        proposer.propose(batch([[7]] * 5, [0.1] * 5, max_drafts=2))
        again = proposer.propose(given).probs
        assert again is not None
        assert torch.equal(first[:, 0], again[:, 0])
        torch.testing.assert_close(again.sum(-1), torch.ones(3, 3))


def test_drafts_are_no_longer_than_the_longest_limit(tmp_path: Path) -> None:
    proposer = proposer_of(tmp_path, "probabilistic")
    drafts = proposer.propose(batch([[1], [2], [3]], [1.0] * 3, max_drafts=[0, 2, 1]))
    assert [len(row) for row in drafts.to_lists()] == [0, 2, 1]
    assert drafts.probs is not None
    assert drafts.probs.shape == (3, 2, VOCAB)
    assert proposer.propose(batch([[1], [2]], max_drafts=[0, 0])).to_lists() == [[], []]


def test_a_greedy_draft_ends_before_the_first_token_that_makes_it_doubtful(tmp_path: Path) -> None:
    """Against the product of the probabilities that a proposer without a limit gives, each head's best token."""
    texts = [[number, number + 1] for number in range(8)]
    everything = proposer_of(tmp_path)
    given = batch(texts)
    drafts = everything.propose(given).to_lists()
    assert given.hidden_states is not None
    expected = []
    for row, text in enumerate(texts):
        embeddings, confidence, kept = [], 1.0, 0
        for index, newest in enumerate([text[-1], *drafts[row][:2]]):
            embedded = everything._heads.embed(torch.tensor([newest]))
            assert embedded is not None
            embeddings.append(embedded)
            logits = everything._heads.logits(index, given.hidden_states[row : row + 1], embeddings)
            confidence *= float(logits.softmax(-1).max())
            if confidence < 0.3:
                break
            kept += 1
        expected.append(drafts[row][:kept])
    options = MedusaOptions(model=str(tmp_path / "heads"), min_confidence=0.3)
    proposer = Medusa(options, everything.engine)
    proposer.load(TargetOfTensors())
    assert proposer.propose(given).to_lists() == expected
    assert len({len(row) for row in expected}) >= 2
    assert proposer.propose(replace(given, max_drafts=np.ones(8, np.int32))).to_lists() == [row[:1] for row in expected]


def test_a_sampled_draft_ends_behind_the_doubtful_token(tmp_path: Path) -> None:
    """The first token is always kept: to drop it for its own value would shift the distribution."""
    everything = proposer_of(tmp_path, "probabilistic")
    options = MedusaOptions(model=str(tmp_path / "heads"), draft_sample_method="probabilistic", min_confidence=0.3)
    proposer = Medusa(options, everything.engine)
    proposer.load(TargetOfTensors())
    texts = [[number % 30, 5] for number in range(64)]
    generator = torch.Generator().manual_seed(4)
    states = torch.randn((64, HIDDEN), generator=generator)
    whole = everything.propose(replace(batch(texts, [1.0] * 64), hidden_states=states))
    cut = proposer.propose(replace(batch(texts, [1.0] * 64), hidden_states=states))
    assert cut.num_drafts.min() == 1
    assert len(set(cut.num_drafts.tolist())) >= 2
    assert whole.probs is not None
    assert cut.probs is not None
    for row, tokens in enumerate(cut.to_lists()):
        assert whole.to_lists()[row][: len(tokens)] == tokens
        q = [float(whole.probs[row, place, token]) for place, token in enumerate(whole.to_lists()[row])]
        assert len(tokens) == 1 + (q[0] >= 0.3) + (q[0] >= 0.3 and q[0] * q[1] >= 0.3)
        torch.testing.assert_close(cut.probs[row, : len(tokens)], whole.probs[row, : len(tokens)])


def test_a_padded_target_vocabulary_is_never_drafted_from(tmp_path: Path) -> None:
    """The target has 40 rows, the heads know 32 tokens; the newest token is one of the padding."""
    engine = engine_of(vocab_size=40, hidden_size=HIDDEN, num_speculative_tokens=3)
    proposer = proposer_of(tmp_path, "probabilistic", TargetOfTensors(40), engine)
    drafts = proposer.propose(batch([[1, 39], [2]], [5.0, 0.0]))
    assert drafts.probs is not None
    assert drafts.probs.shape == (2, 3, 40)
    assert drafts.probs[..., 32:].sum() == 0


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (
            {"num_speculative_tokens": 6},
            "proposer 'medusa': num_speculative_tokens is 6, but {path} has 3 heads, one for each token; "
            "ask for 1 to 3, or train more heads",
        ),
    ],
)
def test_more_drafts_than_heads_are_refused_by_both_numbers(
    tmp_path: Path, engine: dict[str, Any], message: str
) -> None:
    checkpoint.write(tmp_path / "heads", random_heads(), {})
    path = str(tmp_path / "heads")
    with pytest.raises(ConfigError) as raised:
        Medusa.check(MedusaOptions(model=path), engine_of(vocab_size=VOCAB, hidden_size=HIDDEN, **engine))
    assert str(raised.value) == message.format(path=path)


def test_heads_of_another_target_are_refused_by_both_numbers(tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "heads", random_heads(), {})
    options = MedusaOptions(model=str(tmp_path / "heads"))
    with pytest.raises(ConfigError, match=r"proposer 'medusa': .*\b16\b.*\b64\b"):
        Medusa.check(options, engine_of(vocab_size=VOCAB, hidden_size=64, num_speculative_tokens=3))
    with pytest.raises(ConfigError, match=r"proposer 'medusa': .*\b32\b.*\b24\b"):
        Medusa.check(options, engine_of(vocab_size=24, hidden_size=HIDDEN, num_speculative_tokens=3))
    with pytest.raises(ConfigError, match=r"proposer 'medusa': .*\b32\b.*\b128256\b"):  # more than padding
        Medusa.check(options, engine_of(vocab_size=128_256, hidden_size=HIDDEN, num_speculative_tokens=3))
    with pytest.raises(ConfigError, match=r"proposer 'medusa': .*nowhere"):
        Medusa.check(MedusaOptions(model=str(tmp_path / "nowhere")), engine_of())
