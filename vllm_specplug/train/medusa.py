"""`specplug train-medusa`: heads for any target, from its own answers.

Prompts (given or made) -> the target's answers and hidden states -> training -> figures on held-out answers -> heads.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_specplug.compare.terminal import show_progress
from vllm_specplug.errors import ConfigError
from vllm_specplug.train.answers import AnswerSettings, collect
from vllm_specplug.train.prompts import TrainingPrompt, load_prompts, make_prompts

if TYPE_CHECKING:  # torch takes seconds to import, and every `specplug --help` reads this file
    from vllm_specplug.train.fit import FitSettings

#: Below this the gain would drown in what the figures leave out.
WORTH_SERVING = 1.1


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
    from vllm_specplug.medusa.heads import HeadsConfig
    from vllm_specplug.train.data import Answers, frequent_tokens
    from vllm_specplug.train.evaluate import evaluate
    from vllm_specplug.train.fit import FitSettings, fit
    from vllm_specplug.train.record import TARGET
    from vllm_specplug.train.target import TargetTensors, num_weights

    _check(args)
    files.check_replaceable(args.out, checkpoint.REPLACEABLE)
    started = time.time()
    messages = sys.stderr if args.json else sys.stdout
    work = args.work or args.out.with_name(args.out.name + ".work")
    prompts = _prompts(args)
    settings = AnswerSettings(
        args.model, args.tokens, args.max_tokens, args.temperature, args.seed, engine_args=args.engine_args
    )
    with show_progress() as show:
        chunks = collect(
            prompts,
            settings,
            work / "answers",
            lambda now: show("answer tokens", min(now.num_tokens, now.goal), now.goal),
        )
    training = Answers([file for file in chunks if file.name.startswith("train-")], args.heads)
    held_out = Answers([file for file in chunks if file.name.startswith("held-out-")], args.heads)
    target = TargetTensors.load(work / "answers" / TARGET)

    draft_token_ids, coverage = None, 1.0
    if args.draft_vocab:
        draft_token_ids, coverage = frequent_tokens(training, args.draft_vocab)
    config = HeadsConfig(
        kind=args.kind,
        num_heads=args.heads,
        hidden_size=training.hidden_size,
        vocab_size=len(target.input_embeddings),
        num_layers=args.layers,
        output=args.output,
        draft_vocab_size=None if draft_token_ids is None else len(draft_token_ids),
    )
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.manual_seed(args.seed)
    heads = target.new_heads(config, draft_token_ids).to(device)
    fitting = FitSettings(args.epochs, args.batch_size, args.learning_rate, seed=args.seed)
    with show_progress() as show:
        fit(
            heads,
            training,
            fitting,
            work / f"{config.kind}.checkpoint.pt",
            lambda step: show(f"training steps, loss {step.loss:.3f}", step.number, step.num_steps),
        )
    quality = evaluate(heads, held_out)
    weights = num_weights(args.model)
    draft_cost = [heads.num_weights_read(count) / weights if weights else 0.0 for count in range(1, args.heads + 1)]
    figures = {
        "num_training_tokens": len(training.tokens),
        "num_held_out_tokens": len(held_out.tokens),
        "draft_vocab_coverage": coverage,
        **asdict(quality),
        "draft_cost_ratio": draft_cost if weights else None,
        "predicted_speedup": [
            length / (1 + cost) for length, cost in zip(quality.acceptance_length, draft_cost, strict=True)
        ],
        "seconds": time.time() - started,
    }
    checkpoint.write(args.out, heads.to("cpu", torch.bfloat16), _provenance(args, settings, fitting, figures))
    _show(messages, figures, args.out)
    if args.json:
        print(json.dumps(figures))
    return 0 if max(figures["predicted_speedup"]) >= WORTH_SERVING else 1


def _check(args: argparse.Namespace) -> None:
    """Refuse what cannot be trained, before anything is loaded."""
    missing = [name for name in ("torch", "safetensors", "transformers", "vllm") if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"training needs {', '.join(missing)}, which is not installed; install vllm and 'vllm-specplug[train]'"
        )
    for name in ("heads", "tokens", "max_tokens", "epochs", "batch_size"):
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


def _prompts(args: argparse.Namespace) -> list[TrainingPrompt]:
    """The given ones, or all that we can make: which are held out must not depend on how many are needed."""
    if args.prompts is not None:
        return load_prompts(args.prompts)
    return make_prompts(None, args.seed)


def _provenance(
    args: argparse.Namespace, answers: AnswerSettings, fitting: FitSettings, figures: Mapping[str, Any]
) -> dict[str, Any]:
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
        "answers": {**asdict(answers), "model": Path(args.model).name},
        "training": asdict(fitting),
        "held_out": dict(figures),
    }


def _show(file: Any, figures: Mapping[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{figures['num_examples']:,} held-out tokens", title_justify="left")
    for heading in ("head", "top-1", "top-5", "tokens a round", "draft cost", "at best"):
        table.add_column(heading, justify="right")
    columns = ("top1", "top5", "acceptance_length", "predicted_speedup")
    rows = zip(*(figures[name] for name in columns), strict=True)
    costs = figures["draft_cost_ratio"]
    for number, (top1, top5, length, speedup) in enumerate(rows, start=1):
        cost = f"{costs[number - 1]:.1%}" if costs else "unknown"
        table.add_row(str(number), f"{top1:.3f}", f"{top5:.3f}", f"{length:.2f}", cost, f"{speedup:.2f}x")
    console = Console(file=file)
    console.print(table)
    best = max(range(len(figures["predicted_speedup"])), key=lambda index: figures["predicted_speedup"][index])
    speedup = figures["predicted_speedup"][best]
    coverage = figures["draft_vocab_coverage"]
    console.print(
        f"the draft vocabulary covers {coverage:.1%} of the answers; draft cost counts weights read", soft_wrap=True
    )
    if speedup < WORTH_SERVING:
        console.print(
            f"warning: at best {speedup:.2f} times no speculation, so these heads are not worth serving; train on more "
            "tokens (--tokens), on prompts like your traffic (--prompts), or draft fewer tokens of a larger target",
            soft_wrap=True,
        )
    config = {"method": "specplug:medusa", "model": str(out), "num_speculative_tokens": best + 1}
    console.print(f"heads: {out}\nserve: --speculative-config '{json.dumps(config)}'", soft_wrap=True, highlight=False)
