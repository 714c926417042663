"""From the dict of `--speculative-config` to a proposer and its checked options.

Three kinds of keys may stand in that dict: `method`, keys of vLLM's own that keep their meaning, and the proposer's
options. Everything else is refused with a suggestion. Knows the names of vLLM's keys, but nothing of vLLM.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from vllm_specplug.errors import OptionsError
from vllm_specplug.proposer import Proposer, ProposerOptions
from vllm_specplug.registry import Registry, installed, load_class

PREFIX = "specplug:"

#: Keys of vLLM's SpeculativeConfig that mean the same with any proposer. A proposer may claim others (`model`,
#: `draft_sample_method`, ...) by naming them in its Options.
ENGINE_KEYS = frozenset(
    {
        "num_speculative_tokens",
        "num_speculative_tokens_per_batch_size",
        "rejection_sample_method",
        "synthetic_acceptance_rates",
        "synthetic_acceptance_length",
    }
)

#: vLLM's rejection sampler takes no more (MAX_SPEC_LEN in vllm/v1/sample/rejection_sampler.py).
MAX_NUM_SPECULATIVE_TOKENS = 128


@dataclass(frozen=True, slots=True)
class ProposerSpec:
    """A proposer and its options, ready to travel to another process: plain data only."""

    name: str
    """As the operator wrote it, without the prefix."""
    target: str
    """'module:Class'."""
    options: Mapping[str, Any]
    num_speculative_tokens: int
    engine_keys: Mapping[str, Any]
    """vLLM's own keys besides `num_speculative_tokens`, unchanged."""

    def proposer_class(self) -> type[Proposer]:
        """Import the class.

        Raises:
            ConfigError: it cannot be imported.
        """
        return load_class(self.target, f"proposer {self.name!r}")

    def parsed_options(self) -> ProposerOptions:
        """The options as the proposer's own class of them.

        Raises:
            OptionsError: they do not fit.
        """
        return _parse(self.name, self.proposer_class().Options, self.options)


def is_ours(method: object) -> bool:
    """Whether a `method` carries our prefix."""
    return isinstance(method, str) and method.startswith(PREFIX)


def resolve(config: Mapping[str, Any], registry: Registry | None = None) -> ProposerSpec:
    """Find the proposer that `config` asks for and check all it says.

    Args:
        config: the dict of `--speculative-config`, with or without the prefix in `method`.
        registry: what to look the name up in; the installed ones by default.
    Raises:
        ConfigError: no such proposer, or it cannot be imported.
        OptionsError: a key is unknown, missing, of the wrong type or out of range.
    """
    name = str(config["method"]).removeprefix(PREFIX)
    entry = (installed() if registry is None else registry).find(name)
    options_class = entry.load().Options
    engine_keys: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for key, value in config.items():
        if key == "method":
            continue
        if key in options_class.model_fields:
            options[key] = value
        elif key in ENGINE_KEYS:
            engine_keys[key] = value
        else:
            raise OptionsError(_unknown_key(name, key, options_class))
    num_speculative_tokens = _check_num_speculative_tokens(name, engine_keys.pop("num_speculative_tokens", None))
    _parse(name, options_class, options)
    return ProposerSpec(name, entry.target, options, num_speculative_tokens, engine_keys)


def _check_num_speculative_tokens(name: str, value: object) -> int:
    expected = f"expected a whole number from 1 to {MAX_NUM_SPECULATIVE_TOKENS}"
    if value is None:
        raise OptionsError(
            f'proposer {name!r}: num_speculative_tokens is missing; {expected}, e.g. "num_speculative_tokens": 8'
        )
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_NUM_SPECULATIVE_TOKENS:
        raise OptionsError(
            f"proposer {name!r}: num_speculative_tokens is {value!r}; {expected}. "
            "To serve without speculation leave --speculative-config out"
        )
    return value


def _parse(name: str, options_class: type[ProposerOptions], options: Mapping[str, Any]) -> ProposerOptions:
    try:
        return options_class.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        what = str(first["msg"]).removeprefix("Value error, ")
        if not where:  # a rule between options says itself what it is about
            raise OptionsError(f"proposer {name!r}: {what}") from error
        raise OptionsError(f"proposer {name!r}: option {where} is {first['input']!r}: {what}") from error


def _unknown_key(name: str, key: str, options_class: type[ProposerOptions]) -> str:
    known = sorted({*options_class.model_fields, *ENGINE_KEYS})
    close = difflib.get_close_matches(key, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"proposer {name!r} has no option {key!r}; it takes: {', '.join(known)}.{hint}"
