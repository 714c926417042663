"""`specplug demo`: the main job on an embedded default.

Gets a small real model ready, compares no speculation with our proposers on a part of the shipped prompts, prints the
table and writes the report. Everything but the defaults is `specplug compare`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vllm_specplug.demo_model import demo_model_path

#: Copying from the prompt costs next to nothing, so it drafts far; one matching token is enough to try.
PROMPT_LOOKUP = {"method": "specplug:prompt_lookup", "num_speculative_tokens": 8, "min_ngram": 1, "max_ngram": 4}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `specplug demo`."""
    parser.add_argument("--limit", type=int, default=3, metavar="N", help="prompts of each category (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="length of an answer (%(default)s)")
    parser.add_argument("--passes", type=int, default=2, metavar="N", help="times each arm answers (%(default)s)")
    parser.add_argument("--out", default="reports/demo.json", metavar="FILE", help="report as JSON (%(default)s)")
    parser.add_argument("--html", metavar="FILE", help="report as a page (default: beside the JSON)")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON line last")


def main(args: argparse.Namespace) -> int:
    """Run the demo.

    Raises:
        ModelError: the model cannot be made ready.
        CompareError: the experiment cannot be run.
    """
    from vllm_specplug.compare import run
    from vllm_specplug.compare.arms import Arm
    from vllm_specplug.compare.workload import load_workload

    messages = sys.stderr if args.json else sys.stdout
    model = demo_model_path(progress=lambda line: print(line, file=messages, flush=True))
    out = Path(args.out)
    html = Path(args.html) if args.html else out.with_suffix(".html")
    settings = run.CompareSettings(max_tokens=args.max_tokens, max_model_len=2048, num_passes=args.passes)
    run.run_and_show(
        str(model),
        [Arm("prompt_lookup", PROMPT_LOOKUP)],
        load_workload(None, None, args.limit),
        settings,
        out=out,
        html=html,
        as_json=args.json,
    )
    print(f"\nreport: {out} and {html}", file=messages)
    return 0
