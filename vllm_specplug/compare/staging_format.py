"""The report of a staging log as a file: its schema `specplug.staging-report/1`, checked on the way out and in.

`ratio` is a ratio of speeds, as in `specplug.compare/1`: above 1 the arm is faster. `interval` holds at all looks
together, at `settings.level`, so that the four verdicts of an arm hold together in 95 % of all logs. `once` is what the
tests for a single look at the end say, at 95 % each; it decides nothing.
"""

from __future__ import annotations

import json
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
    Fields,
    check_fields,
    check_present,
    is_count,
    nullable,
)
from vllm_specplug.compare.report_format import VERDICTS, read_json, write_text
from vllm_specplug.errors import CompareError

SCHEMA = "specplug.staging-report/1"
SPEED_NAMES = ("e2e", "tpot", "ttft")
ERROR_VERDICTS = ("more", "fewer", "undecided")


def _two_counts(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_count, value))


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
    "remarks": LIST,
    "recommendation": OBJECT,
}
_SPLIT: Fields = {
    "observed": OBJECT,
    "expected": OBJECT,
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
_RESULT_MAY: Fields = {"stood_in": COUNT, "stood_in_for": OBJECT}
_COMPARISON_MAY: Fields = {"drawn_while_out": (_two_counts, "two counts")}
_SPEED: Fields = {
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
    check_fields(report["split"], _SPLIT, "split")
    for arm, result in report["results"].items():
        check_fields(result, _RESULT, f"results.{arm}")
        check_present(result, _RESULT_MAY, f"results.{arm}")
    for index, comparison in enumerate(report["comparisons"]):
        where = f"comparisons[{index}]"
        check_fields(comparison, {"arm": TEXT, "speeds": OBJECT}, where)
        check_present(comparison, _COMPARISON_MAY, where)
        for name in SPEED_NAMES:
            if name not in comparison["speeds"]:
                raise CompareError(f"{where}.speeds.{name} is missing; expected an object")
            check_fields(comparison["speeds"][name], _SPEED, f"{where}.speeds.{name}")
        if comparison.get("errors") is not None:
            check_fields(comparison["errors"], _ERRORS, f"{where}.errors")


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
        raise CompareError(f"{path}: {error}") from error
    assert isinstance(report, dict)
    return report
