"""What our path costs: vLLM's n-gram class through it, against vLLM's own method `ngram`. Same drafts, same tokens.

    python benchmarks/path_overhead.py            # batch 1 and 16, all of copying and code; half an hour on two cores

An A/A arm (`ngram` once more) says how much of a difference is noise.
"""

from __future__ import annotations

import argparse
import json

from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.run import CompareSettings, run_and_show
from vllm_specplug.compare.workload import load_workload
from vllm_specplug.demo_model import demo_model_path

NGRAM = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 1, "prompt_lookup_max": 4}
WRAPPED = {**NGRAM, "method": "specplug:benchmarks.wrapped_ngram.WrappedNgram"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 16], metavar="N")
    parser.add_argument("--category", nargs="+", default=["copying", "code"], metavar="C")
    parser.add_argument("--limit", type=int, metavar="N", help="prompts of each category")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    found = {}
    for batch_size in args.batch_size:
        report = run_and_show(
            str(demo_model_path()),
            [Arm("ngram", NGRAM), Arm("ngram_again", NGRAM), Arm("wrapped", WRAPPED)],
            load_workload(None, args.category, args.limit),
            CompareSettings(
                dtype=args.dtype,
                max_tokens=args.max_tokens,
                max_model_len=2048,
                enforce_eager=True,
                batch_size=batch_size,
                num_passes=4,
            ),
            baseline="ngram",
            out=f"reports/path-overhead-{batch_size}.json",
        )
        found[batch_size] = {
            row["arm"]: {"ratio": row["ratio"], "ci95": row["ci95"]} for row in report["comparisons"]
        } | {"drafts": {arm: result["overall"]["num_draft_tokens"] for arm, result in report["results"].items()}}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
