"""`specplug distill-draft`: a small draft model for a target that has no small sibling.

Prompts (given or made) -> the target's answers and hidden states -> some of its layers, trained to match its
distribution there -> figures on held-out answers -> a model directory.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.table import Table

from vllm_specplug import theory
from vllm_specplug.console import Console
from vllm_specplug.errors import ConfigError, ModelError
from vllm_specplug.progress import show_progress
from vllm_specplug.train import command

if TYPE_CHECKING:  # torch takes seconds to import, and every `specplug --help` reads this file
    from vllm_specplug.train.draft import Draft, DraftQuality

#: Below this the gain would drown in what the figures leave out.
WORTH_SERVING = 1.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `specplug distill-draft`."""
    parser.add_argument(
        "--layers",
        type=_layers,
        default=3,
        metavar="N|LIST",
        help="layers of the target to begin with: how many, evenly spread, or which, as 0,1,29 (%(default)s)",
    )
    defaults = {"epochs": 4, "batch_size": 4096, "learning_rate": 1e-3}
    command.add_arguments(parser, "the draft", "tokens", defaults)


def main(args: argparse.Namespace) -> int:
    """Distil a draft.

    Returns:
        0; 1 when the draft is not worth serving.
    Raises:
        ConfigError: an argument is out of range or does not fit what a former run left.
        ModelError: the target cannot be run or read.
    """
    command.check(args)
    import torch

    from vllm_specplug.directories import check_replaceable
    from vllm_specplug.train import draft_files
    from vllm_specplug.train.draft import evaluate_draft, fit_draft, identity_of
    from vllm_specplug.train.fit import FitSettings
    from vllm_specplug.train.record import TARGET
    from vllm_specplug.train.target import TargetTensors
    from vllm_specplug.train.texts import Texts

    target = _directory(args.model)
    check_replaceable(args.out.resolve(), draft_files.replaceable(target))
    work = args.work or args.out.resolve().with_name(args.out.name + ".work")
    messages = sys.stderr if args.json else sys.stdout
    fitting = FitSettings(args.epochs, args.batch_size, args.learning_rate, seed=args.seed, checkpoint_every=50)
    started = time.time()
    with command.alone_in(work):
        found = command.collect_answers(args, work / "answers", messages)
        training, held_out = Texts(found.training), Texts(found.held_out)
        torch.manual_seed(args.seed)
        draft, coverage = _new_draft(args, target, training.tokens)
        with show_progress() as show:
            fit_draft(
                draft,
                training,
                fitting,
                command.checkpoint_path(work, identity_of(draft, training, fitting)),
                lambda step: show(f"training steps, loss {step.loss:.3f}", step.number, step.num_steps),
            )
        whole_output = TargetTensors.load(work / "answers" / TARGET).output_embeddings
        figures = {
            "num_training_tokens": len(training.tokens),
            "num_held_out_tokens": len(held_out.tokens),
            "layers": list(draft.layers),
            "draft_vocab_coverage": coverage,
            **_figures(draft, evaluate_draft(draft, held_out, whole_output), args.model),
            "seconds": time.time() - started,
        }
        provenance = command.provenance_of(args, "distill-draft", fitting, figures)
        draft_files.write(args.out, draft, target, provenance)
    _show(messages, figures, args.out)
    if args.json:
        print(json.dumps(figures))
    return 0 if _best(figures)[1] >= WORTH_SERVING else 1


def _layers(text: str) -> int | tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.removesuffix(",").split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number or a list of numbers: {text!r}") from None
    if len(numbers) == 1 and "," not in text:
        if numbers[0] < 1:
            raise argparse.ArgumentTypeError(f"expected 1 layer or more, found {text!r}")
        return numbers[0]
    if list(numbers) != sorted(set(numbers)) or numbers[0] < 0:
        raise argparse.ArgumentTypeError(f"expected different layers from 0 on in ascending order, found {text!r}")
    return numbers


