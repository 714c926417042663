"""What an arm's output costs, from the price of the GPUs it runs on. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vllm_specplug.errors import CompareError

SECONDS_AN_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Price:
    """Of the machine that serves one arm."""

    gpu_hour: float
    """Of one GPU for one hour, in any currency."""
    gpus: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gpu_hour) and self.gpu_hour > 0):
            raise CompareError(f"--gpu-hour-price is {self.gpu_hour}, expected a price above 0")
        if self.gpus < 1:
            raise CompareError(f"--gpus is {self.gpus}, expected 1 or more")

    def __str__(self) -> str:
        return f"{self.gpu_hour:g} a GPU hour, {self.gpus} GPU{'s' if self.gpus > 1 else ''}"


def cost_per_million_tokens(tokens_per_s: float, price: Price | None) -> float | None:
    """Price of a million output tokens at this speed; None when no price was given.

    price of an hour * GPUs / (3600 * tokens a second) * 1,000,000
    """
    if price is None:
        return None
    return price.gpu_hour * price.gpus / (SECONDS_AN_HOUR * tokens_per_s) * 1_000_000


def price_of(gpu_hour: float | None, gpus: int | None) -> Price | None:
    """From the command line, where both may be missing.

    Raises:
        CompareError: GPUs without a price, or a value that is none.
    """
    if gpu_hour is None:
        if gpus is not None:
            raise CompareError(f"--gpus {gpus} has no use without --gpu-hour-price; give a price or leave it out")
        return None
    return Price(gpu_hour, 1 if gpus is None else gpus)


def cost_note(price: str) -> str:
    """What the column means, for people."""
    return f"Cost: of a million output tokens at {price}, at this load; more requests at once cost less each."
