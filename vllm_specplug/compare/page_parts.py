"""What pages are made of: the document around them, sections, tables, figures. Knows no report.

A page needs nothing but itself: its policy, by which browsers keep to it, lets it load nothing and run its one script.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from vllm_specplug.compare import plots

_STYLE = Path(__file__).with_name("page.css")
_SCRIPT = Path(__file__).with_name("page.js")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page with a heading of its own, which the page's menu leads to."""

    id: str
    heading: str
    body: str
    """HTML."""


def document(title: str, intro: str, sections: Sequence[Section]) -> str:
    """A whole page.

    Args:
        title: its heading, too.
        intro: HTML below the heading; may be empty.
        sections: shown in order, with a menu where there are several.
    """
    style, script = _STYLE.read_text(encoding="utf-8"), _SCRIPT.read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src '{_hash(script)}'; base-uri 'none'; "
        "form-action 'none'"
    )
    links = "".join(f'<li><a href="#{section.id}">{escape(section.heading)}</a></li>' for section in sections)
    menu = f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n' if len(sections) > 1 else ""
    body = "\n".join(
        f'<section aria-labelledby="{section.id}"><h2 id="{section.id}" tabindex="-1">{escape(section.heading)}</h2>\n'
        f"{section.body}</section>"
        for section in sections
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#main">Skip to the content</a>\n<header><h1>{escape(title)}</h1>\n{intro}\n{menu}'
        f'</header>\n<main id="main" tabindex="-1">\n{body}\n</main>\n<script>{script}</script>\n</body>\n</html>\n'
    )


def _hash(script: str) -> str:
    """As a policy names a script: of exactly what stands between its tags."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls where it is too wide; the first cell of a row names it."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def facts(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    """Names and values, one below the other."""
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="free"><code>{escape(value)}</code></td></tr>'
        for name, value in rows
    )
    head = f'<div class="scroll"><table class="free"><caption>{escape(caption)}</caption>'
    return f"{head}<tbody>{lines}</tbody></table></div>"


def list_of(texts: Iterable[str]) -> str:
    """Sentences below each other."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def figure(drawing: str, caption: str) -> str:
    """An SVG drawing and what it shows."""
    return f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"


def legend(entries: Iterable[tuple[str, int]]) -> str:
    """Names with the marks and colours of their numbers."""
    items = "".join(f"<li>{plots.mark_alone(number)}{escape(name)}</li>" for name, number in entries)
    return f'<ul class="legend">{items}</ul>'
