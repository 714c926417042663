"""Markdown: what a reviewer must see, and names that cannot break it or do anything."""

from __future__ import annotations

import re
from typing import Any

import pytest
from report_cases import made_report

from vllm_specplug.compare.gate import check_gates, parse_gates
from vllm_specplug.compare.markdown import escape, folded, render_markdown
from vllm_specplug.compare.quantity import Known


def rendered(report: dict[str, Any], *gates: str) -> str:
    return render_markdown(report, check_gates(parse_gates(gates, Known.of(report)), report))


def test_verdict_tables_gates_notes_and_provenance_are_there() -> None:
    text = rendered(made_report(), "medusa.ratio > 1", "medusa.ratio < 1", "no-drafts.num_drafts < 1")
    for line in (
        "### Speculative decoding on target",
        "- **medusa** against baseline: **faster**, 2.00x (1.90 to 2.10); 6 of 8 answers identical, 1 near ties, "
        "1 different",
        "| medusa.ratio &gt; 1 | **failed** | 2 &gt; 1 |",
        "| medusa.ratio &lt; 1 | passed | 2, not &lt; 1 |",
        "| no-drafts.num_drafts &lt; 1 | **cannot be told** "
        "| no-drafts.num_drafts is null: the arm made no drafts there |",
        "| arm | tokens/s | ratio (95 %) | verdict | tokens/forward | acc. length | acc. rate |",
        "| baseline | 100.0 | - | - | - | - | - |",
        "| medusa | 200.0 | 2.00x (1.90 to 2.10) | faster | 2.00 | 2.50 | 50 % |",
        "| category | medusa | no-drafts |",
        "| chat | 3.00x (1.90 to 2.10) | 1.80x (0.70 to 0.90) |",
        "- medusa: 1 answers differ from baseline beyond rounding.",
        "vLLM, torch, Python: 0.32.0, 2.13.0, 3.11.7",
    ):
        assert f"\n{line}\n" in f"\n{text}", line
    details = text[text.index("<details>") :]
    assert "vllm-specplug: 0.1.0, commit 0123456789abcdef" in details
    assert details.endswith("</details>\n")


def test_without_gates_there_is_no_table_of_them() -> None:
    assert "fail if" not in rendered(made_report())


EVIL = ["a|b", "<img src=x onerror=alert(1)>", "</details>", "x\n\n# heading", "`code`", "*b* _i_ [l](u)", "@team #1"]


@pytest.mark.parametrize("evil", EVIL)
def test_names_cannot_break_out(evil: str) -> None:
    report = made_report(categories=(evil, "chat"), target=evil)
    report["arms"][1]["speculative_config"] = {"method": evil}
    report["provenance"]["argv"] = [evil]
    text = rendered(report)
    before, fold = text.split("<details>")
    assert "<" not in before
    fence = re.findall("^`+", fold, re.MULTILINE)[0]
    assert fold.count(fence) == 2  # what is between is shown as it is
    assert fold.endswith(f"\n{fence}\n\n</details>\n")
    for table in re.findall(r"(?:^\|.*\n?)+", before, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table
    assert sum(line.startswith("#") for line in before.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("prompt_lookup", "prompt_lookup"),
        ("_x_ __y__", r"\_x\_ \_\_y\_\_"),
        ("a|b", r"a\|b"),
        ("a\\|b", r"a\\\|b"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("1.05 * x", r"1.05 \* x"),
        ("`x` ~y~ [z]", r"\`x\` \~y\~ \[z\]"),
        ("two\nlines", "two lines"),
        ("@team #12 # 3", "@\u200bteam #\u200b12 # 3"),
    ],
)
def test_escaped_text_is_shown_as_it_is(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_fence_is_longer_than_any_in_the_text() -> None:
    text = folded("s", [("command", "a ```` b\n```\n</details>")])
    fence = re.findall("^`+", text, re.MULTILINE)
    assert fence[0] == fence[-1] == "`" * 5
