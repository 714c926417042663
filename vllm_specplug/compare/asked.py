"""Measures that a report has only when they were asked for: goodput under an SLO, cost of output."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from vllm_specplug.compare.cost import Price, price_of
from vllm_specplug.compare.goodput import EXAMPLE, Slo, parse_slo


@dataclass(frozen=True, slots=True)
class Asked:
    """None: not asked for."""

    slo: Slo | None = None
    price: Price | None = None

    def as_json(self) -> dict[str, str | None]:
        """The report's `asked`, as texts for people."""
        pairs = {"slo": self.slo, "price": self.price}
        return {key: None if value is None else str(value) for key, value in pairs.items()}


#: The usual report.
NOTHING_MORE = Asked()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `asked_for` reads."""
    parser.add_argument("--slo", metavar="LIMITS", help=f"report the goodput under an SLO, as '{EXAMPLE}'")
    parser.add_argument("--gpu-hour-price", type=float, metavar="P", help="report the cost of a million output tokens")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs that serve an arm, for the cost (1)")


def asked_for(args: argparse.Namespace) -> Asked:
    """What a command line asks for.

    Raises:
        CompareError: the SLO or the price reads otherwise.
    """
    slo = None if args.slo is None else parse_slo(args.slo)
    return Asked(slo, price_of(args.gpu_hour_price, args.gpus))
