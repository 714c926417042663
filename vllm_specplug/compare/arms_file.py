"""Arms from a YAML file: a name for each, offline engines and running endpoints alike."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_specplug import strict_yaml
from vllm_specplug.compare.arms import Arm, check_name
from vllm_specplug.compare.endpoint_address import parse_endpoint
from vllm_specplug.errors import CompareError

#: Keys beside the arms, so no arm may have these names.
_DEFAULTS = ("model", "prompts")
_ENGINE_KEYS = ("speculative_config", "engine_args")


@dataclass(frozen=True, slots=True)
class ArmsFile:
    """What a file of arms holds."""

    arms: tuple[Arm, ...]
    """In the order of the file."""
    model: str | None = None
    """Target of the offline arms, where the command line names none."""
    prompts: Path | None = None
    """Prompts, where the command line names none; relative to the file's own folder."""


def load_arms(path: str | Path) -> ArmsFile:
    """Read a YAML file.

    ```
    model: path/to/target         # optional
    prompts: prompts.jsonl        # optional
    baseline: null
    medusa: {speculative_config: {method: "specplug:medusa", model: heads}, engine_args: {max_num_seqs: 8}}
    staging: {endpoint: "http://localhost:8000/v1", model: name, api_key_env: STAGING_KEY}
    ```

    Raises:
        CompareError: the file cannot be read, or what is wrong in it, with the arm's name.
    """
    file = Path(path)
    expected = "a mapping of arms' names, for example 'baseline: null'"
    rows = strict_yaml.load_mapping(file, "the arms", CompareError, expected)
    for key in _DEFAULTS:
        if rows.get(key) is not None and not isinstance(rows[key], str):
            raise CompareError(f"{file}: {key!r} must be a text, found {rows[key]!r}; no arm can have this name")
    prompts = rows.get("prompts")
    try:
        arms = tuple(_arm(check_name(name), value) for name, value in rows.items() if name not in _DEFAULTS)
    except CompareError as error:
        raise CompareError(f"{file}: {error}") from error
    return ArmsFile(arms, rows.get("model"), None if prompts is None else file.parent / prompts)


def _arm(name: str, value: Any) -> Arm:
    if value is None:
        return Arm(name)
    if not isinstance(value, dict):
        raise CompareError(f"arm {name!r}: expected {', '.join(_ENGINE_KEYS)} or an endpoint, or null; found {value!r}")
    if "endpoint" in value:
        return Arm(name, endpoint=parse_endpoint(name, value))
    for key in value:
        if key not in _ENGINE_KEYS:
            close = difflib.get_close_matches(str(key), (*_ENGINE_KEYS, "endpoint"), n=1)
            hint = f"Did you mean {close[0]!r}?" if close else "A speculative config goes under 'speculative_config'."
            raise CompareError(f"arm {name!r}: unknown key {key!r}; there are {', '.join(_ENGINE_KEYS)}. {hint}")
    config, arguments = (_object(name, key, value.get(key)) for key in _ENGINE_KEYS)
    return Arm(name, config or None, arguments)


def _object(name: str, key: str, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise CompareError(f"arm {name!r}: {key!r} must be a mapping or null, found {value!r}")
    return value or {}
