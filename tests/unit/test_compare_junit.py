"""JUnit XML: one case per gate and per arm, well-formed whatever the names hold."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from report_cases import made_report

from vllm_specplug.compare.gate import check_gates, parse_gates
from vllm_specplug.compare.junit import render_junit
from vllm_specplug.compare.quantity import Known


def rendered(report: dict[str, Any], *gates: str) -> ElementTree.Element:
    text = render_junit(report, check_gates(parse_gates(gates, Known.of(report)), report))
    return ElementTree.fromstring(text.encode("utf-8"))


def test_each_gate_and_the_losslessness_of_each_arm_is_a_case() -> None:
    root = rendered(made_report(), "medusa.ratio < 1", "medusa.ratio > 1", "no-drafts.acceptance_rate < 1")
    cases = root.findall("./testsuite/testcase")
    found = [(case.get("name"), {child.tag for child in case}) for case in cases]
    assert found == [
        ("medusa.ratio < 1", {"system-out"}),
        ("medusa.ratio > 1", {"failure"}),
        ("no-drafts.acceptance_rate < 1", {"error"}),
        ("medusa answers as baseline does", {"failure"}),
        ("no-drafts answers as baseline does", {"system-out"}),
    ]
    assert [case.get("classname") for case in cases] == ["specplug.gates"] * 3 + ["specplug.lossless"] * 2
    for element in (root, root[0]):
        assert [element.get(key) for key in ("tests", "failures", "errors")] == ["5", "2", "1"]


def test_complaints_hold_the_measured_values() -> None:
    root = rendered(made_report(), "medusa.tpot_ms.p50 > 0.4 * baseline", "no-drafts.num_drafts < 1")
    messages = [part.get("message") for part in root.iter() if part.tag in ("failure", "error")]
    assert messages == [
        "gate FAILED: medusa.tpot_ms.p50 > 0.4 * baseline: 5 > 4 (0.4 * 10)",
        "gate CANNOT BE TOLD: no-drafts.num_drafts < 1: no-drafts.num_drafts is null: the arm made no drafts there",
        "medusa: 1 of 8 answers differ beyond rounding, 1 part at a near tie, 6 are identical",
    ]


def test_near_ties_are_no_failure_but_nothing_compared_is_an_error() -> None:
    report = made_report()
    report["lossless"]["medusa"] |= {"identical": 6, "near_ties": 2, "different": 0}
    report["lossless"]["no-drafts"] |= {"prompts": 0, "identical": 0}
    root = rendered(report)
    assert [(root.get("failures")), root.get("errors")] == ["0", "1"]


@pytest.mark.parametrize("name", ["<a&'\">", "]]>", "bell\x07 null\x00", "lone\ud800", "é\U0001f600", "\ufffe"])
def test_document_is_well_formed_whatever_the_names_are(name: str) -> None:
    report = made_report(categories=(name,), target=name)
    report["provenance"]["commit"] = name
    quote = "'" if '"' in name else '"'
    gate = f"medusa.{quote}{name}{quote}.ratio < 1" if not {"'", '"'} <= set(name) else "medusa.ratio < 1"
    root = rendered(report, gate)
    assert root.find("./testsuite/properties/property[@name='target']") is not None
    assert len(root.findall("./testsuite/testcase")) == 3
