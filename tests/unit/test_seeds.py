"""Generators that draw drafts."""

from __future__ import annotations

import torch

from vllm_specplug.bridge.seeds import derived_seed, seeded


def test_same_place_gives_the_same_draws_and_another_place_others() -> None:
    def draw(*parts: int | str) -> list[float]:
        return torch.rand(4, generator=seeded("cpu", *parts)).tolist()

    assert draw("request", 7, 12) == draw("request", 7, 12)
    others = [draw("request", 7, 13), draw("request", 8, 12), draw("step", 7, 12), draw("request", 71, 2)]
    assert all(draw("request", 7, 12) != other for other in others)


def test_draws_are_not_those_vllm_verifies_with() -> None:
    """vLLM seeds a request's generator with the request's seed itself."""
    verifier = torch.Generator().manual_seed(7)
    drafter = seeded("cpu", "request", 7, 12)
    draws = torch.stack([torch.rand(4000, generator=verifier), torch.rand(4000, generator=drafter)])
    assert abs(float(torch.corrcoef(draws)[0, 1])) < 0.06  # four standard errors


def test_seeds_fit_a_generator() -> None:
    assert all(0 <= derived_seed("x", part) < 1 << 63 for part in range(100))
