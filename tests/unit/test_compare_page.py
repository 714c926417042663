"""The HTML page of a report: what stands in it, and in which order. `test_compare_page_browser` opens it."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from report_cases import made_report

from vllm_specplug.compare import plots
from vllm_specplug.compare.page import render_page

EVIL = "<script>alert('x')</script>"


class Outline(HTMLParser):
    """Tags and attributes of a page, and whether every tag that was opened is closed."""

    VOID = ("meta", "br", "line", "circle", "rect", "polyline", "path")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def named(self, name: str) -> list[dict[str, str | None]]:
        """Attributes of the tags of this name."""
        return [attributes for tag, attributes in self.tags if tag == name]


def without_drafts() -> dict[str, Any]:
    report = made_report()
    for result in report["results"].values():
        for part in (result["overall"], *result["categories"].values()):
            part["acceptance_per_position"] = None
    return report


@pytest.mark.parametrize("report", [made_report(), without_drafts()])
def test_page_is_self_contained_and_well_formed(report: dict[str, Any]) -> None:
    page = render_page(report)
    outline = Outline(page)
    assert not outline.open
    assert not re.search(r"https?://|url\(|@import", page)
    names = [tag for tag, _ in outline.tags]
    assert not set(names) & {"link", "img", "iframe", "object"}
    assert outline.named("script") == [{}]
    assert not any(key in attributes for _, attributes in outline.tags for key in ("src", "onload", "onclick"))
    assert all((link["href"] or "").startswith("#") for link in outline.named("a"))


def test_every_link_leads_to_a_place_on_the_page() -> None:
    outline = Outline(render_page(made_report()))
    places = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(places) == len(set(places))
    assert {(link["href"] or "")[1:] for link in outline.named("a")} == set(places)
    assert [section["aria-labelledby"] for section in outline.named("section")] == places[1:]


def test_page_is_accessible() -> None:
    page = render_page(made_report())
    outline = Outline(page)
    tags = [tag for tag, _ in outline.tags]
    assert '<html lang="en">' in page
    assert [tags.count(landmark) for landmark in ("header", "nav", "main")] == [1, 1, 1]
    assert tags.count("h1") == 1
    levels = [int(tag[1]) for tag in tags if re.fullmatch(r"h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert tags.count("caption") == tags.count("table")
    assert all(attributes.get("scope") for attributes in outline.named("th"))
    drawings = [attributes for attributes in outline.named("svg") if "aria-hidden" not in attributes]
    assert drawings
    assert all(attributes.get("role") == "img" for attributes in drawings)
    assert tags.count("desc") == len(drawings)
    assert tags.count("title") == len(drawings) + 1


def test_page_escapes_every_text() -> None:
    page = render_page(made_report(EVIL, ("code", EVIL), f"models/{EVIL}"))
    assert page.count("<script") == 1
    assert "&lt;script&gt;alert" in page


def test_sentences_are_the_first_thing_on_the_page() -> None:
    report = made_report()
    report["lossless"]["medusa"] = {"prompts": 8, "identical": 8, "near_ties": 0, "different": 0, "differences": []}
    page = render_page(report)
    first = '<p class="first">Ship medusa for each of the 2 categories alone.</p>'
    assert first in page
    assert page.index(first) < page.index('class="verdicts"') < page.index("<h3>Before you believe it")


def test_arms_and_verdicts_have_marks_of_their_own() -> None:
    shapes = [re.search(r' d="([^"]+)"', plots.mark(number, 0, 0)) for number in range(plots.NUM_COLOURS)]
    assert len({shape[1] for shape in shapes if shape}) == plots.NUM_COLOURS
    rows = [("a", {"ratio": 1.0, "ci95": None, "verdict": verdict}) for verdict in ("faster", "slower", "undecided")]
    drawn = re.findall(r'<path class="mark [^"]+" d="([^"]+)"', plots.dot_and_whisker(rows, "title", "description"))
    assert len(set(drawn)) == 3


def test_numbers_of_ticks_do_not_run_into_each_other() -> None:
    rows = [("a", {"ratio": ratio, "ci95": None, "verdict": "undecided"}) for ratio in (0.72, 1.5)]
    drawing = plots.dot_and_whisker(rows, "title", "description")
    places = sorted(float(x) for x in re.findall(r'<text x="([\d.]+)" [^>]+>[\d.]+x</text>', drawing))
    ticks = [x for x in places if x < 390]
    assert len(ticks) >= 4
    assert all(after - before >= 34 for before, after in itertools.pairwise(ticks))
    assert ">1x</text>" in drawing
