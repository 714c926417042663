"""The HTML page in a real browser: nothing is asked of the network, tables sort, it fits a phone. Skips without one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser, browsing
from report_cases import made_report, write
from staging_cases import drawn_lines, write_lines

from vllm_specplug import cli
from vllm_specplug.compare.page import render_page

#: Texts of a table's column, from the caption's beginning and the column's number.
COLUMN = """
[...document.querySelectorAll("table")].find(table => table.caption.textContent.startsWith("{caption}"))
    .tBodies[0].rows].map(row => row.cells[{column}].textContent)
"""
HEAD = """
[...document.querySelectorAll("table")].find(table => table.caption.textContent.startsWith("{caption}"))
    .tHead.rows[0].cells[{column}]
"""


def column(browser: Browser, caption: str, number: int) -> list[str]:
    found: list[str] = browser.run("[..." + COLUMN.strip().format(caption=caption, column=number))
    return found


def head(caption: str, number: int) -> str:
    return HEAD.strip().format(caption=caption, column=number)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as found:
        yield found


def report_of_speeds() -> dict[str, Any]:
    """Five categories of the baseline's rival at 200, 400, 600, 800 and 1,000 tokens a second, one without drafts."""
    report = made_report(categories=("maths", "chat", "a rather long name of a category", "code", "stories"))
    report["results"]["medusa"]["categories"]["chat"]["acceptance_rate"] = None
    report["results"]["medusa"]["categories"]["code"]["acceptance_rate"] = 0.05
    return report


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text(render_page(report_of_speeds()), encoding="utf-8")
    return path


