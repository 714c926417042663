"""Heads that guess the tokens after the next one from the target's last hidden state.

Head k (0, 1, ...) guesses the (k + 2)-nd token after the position whose hidden state it reads: the target itself has
already given the first. *Independent* heads read the hidden state alone. *Sequential* heads also read the embeddings of
all tokens chosen since, so that head k knows what head k - 1 guessed.

Sources: Medusa, Cai et al. 2024, arXiv:2401.10774 (residual blocks, independent heads); Hydra, Ankner et al. 2024,
arXiv:2402.05109 (sequential heads); FR-Spec, Zhao et al. 2025, arXiv:2502.14856 (drafting frequent tokens only).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from vllm_specplug.errors import ShapeError

Kind = Literal["independent", "sequential"]
Output = Literal["target", "shared", "own"]


class HeadsConfig(BaseModel):
    """The shape of a set of heads."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind = "sequential"
    num_heads: int = Field(ge=1, le=64)
    hidden_size: int = Field(ge=1, le=1 << 20)
    vocab_size: int = Field(ge=1, le=1 << 24)
    """Of the target."""
    num_layers: int = Field(default=1, ge=0, le=64)
    """Residual blocks of each head."""
    bias: bool = True
    """Whether the blocks have one."""
    output: Output = "target"
    """Output layer: the target's own, one for all heads, or one for each."""
    draft_vocab_size: int | None = Field(default=None, ge=1)
    """Tokens that can be drafted; None: all of the vocabulary."""

    @model_validator(mode="after")
    def _fits_together(self) -> HeadsConfig:
        if self.draft_vocab_size is not None and self.draft_vocab_size > self.vocab_size:
            raise ValueError(f"draft_vocab_size {self.draft_vocab_size} is above vocab_size {self.vocab_size}")
        if self.kind == "sequential" and self.num_layers < 1:
            raise ValueError("sequential heads need num_layers of 1 or more, as their first block reads the tokens")
        return self

    @property
    def num_outputs(self) -> int:
        """Rows of the output layer."""
        return self.draft_vocab_size or self.vocab_size


class ResidualBlock(nn.Module):
    """x + SiLU(W y + b), where y is x itself or x and more."""

    def __init__(self, in_features: int, hidden_size: int, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, hidden_size, bias=bias)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """[..., hidden_size] from x [..., hidden_size] and y [..., in_features]."""
        return x + functional.silu(self.linear(y))


class MedusaHead(nn.Module):
    """One head: residual blocks, and its output layer where it has one of its own."""

    def __init__(self, config: HeadsConfig, index: int) -> None:
        super().__init__()
        self.num_tokens_read = index + 1 if config.kind == "sequential" else 0
        size = config.hidden_size
        widths = [size * (1 + self.num_tokens_read), *[size] * (config.num_layers - 1)][: config.num_layers]
        self.blocks = nn.ModuleList(ResidualBlock(width, size, config.bias) for width in widths)
        self.output = nn.Linear(size, config.num_outputs, bias=False) if config.output == "own" else None

    def forward(self, hidden_states: Tensor, embeddings: Sequence[Tensor]) -> Tensor:
        """Features for the output layer.

        Args:
            hidden_states: [batch, hidden_size], the target's.
            embeddings: of the tokens chosen since, from `MedusaHeads.embed`, each [batch, hidden_size].
        Returns:
            [batch, hidden_size].
        """
        x = hidden_states
        for number, block in enumerate(self.blocks):
            y = x
            if number == 0 and self.num_tokens_read:
                y = torch.cat([normalised(hidden_states), *embeddings[: self.num_tokens_read]], dim=-1)
            x = block(x, y)
        return x


