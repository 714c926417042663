"""What a set of heads is worth, as numbers and as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from rich.table import Table

from vllm_specplug.console import Console
from vllm_specplug.medusa.heads import MedusaHeads
from vllm_specplug.theory import step_speedup
from vllm_specplug.train.evaluate import HeadsQuality
from vllm_specplug.train.target import num_weights

#: Below this the gain would drown in what the figures leave out.
WORTH_SERVING = 1.1


def figures_of(heads: MedusaHeads, quality: HeadsQuality, model: str) -> dict[str, Any]:
    """The figures, and what they could gain at best where reading weights is all that costs time."""
    weights = num_weights(model)
    costs = weights and [heads.num_weights_read(count) / weights for count in range(1, heads.config.num_heads + 1)]
    return {
        **asdict(quality),
        "draft_cost_ratio": costs,
        "predicted_speedup": costs
        and [step_speedup(length, cost, 1.0) for length, cost in zip(quality.acceptance_length, costs, strict=True)],
    }


def _worth(figures: Mapping[str, Any]) -> list[float]:
    """With 1, 2, ... drafts; where the cost of drafts is unknown, as if they had none."""
    found: list[float] = figures["predicted_speedup"] or figures["acceptance_length"]
    return found


def is_worth_serving(figures: Mapping[str, Any]) -> bool:
    """Whether some number of drafts gains enough at best."""
    return max(_worth(figures)) >= WORTH_SERVING


def show_figures(file: TextIO, figures: Mapping[str, Any], out: Path) -> None:
    """Print the table, a warning where the heads are not worth serving, and how to serve them."""
    table = Table(title=f"{figures['num_examples']:,} held-out tokens", title_justify="left")
    for heading in ("head", "top-1", "top-5", "tokens a round", "draft cost", "at best"):
        table.add_column(heading, justify="right")
    heads = range(len(figures["top1"]))
    costs, speedups = figures["draft_cost_ratio"], figures["predicted_speedup"]
    for head in heads:
        table.add_row(
            str(head + 1),
            f"{figures['top1'][head]:.3f}",
            f"{figures['top5'][head]:.3f}",
            f"{figures['acceptance_length'][head]:.2f}",
            f"{costs[head]:.1%}" if costs else "unknown",
            f"{speedups[head]:.2f}x" if speedups else "unknown",
        )
    console = Console(file=file)
    console.print(table)
    worth = _worth(figures)
    best = max(heads, key=lambda head: worth[head])
    lines = [
        f"the draft vocabulary covers {figures['draft_vocab_coverage']:.1%} of the answers; draft cost counts weights "
        "that are read, and 'at best' assumes that checking drafts costs nothing"
    ]
    if not is_worth_serving(figures):
        lines.append(
            f"warning: at best {worth[best]:.2f} times no speculation, so these heads are not worth serving; train on "
            "more tokens (--tokens), on prompts like your traffic (--prompts), or for a larger target"
        )
    config = {"method": "specplug:medusa", "model": str(out), "num_speculative_tokens": best + 1}
    lines += [f"heads: {out}", f"serve: --speculative-config '{json.dumps(config)}'"]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
