"""The same draft model through specplug and through vLLM's own method `draft_model`, drafting greedily.

    python -m benchmarks.draft_peer                                   # the demo model and its draft
    python -m benchmarks.draft_peer --model MODEL --draft DRAFT

The arm `same` drafts as vLLM does, so its ratio is what our loop costs; `cut` computes the rows of frequent tokens
alone; `cut_and_stop` also ends a draft where it becomes doubtful. An A/A arm (vLLM's once more) says how much of a
difference is noise.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.same_drafts import parser_of, run
from vllm_specplug.compare.arms import Arm
from vllm_specplug.demo_draft import demo_draft_path
from vllm_specplug.demo_model import demo_model_path


def main() -> None:
    parser = parser_of(__doc__, drafts=4)
    parser.add_argument("--draft", metavar="DIR", help="its draft, with a draft_vocab.json (default: the demo model's)")
    parser.add_argument("--min-confidence", type=float, default=0.3, metavar="P")
    args = parser.parse_args()
    model = args.model or str(demo_model_path())
    draft = args.draft or str(demo_draft_path(Path(model)))
    theirs = {"method": "draft_model", "model": draft, "num_speculative_tokens": args.drafts}
    ours = {**theirs, "method": "specplug:draft_model"}
    arms = [
        Arm("vllm_draft_model", theirs),
        Arm("vllm_draft_model_again", theirs),
        Arm("same", {**ours, "draft_vocab": "all"}),
        Arm("cut", ours),
        Arm("cut_and_stop", {**ours, "min_confidence": args.min_confidence}),
    ]
    run(args, model, arms, "reports/draft-peer.json")


if __name__ == "__main__":
    main()
