"""The report as a file: its schema `specplug.compare/1`, checked on the way out and in. Other tools read it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vllm_specplug.atomic import replacing
from vllm_specplug.errors import CompareError

SCHEMA = "specplug.compare/1"
VERDICTS = ("faster", "slower", "no difference", "undecided")

_Check = Callable[[Any], bool]


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


def _list(value: Any) -> bool:
    return isinstance(value, list)


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_number, value))


def _interval(value: Any) -> bool:
    return _numbers(value) and len(value) == 2 and value[0] <= value[1]


def _percentiles(value: Any) -> bool:
    return isinstance(value, dict) and all(_number(value.get(key)) for key in ("p50", "p90", "p99"))


def _share(value: Any) -> bool:
    return _number(value) and 0 <= value <= 1


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _ranks(value: Any) -> bool:
    return isinstance(value, dict) and _share(value.get("p_value")) and _count(value.get("pairs"))


def _ratio(value: Any) -> bool:
    return isinstance(value, dict) and _number(value.get("ratio")) and _or_null(_interval)(value.get("ci95"))


def _kv_cache(value: Any) -> bool:
    return isinstance(value, dict) and all(_or_null(_count)(value.get(key)) for key in ("num_blocks", "block_size"))


def _goodput(value: Any) -> bool:
    return isinstance(value, dict) and _share(value.get("share")) and _number(value.get("output_tokens_per_s"))


def _or_null(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


_Fields = Mapping[str, tuple[_Check, str]]

_TOP: _Fields = {
    "schema": (lambda value: value == SCHEMA, repr(SCHEMA)),
    "provenance": (_object, "an object"),
    "target": (_text, "a text"),
    "dtype": (_text, "a text"),
    "arms": (_list, "a list"),
    "results": (_object, "an object"),
    "comparisons": (_list, "a list"),
    "lossless": (_object, "an object"),
    "theory": (_object, "an object"),
}
_PROVENANCE: _Fields = {
    "specplug": (_text, "a text"),
    "vllm": (_text, "a text"),
    "commit": (_or_null(_text), "a text or null"),
    "argv": (_list, "a list"),
    "machine": (_object, "an object"),
    "started_at": (_text, "a text"),
}
_ARM: _Fields = {
    "name": (_text, "a text"),
    "speculative_config": (_or_null(_object), "an object or null"),
}
_RESULT: _Fields = {
    "prompts": (_count, "a count"),
    "output_tokens": (_count, "a count"),
    "output_tokens_per_s": (_number, "a number"),
    "ttft_ms": (_or_null(_percentiles), "p50, p90 and p99 or null"),
    "tpot_ms": (_or_null(_percentiles), "p50, p90 and p99 or null"),
    "e2e_ms": (_or_null(_percentiles), "p50, p90 and p99 or null"),
    "tokens_per_forward": (_or_null(_number), "a number or null"),
    "acceptance_length": (_or_null(_number), "a number or null"),
    "acceptance_rate": (_or_null(_number), "a number or null"),
    "acceptance_per_position": (_or_null(_numbers), "a list of numbers or null"),
    "num_drafts": (_or_null(_count), "a count or null"),
    "num_draft_tokens": (_or_null(_count), "a count or null"),
    "num_accepted_tokens": (_or_null(_count), "a count or null"),
    "num_emitted_accepted_tokens": (_or_null(_count), "a count or null"),
}
_COMPARISON: _Fields = {
    "arm": (_text, "a text"),
    "against": (_text, "a text"),
    "metric": (_text, "a text"),
    "ratio": (_number, "a number"),
    "ci95": (_or_null(_interval), "[low, high] or null"),
    "verdict": (lambda value: value in VERDICTS, "one of " + ", ".join(map(repr, VERDICTS))),
}
_LOSSLESS: _Fields = dict.fromkeys(("prompts", "identical", "near_ties", "different"), (_count, "a count"))
_THEORY: _Fields = dict.fromkeys(
    ("acceptance_rate", "draft_cost_ratio", "verify_cost_ratio", "predicted_speedup", "measured_speedup"),
    (_or_null(_number), "a number or null"),
)
#: Newer than the schema: reports of former versions do not have them.
_LATER_TOP: _Fields = {
    "noise": (_object, "an object"),
    "too_noisy": (_flag, "true or false"),
    "too_noisy_reason": (_or_null(_text), "a text or null"),
    "asked": (_object, "an object"),
}
_LATER_ARM: _Fields = {"kv_cache": (_or_null(_kv_cache), "counts 'num_blocks' and 'block_size' or null")}
_LATER_RESULT: _Fields = {
    "goodput": (_or_null(_goodput), "'share' from 0 to 1 and 'output_tokens_per_s' or null"),
    "cost_per_million_tokens": (_or_null(_number), "a number or null"),
}
_LATER_COMPARISON: _Fields = {
    "p_value": (_or_null(_share), "a number from 0 to 1 or null"),
    "p_holm": (_or_null(_share), "a number from 0 to 1 or null"),
    "wilcoxon": (_or_null(_ranks), "'p_value' and 'pairs' or null"),
    "prompts_to_decide": (_or_null(_count), "a count or null"),
}


def validate(report: Any) -> None:
    """Check that an object is a report of this schema; further keys are allowed anywhere.

    Keys that former versions of this package did not write may be missing, but are checked where they are.

    Raises:
        CompareError: naming the first wrong key, what it holds and what was expected.
    """
    _check(report, _TOP, "report")
    _check_present(report, _LATER_TOP, "report")
    _check(report["provenance"], _PROVENANCE, "provenance")
    for index, arm in enumerate(report["arms"]):
        _check(arm, _ARM, f"arms[{index}]")
        _check_present(arm, _LATER_ARM, f"arms[{index}]")
    names = [arm["name"] for arm in report["arms"]]
    for name, result in report["results"].items():
        where = f"results.{name}"
        _known(name, names, where)
        _check(result, {"overall": (_object, "an object"), "categories": (_object, "an object")}, where)
        parts = {"overall": result["overall"]}
        parts |= {f"categories.{category}": part for category, part in result["categories"].items()}
        for part_name, part in parts.items():
            _check(part, _RESULT, f"{where}.{part_name}")
            _check_present(part, _LATER_RESULT, f"{where}.{part_name}")
    for index, comparison in enumerate(report["comparisons"]):
        where = f"comparisons[{index}]"
        _check(comparison, _COMPARISON, where)
        for key in ("arm", "against"):
            _known(comparison[key], names, f"{where}.{key}")
        _check_present(comparison, _LATER_COMPARISON, where)
        for category, part in (comparison.get("categories") or {}).items():
            _check_present(part, _LATER_COMPARISON, f"{where}.categories.{category}")
    for name, floor in report.get("noise", {}).items():
        _known(name, names, f"noise.{name}")
        if not _or_null(_ratio)(floor):
            raise CompareError(f"noise.{name} is {_short(floor)}, expected 'ratio' and 'ci95' or null")
    for section, fields in (("lossless", _LOSSLESS), ("theory", _THEORY)):
        for name, entry in report[section].items():
            _known(name, names, f"{section}.{name}")
            if entry is not None or section != "lossless":  # null: answers were not compared
                _check(entry, fields, f"{section}.{name}")
    for name, entry in report["lossless"].items():
        if entry is not None and entry["identical"] + entry["near_ties"] + entry["different"] != entry["prompts"]:
            raise CompareError(
                f"lossless.{name}: identical + near_ties + different is not prompts ({entry['prompts']})"
            )
    for name in names:
        if name not in report["results"]:
            raise CompareError(f"results.{name} is missing; expected a result for every arm")


def _check(value: Any, fields: _Fields, where: str) -> None:
    if not isinstance(value, dict):
        raise CompareError(f"{where} is {_short(value)}, expected an object")
    for key, (check, expected) in fields.items():
        name = key if where == "report" else f"{where}.{key}"
        if key not in value:
            raise CompareError(f"{name} is missing; expected {expected}")
        if not check(value[key]):
            raise CompareError(f"{name} is {_short(value[key])}, expected {expected}")


def _check_present(value: Any, fields: _Fields, where: str) -> None:
    """`_check` of those fields that are there."""
    _check(value, {key: field for key, field in fields.items() if not isinstance(value, dict) or key in value}, where)


def _known(name: str, names: list[str], where: str) -> None:
    if name not in names:
        raise CompareError(f"{where}: no arm is called {name!r}; arms: {', '.join(names)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:56] + " ..."


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
    except OSError as error:
        raise CompareError(f"cannot write {target}: {error.strerror or error}") from error


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
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}."):
            pass
    except OSError as error:
        raise CompareError(f"cannot write {target}: {error.strerror or error}; name another file") from error


def read_report(path: str | Path) -> dict[str, Any]:
    """Read and check a report.

    Raises:
        CompareError: it cannot be read or is not of this schema.
    """
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CompareError(f"cannot read the report {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CompareError(f"cannot read the report {path}: not JSON ({error})") from error
    validate(report)
    assert isinstance(report, dict)
    return report
