"""What benchmarks against vLLM's own drafters have in common: their arguments, one run of all arms, one JSON line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.run import CompareSettings, run_and_show
from vllm_specplug.compare.workload import load_workload


def parser_of(description: str | None, drafts: int) -> argparse.ArgumentParser:
    """Arguments that all take.

    Args:
        drafts: default of tokens a round.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="DIR", help="the target, a directory (default: the demo model)")
    parser.add_argument("--drafts", type=int, default=drafts, metavar="N", help="tokens a round (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=1, metavar="N")
    parser.add_argument("--limit", type=int, metavar="N", help="prompts of each category")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--passes", type=int, default=4, metavar="N")
    parser.add_argument("--dtype", default="bfloat16")
    return parser


def run(args: argparse.Namespace, model: str, arms: Sequence[Arm], out: str) -> None:
    """Compare all arms with the first one, and print ratios and acceptance as one JSON line last."""
    report = run_and_show(
        model,
        list(arms),
        load_workload(None, None, args.limit),
        CompareSettings(
            dtype=args.dtype,
            max_tokens=args.max_tokens,
            max_model_len=2048,
            enforce_eager=True,
            batch_size=args.batch_size,
            num_passes=args.passes,
        ),
        baseline=arms[0].name,
        out=out,
    )
    found = {row["arm"]: {"ratio": row["ratio"], "ci95": row["ci95"]} for row in report["comparisons"]}
    per_position = {arm: result["overall"]["acceptance_per_position"] for arm, result in report["results"].items()}
    print(json.dumps({"rows": found, "acceptance_per_position": per_position}))
