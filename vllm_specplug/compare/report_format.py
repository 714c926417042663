"""The report as a file: its schema `specplug.compare/1`, checked on the way out and in. Other tools read it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from vllm_specplug import strict_json
from vllm_specplug.atomic import check_ordinary, replacing
from vllm_specplug.compare.json_checks import (
    COUNT,
    FLAG,
    INTERVAL,
    LIST,
    NUMBER,
    NUMBERS,
    OBJECT,
    PERCENTILES,
    SHARE,
    TEXT,
    Fields,
    check_fields,
    check_present,
    is_count,
    is_interval,
    is_list,
    is_number,
    is_object,
    is_share,
    is_text,
    nullable,
    or_null,
    short,
)
from vllm_specplug.compare.load_format import check_load
from vllm_specplug.compare.recommendation import OUTCOMES
from vllm_specplug.errors import CompareError

SCHEMA = "specplug.compare/1"
VERDICTS = ("faster", "slower", "no difference", "undecided")


def _ranks(value: Any) -> bool:
    return isinstance(value, dict) and is_share(value.get("p_value")) and is_count(value.get("pairs"))


def _ratio(value: Any) -> bool:
    return isinstance(value, dict) and is_number(value.get("ratio")) and or_null(is_interval)(value.get("ci95"))


def _kv_cache(value: Any) -> bool:
    return isinstance(value, dict) and all(or_null(is_count)(value.get(key)) for key in ("num_blocks", "block_size"))


def _goodput(value: Any) -> bool:
    return isinstance(value, dict) and is_share(value.get("share")) and is_number(value.get("output_tokens_per_s"))


def _choice(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("outcome") in OUTCOMES
        and is_list(value.get("arms"))
        and or_null(is_count)(value.get("more_prompts"))
    )


def _recommendation(value: Any) -> bool:
    """What to ship: `recommendation.recommend` describes it, `sentences` are the same for people."""
    return (
        isinstance(value, dict)
        and is_list(value.get("sentences"))
        and all(map(is_text, value["sentences"]))
        and or_null(is_text)(value.get("withheld"))
        and or_null(_choice)(value.get("overall"))
        and is_object(value.get("categories"))
        and all(map(_choice, value["categories"].values()))
    )


_TOP: Fields = {
    "schema": (lambda value: value == SCHEMA, repr(SCHEMA)),
    "provenance": OBJECT,
    "target": TEXT,
    "dtype": TEXT,
    "arms": LIST,
    "results": OBJECT,
    "comparisons": LIST,
    "lossless": OBJECT,
    "theory": OBJECT,
}
_PROVENANCE: Fields = {
    "specplug": TEXT,
    "vllm": TEXT,
    "commit": nullable(TEXT),
    "argv": LIST,
    "machine": OBJECT,
    "started_at": TEXT,
}
_ARM: Fields = {
    "name": TEXT,
    "speculative_config": nullable(OBJECT),
}
_RESULT: Fields = {
    "prompts": COUNT,
    "output_tokens": COUNT,
    "output_tokens_per_s": NUMBER,
    "ttft_ms": nullable(PERCENTILES),
    "tpot_ms": nullable(PERCENTILES),
    "e2e_ms": nullable(PERCENTILES),
    "tokens_per_forward": nullable(NUMBER),
    "acceptance_length": nullable(NUMBER),
    "acceptance_rate": nullable(NUMBER),
    "acceptance_per_position": nullable(NUMBERS),
    "num_drafts": nullable(COUNT),
    "num_draft_tokens": nullable(COUNT),
    "num_accepted_tokens": nullable(COUNT),
    "num_emitted_accepted_tokens": nullable(COUNT),
}
_COMPARISON: Fields = {
    "arm": TEXT,
    "against": TEXT,
    "metric": TEXT,
    "ratio": NUMBER,
    "ci95": nullable(INTERVAL),
    "verdict": (lambda value: value in VERDICTS, "one of " + ", ".join(map(repr, VERDICTS))),
}
_LOSSLESS: Fields = dict.fromkeys(("prompts", "identical", "near_ties", "different"), COUNT)
_THEORY: Fields = dict.fromkeys(
    ("acceptance_rate", "draft_cost_ratio", "verify_cost_ratio", "predicted_speedup", "measured_speedup"),
    nullable(NUMBER),
)
#: Newer than the schema: reports of former versions do not have them.
_LATER_TOP: Fields = {
    "noise": OBJECT,
    "too_noisy": FLAG,
    "too_noisy_reason": nullable(TEXT),
    "asked": OBJECT,
    "load": (or_null(is_object), "an object or null (load_format.py)"),
    "recommendation": (_recommendation, "sentences, withheld, overall and categories of choices (recommendation.py)"),
}
_LATER_ARM: Fields = {"kv_cache": (or_null(_kv_cache), "counts 'num_blocks' and 'block_size' or null")}
_LATER_RESULT: Fields = {
    "goodput": (or_null(_goodput), "'share' from 0 to 1 and 'output_tokens_per_s' or null"),
    "cost_per_million_tokens": nullable(NUMBER),
}
_LATER_COMPARISON: Fields = {
    "p_value": nullable(SHARE),
    "p_holm": nullable(SHARE),
    "wilcoxon": (or_null(_ranks), "'p_value' and 'pairs' or null"),
    "prompts_to_decide": nullable(COUNT),
}


def validate(report: Any) -> None:
    """Check that an object is a report of this schema; further keys are allowed anywhere.

    Keys that former versions of this package did not write may be missing, but are checked where they are.

    Raises:
        CompareError: naming the first wrong key, what it holds and what was expected.
    """
    check_fields(report, _TOP, "report")
    check_present(report, _LATER_TOP, "report")
    check_fields(report["provenance"], _PROVENANCE, "provenance")
    for index, arm in enumerate(report["arms"]):
        check_fields(arm, _ARM, f"arms[{index}]")
        check_present(arm, _LATER_ARM, f"arms[{index}]")
    names = [arm["name"] for arm in report["arms"]]
    for name, result in report["results"].items():
        where = f"results.{name}"
        _known(name, names, where)
        check_fields(result, {"overall": OBJECT, "categories": OBJECT}, where)
        parts = {"overall": result["overall"]}
        parts |= {f"categories.{category}": part for category, part in result["categories"].items()}
        for part_name, part in parts.items():
            check_fields(part, _RESULT, f"{where}.{part_name}")
            check_present(part, _LATER_RESULT, f"{where}.{part_name}")
    for index, comparison in enumerate(report["comparisons"]):
        where = f"comparisons[{index}]"
        check_fields(comparison, _COMPARISON, where)
        for key in ("arm", "against"):
            _known(comparison[key], names, f"{where}.{key}")
        check_present(comparison, _LATER_COMPARISON, where)
        for category, part in (comparison.get("categories") or {}).items():
            check_present(part, _LATER_COMPARISON, f"{where}.categories.{category}")
    if report.get("load") is not None:
        check_load(report["load"], names, _RESULT, {"verdict": _COMPARISON["verdict"]})
    for name, floor in report.get("noise", {}).items():
        _known(name, names, f"noise.{name}")
        if not or_null(_ratio)(floor):
            raise CompareError(f"noise.{name} is {short(floor)}, expected 'ratio' and 'ci95' or null")
    for section, fields in (("lossless", _LOSSLESS), ("theory", _THEORY)):
        for name, entry in report[section].items():
            _known(name, names, f"{section}.{name}")
            if entry is not None or section != "lossless":  # null: answers were not compared
                check_fields(entry, fields, f"{section}.{name}")
    for name, entry in report["lossless"].items():
        if entry is not None and entry["identical"] + entry["near_ties"] + entry["different"] != entry["prompts"]:
            raise CompareError(
                f"lossless.{name}: identical + near_ties + different is not prompts ({entry['prompts']})"
            )
    for name in names:
        if name not in report["results"]:
            raise CompareError(f"results.{name} is missing; expected a result for every arm")


def _known(name: str, names: list[str], where: str) -> None:
    if name not in names:
        raise CompareError(f"{where}: no arm is called {name!r}; arms: {', '.join(names)}")


def write_report(report: dict[str, Any], path: str | Path) -> None:
    """Check a report and write it, whole or not at all.

    Raises:
        CompareError: the report is not valid, holds what JSON cannot (NaN), or the file cannot be written.
    """
    validate(report)
    try:
        text = json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    except ValueError as error:
        raise CompareError(f"the report cannot be written as JSON: {error}") from error
    write_text(text, path)


def write_text(text: str, path: str | Path) -> None:
    """Write a file under another name and rename it, so that no reader ever sees half of it.

    Raises:
        CompareError: it cannot be written.
    """
    target = Path(path)
    try:
        with replacing(target) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except (OSError, UnicodeEncodeError) as error:
        raise CompareError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}") from error


def check_writable(path: str | Path) -> None:
    """Refuse a place where `write_text` would fail; leaves nothing but the folder.

    Raises:
        CompareError: nothing can be written there.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        check_ordinary(target)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}."):
            pass
    except OSError as error:
        raise CompareError(f"cannot write {target}: {error.strerror or error}; name another file") from error


def read_json(path: str | Path) -> Any:
    """What a report's file holds, of whatever schema; not checked.

    Raises:
        CompareError: it cannot be read, or is not JSON; naming the file.
    """
    try:
        return strict_json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CompareError(f"{path}: the report cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CompareError(f"{path}: not JSON ({error}), or cut short") from error


def read_report(path: str | Path) -> dict[str, Any]:
    """Read and check a report.

    Raises:
        CompareError: it cannot be read or is not of this schema; naming the file.
    """
    report = read_json(path)
    try:
        validate(report)
    except CompareError as error:
        raise CompareError(f"{path}: {error}") from error
    assert isinstance(report, dict)
    return report
