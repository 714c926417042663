"""The child process of one arm: holds one vLLM engine and answers one JSON line per request line.

Started as `python -m vllm_specplug.compare.worker` by `engine`, which knows the other end. Requests come on standard
input, answers leave on a private copy of standard output; whatever vLLM prints goes to standard error. Only vLLM's
public API is used.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_specplug import metrics
from vllm_specplug.chat import chat_tokens
from vllm_specplug.compare.pacing import Given, drive
from vllm_specplug.errors import CompareError
from vllm_specplug.parent import end_with_parent

TOP_LOGPROBS = 20
"""vLLM's default upper limit; two tokens that nearly tie at the top are always among them."""


class Worker:
    """One engine and the operations on it. Each public method is an operation of the protocol."""

    def __init__(self) -> None:
        self.llm: Any = None
        self._num_requests = 0

    def start(self, model: str, llm_args: dict[str, Any]) -> dict[str, Any]:
        """Build the engine."""
        import torch
        import vllm

        self.llm = vllm.LLM(model, **llm_args)
        config = self.llm.llm_engine.model_config
        cache = self.llm.llm_engine.vllm_config.cache_config
        return {
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "max_model_len": config.max_model_len,
            "dtype": str(config.dtype).removeprefix("torch."),
            "max_num_seqs": self.llm.llm_engine.vllm_config.scheduler_config.max_num_seqs,
            "kv_cache": {"num_blocks": cache.num_gpu_blocks, "block_size": cache.block_size},
        }

    def tokenize(self, chats: Mapping[str, Sequence[Mapping[str, str]]]) -> dict[str, list[int]]:
        """Token ids of each conversation as `chat.chat_tokens` has them.

        Args:
            chats: messages with `role` and `content`, by prompt id.
        Raises:
            CompareError: the tokenizer or its chat template refuses one, as some do with a system message.
        """
        tokenizer = self.llm.get_tokenizer()
        found: dict[str, list[int]] = {}
        for prompt_id, messages in chats.items():
            try:
                found[prompt_id] = chat_tokens(tokenizer, messages)
            except Exception as error:
                raise CompareError(
                    f"prompt {prompt_id!r} is refused by the model's tokenizer or chat template "
                    f"({type(error).__name__}: {error}); change its messages or leave it out"
                ) from error
        return found

    def detokenize(self, answers: Sequence[Sequence[int]]) -> list[str]:
        """The text of each answer, without special tokens such as the one that ends it."""
        tokenizer = self.llm.get_tokenizer()
        return [tokenizer.decode(list(token_ids), skip_special_tokens=True) for token_ids in answers]

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: Sequence[int],
        arrival_s: Sequence[float] | None = None,
        at_once: int | None = None,
    ) -> dict[str, Any]:
        """Answer some prompts greedily, and time every step.

        The engine is stepped by hand because its outputs tell neither how many steps an answer took nor how many
        tokens each step gave.

        Args:
            prompts: token ids.
            max_tokens: output tokens at most, of each prompt.
            arrival_s: when each comes, in s from the start, never going back; None: all at the start.
            at_once: requests in flight at most; the next one comes when one is answered. None: no limit.
        Returns:
            seconds: from the start to the end of the last answer; `outputs` in the order of the prompts, as
            `pacing.drive` has them; `counts`: what vLLM's own counters of speculation gained, None without
            speculation; num_preemptions: how often a request lost its KV cache to others.
        """
        from vllm import SamplingParams

        # Public, though `vllm` itself does not name it: the values of the documented field `output_kind`, taken from
        # here by vLLM's own example, examples/offline_inference/async_llm_streaming.py.
        from vllm.sampling_params import RequestOutputKind

        limits = [
            SamplingParams(temperature=0.0, max_tokens=limit, output_kind=RequestOutputKind.DELTA)
            for limit in max_tokens
        ]
        engine = _Stepped(self.llm.llm_engine, prompts, limits, self._num_requests)
        self._num_requests += len(prompts)
        before = self._counters()
        seconds, outputs = drive(engine, arrival_s or [0.0] * len(prompts), at_once)
        after = self._counters()
        return {
            "seconds": seconds,
            "outputs": outputs,
            "counts": _gained(before.counts, after.counts),
            "num_preemptions": after.num_preemptions - before.num_preemptions,
        }

    def logprobs(self, prefixes: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        """Log-probabilities of candidate tokens after each prefix; None for one that is not among the top ones.

        Returns:
            For each prefix `candidates` (in the order given) and `best`, that of the most probable token.
        """
        from vllm import SamplingParams, TokensPrompt

        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=TOP_LOGPROBS)
        prompts = [TokensPrompt(prompt_token_ids=list(prefix)) for prefix in prefixes]
        answers: list[dict[str, Any]] = []
        for result, tokens in zip(self.llm.generate(prompts, params, use_tqdm=False), candidates, strict=True):
            top = {token: entry.logprob for token, entry in result.outputs[0].logprobs[0].items()}
            answers.append({"candidates": [top.get(token) for token in tokens], "best": max(top.values())})
        return answers

    def _counters(self) -> _Counters:
        prefix = "vllm:spec_decode_"
        found = {metric.name.removeprefix(prefix): metric for metric in self.llm.get_metrics()}
        num_preemptions = found["vllm:num_preemptions"].value
        if "num_drafts" not in found:
            return _Counters(num_preemptions, None)
        folder = os.environ.get(metrics.FOLDER_VARIABLE)
        ours = metrics.read_totals(Path(folder)) if folder else {}
        counts = {
            "num_drafts": found["num_drafts"].value,
            "num_draft_tokens": found["num_draft_tokens"].value,
            "num_accepted_tokens": found["num_accepted_tokens"].value,
            "accepted_per_position": list(found["num_accepted_tokens_per_pos"].values),
            "num_steps": sum(counts["steps"] for counts in ours.values()),
            "draft_s": sum(counts["draft_us"] for counts in ours.values()) / 1e6,
        }
        return _Counters(num_preemptions, counts)


@dataclass(frozen=True, slots=True)
class _Counters:
    """What vLLM has counted since the engine started."""

    num_preemptions: int
    counts: dict[str, Any] | None
    """Of speculation; None without any."""


class _Stepped:
    """Some prompts before vLLM's engine: a `pacing.SteppedEngine`."""

    def __init__(self, engine: Any, prompts: Sequence[Sequence[int]], params: Sequence[Any], first_name: int) -> None:
        from vllm import TokensPrompt

        self._engine = engine
        self._prompts = [TokensPrompt(prompt_token_ids=list(token_ids)) for token_ids in prompts]
        self._params = params
        self._names = [f"specplug-{first_name + index}" for index in range(len(prompts))]
        self._indices = {name: index for index, name in enumerate(self._names)}

    def add(self, index: int) -> None:
        self._engine.add_request(self._names[index], self._prompts[index], self._params[index])

    def step(self) -> list[Given]:
        given = []
        for result in self._engine.step():
            completion = result.outputs[0]
            index = self._indices[result.request_id]
            given.append(Given(index, completion.token_ids, result.finished, completion.finish_reason))
        return given


def _gained(before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any] | None:
    if before is None or after is None:
        return None
    return {
        key: [new - old for new, old in zip(value, before[key], strict=True)]
        if isinstance(value, list)
        else value - before[key]
        for key, value in after.items()
    }


def main() -> None:
    """Serve requests until standard input closes. An error is answered, not raised: the parent decides."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": getattr(worker, request["op"])(**request["args"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
