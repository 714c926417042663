"""`specplug train-medusa`: heads for any target, from its own answers.

Prompts (given or made) -> the target's answers and hidden states -> training -> figures on held-out answers -> heads.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from vllm_specplug.compare.terminal import show_progress
from vllm_specplug.errors import ConfigError
from vllm_specplug.train.answers import AnswerSettings, Collected, collect, named
from vllm_specplug.train.prompts import load_prompts, make_prompts

if TYPE_CHECKING:  # torch takes seconds to import, and every `specplug --help` reads this file
    from vllm_specplug.medusa.heads import MedusaHeads
    from vllm_specplug.train.data import Answers
    from vllm_specplug.train.fit import FitSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `specplug train-medusa`."""
    parser.add_argument("--model", required=True, metavar="M", help="the target, as vLLM takes it")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="where the heads go")
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE", help='JSONL, {"prompt": ...} a line; made when left out'
    )
    parser.add_argument("--heads", type=int, default=3, metavar="N", help="how many (%(default)s)")
    parser.add_argument(
        "--kind",
        choices=("sequential", "independent"),
        default="sequential",
        help="sequential heads read the tokens drafted before them (Hydra), independent ones do not (%(default)s)",
    )
    parser.add_argument("--layers", type=int, default=1, metavar="N", help="residual blocks of a head (%(default)s)")
    parser.add_argument(
        "--output",
        choices=("target", "shared", "own"),
        default="target",
        help="output layer: the target's, one for all heads, one for each (%(default)s)",
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
    parser.add_argument("--epochs", type=int, default=4, metavar="N", help="(%(default)s)")
    parser.add_argument("--batch-size", type=int, default=512, metavar="N", help="(%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, metavar="X", help="(%(default)s)")
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


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error.msg} at column {error.colno}): {text!r}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, found {text!r}")
    return value


def main(args: argparse.Namespace) -> int:
    """Train heads.

    Returns:
        0; 1 when the heads are not worth serving.
    Raises:
        ConfigError: an argument is out of range or does not fit what a former run left.
        ModelError: the target cannot be run.
    """
    import torch

    from vllm_specplug.medusa import checkpoint, files
    from vllm_specplug.train.data import Answers
    from vllm_specplug.train.evaluate import evaluate
    from vllm_specplug.train.figures import figures_of, is_worth_serving, show_figures
    from vllm_specplug.train.fit import FitSettings, fit, identity_of

    _check(args)
    out = args.out.resolve()
    files.check_replaceable(out, checkpoint.REPLACEABLE)
    work = args.work or out.with_name(out.name + ".work")
    messages = sys.stderr if args.json else sys.stdout
    fitting = FitSettings(args.epochs, args.batch_size, args.learning_rate, seed=args.seed)
    started = time.time()
    with _alone_in(work):
        found = _answers(args, work / "answers", messages)
        training, held_out = (Answers(chunks, args.heads) for chunks in (found.training, found.held_out))
        heads, coverage = _new_heads(args, training, work / "answers")
        identity = json.dumps(identity_of(heads, training, fitting), sort_keys=True)
        state = work / f"training-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.pt"
        with show_progress() as show:
            fit(
                heads,
                training,
                fitting,
                state,
                lambda step: show(f"training steps, loss {step.loss:.3f}", step.number, step.num_steps),
            )
        figures = {
            "num_training_tokens": len(training.tokens),
            "num_held_out_tokens": len(held_out.tokens),
            "draft_vocab_coverage": coverage,
            **figures_of(heads, evaluate(heads, held_out), args.model),
            "seconds": time.time() - started,
        }
        checkpoint.write(out, heads.to("cpu", torch.bfloat16), _provenance(args, fitting, figures))
    show_figures(messages, figures, args.out)
    if args.json:
        print(json.dumps(figures))
    return 0 if is_worth_serving(figures) else 1


@contextmanager
def _alone_in(work: Path) -> Iterator[None]:
    """Two runs in one folder would spoil each other's answers."""
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


def _answers(args: argparse.Namespace, folder: Path, messages: TextIO) -> Collected:
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


def _settings(args: argparse.Namespace) -> AnswerSettings:
    return AnswerSettings(
        args.model, args.tokens, args.max_tokens, args.temperature, args.seed, engine_args=args.engine_args
    )


def _new_heads(args: argparse.Namespace, training: Answers, folder: Path) -> tuple[MedusaHeads, float]:
    """Untrained heads, and which share of the answers' tokens they can draft."""
    import torch

    from vllm_specplug.medusa.heads import HeadsConfig
    from vllm_specplug.train.data import frequent_tokens
    from vllm_specplug.train.record import TARGET
    from vllm_specplug.train.target import TargetTensors

    target = TargetTensors.load(folder / TARGET)
    draft_token_ids, coverage = frequent_tokens(training, args.draft_vocab) if args.draft_vocab else (None, 1.0)
    config = HeadsConfig(
        kind=args.kind,
        num_heads=args.heads,
        hidden_size=training.hidden_size,
        vocab_size=len(target.input_embeddings),
        num_layers=args.layers,
        output=args.output,
        draft_vocab_size=None if draft_token_ids is None else len(draft_token_ids),
    )
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(args.seed)
    return target.new_heads(config, draft_token_ids).to(device), coverage


def _check(args: argparse.Namespace) -> None:
    """Refuse what cannot be trained, before anything is loaded."""
    missing = [name for name in ("torch", "safetensors", "transformers", "vllm") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"training needs {', '.join(missing)}, which is not installed; install vllm and 'vllm-specplug[train]'"
        )
    for name in ("heads", "tokens", "epochs", "batch_size"):
        if getattr(args, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {getattr(args, name)}; expected 1 or more")
    if args.max_tokens < 2:
        raise ConfigError(f"--max-tokens is {args.max_tokens}; expected 2 or more, as heads guess what follows a token")
    if args.layers < (1 if args.kind == "sequential" else 0):
        raise ConfigError(f"--layers is {args.layers}; sequential heads need 1 or more, independent ones 0 or more")
    if args.draft_vocab < 0:
        raise ConfigError(f"--draft-vocab is {args.draft_vocab}; expected a number of tokens, or 0 for all")
    if args.temperature < 0:
        raise ConfigError(f"--temperature is {args.temperature}; expected 0 (greedy) or more")
    if args.learning_rate <= 0:
        raise ConfigError(f"--learning-rate is {args.learning_rate}; expected more than 0")


def _provenance(args: argparse.Namespace, fitting: FitSettings, figures: Mapping[str, Any]) -> dict[str, Any]:
    from vllm_specplug.compare import provenance

    commit, changed = provenance.commit()
    import torch

    from vllm_specplug.bridge.contract import installed_version

    return {
        "made_by": "specplug train-medusa",
        "specplug": provenance.specplug_version(),
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
