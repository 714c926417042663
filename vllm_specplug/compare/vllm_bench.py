"""Reads what `vllm bench serve --save-result --save-detailed` wrote. Knows that file's fields, compares nothing.

Read from vllm/benchmarks/serve.py of 0.32. Files of 0.9 and later have the same lists; `latencies`, which older ones
lack, is the sum of the others. Prompts are not in the file.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_specplug.errors import CompareError

MADE_BY = "vllm bench serve --save-result --save-detailed"
#: What has to be the same for two files to say something of their arms.
TRAFFIC = ("model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency")


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request of the file."""

    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    e2e_s: float
    """To the last token."""
    text: str
    error: str
    """Empty: it was answered."""

    @property
    def tpot_s(self) -> float | None:
        """Mean time of an output token after the first; None for answers of one token."""
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def answered(self) -> bool:
        """Whether its times mean anything."""
        return not self.error and self.output_tokens > 0 and self.e2e_s > 0


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One file."""

    path: str
    sha256: str
    date: str
    """As vLLM writes it, 20260131-120000, local time."""
    duration_s: float
    traffic: Mapping[str, Any]
    """What it says of TRAFFIC; None where it says nothing."""
    requests: tuple[BenchRequest, ...]
    """In the order of the prompts."""
    acceptance: Mapping[str, Any] | None
    """The report's numbers of speculation; None: the file has none."""


def read_bench_result(path: str | Path) -> BenchResult:
    """Read and check one file.

    Raises:
        CompareError: it cannot be read, is not of `vllm bench serve`, or was saved without details; naming the file.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise CompareError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        row = json.loads(data)
    except (ValueError, RecursionError) as error:
        several = ", or hold several results (--append-result)" if "Extra data" in str(error) else ""
        raise CompareError(f"{path} is not one JSON object ({error}); it may be cut short{several}") from error
    if not isinstance(row, dict):
        raise CompareError(f"{path} holds a {type(row).__name__}, expected an object that {MADE_BY} wrote")
    lists = _lists(row, str(path))
    return BenchResult(
        path=str(path),
        sha256=hashlib.sha256(data).hexdigest(),
        date=str(row.get("date", "")),
        duration_s=_field(row, "duration", _positive, "a number of seconds above 0", str(path)),
        traffic={key: row.get(key) for key in TRAFFIC},
        requests=tuple(BenchRequest(*values) for values in zip(*(lists[key] for key in _ORDER), strict=True)),
        acceptance=_acceptance(row, str(path)),
    )


def _time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _positive(value: Any) -> bool:
    return _time(value) and value > 0


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _times(value: Any) -> bool:
    return isinstance(value, list) and all(map(_time, value))


_Check = Callable[[Any], bool]

#: By field of the file: what each of its entries is.
_LISTS: Mapping[str, tuple[_Check, str]] = {
    "input_lens": (_count, "a count"),
    "output_lens": (_count, "a count"),
    "ttfts": (_time, "seconds"),
    "itls": (_times, "a list of seconds"),
    "generated_texts": (_text, "a text"),
    "errors": (_text, "a text"),
}
#: Fields of BenchRequest.
_ORDER = ("input_lens", "output_lens", "ttfts", "latencies", "generated_texts", "errors")


def _lists(row: Mapping[str, Any], path: str) -> dict[str, list[Any]]:
    """One entry for each request in each list; `latencies` is computed where the file lacks it."""
    found: dict[str, list[Any]] = {}
    for key, (check, expected) in _LISTS.items():
        if key not in row:
            raise CompareError(f"{path}: {key} is missing; expected a file of {MADE_BY} against a generating model")
        if not isinstance(row[key], list) or not row[key]:
            raise CompareError(f"{path}: {key} is {_short(row[key])}, expected a list with an entry for each request")
        for index, value in enumerate(row[key]):
            if not check(value):
                raise CompareError(f"{path}: {key}[{index}] is {_short(value)}, expected {expected}")
        found[key] = row[key]
    first = len(found["input_lens"])
    for key, values in found.items():
        if len(values) != first:
            raise CompareError(f"{path}: {key} has {len(values)} entries, input_lens {first}; expected as many")
    latencies = row.get("latencies")
    if latencies is None:
        latencies = [ttft + math.fsum(itls) for ttft, itls in zip(found["ttfts"], found["itls"], strict=True)]
    elif not _times(latencies) or len(latencies) != first:
        raise CompareError(f"{path}: latencies is {_short(latencies)}, expected {first} times in seconds")
    return found | {"latencies": latencies}


def _acceptance(row: Mapping[str, Any], path: str) -> dict[str, Any] | None:
    """From vLLM's counters, of which the file holds what the run added."""
    keys = ("spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens")
    if not any(key in row for key in keys):
        return None
    rounds, drafted, accepted = (_field(row, key, _count, "a count", path) for key in keys)
    shares = row.get("spec_decode_per_position_acceptance_rates") or None
    if shares is not None and not _times(shares):
        raise CompareError(
            f"{path}: spec_decode_per_position_acceptance_rates is {_short(shares)}, expected a list of shares"
        )
    if not rounds or not drafted:
        return None
    return {
        "acceptance_length": 1 + accepted / rounds,
        "acceptance_rate": accepted / drafted,
        "acceptance_per_position": shares,
        "num_drafts": rounds,
        "num_draft_tokens": drafted,
        "num_accepted_tokens": accepted,
    }


def _field(row: Mapping[str, Any], key: str, check: _Check, expected: str, path: str) -> Any:
    if key not in row:
        raise CompareError(f"{path}: {key} is missing; expected a file of {MADE_BY}")
    if not check(row[key]):
        raise CompareError(f"{path}: {key} is {_short(row[key])}, expected {expected}")
    return row[key]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:56] + " ..."
