"""The same Medusa heads, drafting greedily, through specplug and through vLLM's own method `medusa` (up to vLLM 0.32).

    specplug train-medusa --model MODEL --kind independent --out heads
    python benchmarks/medusa_peer.py --model MODEL --heads heads

Both arms read one checkpoint in vLLM's layout, made from `--heads` here. An A/A arm (vLLM's once more) says how much of
a difference is noise.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.run import CompareSettings, run_and_show
from vllm_specplug.compare.workload import load_workload
from vllm_specplug.demo_model import demo_model_path
from vllm_specplug.medusa.convert import convert


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="DIR", help="the target, a directory (default: the demo model)")
    parser.add_argument("--heads", required=True, metavar="DIR", help="independent heads for it")
    parser.add_argument("--drafts", type=int, default=3, metavar="N", help="tokens a round (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=1, metavar="N")
    parser.add_argument("--limit", type=int, metavar="N", help="prompts of each category")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    model = args.model or str(demo_model_path())
    with tempfile.TemporaryDirectory() as folder:
        heads = str(Path(folder) / "heads")
        convert(args.heads, heads, "vllm", model)
        theirs = {"method": "medusa", "model": heads, "num_speculative_tokens": args.drafts}
        ours = {**theirs, "method": "specplug:medusa"}
        report = run_and_show(
            model,
            [Arm("vllm_medusa", theirs), Arm("vllm_medusa_again", theirs), Arm("medusa", ours)],
            load_workload(None, None, args.limit),
            CompareSettings(
                dtype=args.dtype,
                max_tokens=args.max_tokens,
                max_model_len=2048,
                enforce_eager=True,
                batch_size=args.batch_size,
                num_passes=4,
            ),
            baseline="vllm_medusa",
            out="reports/medusa-peer.json",
        )
    found = {row["arm"]: {"ratio": row["ratio"], "ci95": row["ci95"]} for row in report["comparisons"]}
    per_position = {arm: result["overall"]["acceptance_per_position"] for arm, result in report["results"].items()}
    print(json.dumps({"rows": found, "acceptance_per_position": per_position}))


if __name__ == "__main__":
    main()
