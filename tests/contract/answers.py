"""Prints, as one JSON line, what vLLM's own methods answer and how many drafts they had accepted.

    python tests/contract/answers.py MODEL DRAFT METHOD...        (METHOD: none, ngram or draft_model)

With VLLM_PLUGINS= in its environment vLLM loads no plugin.
"""

from __future__ import annotations

import json
import sys
from typing import Any

METHODS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "draft_model": {"method": "draft_model", "num_speculative_tokens": 3},
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3},
}
PROMPTS = [[(start + step % 5 * 3) % 32 for step in range(8 + start)] for start in range(6)]


def answers(model: str, draft: str, method: str) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    config = METHODS[method] and {**METHODS[method], **({"model": draft} if method == "draft_model" else {})}
    llm = LLM(
        model,
        speculative_config=config,
        dtype="float32",
        max_model_len=128,
        max_num_seqs=8,
        enforce_eager=True,
        num_gpu_blocks_override=512,
        skip_tokenizer_init=True,
        disable_log_stats=False,
        seed=0,
    )
    greedy = SamplingParams(temperature=0, max_tokens=40, detokenize=False)
    sampled = SamplingParams(temperature=1, max_tokens=40, detokenize=False, seed=7)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    # vLLM's CPU kernels make sampling with any drafts depend on uninitialised memory: only greedy answers repeat.
    kinds = {"greedy": greedy} | ({"sampled": sampled} if config is None else {})
    tokens = {
        kind: [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]
        for kind, params in kinds.items()
    }
    counted = [metric.value for metric in llm.get_metrics() if metric.name == "vllm:spec_decode_num_accepted_tokens"]
    return {"tokens": tokens, "num_accepted": sum(counted), "is_loaded": "vllm_specplug.plugin" in sys.modules}


def main(model: str, draft: str, *methods: str) -> None:
    print(json.dumps({method: answers(model, draft, method) for method in methods}))


if __name__ == "__main__":
    main(*sys.argv[1:])
