"""Samples of an engine against the exact distribution of its target, and whether they fit.

The exact distribution comes from the same weights in transformers, float32, with temperature, top-k and top-p applied
here and not by vLLM. Knows nothing of proposers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import torch
from conftest import Engine, SpecCounts
from scipy import stats

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Tokens: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

#: Requests per vLLM request with `n`; requests of one setting that join together.
CHUNK = 32
MIN_EXPECTED = 5.0


@dataclass(frozen=True)
class Setting:
    """How to sample, as a request says it."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def params(self, max_tokens: int, **more: Any) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            **more,
        )

    def probabilities(self, logits: Floats) -> Floats:
        """What a token is drawn from: temperature, then the k likeliest, then of these the fewest that hold top_p.

        A token goes when it and all less likely ones together hold at most 1 - top_p; the likeliest always stays.

        Args:
            logits: [..., vocab_size].
        Returns:
            The same shape, rows sum to 1.
        """
        order = np.argsort(logits, axis=-1)[..., ::-1]  # likeliest first
        scaled = np.take_along_axis(logits, order, -1) / self.temperature
        rank = np.arange(logits.shape[-1])
        kept = np.broadcast_to(rank < (self.top_k or len(rank)), scaled.shape)
        weights = np.where(kept, np.exp(scaled - scaled[..., :1]), 0)
        shares = weights / weights.sum(-1, keepdims=True)
        if self.top_p < 1:
            and_less_likely = shares[..., ::-1].cumsum(-1)[..., ::-1]
            distance = np.abs(and_less_likely - (1 - self.top_p))[..., 1:].min()
            assert distance > 1e-5, "a token lies on the edge of top_p, where float32 may decide either way; other seed"
            shares = np.where((and_less_likely > 1 - self.top_p) | (rank == 0), shares, 0)
            shares /= shares.sum(-1, keepdims=True)
        probabilities = np.empty_like(shares)
        np.put_along_axis(probabilities, order, shares, -1)
        return probabilities


class ExactTarget:
    """Distribution of the tokens that follow one prompt."""

    def __init__(self, folder: str, prompt: Sequence[int], num_tokens: int) -> None:
        """
        Args:
            folder: the model.
            prompt: token ids.
            num_tokens: how far; vocab_size ** (num_tokens - 1) texts are put through the model.
        """
        from transformers import LlamaForCausalLM

        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.prompt = list(prompt)
        self.vocab_size: int = model.config.vocab_size
        self.logits: list[Floats] = []  # [vocab_size] * (depth + 1): of the next token after `depth` tokens
        with torch.inference_mode():
            for depth in range(num_tokens):
                texts = [[*prompt, *tokens] for tokens in product(range(self.vocab_size), repeat=depth)]
                parts = [model(part, logits_to_keep=1).logits[:, -1] for part in torch.tensor(texts).split(1024)]
                logits = torch.cat(parts).double().numpy()
                self.logits.append(logits.reshape([self.vocab_size] * (depth + 1)))

    def following(self, setting: Setting, depth: int) -> Floats:
        """p(next token | the `depth` tokens before), [vocab_size] * (depth + 1)."""
        return setting.probabilities(self.logits[depth])

    def joint(self, setting: Setting, num_tokens: int | None = None) -> Floats:
        """p(t1, t2, ...), [vocab_size] * num_tokens."""
        joint = np.ones(())
        for depth in range(num_tokens or len(self.logits)):
            joint = joint[..., None] * self.following(setting, depth)
        return joint


@dataclass
class Samples:
    """What came out of one run."""

    tokens: dict[str, Tokens] = field(default_factory=dict)
    """By setting, [num_samples, max_tokens]."""
    beside: list[list[int]] = field(default_factory=list)
    """Answers of the requests that ran beside them."""
    counts: SpecCounts = field(default_factory=SpecCounts)


def start_over(engine: Engine, seed: int) -> None:
    """Make a run repeatable whatever this process did before."""
    torch.manual_seed(seed)
    if getattr(engine.runner, "drafter", None) is not None:
        drafter = engine.drafter
        drafter._num_steps = 0  # drafts are drawn from a generator seeded by the step
        if hasattr(drafter.guard.proposer, "num_steps"):
            drafter.guard.proposer.num_steps = 0  # of Scripted, for ragged drafts


