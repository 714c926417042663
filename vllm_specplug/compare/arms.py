"""What is compared: an arm is a name, a `--speculative-config` and engine settings. Starts nothing."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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


def parse_arm(text: str) -> Arm:
    """Read `name=JSON` of the command line.

    JSON is a speculative config or null. Its key `engine_args`, when there, is taken out and becomes `Arm.engine_args`.

    Raises:
        CompareError: it reads otherwise.
    """
    name, separator, value = text.partition("=")
    if not separator or not _NAME.fullmatch(name):
        raise CompareError(
            f"arm {text!r} is not NAME=JSON; expected for example "
            '\'ngram={"method": "ngram", "num_speculative_tokens": 5}\' or \'plain=null\''
        )
    try:
        config = json.loads(value)
    except json.JSONDecodeError as error:
        raise CompareError(f"arm {name!r}: not JSON ({error.msg} at column {error.colno}): {value!r}") from error
    if config is None:
        return Arm(name)
    if not isinstance(config, dict):
        raise CompareError(f"arm {name!r}: expected a JSON object or null, found {value!r}")
    engine_args = config.pop("engine_args", {})
    if not isinstance(engine_args, dict):
        raise CompareError(f"arm {name!r}: 'engine_args' must be a JSON object, found {engine_args!r}")
    return Arm(name, config or None, engine_args)


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