def test_nothing_is_loaded_and_nothing_complained_of(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.requests() == [page.as_uri()]
    assert browser.complaints() == []


def test_plots_are_drawn(browser: Browser, page: Path) -> None:
    browser.open(page)
    sizes = browser.run(
        "[...document.querySelectorAll('svg[role=img]')].map(e => [e.clientWidth, e.clientHeight, e.textContent])"
    )
    assert len(sizes) == 4  # two arms by category, acceptance, latency
    assert all(width > 200 and height > 50 and text for width, height, text in sizes)


def test_table_is_sorted_by_a_click_and_turned_by_another(browser: Browser, page: Path) -> None:
    browser.open(page)
    names, speed = "medusa by category", 1
    assert column(browser, names, speed) == ["200.0", "400.0", "600.0", "800.0", "1,000.0"]
    button = f"{head(names, speed)}.querySelector('button')"
    browser.run(f"{button}.click()")
    assert browser.run(f"{head(names, speed)}.getAttribute('aria-sort')") == "ascending"
    assert column(browser, names, speed) == ["200.0", "400.0", "600.0", "800.0", "1,000.0"]
    browser.run(f"{button}.click()")
    assert browser.run(f"{head(names, speed)}.getAttribute('aria-sort')") == "descending"
    assert column(browser, names, speed) == ["1,000.0", "800.0", "600.0", "400.0", "200.0"]
    browser.run(f"{head(names, 0)}.querySelector('button').click()")
    assert column(browser, names, 0) == ["a rather long name of a category", "chat", "code", "maths", "stories"]
    assert not browser.run(f"{head(names, speed)}.hasAttribute('aria-sort')")
    assert browser.complaints() == []


def test_what_has_no_value_is_last_both_ways(browser: Browser, page: Path) -> None:
    browser.open(page)
    names, rate = "medusa by category", 6
    button = f"{head(names, rate)}.querySelector('button')"
    browser.run(f"{button}.click()")
    assert column(browser, names, rate) == ["5 %", "50 %", "50 %", "50 %", "-"]
    browser.run(f"{button}.click()")
    assert column(browser, names, rate) == ["50 %", "50 %", "50 %", "5 %", "-"]


def test_keyboard_reaches_the_content_and_sorts(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.press("Tab")
    assert browser.run("document.activeElement.className") == "skip"
    assert browser.run("document.activeElement.getBoundingClientRect().width") > 50  # seen once it is reached
    browser.press("Enter")
    assert browser.run("document.activeElement.id") == "main"
    for _ in range(30):
        browser.press("Tab")
        if browser.run("document.activeElement.textContent") == "tokens/s":
            break
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("Enter")
    browser.press("Enter")
    assert browser.run("document.activeElement.parentElement.getAttribute('aria-sort')") == "descending"
    assert column(browser, "All arms", 0) == ["medusa", "baseline", "no-drafts"]


def test_phone_scrolls_tables_in_their_own_box_and_nothing_else(browser: Browser, page: Path) -> None:
    browser.open(page, width=360, height=740)
    assert browser.run("document.documentElement.scrollWidth") == 360
    wide = browser.run("[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length")
    assert wide >= 2
    # 13 of a drawing 400 wide: no smaller than this.
    assert browser.run("Math.min(...[...document.querySelectorAll('svg[role=img]')].map(e => e.clientWidth))") >= 300


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_its_background(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, dark=dark)
    ratios = browser.run("""
        (() => {
          const channels = text => text.match(/[\\d.]+/g).map(Number);
          const light = text => channels(text).slice(0, 3).map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
          const behind = e => {
            const found = getComputedStyle(e).backgroundColor;
            return channels(found)[3] === 0 && e.parentElement ? behind(e.parentElement) : found;
          };
          const texts = [...document.querySelectorAll("main *, header *")]
            .filter(e => !e.closest("svg") && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
          return texts.map(e => {
            const [high, low] = [light(getComputedStyle(e).color), light(behind(e))].sort((a, b) => b - a);
            return [(high + 0.05) / (low + 0.05), e.outerHTML.slice(0, 80)];
          });
        })()
    """)
    assert len(ratios) > 100
    assert min(ratios)[0] >= 4.5, min(ratios)  # WCAG 2.2, 1.4.3


def test_page_of_reports_over_time_sorts_by_date_and_ratio(browser: Browser, tmp_path: Path) -> None:
    old, new = made_report(), copy.deepcopy(made_report())
    new["provenance"]["started_at"] = "2026-01-02T10:00:00+00:00"
    new["comparisons"][0]["ratio"] = 11.0
    files = [write(report, tmp_path / f"{name}.json") for name, report in (("a", old), ("b", new))]
    path = tmp_path / "time.html"
    assert cli.main(["report", *files, "--html", str(path)]) == 0
    browser.open(path)
    for number, expected in ((5, ["0.80x", "0.80x", "2.00x", "11.00x"]), (0, ["2026-01-01"] * 2 + ["2026-01-02"] * 2)):
        browser.run(f"{head('A row per report', number)}.querySelector('button').click()")
        assert [text.split()[0] for text in column(browser, "A row per report", number)] == expected
    assert browser.requests() == [path.as_uri()]
    assert browser.complaints() == []


def test_page_of_a_staging_log_opens_and_fits_a_phone(browser: Browser, tmp_path: Path) -> None:
    lines = drawn_lines(np.random.default_rng(0), 120, slowdown=0.5)
    path = tmp_path / "staging.html"
    log = write_lines(tmp_path / "r.jsonl", lines)
    assert cli.main(["compare", "--staging-log", log, "--html", str(path)]) == 0
    browser.open(path, width=360, height=740)
    assert browser.run("document.documentElement.scrollWidth") == 360
    assert browser.run("document.querySelectorAll('svg[role=img]').length") == 2  # speeds, latency
    browser.run(f"{head('What each arm did', 1)}.querySelector('button').click()")
    assert column(browser, "What each arm did", 0) in (["baseline", "medusa"], ["medusa", "baseline"])
    assert browser.run(f"{head('What each arm did', 1)}.getAttribute('aria-sort')") == "ascending"
    assert browser.requests() == [path.as_uri()]
    assert browser.complaints() == []
