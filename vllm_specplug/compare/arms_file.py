"""Arms from a YAML file: a name for each, offline engines and running endpoints alike."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_specplug import jsonl
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
    rows = _mapping(file, jsonl.read_text(file, "the arms", CompareError))
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


def _mapping(file: Path, text: str) -> Mapping[Any, Any]:
    try:
        import yaml
    except ImportError as error:
        raise CompareError(
            "--arms needs PyYAML, which is not installed; pip install 'vllm-specplug[compare]'"
        ) from error

    class Loader(yaml.SafeLoader):
        """Refuses what YAML's own loader overwrites in silence: a key that comes twice."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for key in keys:
                if keys.count(key) > 1:
                    line = node.start_mark.line + 1
                    raise CompareError(
                        f"{file}: {key!r} is there {keys.count(key)} times in what begins at line {line}"
                    )
            return super().construct_mapping(node, deep)

    try:
        found = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f":{mark.line + 1}"
        raise CompareError(f"{file}{where}: not YAML ({getattr(error, 'problem', None) or error})") from error
    if not isinstance(found, dict) or not found:
        raise CompareError(f"{file}: expected a mapping of arms' names, for example 'baseline: null'; found {found!r}")
    return found
