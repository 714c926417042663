"""Medusa heads: what each reads, what it says at the start, what it takes from the target."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vllm_specplug.errors import ShapeError
from vllm_specplug.medusa.heads import HeadsConfig, MedusaHeads, normalised

HIDDEN, VOCAB, HEADS, BATCH = 6, 11, 3, 4


def make(seed: int = 0, ids: list[int] | None = None, **changes: Any) -> MedusaHeads:
    """Heads with random weights, and what they need of the target attached."""
    settings = {"num_heads": HEADS, "hidden_size": HIDDEN, "vocab_size": VOCAB, **changes}
    if ids is not None:
        settings["draft_vocab_size"] = len(ids)
    config = HeadsConfig(**settings)
    heads = MedusaHeads(config, None if ids is None else torch.tensor(ids))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    heads.attach(
        torch.randn(VOCAB, HIDDEN, generator=generator), torch.randn(config.num_outputs, HIDDEN, generator=generator)
    )
    return heads.eval()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(BATCH, HIDDEN, generator=generator),
        torch.randint(VOCAB, (BATCH, HEADS), generator=generator),
    )


def test_shapes_of_sequential_heads() -> None:
    shapes = {name: list(tensor.shape) for name, tensor in make(num_layers=2).state_dict().items()}
    assert shapes == {
        "heads.0.blocks.0.linear.weight": [6, 12],
        "heads.0.blocks.0.linear.bias": [6],
        "heads.0.blocks.1.linear.weight": [6, 6],
        "heads.0.blocks.1.linear.bias": [6],
        "heads.1.blocks.0.linear.weight": [6, 18],
        "heads.1.blocks.0.linear.bias": [6],
        "heads.1.blocks.1.linear.weight": [6, 6],
        "heads.1.blocks.1.linear.bias": [6],
        "heads.2.blocks.0.linear.weight": [6, 24],
        "heads.2.blocks.0.linear.bias": [6],
        "heads.2.blocks.1.linear.weight": [6, 6],
        "heads.2.blocks.1.linear.bias": [6],
    }


def test_shapes_of_independent_heads_with_outputs_over_a_draft_vocabulary() -> None:
    heads = make(kind="independent", num_heads=2, bias=False, output="own", ids=[7, 2, 9])
    assert {name: list(tensor.shape) for name, tensor in heads.state_dict().items()} == {
        "draft_token_ids": [3],
        "heads.0.blocks.0.linear.weight": [6, 6],
        "heads.0.output.weight": [3, 6],
        "heads.1.blocks.0.linear.weight": [6, 6],
        "heads.1.output.weight": [3, 6],
    }


def test_one_output_is_shared() -> None:
    assert list(make(kind="independent", output="shared", num_layers=0).state_dict()) == ["output.weight"]


@pytest.mark.parametrize("kind", ["independent", "sequential"])
def test_untrained_heads_guess_what_the_target_just_said(kind: str) -> None:
    heads = MedusaHeads(HeadsConfig(kind=kind, num_heads=HEADS, hidden_size=HIDDEN, vocab_size=VOCAB, num_layers=2))
    target_output = torch.randn(VOCAB, HIDDEN)
    heads.attach(torch.randn(VOCAB, HIDDEN), target_output)
    hidden_states, token_ids = inputs()
    for logits in heads(hidden_states, token_ids):
        torch.testing.assert_close(logits, hidden_states @ target_output.T)


def test_independent_heads_ignore_tokens() -> None:
    heads = make(kind="independent")
    hidden_states, token_ids = inputs()
    assert heads.embed(token_ids) is None
    for one, other in zip(heads(hidden_states, token_ids), heads(hidden_states, (token_ids + 1) % VOCAB), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_sequential_head_reads_exactly_the_tokens_before_its_own(num_layers: int) -> None:
    heads = make(num_layers=num_layers)
    hidden_states, token_ids = inputs()
    before = heads(hidden_states, token_ids)
    for changed in range(HEADS):
        other_ids = token_ids.clone()
        other_ids[:, changed] = (other_ids[:, changed] + 1) % VOCAB
        after = heads(hidden_states, other_ids)
        differs = [not torch.equal(one, other) for one, other in zip(before, after, strict=True)]
        assert differs == [head >= changed for head in range(HEADS)]


def test_sequential_logits_follow_the_formula() -> None:
    heads = make(num_heads=2, output="shared")
    hidden_states, token_ids = inputs()
    assert heads.input_embeddings is not None
    read = [normalised(hidden_states), *(normalised(heads.input_embeddings[token_ids[:, k]]) for k in range(2))]
    weights = heads.state_dict()
    z = torch.cat(read, dim=-1) @ weights["heads.1.blocks.0.linear.weight"].T + weights["heads.1.blocks.0.linear.bias"]
    expected = (hidden_states + z * torch.sigmoid(z)) @ weights["output.weight"].T
    torch.testing.assert_close(heads(hidden_states, token_ids[:, :2])[1], expected)


def test_normalised_rows_have_a_root_mean_square_of_one() -> None:
    torch.testing.assert_close(normalised(torch.tensor([[3.0, 4.0, 0.0, 0.0]])), torch.tensor([[1.2, 1.6, 0.0, 0.0]]))


def test_rows_are_mapped_to_the_targets_ids() -> None:
    assert make(ids=[7, 2, 9]).target_ids(torch.tensor([[0, 2], [1, 0]])).tolist() == [[7, 9], [2, 7]]
    assert make().target_ids(torch.tensor([4, 5])).tolist() == [4, 5]


@pytest.mark.parametrize(
    ("embeddings", "output", "text"),
    [
        (None, (11, 6), "the target's input embeddings should have shape [11, 6] for these heads, found none"),
        ((11, 5), (11, 6), "the target's input embeddings should have shape [11, 6] for these heads, found [11, 5]"),
        ((11, 6), None, "the target's output layer should have shape [11, 6] for these heads, found none"),
        ((11, 6), (12, 6), "the target's output layer should have shape [11, 6] for these heads, found [12, 6]"),
    ],
)
def test_attach_refuses_other_shapes(embeddings: Any, output: Any, text: str) -> None:
    heads = MedusaHeads(HeadsConfig(num_heads=HEADS, hidden_size=HIDDEN, vocab_size=VOCAB))
    with pytest.raises(ShapeError) as caught:
        heads.attach(*(None if shape is None else torch.zeros(shape) for shape in (embeddings, output)))
    assert str(caught.value) == text


def test_targets_tensors_are_neither_saved_nor_trained() -> None:
    heads = make()
    assert heads.input_embeddings is not None
    assert heads.target_output is not None
    names = {*heads.state_dict(), *(name for name, _ in heads.named_parameters())}
    assert all(name.startswith("heads.") for name in names)


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (None, "draft_token_ids should have shape [3], found none"),
        ([1, 2], "draft_token_ids should have shape [3], found [2]"),
        ([1, 2, 11], "draft_token_ids reach from 1 to 11, the vocabulary from 0 to 10"),
        ([1, 2, 2], "draft_token_ids name a token twice"),
    ],
)
def test_map_of_another_vocabulary_is_refused(ids: list[int] | None, text: str) -> None:
    config = HeadsConfig(num_heads=1, hidden_size=HIDDEN, vocab_size=VOCAB, draft_vocab_size=3)
    with pytest.raises(ShapeError) as caught:
        MedusaHeads(config, None if ids is None else torch.tensor(ids))
    assert str(caught.value) == text
