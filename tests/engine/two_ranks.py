"""Run by test_tensor_parallel: one engine over two ranks, in a process of its own. Prints one JSON line last."""

from __future__ import annotations

import json
import sys
from typing import Any

from vllm_specplug import Capabilities, DraftBatch, Drafts
from vllm_specplug.testing import KnownDistribution


class FailsOnSecondRank(KnownDistribution):
    """Has draft probabilities on the first rank only, every other step."""

    capabilities = Capabilities(gives_probs=True, runners=frozenset({"v1", "v2"}))
    num_steps = 0

    def propose(self, batch: DraftBatch) -> Drafts:
        self.num_steps += 1
        if self.engine.tp_rank == 1 and self.num_steps % 2:
            raise RuntimeError("scripted failure of one rank")
        return super().propose(batch)


def main(model: str, speculative_config: dict[str, Any] | None, temperature: float) -> None:
    from vllm import LLM, SamplingParams

    from vllm_specplug import metrics

    llm = LLM(
        model,
        tensor_parallel_size=2,
        speculative_config=speculative_config,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=8,
        enforce_eager=True,
        skip_tokenizer_init=True,
        kv_cache_memory_bytes=1 << 26,
        disable_log_stats=False,
        seed=0,
    )
    prompts = [{"prompt_token_ids": [(start + step * 3) % 32 for step in range(5 + start)]} for start in range(8)]
    params = SamplingParams(temperature=temperature, max_tokens=40, detokenize=False)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    counted = {
        m.name: m.value for m in llm.get_metrics() if m.name.startswith("vllm:spec_decode") and hasattr(m, "value")
    }
    totals = metrics.read_totals(metrics.prepare_front_end())
    print(json.dumps({"tokens": [list(o.outputs[0].token_ids) for o in outputs], "vllm": counted, "specplug": totals}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3]))
