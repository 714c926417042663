"""The report's `load` as other tools read it: null, or missing in reports of former versions, where none was asked for.

    "load": {"kind": "concurrency|request_rate|replay", "unit": "requests at once", "passes": 4,
             "max_num_seqs": {"<arm>": 256}, "levels": [LEVEL, ...], "advice": {"<arm>": ADVICE}}
    LEVEL = {"name": "at_16", "value": 16, "results": {"<arm>": R}, "comparisons": [C, ...],
             "lossless": {"<arm>": {"prompts", "identical", "near_ties", "different"}},
             "runs": {"<arm>": [{"pass", "seconds", "output_tokens", "output_tokens_per_s", "max_in_flight"}]},
             "requests": {"<arm>": [{"pass", "id", "arrival_s", "sent_s", "ttft_s", "e2e_s", "output_tokens",
                                     "num_forwards", "finish_reason", "error"}]}}
    ADVICE = {"faster_up_to": 8, "slower_from": 16, "unit": "requests at once"}

R and its counts are described by `load_results.level_result`, C by `load_verdicts.compare_levels`, ADVICE by
`load_verdicts.advice`. A `value`, and a level in ADVICE, is a number or "inf".
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from vllm_specplug.compare.json_checks import (
    COUNT,
    INTERVAL,
    LIST,
    NUMBER,
    OBJECT,
    PERCENTILES,
    SHARE,
    TEXT,
    Fields,
    check_fields,
    is_count,
    is_interval,
    is_number,
    nullable,
    or_null,
)
from vllm_specplug.compare.levels import UNITS
from vllm_specplug.errors import CompareError


def _value(value: Any) -> bool:
    return is_number(value) or value == "inf"


def _in_flight(value: Any) -> bool:
    return isinstance(value, dict) and is_count(value.get("max")) and is_number(value.get("mean"))


def _throughput(value: Any) -> bool:
    return (
        isinstance(value, dict) and or_null(is_number)(value.get("ratio")) and or_null(is_interval)(value.get("ci95"))
    )


_KINDS = tuple(UNITS)
_TOP: Fields = {
    "kind": (lambda value: value in _KINDS, "one of " + ", ".join(_KINDS)),
    "unit": TEXT,
    "passes": COUNT,
    "max_num_seqs": OBJECT,
    "levels": (lambda value: isinstance(value, list) and len(value) > 0, "a list that is not empty"),
    "advice": OBJECT,
}
_LEVEL: Fields = {
    "name": TEXT,
    "value": (_value, "a number or 'inf'"),
    "results": OBJECT,
    "comparisons": LIST,
    "lossless": OBJECT,
    "runs": OBJECT,
    "requests": OBJECT,
}
_RESULT: Fields = {
    "requests": COUNT,
    "failed": COUNT,
    "seconds": NUMBER,
    "requests_per_s": NUMBER,
    "in_flight": (_in_flight, "'max' and 'mean'"),
    "late_ms": nullable(PERCENTILES),
    "errors": OBJECT,
}
_COMPARISON: Fields = {
    "arm": TEXT,
    "against": TEXT,
    "metric": TEXT,
    "ratio": nullable(NUMBER),
    "ci95": nullable(INTERVAL),
    "ci95_prompts": nullable(INTERVAL),
    "ci95_passes": nullable(INTERVAL),
    "p_value": nullable(SHARE),
    "p_holm": nullable(SHARE),
    "throughput": (_throughput, "'ratio' and 'ci95'"),
    "undecided_reason": nullable(TEXT),
}
_ADVICE: Fields = {
    "faster_up_to": (or_null(_value), "a number, 'inf' or null"),
    "slower_from": (or_null(_value), "a number, 'inf' or null"),
    "unit": TEXT,
}


def check_load(load: Any, arms: Collection[str], result: Fields, verdict: Fields) -> None:
    """Check the report's `load`.

    Args:
        arms: names of the report's.
        result, verdict: fields of every R, and of every comparison's `verdict`.
    Raises:
        CompareError: naming the first wrong key, what it holds and what was expected.
    """
    check_fields(load, _TOP, "load")
    for index, level in enumerate(load["levels"]):
        where = f"load.levels[{index}]"
        check_fields(level, _LEVEL, where)
        for name in arms:
            if name not in level["results"]:
                raise CompareError(f"{where}.results.{name} is missing; expected a result for every arm")
        for name, found in level["results"].items():
            check_fields(found, {**result, **_RESULT}, f"{where}.results.{name}")
        for place, comparison in enumerate(level["comparisons"]):
            check_fields(comparison, {**_COMPARISON, **verdict}, f"{where}.comparisons[{place}]")
    for name, told in load["advice"].items():
        check_fields(told, _ADVICE, f"load.advice.{name}")
