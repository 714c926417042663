"""What the commands that train a drafter for a target have in common: arguments, the target's answers, provenance."""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from vllm_specplug.errors import ConfigError
from vllm_specplug.progress import show_progress
from vllm_specplug.train.answers import AnswerSettings, Collected, collect, named
from vllm_specplug.train.prompts import load_prompts, make_prompts

if TYPE_CHECKING:  # torch takes seconds to import, and every `specplug --help` reads this file
    from vllm_specplug.train.fit import FitSettings


def add_arguments(parser: argparse.ArgumentParser, what: str, batch: str, defaults: Mapping[str, Any]) -> None:
    """Add the arguments that every training has.

    Args:
        what: is made.
        batch: unit of --batch-size.
        defaults: of the arguments that differ.
    """
    parser.add_argument("--model", required=True, metavar="M", help="the target, as vLLM takes it")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help=f"where {what} goes")
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE", help='JSONL, {"prompt": ...} a line; made when left out'
    )
    parser.add_argument(
        "--draft-vocab",
        type=int,
        default=4096,
        metavar="N",
        help="draft the N commonest tokens of the answers only; 0: the whole vocabulary (%(default)s)",
    )
    parser.add_argument(
        "--tokens", type=int, default=500_000, metavar="N", help="answer tokens to learn from (%(default)s)"
    )
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="length of an answer (%(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="of the answers (%(default)s)")
    parser.add_argument("--epochs", type=int, default=defaults["epochs"], metavar="N", help="(%(default)s)")
    parser.add_argument(
        "--batch-size", type=int, default=defaults["batch_size"], metavar="N", help=f"{batch} (%(default)s)"
    )
    parser.add_argument(
        "--learning-rate", type=float, default=defaults["learning_rate"], metavar="X", help="(%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(%(default)s)")
    parser.add_argument(
        "--engine-args",
        type=_json_object,
        default={},
        metavar="JSON",
        help="more for vllm.LLM, e.g. tensor_parallel_size",
    )
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="answers and checkpoints; a second run goes on from there (OUT.work)"
    )
    parser.add_argument("--device", metavar="D", help="to train on (cuda if there is one, else cpu)")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON line last")


def check(args: argparse.Namespace, *counts: str) -> None:
    """Refuse what cannot be trained, before anything is loaded.

    Args:
        counts: further arguments that have to be 1 or more.
    Raises:
        ConfigError: something is not installed, or an argument is out of range.
    """
    missing = [name for name in ("torch", "safetensors", "transformers", "vllm") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"training needs {', '.join(missing)}, which is not installed; install vllm and 'vllm-specplug[train]'"
        )
    for name in (*counts, "tokens", "epochs", "batch_size"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(args, name)}; expected 1 or more")
    if args.max_tokens < 2:
        raise ConfigError(f"--max-tokens is {args.max_tokens}; expected 2 or more, to learn what follows a token")
    if args.draft_vocab < 0:
        raise ConfigError(f"--draft-vocab is {args.draft_vocab}; expected a number of tokens, or 0 for all")
    if args.temperature < 0:
        raise ConfigError(f"--temperature is {args.temperature}; expected 0 (greedy) or more")
    if args.learning_rate <= 0:
        raise ConfigError(f"--learning-rate is {args.learning_rate}; expected more than 0")


@contextmanager
def alone_in(work: Path) -> Iterator[None]:
    """Two runs in one folder would spoil each other's answers.

    Raises:
        ConfigError: another run works there, or nobody can.
    """
    try:
        work.mkdir(parents=True, exist_ok=True)
        file = (work / ".lock").open("w")
    except OSError as error:
        raise ConfigError(f"cannot work in {work}: {error.strerror}; name another --work folder") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another run works in {work}; wait for it, or name another --work folder") from None
        yield


def collect_answers(args: argparse.Namespace, folder: Path, messages: TextIO) -> Collected:
    """The target's answers, made now or found in `folder`, with a progress bar.

    Raises:
        ConfigError, ModelError: see `answers.collect`.
    """
    # Given prompts, or all that we can make: which are held out must not depend on how many are needed.
    prompts = make_prompts(None, args.seed) if args.prompts is None else load_prompts(args.prompts)
    with show_progress() as show:
        found = collect(
            prompts,
            _settings(args),
            folder,
            lambda now: show("answer tokens", min(now.num_tokens, now.goal), now.goal),
        )
    if found.num_skipped:
        print(f"{found.num_skipped} prompts were left out: too long for the target's context", file=messages)
    if found.num_tokens < args.tokens:
        print(
            f"all prompts are answered and gave {found.num_tokens:,} tokens of the {args.tokens:,} asked for; give "
            "more prompts with --prompts, or longer answers with --max-tokens",
            file=messages,
        )
    return found


def device_of(args: argparse.Namespace) -> str:
    """Where to train."""
    import torch

    return args.device or ("cuda" if torch.cuda.is_available() else "cpu")


def checkpoint_path(work: Path, identity: Mapping[str, Any]) -> Path:
    """Where a training that `identity` tells from others keeps its state."""
    told = json.dumps(identity, sort_keys=True)
    return work / f"training-{hashlib.sha256(told.encode()).hexdigest()[:12]}.pt"


def provenance_of(
    args: argparse.Namespace, command: str, fitting: FitSettings, figures: Mapping[str, Any]
) -> dict[str, Any]:
    """How something was made, to be stored with it: no secrets, and no paths of this machine."""
    import torch

    from vllm_specplug import __version__, provenance
    from vllm_specplug.bridge.contract import installed_version

    commit, changed = provenance.commit()
    return {
        "made_by": f"specplug {command}",
        "specplug": __version__,
        "vllm": installed_version(),
        "torch": torch.__version__,
        "commit": commit,
        "uncommitted_changes": changed,
        "machine": provenance.machine(),
        "target": Path(args.model).name,
        "prompts": "made by specplug" if args.prompts is None else args.prompts.name,
        "answers": {
            **asdict(_settings(args)),
            "model": Path(args.model).name,
            "engine_args": named(args.engine_args),
        },
        "training": asdict(fitting),
        "held_out": dict(figures),
    }


def _settings(args: argparse.Namespace) -> AnswerSettings:
    return AnswerSettings(
        args.model, args.tokens, args.max_tokens, args.temperature, args.seed, engine_args=args.engine_args
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error.msg} at column {error.colno}): {text!r}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, found {text!r}")
    return value
