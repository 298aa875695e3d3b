"""Texts as code in Markdown, whatever they contain."""

from __future__ import annotations

import re


def fenced(text: str, language: str = "") -> str:
    """Return Markdown of a code block, in a fence that the text cannot close."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def code_span(text: str) -> str:
    """Return text on one line as a code span of Markdown."""
    line = " ".join(text.split()) or " "
    marks = "`" * (_longest_run(line) + 1)
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{marks}{pad}{line}{pad}{marks}"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