def _directory(model: str) -> Path:
    """Where the target's files are; those of a hub are fetched, as vLLM does."""
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, ignore_patterns=["*.bin", "*.pt", "*.gguf", "original/*"]))
    except Exception as error:  # whatever a hub or its absence raises
        raise ModelError(
            f"{model} is no directory, and no hub gives it ({type(error).__name__}); name the target's directory"
        ) from error


def _new_draft(args: argparse.Namespace, target: Path, tokens: Any) -> tuple[Draft, float]:
    """An untrained draft, and which share of the answers' tokens it can draft."""
    from transformers import AutoConfig

    from vllm_specplug.train.data import frequent_tokens
    from vllm_specplug.train.draft import new_draft, spread_layers

    layers = args.layers
    if isinstance(layers, int):
        num_layers = getattr(AutoConfig.from_pretrained(target), "num_hidden_layers", 0)
        if layers > num_layers:
            raise ConfigError(f"--layers is {layers}, but the target has {num_layers}")
        layers = spread_layers(layers, num_layers)
    token_ids, coverage = frequent_tokens(tokens, args.draft_vocab) if args.draft_vocab else (None, 1.0)
    return new_draft(target, layers, token_ids, command.device_of(args)), coverage


def _figures(draft: Draft, quality: DraftQuality, model: str) -> dict[str, Any]:
    """The figures, and what the draft could gain at best where reading weights is all that costs time."""
    from vllm_specplug.train.target import num_weights

    weights = num_weights(model)
    trained = sum(parameter.numel() for parameter in draft.model.parameters() if parameter.requires_grad)
    cost = weights and (trained + draft.output.numel()) / weights
    return {
        **asdict(quality),
        "draft_cost_ratio": cost,
        "predicted_speedup": cost
        and [
            theory.step_speedup(length, count * cost, 1.0) for count, length in enumerate(quality.acceptance_length, 1)
        ],
    }


def _best(figures: Mapping[str, Any]) -> tuple[int, float]:
    """The best number of drafts and what it gains; where the cost is unknown, as if there were none."""
    gains = figures["predicted_speedup"] or figures["acceptance_length"]
    best = max(range(len(gains)), key=gains.__getitem__)
    return best + 1, gains[best]


def _show(file: TextIO, figures: Mapping[str, Any], out: Path) -> None:
    """Print the figures, a warning where the draft is not worth serving, and how to serve it."""
    table = Table(title=f"{figures['num_examples']:,} held-out tokens", title_justify="left")
    for heading in ("drafts", "tokens a round", "at best"):
        table.add_column(heading, justify="right")
    for count, length in enumerate(figures["acceptance_length"], 1):
        speedups = figures["predicted_speedup"]
        table.add_row(str(count), f"{length:.2f}", f"{speedups[count - 1]:.2f}x" if speedups else "unknown")
    drafts, gain = _best(figures)
    cost = figures["draft_cost_ratio"]
    lines = [
        f"accepted at temperature 0: {figures['top1']:.3f}; at temperature 1, sum of min(p, q): "
        f"{figures['overlap']:.3f}; the draft vocabulary covers {figures['draft_vocab_coverage']:.1%} of the answers",
        f"a draft reads {f'{cost:.1%}' if cost else 'an unknown share'} of a step's weights; 'at best' assumes that "
        "checking drafts costs nothing",
    ]
    if gain < WORTH_SERVING:
        lines.append(
            f"warning: at best {gain:.2f} times no speculation, so this draft is not worth serving; train on more "
            "tokens (--tokens), longer (--epochs), on prompts like your traffic (--prompts), or for a larger target"
        )
    config = {"method": "specplug:draft_model", "model": str(out), "num_speculative_tokens": drafts}
    lines += [f"draft: {out}", f"serve: --speculative-config '{json.dumps(config)}'"]
    console = Console(file=file)
    console.print(table)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
