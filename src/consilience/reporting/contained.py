"""Somebody's Markdown as a part of ours: its lists, tables and code stay, but it ends where it ends and heads nothing.

What could break out of its place is a heading as high as ours, HTML (a comment without end hides what follows), and a code
block without end. What stands in a block of code is left as it is.
"""

from __future__ import annotations

import re

from consilience.reporting.words import one_line, printable

_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_HEADING = re.compile(r"^((?:[ \t]*(?:[-+*>]|\d{1,9}[.)]))*[ \t]*)(#{1,6})(?=\s|$)")
"""With the marks of lists and quotations in which it may stand."""
_UNDERLINE = re.compile(r"[ \t>]*(?:=+|-+)[ \t]*")
_SPAN = r"(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
_TAG = r"\\.|<(?=[A-Za-z/!?])"
_TAGS = re.compile(_TAG)
_TAGS_BESIDE_CODE = re.compile(f"{_SPAN}|{_TAG}")

_MARKUP = re.compile(r"([\\`*\[\]<>|#]|(?<!\w)_|_(?!\w)|~(?=~)|(?<=~)~|&(?=#?\w+;))")
_ITEM = re.compile(r"^(\d{0,9})([-+=.)])(?=[-=\s]|$)")
"""What makes a list, a heading or a rule where it begins a line."""


def contained(text: str) -> str:
    """`text` with its headings two levels lower, and shown rather than obeyed where it is HTML; what it opens it closes."""
    lines = printable(text).strip().split("\n")
    tags = _TAGS_BESIDE_CODE if all(map(_clear, lines)) else _TAGS
    made: list[str] = []
    fence = ""
    for line in lines:
        if fence:
            made.append(line)
            if re.fullmatch(rf" {{0,3}}{fence[0]}{{{len(fence)},}}[ \t]*", line):
                fence = ""
        elif opened := _FENCE.match(line):
            fence = opened[1]
            made.append(line.lstrip(" "))  # at the margin no list can hold it, so it is known where it ends
        else:
            if made and made[-1].strip() and _UNDERLINE.fullmatch(line):
                made.append("")
            lower = _HEADING.sub(lambda found: found[1] + "#" * min(6, len(found[2]) + 2), line)
            made.append(tags.sub(lambda found: r"\<" if found[0] == "<" else found[0], lower))
    return "\n".join([*made, fence] if fence else made)


def plain(text: str) -> str:
    """One line of somebody's text, with what Markdown would read as markup escaped."""
    return _ITEM.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", one_line(text)))


def _clear(line: str) -> bool:
    """Whether every backtick of the line belongs to code that ends in it, however the lines around it are read."""
    return "`" not in line or not ("`" in re.sub(_SPAN, "", line) or "\\`" in line or "|" in line)
