"""prompt_lookup against vLLM's own drafters that need no model, on all shipped prompts, in one run.

    python benchmarks/peers.py                  # all 80 prompts; an hour on two cores
    python benchmarks/peers.py --limit 2        # two prompts of each category

Same draft length and window for all; the suffix method's cache of past answers is off, since the prompts come again
and it would replay them. Writes reports/peers.json and .html, and prints for each category prompt_lookup's speed
divided by the better peer's, with a 95 % interval. --json prints these as one JSON line last.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.intervals import compare
from vllm_specplug.compare.run import CompareSettings, run_and_show
from vllm_specplug.compare.statistics import PromptSpeed
from vllm_specplug.compare.workload import load_workload
from vllm_specplug.demo import PROMPT_LOOKUP
from vllm_specplug.demo_model import demo_model_path

PEERS = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 1, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix", "num_speculative_tokens": 8, "suffix_decoding_max_cached_requests": 0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, metavar="N", help="prompts of each category")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", default="reports/peers.json", metavar="FILE")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    report = run_and_show(
        str(demo_model_path()),
        [Arm("prompt_lookup", PROMPT_LOOKUP), *(Arm(name, config) for name, config in PEERS.items())],
        load_workload(None, None, args.limit),
        CompareSettings(dtype=args.dtype, max_tokens=args.max_tokens, max_model_len=2048, enforce_eager=True),
        out=args.out,
        html=args.out.removesuffix(".json") + ".html",
    )
    rows = against_better_peer(report)
    _print(rows)
    if args.json:
        print(json.dumps({"rows": rows, "provenance": report["provenance"]}))


def against_better_peer(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per category and one for all: the ratio to each peer; the better peer is the faster one there."""
    speeds = {arm: _speeds(report, arm) for arm in ("prompt_lookup", *PEERS)}
    rows: list[dict[str, Any]] = []
    for category in (*report["workload"]["categories"], None):
        chosen = {
            arm: {key: speed for key, speed in found.items() if category in (None, speed.category)}
            for arm, found in speeds.items()
        }
        ratios = {peer: compare(chosen["prompt_lookup"], chosen[peer], seed=0) for peer in PEERS}
        better = min(ratios, key=lambda peer: ratios[peer].ratio)
        rows.append(
            {
                "category": category or "overall",
                "better_peer": better,
                "ratio": ratios[better].ratio,
                "ci95": ratios[better].ci95,
                "ratios": {peer: asdict(ratio) for peer, ratio in ratios.items()},
            }
        )
    return rows


def _speeds(report: Mapping[str, Any], arm: str) -> dict[str, PromptSpeed]:
    return {
        row["id"]: PromptSpeed(
            row["category"],
            sum(one["output_tokens"] for one in row["arms"][arm]),
            sum(one["seconds"] for one in row["arms"][arm]),
        )
        for row in report["prompts"]
    }


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table(title="prompt_lookup / the better peer, tokens per second")
    for heading in ("category", "better peer", "ratio", "95 % interval"):
        table.add_column(heading, justify="left" if heading in ("category", "better peer") else "right")
    for row in rows:
        interval = "-" if row["ci95"] is None else "{:.3f} to {:.3f}".format(*row["ci95"])
        table.add_row(row["category"], row["better_peer"], f"{row['ratio']:.3f}", interval)
    Console(file=sys.stdout).print(table)


if __name__ == "__main__":
    main()