def sample(
    engine: Engine,
    prompt: Sequence[int],
    params: Mapping[str, tuple[int, Sequence[Any]]],
    beside: Sequence[tuple[Sequence[int], Any]] = (),
    seed: int = 0,
) -> Samples:
    """Many answers to one prompt, in batches that mix all settings and, spread evenly, the requests `beside` them.

    Args:
        params: by setting, how many samples and the parameters to draw them with, one for each `n` of them.
        beside: other prompts with their parameters.
    """
    requests: list[tuple[float, int, str | None, Sequence[int], Any]] = []
    for name, (num_samples, given) in params.items():
        assert sum(one.n for one in given) == num_samples
        requests += [(place / len(given), 0, name, prompt, one) for place, one in enumerate(given)]
    requests += [(place / len(beside), 1, None, text, one) for place, (text, one) in enumerate(beside)]
    requests.sort(key=lambda request: request[:2])  # stable
    start_over(engine, seed)
    engine.new_counts()
    outputs = engine.generate([request[3] for request in requests], [request[4] for request in requests])
    samples = Samples(counts=engine.new_counts())
    rows: dict[str, list[Sequence[int]]] = {name: [] for name in params}
    for (_, _, name, _, _), output in zip(requests, outputs, strict=True):
        if name is None:
            samples.beside.append(list(output.outputs[0].token_ids))
        else:
            rows[name] += [one.token_ids for one in output.outputs]
    samples.tokens = {name: np.array(texts) for name, texts in rows.items()}
    return samples


def many(setting: Setting, num_samples: int, max_tokens: int, **more: Any) -> tuple[int, list[Any]]:
    """An entry of `params` for `sample`, without seeds."""
    return num_samples, [setting.params(max_tokens, n=CHUNK, **more)] * (num_samples // CHUNK)


def chi_square(counts: Tokens, probabilities: Floats) -> float:
    """p-value of Pearson's chi-square test that counts come from these probabilities.

    Cells with less than 5 expected are pooled into one, and that one with the smallest of the others where it is still
    too small. A count where the probability is 0 has p-value 0.
    """
    counts, probabilities = counts.ravel(), probabilities.ravel()
    if counts[probabilities == 0].any():
        return 0.0
    expected = counts.sum() * probabilities
    small = expected < MIN_EXPECTED
    if small.any() and expected[small].sum() < MIN_EXPECTED:
        small[np.where(small, np.inf, expected).argmin()] = True
    cells = np.append(expected[~small], expected[small].sum() if small.any() else [])
    seen = np.append(counts[~small], counts[small].sum() if small.any() else [])
    assert len(cells) >= 2, "one cell tests nothing"
    return float(stats.chi2.sf(((seen - cells) ** 2 / cells).sum(), len(cells) - 1))


def fits(tokens: Tokens, joint: Floats, widths: Sequence[int] = (2, 3)) -> dict[str, float]:
    """Chi-square p-values of each window of consecutive tokens, by name.

    Args:
        tokens: [num_samples, num_tokens].
        joint: their exact distribution, [vocab_size] * num_tokens.
        widths: how many consecutive tokens.
    """
    found = {}
    length = tokens.shape[1]
    for width in widths:
        for start in range(length - width + 1):
            window = range(start, start + width)
            exact = joint.sum(axis=tuple(axis for axis in range(length) if axis not in window))
            cells = np.ravel_multi_index(tuple(tokens[:, place] for place in window), exact.shape)
            counts = np.bincount(cells, minlength=exact.size)
            found[f"tokens {start + 1} to {start + width}"] = chi_square(counts, exact)
    return found


def holm_rejected(p_values: Mapping[str, float], level: float) -> list[str]:
    """Those hypotheses that Holm's procedure rejects at a family-wise level."""
    rejected = []
    for rank, (name, p_value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        if p_value > level / (len(p_values) - rank):
            break
        rejected.append(f"{name}: p = {p_value:.3g}")
    return rejected


def acceptance_rate(target: ExactTarget, setting: Setting, q: Sequence[float]) -> float:
    """Of a draft drawn from q for the second token: sum over t1 of p(t1) sum over x of min(p(x | t1), q(x))."""
    given_first = np.minimum(target.following(setting, 1), np.asarray(q)).sum(-1)
    return float((target.following(setting, 0) * given_first).sum())


def interval_99(successes: int, trials: int) -> tuple[float, float]:
    """Of a rate (Clopper and Pearson)."""
    found = stats.binomtest(successes, trials).proportion_ci(0.99, method="exact")
    assert not math.isnan(found.low)
    return float(found.low), float(found.high)
