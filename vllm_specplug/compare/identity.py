"""What must be the same for two runs to be parts of one: compared before measured blocks are taken over."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from vllm_specplug import __version__, provenance
from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.workload import Workload

#: Settings that only say how what was measured is judged.
_JUDGING = ("margin", "near_tie_tolerance")
_MAX_SHOWN = 4
_MAX_CHARS = 60


def before_start(
    model: str, arms: Sequence[Arm], baseline: str, workload: Workload, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """What is known before an engine starts, as JSON.

    Args:
        settings: `settings.CompareSettings` as a dictionary, and `load`.
    """
    commit, dirty = provenance.commit()
    identity = {
        "model": model,
        "baseline": baseline,
        "arms": {arm.name: asdict(arm) for arm in arms},
        "order of arms": [arm.name for arm in arms],
        "settings": {key: value for key, value in settings.items() if key not in _JUDGING},
        "prompts": {
            "sha256": workload.sha256,
            "number": len(workload.prompts),
            "categories": list(workload.categories),
            "ids' sha256": _sha256([prompt.id for prompt in workload.prompts]),
        },
        "specplug": {"version": __version__, "commit": commit, "dirty": dirty},
        "machine": provenance.machine(),
    }
    return _as_json(identity)


def after_start(
    infos: Mapping[str, Mapping[str, Any]], token_ids: Mapping[str, Sequence[int]]
) -> dict[str, dict[str, Any]]:
    """What engines tell of themselves, as JSON; to be added to `before_start`.

    Args:
        infos: by arm, as `worker.Worker.start` returns them. The size of the KV cache is left out: on a GPU it depends
            a little on what else was there at the start.
        token_ids: by prompt id.
    """
    engines = {name: {key: value for key, value in info.items() if key != "kv_cache"} for name, info in infos.items()}
    return _as_json({"engines": engines, "tokens": {"sha256": _sha256(dict(token_ids))}})


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Values that differ, by dotted name; sections that one of the two does not have yet are not compared."""
    both = [key for key in there if key in here]
    old, new = (_flat({key: side[key] for key in both}) for side in (there, here))
    pairs = {name: (old.get(name), new.get(name)) for name in {**old, **new}}
    return {name: (before, now) for name, (before, now) in pairs.items() if before != now}


def shown(differing: Mapping[str, tuple[Any, Any]]) -> str:
    """For an error, for example 'settings.max_tokens is 64 there, 96 now'."""
    parts = [f"{name} is {_short(there)} there, {_short(here)} now" for name, (there, here) in differing.items()]
    more = len(parts) - _MAX_SHOWN
    return ", ".join(parts[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        return {name: leaf for key, part in value.items() for name, leaf in _flat(part, f"{prefix}.{key}").items()}
    return {prefix[1:]: value}


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 4] + " ..."


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _as_json(value: dict[str, Any]) -> dict[str, Any]:
    """As it reads back from a file: tuples are lists."""
    found: dict[str, Any] = json.loads(json.dumps(value))
    return found
