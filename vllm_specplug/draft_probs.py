"""What a neural drafter draws its tokens from, and how that is handed over.

Shared by the shipped proposers that sample: a distribution at each request's own temperature, and room for a step's
distributions over the target's whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm_specplug.proposer import EngineInfo

if TYPE_CHECKING:
    import torch

#: vLLM takes lower temperatures for greedy (_SAMPLING_EPS in vllm/sampling_params.py).
_GREEDY_BELOW = 1e-5


def tempered(logits: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """The distribution a request at its own temperature draws drafts from; its best token for a greedy one.

    Args:
        logits: [num_reqs, num_outputs].
        temperatures: [num_reqs] float32, 0 for greedy.
    Returns:
        [num_reqs, num_outputs] float32, rows sum to 1.
    """
    import torch

    greedy = temperatures < _GREEDY_BELOW
    probs = (logits.float() / torch.where(greedy, 1.0, temperatures)[:, None]).softmax(dim=-1)
    one_hot = torch.zeros_like(probs).scatter_(1, logits.argmax(dim=-1, keepdim=True), 1.0)
    return torch.where(greedy[:, None], one_hot, probs)


class StepProbs:
    """Room for the distributions of one step.

    Taken while the proposer loads, so that the engine's memory plan knows of it. What was handed over in one step is
    used in the next, before it is written again.
    """

    def __init__(self, engine: EngineInfo) -> None:
        import torch

        self._vocab_size = engine.vocab_size
        size = engine.max_num_reqs * engine.num_speculative_tokens * engine.vocab_size
        self._room = torch.zeros(size, dtype=torch.float32, device=engine.device)

    def over_vocabulary(self, columns: Sequence[torch.Tensor], token_ids: torch.Tensor | None) -> torch.Tensor:
        """Distributions over what can be drafted, as such over the target's vocabulary.

        Args:
            columns: [num_reqs, num_outputs] for each drafted token.
            token_ids: [num_outputs], the target's token behind each output; None: 0, 1, 2, ...
        Returns:
            [num_reqs, num_columns, vocab_size] float32, a view of the room: what cannot be drafted has 0.
        """
        shape = (len(columns[0]), len(columns), self._vocab_size)
        spread = self._room[: shape[0] * shape[1] * shape[2]].view(shape)
        if token_ids is not None or columns[0].shape[1] < self._vocab_size:
            spread.zero_()
        for number, probs in enumerate(columns):
            if token_ids is None:
                spread[:, number, : probs.shape[1]] = probs
            else:
                spread[:, number].index_copy_(1, token_ids, probs)
        return spread
