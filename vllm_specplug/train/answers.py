"""The target's own answers and hidden states, in files: what heads learn from.

The target answers in a child process, chunk by chunk; a chunk that is on disk is not made again, so an interrupted run
goes on where it was. The child is `vllm_specplug.train.answering`.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vllm_specplug.atomic import write_json
from vllm_specplug.compare.engine import child_environment, last_error_line, on_cpu, one_line
from vllm_specplug.errors import ConfigError, ModelError
from vllm_specplug.train.prompts import TrainingPrompt

#: Share of the prompts' groups, and of the tokens, that no head is trained on.
HELD_OUT = 0.05
SETTINGS = "answers.json"


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
    """How far the answers are."""

    num_tokens: int
    num_held_out_tokens: int
    goal: int


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
) -> list[Path]:
    """Let the target answer until there are enough tokens.

    Args:
        folder: gets `train-*.safetensors`, `held-out-*.safetensors` (see `answering.Chunk`) and target.safetensors.
            Chunks found there are kept.
    Returns:
        The chunk files.
    Raises:
        ConfigError: the folder holds answers made with other settings.
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
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "vllm_specplug.train.answering"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_environment(),
            text=True,
        )
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            try:
                child.stdin.write(json.dumps(job))
                child.stdin.close()
            except BrokenPipeError:
                pass  # it died at once; its log says why
            for line in child.stdout:
                progress(Progress(**json.loads(line)))
            code = child.wait()
        except BaseException:
            child.kill()
            child.wait()
            raise
        if code:
            log.seek(0)
            raise ModelError(
                f"{settings.model} could not answer the training prompts: {one_line(last_error_line(log.read()))}"
            )
    return sorted(folder.glob("*-*.safetensors"))


def _environment() -> dict[str, str]:
    """As for an arm of a comparison. On a CPU vLLM would take all free memory for its cache, and fill it in the end."""
    env = child_environment(os.environ)
    if on_cpu():
        env.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")  # GiB
    return env


def _claim(folder: Path, settings: AnswerSettings, prompts: Sequence[TrainingPrompt]) -> None:
    """Refuse a folder with answers of another kind; the number of tokens may grow."""
    asked = {**asdict(settings), "num_prompts": len(prompts), "first_prompt": prompts[0].text}
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
