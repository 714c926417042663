"""The child process in which the target answers: reads one job from standard input, writes one progress line a chunk.

Started as `python -m vllm_specplug.train.answering` by `answers`. Held-out prompts are answered in between, so that
their share is right whenever the answers are enough.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vllm_specplug.atomic import save_tensors
from vllm_specplug.chat import as_user_messages
from vllm_specplug.errors import ModelError
from vllm_specplug.parent import end_with_parent
from vllm_specplug.train.record import CONTEXTS, JOURNAL, HiddenStateRecorder, read_contexts, row_type

#: Answers must be recorded nearly whole: a request that was preempted may lose a row.
_MIN_RECORDED = 0.95
_RECORDER = f"specplug:{HiddenStateRecorder.__module__}.{HiddenStateRecorder.__qualname__}"

Rows: TypeAlias = NDArray[Any]


class Answering:
    """One engine, and the chunks it has answered."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        from vllm import LLM, SamplingParams

        self.folder = folder
        self.settings = settings
        arguments = {
            "dtype": "auto",
            "max_num_seqs": min(64, settings["chunk_size"]),
            "enforce_eager": True,
            "enable_prefix_caching": False,
            "seed": settings["seed"],
            **settings["engine_args"],
        }
        for journal in (JOURNAL, CONTEXTS):
            (folder / journal).unlink(missing_ok=True)  # of a run that was interrupted
        speculation = {"method": _RECORDER, "num_speculative_tokens": 1, "folder": str(folder)}
        self.llm: Any = LLM(settings["model"], speculative_config=speculation, **arguments)
        self.hidden_size = self.llm.llm_engine.model_config.get_hidden_size()
        self.max_prompt_len = self.llm.llm_engine.model_config.max_model_len - settings["max_tokens"]
        self.params = SamplingParams(
            temperature=settings["temperature"],
            max_tokens=settings["max_tokens"],
            seed=settings["seed"],
            detokenize=False,
        )

    def answer(self, name: str, texts: Sequence[str]) -> None:
        """Answer prompts and write the chunk `name`.

        Raises:
            ModelError: fewer tokens were recorded than generated.
        """
        prompts = as_user_messages(self.llm.get_tokenizer(), texts)
        inputs = [{"prompt_token_ids": ids} for ids in prompts if len(ids) <= self.max_prompt_len]
        journal, contexts = self.folder / JOURNAL, self.folder / CONTEXTS
        start = journal.stat().st_size if journal.exists() else 0
        start_of_contexts = contexts.stat().st_size if contexts.exists() else 0
        outputs = self.llm.generate(inputs, self.params, use_tqdm=False) if inputs else []
        kind = row_type(self.hidden_size)
        rows = np.fromfile(journal, kind, offset=start) if inputs else np.zeros(0, kind)
        num_generated = sum(len(output.outputs[0].token_ids) for output in outputs)
        if len(rows) < _MIN_RECORDED * num_generated:
            raise ModelError(
                f"{len(rows)} of {num_generated} answer tokens were recorded in {journal}; is the disk full? Run again"
            )
        read = read_contexts(contexts, start_of_contexts) if inputs else {}
        write_chunk(self.folder / f"{name}.safetensors", rows, read, len(prompts) - len(inputs))
        if inputs:
            os.truncate(journal, 0)
            os.truncate(contexts, 0)


def write_chunk(path: Path, rows: Rows, contexts: Mapping[tuple[int, int], Rows], num_skipped: int = 0) -> None:
    """Rows of the journal, answer by answer.

    The file holds `states` [num_tokens, hidden_size] bfloat16, `tokens` [num_tokens] int32, `lengths` [num_answers]
    int32: state i is the one that token i was sampled from. The tokens in front of each answer are `contexts` int32,
    one behind the other, and `context_lengths` [num_answers] int32. An answer with a gap is cut there. Answers are in
    the order of their tokens, whatever vLLM called the requests: the same answers always give the same file.

    Args:
        contexts: see `record.read_contexts`.
        num_skipped: prompts left out, written down beside them.
    """
    import torch

    rows = rows[np.lexsort((rows["num_tokens"], rows["request"]))]
    goes_on = (rows["request"][1:] == rows["request"][:-1]) & (np.diff(rows["num_tokens"]) == 1)
    answers = np.split(rows, 1 + np.flatnonzero(~goes_on)) if len(rows) else []
    answers.sort(key=lambda answer: (answer["token"].tolist(), answer["state"].tobytes()))
    rows = np.concatenate(answers) if answers else rows
    fronts = [contexts[int(answer[0]["request"]), int(answer[0]["num_tokens"]) - 1] for answer in answers]
    save_tensors(
        path,
        {
            "states": torch.from_numpy(np.ascontiguousarray(rows["state"])).view(torch.bfloat16),
            "tokens": torch.from_numpy(np.ascontiguousarray(rows["token"])),
            "lengths": torch.tensor([len(answer) for answer in answers], dtype=torch.int32),
            "contexts": torch.from_numpy(np.concatenate([np.zeros(0, np.int32), *fronts])),
            "context_lengths": torch.tensor([len(front) for front in fronts], dtype=torch.int32),
        },
        {"num_skipped": str(num_skipped)},
    )


def num_tokens_of(path: Path) -> tuple[int, int]:
    """Tokens in a chunk and prompts left out of it, from its header.

    Raises:
        ModelError: the file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return file.get_slice("tokens").get_shape()[0], int((file.metadata() or {}).get("num_skipped", 0))
    except SafetensorError as error:
        raise ModelError(f"{path} is damaged ({error}); remove it, and it is made again") from error


def run(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Answer until there are enough tokens, making only the chunks that are missing."""
    folder, settings = Path(job["folder"]), job["settings"]
    size, goal = settings["chunk_size"], settings["num_tokens"]
    waiting = {
        kind: [
            (f"{kind}-{number:05d}", job[kind][first : first + size])
            for number, first in enumerate(range(0, len(job[kind]), size))
        ]
        for kind in ("train", "held-out")
    }
    have = {"train": 0, "held-out": 0}
    engine: Answering | None = None
    while waiting["train"] and have["train"] < goal:
        behind = have["held-out"] < job["held_out_share"] * have["train"] or have["held-out"] == 0
        kind = "held-out" if behind and waiting["held-out"] else "train"
        name, texts = waiting[kind].pop(0)
        path = folder / f"{name}.safetensors"
        if not path.exists():
            engine = engine or Answering(folder, settings)
            engine.answer(name, texts)
        num_tokens, num_skipped = num_tokens_of(path)
        have[kind] += num_tokens
        yield {
            "chunk": path.name,
            "num_tokens": have["train"],
            "num_held_out_tokens": have["held-out"],
            "num_skipped": num_skipped,
            "goal": goal,
        }


def main() -> None:
    """Do the job; what vLLM prints goes to standard error."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for progress in run(json.load(sys.stdin)):
        answers.write(json.dumps(progress) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
