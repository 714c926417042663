"""`specplug convert-medusa`: Medusa heads from one layout to another.

The layouts are ours, the one that vLLM's own Medusa class loads and that of the Medusa authors. What a layout cannot
say is refused, never dropped.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_specplug import __version__
from vllm_specplug.errors import ModelError

if TYPE_CHECKING:
    from vllm_specplug.medusa.checkpoint import Checkpoint, Layout

LAYOUTS = ("specplug", "vllm", "original")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `specplug convert-medusa`."""
    parser.add_argument("source", metavar="SOURCE", help="directory of the heads, of any of the three layouts")
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="directory to write; one that holds heads alone is replaced"
    )
    parser.add_argument(
        "--to",
        choices=LAYOUTS,
        default="specplug",
        help="layout: ours, that of vLLM's own `medusa`, that of the Medusa authors (%(default)s)",
    )
    parser.add_argument(
        "--target",
        metavar="MODEL_DIR",
        help="directory of the target; needed when its output layer must be copied, or its vocabulary's size is unsaid",
    )
    parser.add_argument("--json", action="store_true", help="print what was done as one JSON line")


def main(args: argparse.Namespace) -> int:
    """Convert, and say what was written.

    Raises:
        ModelError: the source or the target cannot be read, or the place cannot be written.
        ConfigError: the layout asked for cannot hold such heads.
    """
    done = convert(args.source, args.out, args.to, args.target)
    if args.json:
        print(json.dumps(done))
        return 0
    heads = done["heads"]
    drafted = heads["draft_vocab_size"]
    print(
        f"wrote {done['out']} ({done['to']} layout) from {args.source} ({done['from']} layout): {heads['num_heads']} "
        f"{heads['kind']} heads, hidden size {heads['hidden_size']}, vocabulary of {heads['vocab_size']}"
        + (f", drafting {drafted} of it" if drafted else "")
        + f", output {heads['output']}"
    )
    return 0


def convert(source: str | Path, out: str | Path, to: Layout, target: str | Path | None = None) -> dict[str, Any]:
    """Read heads of any layout and write them in another.

    Args:
        out: made, or replaced where it holds heads and nothing else.
        target: directory of the model that the heads belong to.
    Returns:
        out, from, to (layouts), heads (configuration as read) and provenance, as JSON.
    Raises:
        ModelError: the source or the target cannot be read or do not fit, or the place cannot be written.
        ConfigError: the layout asked for cannot hold such heads.
    """
    from vllm_specplug import target_files
    from vllm_specplug.directories import replace_directory
    from vllm_specplug.medusa import checkpoint, foreign_original, foreign_vllm

    source, out = Path(source), Path(out)
    if source.resolve() == out.resolve():
        raise ModelError(f"{out} is where the heads are read from; choose another directory for --out")
    sizes = None if target is None else target_files.sizes(Path(target))
    found = checkpoint.read(source, sizes[1] if sizes else None)
    config = found.config
    if sizes:
        checkpoint.check_fits(config, source, *sizes)
    provenance = _provenance(source, found, target)
    if to == "specplug":
        checkpoint.write(out, checkpoint.build(found), provenance)
    elif to == "vllm":
        foreign_vllm.check_writable(config)
        shares = config.output == "target"
        rows = target_files.output_rows(Path(target)) if target is not None and shares else None
        replace_directory(
            out,
            checkpoint.REPLACEABLE,
            lambda made: foreign_vllm.write(made, config, found.tensors, provenance, rows),
        )
    else:
        replace_directory(
            out,
            checkpoint.REPLACEABLE,
            lambda made: foreign_original.write(made, config, found.tensors, provenance),
        )
    return {"out": str(out), "from": found.layout, "to": to, "heads": config.model_dump(), "provenance": provenance}


def _provenance(source: Path, found: Checkpoint, target: str | Path | None) -> dict[str, Any]:
    """Where the written heads come from. Names alone: paths say more about a machine than about heads."""
    import torch

    from vllm_specplug import model_files
    from vllm_specplug.medusa import checkpoint

    provenance: dict[str, Any] = {
        "source": {
            "name": source.resolve().name,
            "layout": found.layout,
            "sha256": model_files.hashes(checkpoint.source_files(source)),
            "provenance": found.provenance,
        },
        "versions": {"vllm-specplug": __version__, "torch": str(torch.__version__), "python": sys.version.split()[0]},
    }
    if target is not None:
        provenance["target"] = Path(target).resolve().name
    return provenance
