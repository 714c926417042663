"""What is compared: an arm is a name, a `--speculative-config` and engine settings. Starts nothing."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_specplug.compare.endpoint_address import Endpoint, parse_endpoint
from vllm_specplug.errors import CompareError

BASELINE = "baseline"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve the target."""

    name: str
    speculative_config: dict[str, Any] | None = None
    """As in `--speculative-config`; None: no speculation."""
    engine_args: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of `vllm.LLM`; they win over the settings shared by all arms."""
    endpoint: Endpoint | None = None
    """A server that runs already; None: an engine of our own, which the two above are for."""


def parse_arm(text: str) -> Arm:
    """Read `name=JSON` of the command line.

    JSON is a speculative config or null. Its key `engine_args`, when there, is taken out and becomes `Arm.engine_args`.
    With a key `endpoint` it is a server that runs already (`endpoint_address.parse_endpoint`).

    Raises:
        CompareError: it reads otherwise.
    """
    name, separator, value = text.partition("=")
    if not separator or not _NAME.fullmatch(name):
        shown = text if not _may_hold_secrets(text) else f"{text[:20]} ..."
        raise CompareError(
            f"arm {shown!r} is not NAME=JSON; expected for example "
            '\'ngram={"method": "ngram", "num_speculative_tokens": 5}\' or \'plain=null\''
        )
    shown = "" if _may_hold_secrets(value) else f": {value!r}"
    try:
        config = json.loads(value)
    except json.JSONDecodeError as error:
        raise CompareError(f"arm {name!r}: not JSON ({error.msg} at column {error.colno}){shown}") from error
    if config is None:
        return Arm(name)
    if not isinstance(config, dict):
        raise CompareError(f"arm {name!r}: expected a JSON object or null, found {value!r}")
    if "endpoint" in config:
        return Arm(name, endpoint=parse_endpoint(name, config))
    engine_args = config.pop("engine_args", {})
    if not isinstance(engine_args, dict):
        raise CompareError(f"arm {name!r}: 'engine_args' must be a JSON object, found {engine_args!r}")
    return Arm(name, config or None, engine_args)


def target_of(model: str | None, arms: Sequence[Arm]) -> str:
    """What is served: `model`, else what the first endpoint calls its own.

    Raises:
        CompareError: there is an arm that is an engine of our own, and no model for it.
    """
    if model is not None:
        return model
    for arm in arms:
        if arm.endpoint is None:
            added = arm == Arm(BASELINE)
            raise CompareError(
                f"arm {arm.name!r} is an engine of our own, which needs --model"
                + ("; or name an endpoint to compare with: --baseline NAME" if added else "")
            )
    endpoint = arms[0].endpoint
    assert endpoint is not None
    return endpoint.model


def check_name(name: object) -> str:
    """The name of an arm, if it may be one.

    Raises:
        CompareError: it is no text, or holds what gates and files cannot spell.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise CompareError(
            f"{name!r} cannot be the name of an arm; expected letters, digits, '_', '.' and '-', beginning with a "
            "letter or digit"
        )
    return name


def without_secrets(argv: Sequence[str]) -> list[str]:
    """A command line as reports may show it: values of headers become '***'."""
    return [_masked(argument) if _may_hold_secrets(argument) else argument for argument in argv]


def _may_hold_secrets(text: str) -> bool:
    return '"headers"' in text


def _masked(argument: str) -> str:
    start = argument.index("{") if "{" in argument else len(argument)
    try:
        config = json.loads(argument[start:])
        config["headers"] = dict.fromkeys(config["headers"], "***")
    except (ValueError, KeyError, TypeError):
        return argument[:start] + "***"  # nothing that was run; better too little than a secret
    return argument[:start] + json.dumps(config)


def with_second_baseline(arms: Sequence[Arm], baseline: str = BASELINE) -> list[Arm]:
    """The arms and a copy of the baseline, `NAME_again`: whatever it is found to differ by is noise."""
    default = Arm(BASELINE) if baseline == BASELINE else None
    found = next((arm for arm in arms if arm.name == baseline), default)
    # A baseline that does not exist is for `with_baseline` to refuse.
    return list(arms) if found is None else [*arms, replace(found, name=f"{baseline}_again")]


def with_baseline(arms: Sequence[Arm], baseline: str = BASELINE) -> list[Arm]:
    """The arms with the one they are compared against in front.

    An arm named `baseline` without speculation is added when none of that name was given; any other name must exist.

    Raises:
        CompareError: a name is used twice, the baseline does not exist, or there is nothing to compare.
    """
    names = [arm.name for arm in arms]
    for name in names:
        if names.count(name) > 1:
            raise CompareError(f"arm name {name!r} is used {names.count(name)} times; names must differ")
    if baseline == BASELINE and BASELINE not in names:
        arms = [Arm(BASELINE), *arms]
    elif baseline not in names:
        close = difflib.get_close_matches(baseline, names, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise CompareError(f"the baseline {baseline!r} is not among the arms: {', '.join(names)}.{hint}")
    if len(arms) < 2:
        raise CompareError("one arm alone cannot be compared; add another with --arm NAME=JSON or --aa")
    return sorted(arms, key=lambda arm: arm.name != baseline)
