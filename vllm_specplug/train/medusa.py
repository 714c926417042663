"""`specplug train-medusa`: heads for any target, from its own answers.

Prompts (given or made) -> the target's answers and hidden states -> training -> figures on held-out answers -> heads.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_specplug.errors import ConfigError
from vllm_specplug.progress import show_progress
from vllm_specplug.train import command

if TYPE_CHECKING:  # torch takes seconds to import, and every `specplug --help` reads this file
    from vllm_specplug.medusa.heads import MedusaHeads
    from vllm_specplug.train.data import Answers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `specplug train-medusa`."""
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
    defaults = {"epochs": 4, "batch_size": 512, "learning_rate": 1e-3}
    command.add_arguments(parser, "the set of heads", "answer tokens", defaults)


def main(args: argparse.Namespace) -> int:
    """Train heads.

    Returns:
        0; 1 when the heads are not worth serving.
    Raises:
        ConfigError: an argument is out of range or does not fit what a former run left.
        ModelError: the target cannot be run.
    """
    import torch

    from vllm_specplug.directories import check_replaceable
    from vllm_specplug.medusa import checkpoint
    from vllm_specplug.train.data import Answers
    from vllm_specplug.train.evaluate import evaluate
    from vllm_specplug.train.figures import figures_of, is_worth_serving, show_figures
    from vllm_specplug.train.fit import FitSettings
    from vllm_specplug.train.heads import fit_heads, identity_of

    _check(args)
    out = args.out.resolve()
    check_replaceable(out, checkpoint.REPLACEABLE)
    work = args.work or out.with_name(out.name + ".work")
    messages = sys.stderr if args.json else sys.stdout
    fitting = FitSettings(args.epochs, args.batch_size, args.learning_rate, seed=args.seed)
    started = time.time()
    with command.alone_in(work):
        found = command.collect_answers(args, work / "answers", messages)
        training, held_out = (Answers(chunks, args.heads) for chunks in (found.training, found.held_out))
        heads, coverage = _new_heads(args, training, work / "answers")
        state = command.checkpoint_path(work, identity_of(heads, training, fitting))
        with show_progress() as show:
            fit_heads(
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
        provenance = command.provenance_of(args, "train-medusa", fitting, figures)
        checkpoint.write(out, heads.to("cpu", torch.bfloat16), provenance)
    show_figures(messages, figures, args.out)
    if args.json:
        print(json.dumps(figures))
    return 0 if is_worth_serving(figures) else 1


def _new_heads(args: argparse.Namespace, training: Answers, folder: Path) -> tuple[MedusaHeads, float]:
    """Untrained heads, and which share of the answers' tokens they can draft."""
    import torch

    from vllm_specplug.medusa.heads import HeadsConfig
    from vllm_specplug.train.data import frequent_tokens
    from vllm_specplug.train.record import TARGET
    from vllm_specplug.train.target import TargetTensors

    target = TargetTensors.load(folder / TARGET)
    draft_token_ids, coverage = frequent_tokens(training.tokens, args.draft_vocab) if args.draft_vocab else (None, 1.0)
    config = HeadsConfig(
        kind=args.kind,
        num_heads=args.heads,
        hidden_size=training.hidden_size,
        vocab_size=len(target.input_embeddings),
        num_layers=args.layers,
        output=args.output,
        draft_vocab_size=None if draft_token_ids is None else len(draft_token_ids),
    )
    torch.manual_seed(args.seed)
    return target.new_heads(config, draft_token_ids).to(command.device_of(args)), coverage


def _check(args: argparse.Namespace) -> None:
    command.check(args, "heads")
    if args.layers < (1 if args.kind == "sequential" else 0):
        raise ConfigError(f"--layers is {args.layers}; sequential heads need 1 or more, independent ones 0 or more")
