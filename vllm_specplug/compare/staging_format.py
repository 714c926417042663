"""The report of a staging log as a file: its schema `specplug.staging-report/1`, checked on the way out and in.

`ratio` is a ratio of speeds, as in `specplug.compare/1`: above 1 the arm is faster. `interval` holds at all looks
together, at `settings.level`, so that the four verdicts of an arm hold together in 95 % of all logs. `once` is what the
tests for a single look at the end say, at 95 % each; it decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_specplug import strict_json
from vllm_specplug.compare.json_checks import (
    COUNT,
    FLAG,
    INTERVAL,
    LIST,
    NUMBER,
    OBJECT,
    PERCENTILES,
    SHARE,
    TEXT,
    Field,
    Fields,
    check_fields,
    check_present,
    is_count,
    is_number,
    is_text,
    nullable,
)
from vllm_specplug.compare.report_format import VERDICTS, read_json, write_text
from vllm_specplug.errors import CompareError

SCHEMA = "specplug.staging-report/1"
SPEED_NAMES = ("e2e", "tpot", "ttft")
ERROR_VERDICTS = ("more", "fewer", "undecided")


def _two_counts(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_count, value))


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def _counts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(is_count, value.values()))


_TWO_COUNTS: Field = (_two_counts, "two counts")
_TEXTS: Field = (_texts, "a list of texts")
_COUNTS: Field = (_counts, "a count for each")
_TOP: Fields = {
    "schema": (lambda value: value == SCHEMA, repr(SCHEMA)),
    "provenance": OBJECT,
    "model": TEXT,
    "baseline": TEXT,
    "arms": LIST,
    "settings": OBJECT,
    "log": OBJECT,
    "split": OBJECT,
    "results": OBJECT,
    "comparisons": LIST,
    "apart": OBJECT,
    "remarks": _TEXTS,
    "recommendation": OBJECT,
}
_INSIDE: Mapping[str, Fields] = {
    "provenance": {"specplug": TEXT, "commit": nullable(TEXT), "argv": LIST, "started_at": TEXT, "ended_at": TEXT},
    "log": {"files": _TEXTS, "exposures": COUNT, "outcomes": COUNT, "by": _COUNTS},
    "recommendation": {
        "sentences": (lambda value: _texts(value) and len(value) > 0, "a list of texts, not empty"),
        "withheld": nullable(TEXT),
    },
}
_SPLIT: Fields = {
    "observed": _COUNTS,
    "expected": (lambda value: isinstance(value, dict) and all(map(is_number, value.values())), "a number for each"),
    "p_value": nullable(SHARE),
    "mismatch": FLAG,
    "units_in_several_arms": COUNT,
}
_RESULT: Fields = {
    **dict.fromkeys(
        ("requests", "units", "without_outcome", "failed", "cancelled", "moved", "answered", "output_tokens"),
        COUNT,
    ),
    "error_share": nullable(SHARE),
    "errors": OBJECT,
    "output_tokens_per_s": nullable(NUMBER),
    **dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_ms"), nullable(PERCENTILES)),
}
#: Reports of former versions lack them.
_RESULT_MAY: Fields = {"stood_in": COUNT, "stood_in_for": _COUNTS}
_COMPARISON: Fields = {"arm": TEXT, "against": TEXT, "speeds": OBJECT, "errors": nullable(OBJECT)}
_COMPARISON_MAY: Fields = {"drawn_while_out": _TWO_COUNTS}
_ONCE: Fields = {"ci95": nullable(INTERVAL), "mann_whitney_p": SHARE}
_SPEED: Fields = {
    "requests": _TWO_COUNTS,
    "units": _TWO_COUNTS,
    "once": nullable(OBJECT),
    "ratio": nullable(NUMBER),
    "interval": nullable(INTERVAL),
    "verdict": (lambda value: value in VERDICTS, "one of " + ", ".join(map(repr, VERDICTS))),
}
_ERRORS: Fields = {
    "difference": NUMBER,
    "interval": nullable(INTERVAL),
    "verdict": (lambda value: value in ERROR_VERDICTS, "one of " + ", ".join(map(repr, ERROR_VERDICTS))),
}


def validate_staging(report: Any) -> None:
    """Check that an object is a report of this schema; further keys are allowed anywhere.

    Raises:
        CompareError: naming the first wrong key, what it holds and what was expected.
    """
    check_fields(report, _TOP, "report")
    for key, inside in _INSIDE.items():
        check_fields(report[key], inside, key)
    check_fields(report["split"], _SPLIT, "split")
    for arm in report["split"]["observed"]:
        if arm not in report["split"]["expected"]:
            raise CompareError(f"split.expected.{arm} is missing; expected a number")
    if report["baseline"] not in report["results"]:
        raise CompareError(f"results.{report['baseline']} is missing, that of the baseline; expected an object")
    _check_results(report["results"], "results")
    for reason, part in report["apart"].items():
        check_fields(part, {}, f"apart.{reason}")
        _check_results(part, f"apart.{reason}")
    for index, comparison in enumerate(report["comparisons"]):
        where = f"comparisons[{index}]"
        check_fields(comparison, _COMPARISON, where)
        if comparison["arm"] not in report["results"]:
            raise CompareError(f"{where}.arm is {comparison['arm']!r}, which has no results")
        check_present(comparison, _COMPARISON_MAY, where)
        for name in SPEED_NAMES:
            if name not in comparison["speeds"]:
                raise CompareError(f"{where}.speeds.{name} is missing; expected an object")
            speed = comparison["speeds"][name]
            check_fields(speed, _SPEED, f"{where}.speeds.{name}")
            if speed["once"] is not None:
                check_fields(speed["once"], _ONCE, f"{where}.speeds.{name}.once")
        if comparison["errors"] is not None:
            check_fields(comparison["errors"], _ERRORS, f"{where}.errors")


def _check_results(results: Mapping[str, Any], where: str) -> None:
    for arm, result in results.items():
        check_fields(result, _RESULT, f"{where}.{arm}")
        check_present(result, _RESULT_MAY, f"{where}.{arm}")


def schema_of(path: str | Path) -> str | None:
    """What a JSON file says it is; None where it says nothing or cannot be read."""
    try:
        found = strict_json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    schema = found.get("schema") if isinstance(found, dict) else None
    return schema if isinstance(schema, str) else None


def write_staging(report: dict[str, Any], path: str | Path) -> None:
    """Check a report and write it, whole or not at all.

    Raises:
        CompareError: it is not valid, or the file cannot be written.
    """
    validate_staging(report)
    write_text(json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n", path)


def read_staging(path: str | Path) -> dict[str, Any]:
    """Read and check a report.

    Raises:
        CompareError: it cannot be read or is not of this schema, naming the file.
    """
    report = read_json(path)
    try:
        validate_staging(report)
    except CompareError as error:
        remedy = "give a file that `specplug compare --staging-log ... --out` wrote"
        raise CompareError(f"{path}: {error}; {remedy}") from error
    assert isinstance(report, dict)
    return report
