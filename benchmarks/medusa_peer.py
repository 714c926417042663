"""The same Medusa heads, drafting greedily, through specplug and through vLLM's own method `medusa` (up to vLLM 0.32).

    specplug train-medusa --model MODEL --kind independent --out heads
    python -m benchmarks.medusa_peer --model MODEL --heads heads

Both arms read one checkpoint in vLLM's layout, made from `--heads` here. It drafts from the whole vocabulary, since
vLLM 0.32 refuses heads with a cut one ("not initialized from checkpoint: token_map"). An A/A arm (vLLM's once more)
says how much of a difference is noise.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.same_drafts import parser_of, run
from vllm_specplug.compare.arms import Arm
from vllm_specplug.demo_model import demo_model_path
from vllm_specplug.medusa import checkpoint
from vllm_specplug.medusa.convert import convert


def whole_vocabulary(heads: str, made: Path) -> str:
    """The same heads, reading the target's whole output layer."""
    stored = checkpoint.read(heads)
    if stored.config.draft_vocab_size is None:
        return heads
    tensors = {name: tensor for name, tensor in stored.tensors.items() if name != "draft_token_ids"}
    config = stored.config.model_copy(update={"draft_vocab_size": None})
    whole = checkpoint.build(replace(stored, config=config, tensors=tensors), torch.bfloat16)
    checkpoint.write(made, whole, stored.provenance)
    return str(made)


def main() -> None:
    parser = parser_of(__doc__, drafts=3)
    parser.add_argument("--heads", required=True, metavar="DIR", help="independent heads for it")
    args = parser.parse_args()
    model = args.model or str(demo_model_path())
    with tempfile.TemporaryDirectory() as folder:
        heads = str(Path(folder) / "heads")
        convert(whole_vocabulary(args.heads, Path(folder) / "whole"), heads, "vllm", model)
        theirs = {"method": "medusa", "model": heads, "num_speculative_tokens": args.drafts}
        ours = {**theirs, "method": "specplug:medusa"}
        arms = [Arm("vllm_medusa", theirs), Arm("vllm_medusa_again", theirs), Arm("medusa", ours)]
        run(args, model, arms, "reports/medusa-peer.json")


if __name__ == "__main__":
    main()
