"""Lists of the tokens a draft model may draft: the target's most frequent ones, in a file beside the draft.

An output layer over some thousand rows costs a fraction of one over the whole vocabulary, and the rest is rarely right
anyway (FR-Spec, Zhao et al. 2025, arXiv:2502.14856).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from vllm_specplug.atomic import replacing
from vllm_specplug.errors import ModelError

#: Name of the list in a draft's directory.
FILE = "draft_vocab.json"

#: Stands for no list: every token can be drafted.
ALL = "all"


def find(option: str | None, model: str, vocab_size: int) -> list[int] | None:
    """The tokens that can be drafted, ascending.

    Args:
        option: a file, ALL, or None for the list stored with the draft.
        model: the draft's directory, where it is one.
        vocab_size: tokens that draft and target have.
    Returns:
        None where all can.
    Raises:
        ModelError: the list cannot be read or holds something else than tokens of the target.
    """
    if option == ALL:
        return None
    path = Path(model) / FILE if option is None else Path(option)
    if option is None and not path.is_file():
        return None
    return read(path, vocab_size)


def read(path: Path, vocab_size: int) -> list[int]:
    """Read a list.

    Raises:
        ModelError: as `find`.
    """
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"draft_vocab {path} cannot be read ({error}); give a JSON list of token ids") from error
    if not isinstance(found, list) or not found or not all(type(token) is int for token in found):
        raise ModelError(f"draft_vocab {path} should be a JSON list of token ids, and not empty")
    ids = sorted(set(found))
    if ids[0] < 0 or ids[-1] >= vocab_size:
        raise ModelError(
            f"draft_vocab {path} holds token {ids[0] if ids[0] < 0 else ids[-1]}, but 0 to {vocab_size - 1} can be "
            "drafted; make the list for this target"
        )
    return ids


def write(path: Path, token_ids: Sequence[int]) -> None:
    """Write a list, one line."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(sorted(token_ids), separators=(",", ":")) + "\n")
