"""What V2's rejection sampler makes of the logits it is given is the q that a draft was drawn from."""

from __future__ import annotations

import torch

from vllm_specplug.bridge import draft_logits
from vllm_specplug.testing import engine_of

VOCAB, COLUMNS = 5, 3


def written(
    token_ids: list[list[int]], probs: torch.Tensor | None, num_with_probs: list[int], temperatures: list[float]
) -> torch.Tensor:
    """The distributions that the sampler reads, [num_reqs, COLUMNS, VOCAB]; lines 3 and 1 of 4."""
    engine = engine_of(vocab_size=VOCAB, num_speculative_tokens=COLUMNS, max_num_reqs=4)
    room = draft_logits.room(engine, torch.device("cpu"))
    lines = torch.tensor([3, 1])
    temperature = torch.tensor(temperatures)
    draft_logits.write(room, lines, torch.tensor(token_ids), probs, torch.tensor(num_with_probs), temperature)
    assert (room[[0, 2]] == 0).all()  # other requests' lines are left alone
    return (room[lines] / temperature[:, None, None]).softmax(-1)


def one_hot(token: int) -> torch.Tensor:
    return torch.eye(VOCAB)[token]


def test_q_comes_back_at_every_temperature() -> None:
    q = torch.tensor([[[0.1, 0.2, 0.3, 0.4, 0.0]] * COLUMNS, [[0.96, 0.01, 0.01, 0.01, 0.01]] * COLUMNS])
    for temperature in (0.01, 0.7, 1.0, 20.0):
        found = written([[3, 2, 1], [0, 0, 1]], q, [3, 3], [temperature, 1.0])
        torch.testing.assert_close(found, q)


def test_a_token_without_q_is_one_hot() -> None:
    """Request 0 hands over q for its first token only, request 1 for none; a draft may be narrower than the room."""
    q = torch.full((2, 2, VOCAB), 0.2)
    found = written([[3, 2, 1], [0, 4, 4]], q, [1, 0], [0.7, 1.3])
    torch.testing.assert_close(found[0], torch.stack([q[0, 0], one_hot(2), one_hot(1)]))
    torch.testing.assert_close(found[1], torch.stack([one_hot(0), one_hot(4), one_hot(4)]))


def test_without_probabilities_all_is_one_hot() -> None:
    found = written([[3, 2, 1], [0, 4, 4]], None, [0, 0], [0.7, 1.3])
    torch.testing.assert_close(found[0], torch.stack([one_hot(3), one_hot(2), one_hot(1)]))


def test_any_difference_between_ranks_shows_and_what_does_not_count_does_not() -> None:
    tokens, probs, count = torch.tensor([[1, 2], [3, 0]]), torch.rand(2, 2, VOCAB), torch.tensor([2, 1])
    mine = draft_logits.checksum(tokens, probs, count)
    assert draft_logits.checksum(tokens.clone(), probs.clone(), count.clone()) == mine
    for place in ((0, 0, 0), (0, 1, 4), (1, 0, 2)):
        other = probs.clone()
        other[place] = torch.nextafter(other[place], torch.tensor(2.0))
        assert draft_logits.checksum(tokens, other, count) != mine
    beyond = probs.clone()
    beyond[1, 1] = 7
    assert draft_logits.checksum(tokens, beyond, count) == mine
    assert draft_logits.checksum(tokens, probs, torch.tensor([2, 0])) != mine
    assert draft_logits.checksum(torch.tensor([[1, 2], [3, 1]]), probs, count) != mine
    assert draft_logits.checksum(torch.tensor([[2, 1], [3, 0]]), probs, count) != mine
