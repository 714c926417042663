"""What one request may ask for: `specplug_max_drafts` in `SamplingParams.extra_args` (over HTTP: `vllm_xargs`).

Checked in the front-end, where a bad value is the client's 400, and read again in the worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vllm_specplug.bridge import patches

KEY = "specplug_max_drafts"
_PREFIX = "specplug_"


def parse_max_drafts(extra_args: Mapping[str, Any] | None) -> int | None:
    """How many tokens the request lets us draft in a step; None: as many as the server does.

    Over HTTP vLLM passes numbers on as floats or strings where a client wrote them so; 4.0 is taken, "4" is not.

    Raises:
        ValueError: the value is no whole number of 0 or more, or another `specplug_` key was given.
    """
    if not extra_args:
        return None
    for key in extra_args:
        if isinstance(key, str) and key.startswith(_PREFIX) and key != KEY:
            raise ValueError(
                f"unknown request option {key!r}; vllm-specplug knows {KEY!r} (a whole number of 0 or more)"
            )
    value = extra_args.get(KEY)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(
            f"{KEY} is {value!r}; expected a whole number of 0 or more (0: no speculation for this request)"
        )
    return value


def limit_of(params: Any) -> int | None:
    """The limit in a request's SamplingParams, where nobody checked it before: a bad one is no limit.

    `Drafter.note` says so, and drafts nothing.
    """
    try:
        return parse_max_drafts(params.extra_args)
    except ValueError:
        return None


def install() -> Callable[[], None]:
    """Check the option of every request to an engine that uses one of our proposers.

    vLLM asks each request's sampling parameters whether they go with the speculative configuration; we ask along.
    Unnecessary once plugins may validate `extra_args`.
    """
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams

    from vllm_specplug.bridge.config import proposer_spec

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _validate_spec_decode(self: Any, speculative_config: Any) -> None:
            original(self, speculative_config)
            if proposer_spec(speculative_config) is not None:
                try:
                    parse_max_drafts(self.extra_args)
                except ValueError as error:
                    raise VLLMValidationError(str(error), parameter="vllm_xargs") from error

        return _validate_spec_decode

    return patches.wrap(SamplingParams, "_validate_spec_decode", make)
