"""A report as its reader sees it: by CommonMark with tables, and on a terminal."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.token import Token

READER = MarkdownIt("commonmark").enable("table")
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that steer a terminal or reorder what is read."""


def skeleton(text: str) -> list[tuple[str, str, int]]:
    """The blocks of a report as it is read, the inside of its answer left out: kind, heading's text, depth."""
    parts: list[tuple[str, str, int]] = []
    tokens = READER.parse(text)
    inside = False
    for token, following in zip(tokens, [*tokens[1:], Token("", "", 0)], strict=True):
        if token.type == "heading_open" and token.level == 0 and token.tag in ("h1", "h2"):
            inside = False
            title = following.content if token.tag == "h2" else ""
            parts.append((token.tag, title, 0))
            inside = title == "Answer"
        elif inside:
            high = token.type == "heading_open" and token.level > 0 and token.tag in ("h1", "h2")
            assert not high, f"a heading as high as ours, within something: {token}"
        elif token.type != "inline":
            parts.append((token.type, "", token.level))
        assert "html" not in token.type, f"HTML: {token.content!r}"
        assert not any("html" in child.type for child in token.children or ()), f"HTML in {token.content!r}"
    return parts


def headings(text: str) -> list[str]:
    """The report's own headings, in order."""
    return [title for tag, title, _ in skeleton(text) if tag == "h2"]
