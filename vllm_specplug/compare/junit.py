"""A report as JUnit XML, which CI servers show as tests: one per gate, one per arm for losslessness."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from vllm_specplug.compare.gate import Outcome

#: What XML 1.0 cannot hold, not even escaped; ElementTree writes it all the same.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(report: Mapping[str, Any], outcomes: Sequence[Outcome] = ()) -> str:
    """The document. An arm fails when an answer of it differs from the baseline's beyond rounding."""
    cases = [*(_gate(outcome) for outcome in outcomes), *_lossless(report)]
    counts = {"tests": len(cases)}
    for plural, tag in (("failures", "failure"), ("errors", "error")):
        counts[plural] = sum(case.find(tag) is not None for case in cases)
    provenance = report["provenance"]
    numbers = {key: str(value) for key, value in counts.items()}
    root = ElementTree.Element("testsuites", {"name": "specplug", **numbers})
    suite = ElementTree.SubElement(
        root, "testsuite", {"name": "specplug compare", "timestamp": _clean(provenance["started_at"]), **numbers}
    )
    properties = ElementTree.SubElement(suite, "properties")
    about = {"target": report["target"], "specplug": provenance["specplug"], "vllm": provenance["vllm"]}
    for name, value in (about | {"commit": provenance["commit"] or "unknown"}).items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": _clean(value)})
    suite.extend(cases)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _gate(outcome: Outcome) -> ElementTree.Element:
    case = _case("specplug.gates", outcome.gate.text)
    if outcome.state != "passed":
        _complain(case, "failure" if outcome.state == "failed" else "error", outcome.line)
    else:
        ElementTree.SubElement(case, "system-out").text = _clean(outcome.line)
    return case


def _lossless(report: Mapping[str, Any]) -> list[ElementTree.Element]:
    cases = []
    for arm, entry in report["lossless"].items():
        case = _case("specplug.lossless", f"{arm} answers as {report['baseline']} does")
        cases.append(case)
        if entry is None:
            ElementTree.SubElement(case, "skipped", {"message": "answers were not compared"})
            continue
        line = (
            f"{entry['different']} of {entry['prompts']} answers differ beyond rounding, {entry['near_ties']} part at "
            f"a near tie, {entry['identical']} are identical"
        )
        if entry["different"]:
            _complain(case, "failure", f"{arm}: {line}")
        elif not entry["prompts"]:
            _complain(case, "error", f"{arm}: no answers were compared")
        else:
            ElementTree.SubElement(case, "system-out").text = _clean(f"{arm}: {line}")
    return cases


def _case(classname: str, name: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", {"classname": classname, "name": _clean(name)})


def _complain(case: ElementTree.Element, tag: str, line: str) -> None:
    ElementTree.SubElement(case, tag, {"message": _clean(line)}).text = _clean(line)


def _clean(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
