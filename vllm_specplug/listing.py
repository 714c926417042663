"""`specplug list`: the proposers found, where from, what they can do and which options they take."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin

from rich.table import Table
from rich.text import Text

from vllm_specplug import registry
from vllm_specplug.console import Console
from vllm_specplug.errors import ConfigError
from vllm_specplug.proposer import Capabilities, ProposerOptions, Runner

#: Of a step: in a table there is little room.
_SHORT = {"asynchronous": "async", "synchronous": "sync"}


def rows() -> list[dict[str, Any]]:
    """One dict per installed proposer; `error` instead of capabilities where it cannot be imported."""
    found: list[dict[str, Any]] = []
    for entry in registry.installed().values():
        row: dict[str, Any] = {"name": entry.name, "target": entry.target, "from": entry.distribution}
        try:
            proposer = entry.load()
        except ConfigError as error:
            row["error"] = str(error)
        else:
            capabilities = proposer.capabilities
            row |= {
                "summary": (proposer.__doc__ or "").strip().partition("\n")[0],
                "reads": "hidden states" if capabilities.reads_hidden_states else "tokens",
                "gives_probs": capabilities.gives_probs,
                "runners": sorted(capabilities.runners),
                "scheduling": {runner: _scheduling(capabilities, runner) for runner in sorted(capabilities.runners)},
                "options": _options(proposer.Options),
            }
        found.append(row)
    return found


def main(as_json: bool = False) -> int:
    """Print the proposers; 1 if one of them cannot be imported, else 0."""
    found = rows()
    if as_json:
        print(json.dumps(found, indent=2, default=str))
    else:
        _print(found)
    return 1 if any("error" in row for row in found) else 0


def _print(found: list[dict[str, Any]]) -> None:
    table = Table(show_edge=False, pad_edge=False)
    for heading in ("proposer", "reads", "hands over q", "runners", "options", "from"):
        table.add_column(heading, overflow="fold")
    for row in found:
        if "error" in row:
            table.add_row(row["name"], "", "", "", Text(row["error"], "red"), Text(row["from"]))
            continue
        options = "\n".join(
            f"{name}: {about['type']}" + (f" = {about['default']}" if "default" in about else " (required)")
            for name, about in row["options"].items()
        )
        table.add_row(
            row["name"],
            row["reads"],
            "yes" if row["gives_probs"] else "no",
            "\n".join(f"{runner} {_SHORT[scheduling]}" for runner, scheduling in row["scheduling"].items()),
            Text(options or "none"),
            Text(f"{row['from']}\n{row['target']}"),
        )
    Console().print(table)


def _scheduling(capabilities: Capabilities, runner: Runner) -> str:
    """Whether vLLM may plan a step while the device still works on the last one; options may cost that."""
    return "asynchronous" if runner == "v2" and capabilities.stays_on_device else "synchronous"


def _options(options: type[ProposerOptions]) -> dict[str, dict[str, Any]]:
    described: dict[str, dict[str, Any]] = {}
    for name, field in options.model_fields.items():
        about: dict[str, Any] = {"type": _type_name(field.annotation)}
        if not field.is_required():
            about["default"] = field.get_default(call_default_factory=True)
        if field.description:
            about["description"] = field.description
        described[name] = about
    return described


def _type_name(annotation: Any) -> str:
    """As an operator reads it: int, int | None, greedy | probabilistic."""
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
