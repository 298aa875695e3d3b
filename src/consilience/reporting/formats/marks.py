"""Marks: data at the end of a comment, which readers do not see and a later run reads.

Anybody can write one. So a reader takes a mark only from a comment that the program itself has written, by the word of the service
that keeps the comments, and only from its last line, which no text of a model is on.
"""

from __future__ import annotations

import re

from pydantic import ValidationError

from consilience.domain.findings import EarlierReviews, KnownFinding
from consilience.domain.report import Frozen

_MARK = re.compile(r"<!-- consilience (\{.*\}) -->\s*\Z")


class Mark(Frozen):
    """What a comment says to a later run."""

    name: str = ""
    """Of the series of reviews that it belongs to: two of one pull request know nothing of each other."""
    finding: KnownFinding | None = None
    """The finding that its thread is about."""
    is_gone: bool = False
    """Whether it says that the finding no longer applies."""
    answers: str = ""
    """Id of the comment that it answers."""
    review: EarlierReviews | None = None
    """Of a review as a whole: up to which commit it read, and its findings that have no thread."""


def marked(body: str, mark: Mark) -> str:
    """Return a comment with a mark as its last line."""
    return f"{body}\n\n{mark_text(mark)}"


def mark_text(mark: Mark) -> str:
    data = mark.model_dump_json(exclude_defaults=True)
    for char in "<>-&@":  # nothing ends the comment early or calls somebody; in JSON only strings have these
        data = data.replace(char, f"\\u{ord(char):04x}")
    return f"<!-- consilience {data} -->"


def mark_in(body: str) -> Mark | None:
    """Return the mark of a comment; None without a valid one."""
    found = _MARK.search(body.rpartition("\n")[2])
    try:
        return Mark.model_validate_json(found[1]) if found else None
    except ValidationError:
        return None


def without_mark(body: str) -> str:
    text, _, last = body.rpartition("\n")
    return text.rstrip() if _MARK.search(last) else body