class MedusaHeads(nn.Module):
    """All heads of a target, and the map from draft vocabulary to the target's.

    What belongs to the target (its embeddings, and its output layer where the heads share it) is attached after
    loading, and is neither saved nor trained.
    """

    draft_token_ids: Tensor | None
    """[num_outputs], the target's token of each output row; None: row i is token i."""
    input_embeddings: Tensor | None
    target_output: Tensor | None

    def __init__(self, config: HeadsConfig, draft_token_ids: Tensor | None = None) -> None:
        """Heads that all start as the identity, so that an untrained one guesses what the target just said.

        Args:
            draft_token_ids: [config.draft_vocab_size], distinct; needed where the configuration has a draft vocabulary.
        Raises:
            ShapeError: `draft_token_ids` has another size, repeats a token or leaves the vocabulary.
        """
        super().__init__()
        self.config = config
        self.heads = nn.ModuleList(MedusaHead(config, index) for index in range(config.num_heads))
        self.output = (
            nn.Linear(config.hidden_size, config.num_outputs, bias=False) if config.output == "shared" else None
        )
        self.register_buffer("draft_token_ids", _checked_map(config, draft_token_ids))
        self.register_buffer("input_embeddings", None, persistent=False)
        self.register_buffer("target_output", None, persistent=False)
        for head in self.heads:
            for block in head.blocks:
                nn.init.zeros_(block.linear.weight)
                if block.linear.bias is not None:
                    nn.init.zeros_(block.linear.bias)

    def attach(self, input_embeddings: Tensor | None, target_output: Tensor | None) -> None:
        """Bring in the target's tensors.

        Args:
            input_embeddings: [vocab_size, hidden_size]; needed by sequential heads.
            target_output: [num_outputs, hidden_size], rows of the target's output layer in the order of the draft
                vocabulary; needed where the heads share it.
        Raises:
            ShapeError: one is missing or has another shape.
        """
        config = self.config
        if config.kind == "sequential":
            _expect(input_embeddings, (config.vocab_size, config.hidden_size), "input embeddings")
            self.input_embeddings = input_embeddings
        if config.output == "target":
            _expect(target_output, (config.num_outputs, config.hidden_size), "output layer")
            self.target_output = target_output

    def embed(self, token_ids: Tensor) -> Tensor | None:
        """What the heads read of chosen tokens, [..., hidden_size]; None where they read none.

        Args:
            token_ids: the target's ids, any shape, int64.
        """
        if self.config.kind == "independent":
            return None
        assert self.input_embeddings is not None, "attach() comes first"
        return normalised(functional.embedding(token_ids, self.input_embeddings))

    def logits(self, index: int, hidden_states: Tensor, embeddings: Sequence[Tensor]) -> Tensor:
        """What one head says.

        Args:
            index: which head.
            hidden_states: [batch, hidden_size].
            embeddings: of the tokens chosen since, from `embed`, at least index + 1 (independent heads: any).
        Returns:
            [batch, num_outputs], over the draft vocabulary.
        """
        head = self.heads[index]
        features = head(hidden_states, embeddings)
        if head.output is not None:
            logits: Tensor = head.output(features)
        elif self.output is not None:
            logits = self.output(features)
        else:
            assert self.target_output is not None, "attach() comes first"
            logits = functional.linear(features, self.target_output)
        return logits

    def forward(self, hidden_states: Tensor, token_ids: Tensor) -> list[Tensor]:
        """All heads at once, the tokens between being known: what training needs.

        Args:
            hidden_states: [batch, hidden_size].
            token_ids: [batch, num_heads], the tokens after that position.
        Returns:
            For each head [batch, num_outputs].
        """
        embedded = self.embed(token_ids)
        embeddings = [] if embedded is None else list(embedded.unbind(dim=1))
        return [self.logits(index, hidden_states, embeddings) for index in range(self.config.num_heads)]

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, and of the states the heads want."""
        attached = (tensor for tensor in (self.target_output, self.input_embeddings) if tensor is not None)
        return next((tensor.dtype for tensor in (*self.parameters(), *attached)), torch.float32)

    def target_ids(self, rows: Tensor) -> Tensor:
        """The target's token ids of rows of the output layer, same shape."""
        return rows if self.draft_token_ids is None else self.draft_token_ids[rows]

    def num_weights_read(self, num_heads: int | None = None) -> int:
        """Weights that a draft of `num_heads` tokens reads: what it costs where memory traffic is the limit."""
        heads = self.heads[: num_heads or self.config.num_heads]
        blocks: int = sum(parameter.numel() for head in heads for parameter in head.blocks.parameters())
        return blocks + len(heads) * self.config.num_outputs * self.config.hidden_size


def normalised(x: Tensor) -> Tensor:
    """Each row at a root mean square of 1, so that states and embeddings speak equally loud."""
    return functional.rms_norm(x, x.shape[-1:], eps=1e-6)


def _expect(tensor: Tensor | None, shape: tuple[int, int], what: str) -> None:
    if tensor is None or tuple(tensor.shape) != shape:
        found = "none" if tensor is None else str(list(tensor.shape))
        raise ShapeError(f"the target's {what} should have shape {list(shape)} for these heads, found {found}")


def _checked_map(config: HeadsConfig, draft_token_ids: Tensor | None) -> Tensor | None:
    if config.draft_vocab_size is None:
        if draft_token_ids is not None:
            raise ShapeError("draft_token_ids are given, but the configuration has no draft_vocab_size")
        return None
    if draft_token_ids is None or tuple(draft_token_ids.shape) != (config.draft_vocab_size,):
        found = "none" if draft_token_ids is None else str(list(draft_token_ids.shape))
        raise ShapeError(f"draft_token_ids should have shape [{config.draft_vocab_size}], found {found}")
    ids = draft_token_ids.long()
    if ids.min() < 0 or ids.max() >= config.vocab_size:
        raise ShapeError(
            f"draft_token_ids reach from {int(ids.min())} to {int(ids.max())}, the vocabulary from 0 to "
            f"{config.vocab_size - 1}"
        )
    if ids.unique().numel() != ids.numel():
        raise ShapeError("draft_token_ids name a token twice")
    return ids
