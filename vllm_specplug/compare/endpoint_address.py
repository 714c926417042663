"""Where a running endpoint is and how to be let in. Secrets stay in here: no report and no journal gets them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from vllm_specplug.errors import CompareError

_KEYS = ("endpoint", "model", "api_key_env", "headers")


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server that runs already. Its fields may be written down; its secrets are no fields."""

    url: str
    """Up to `/v1`, without a slash at its end."""
    model: str
    """As the server calls it."""
    api_key_env: str | None = None
    """Environment variable with the key; None: no key."""
    _: KW_ONLY
    headers: InitVar[Mapping[str, str] | None] = None
    header_names: tuple[str, ...] = field(init=False)

    def __post_init__(self, headers: Mapping[str, str] | None) -> None:
        # Attributes that are no fields: dataclasses.asdict, which reports and journals use, does not see them.
        object.__setattr__(self, "_headers", dict(headers or {}))
        object.__setattr__(self, "header_names", tuple(headers or ()))

    @property
    def root(self) -> str:
        """Where vLLM has what is not OpenAI's: /tokenize, /metrics, /version."""
        return self.url.removesuffix("/v1")

    def secret_headers(self) -> dict[str, str]:
        """What every request has to carry.

        Raises:
            CompareError: the variable that should hold the key is not set.
        """
        found: dict[str, str] = dict(vars(self)["_headers"])
        if self.api_key_env is not None:
            key = os.environ.get(self.api_key_env)
            if not key:
                raise CompareError(
                    f"the environment variable {self.api_key_env!r} should hold the key of {self.url} and is not set; "
                    "export it or leave 'api_key_env' out"
                )
            found["Authorization"] = f"Bearer {key}"
        return found


def parse_endpoint(arm: str, value: Mapping[str, Any]) -> Endpoint:
    """Read `{"endpoint": URL, "model": NAME, "api_key_env": VARIABLE, "headers": {NAME: TEXT}}`.

    Args:
        arm: its name, for errors.
    Raises:
        CompareError: a key is unknown, missing or holds something else. No value of a header is named.
    """
    for key in value:
        if key not in _KEYS:
            close = difflib.get_close_matches(str(key), _KEYS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise CompareError(f"arm {arm!r}: an endpoint has no {key!r}; it has {', '.join(_KEYS)}.{hint}")
    for key in ("endpoint", "model"):
        if not isinstance(value.get(key), str) or not value[key]:
            raise CompareError(f"arm {arm!r}: {key!r} of an endpoint must be a text, found {value.get(key)!r}")
    variable = value.get("api_key_env")
    if variable is not None and (not isinstance(variable, str) or not variable.isidentifier()):
        # Not shown: who writes the key itself here must not find it in a log.
        raise CompareError(f"arm {arm!r}: 'api_key_env' must be the name of an environment variable that holds the key")
    headers = value.get("headers") or {}
    if not isinstance(headers, dict) or not all(isinstance(part, str) for pair in headers.items() for part in pair):
        raise CompareError(f"arm {arm!r}: 'headers' must be an object of texts, found {type(headers).__name__}")
    return Endpoint(_url(arm, value["endpoint"]), value["model"], variable, headers=headers)


def _url(arm: str, text: str) -> str:
    parts = urlsplit(text)
    if parts.username is not None or parts.password is not None:
        raise CompareError(f"arm {arm!r}: the address of an endpoint must hold no password; use 'api_key_env'")
    try:
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:  # a port that is no number
        usable = False
    if not usable or parts.query or parts.fragment:
        raise CompareError(f"arm {arm!r}: 'endpoint' is {text!r}, expected for example 'http://localhost:8000/v1'")
    return text.rstrip("/")
