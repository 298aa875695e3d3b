"""Revisions that lose the text: a small model that reviews its answer may return a few words in place of it."""

from __future__ import annotations

import re
from collections.abc import Iterable

MIN_KEPT_SHARE = 1 / 3
"""A revision shorter than this share of its draft does not replace it."""
MIN_DRAFT_CHARS = 300
"""Shorter drafts may become shorter still, without whitespace."""

_NUMBER = r"(?:\d[\d.,]*|an?|one|two|three|four|five|six|seven|eight|nine|ten|single|few|ein\w*|une?|une?o|una)"
_UNIT = (
    r"(?:word|sentence|paragraph|char(?:acter)?|line|page|bullet|point|token|phrase|headline|haiku|tweet|wort|wört|satz|"
    r"sätz|absatz|zeile|zeichen|seite|mot|ligne|palabra|frase|línea|parol|rig)\w*"
)
_SETS_LENGTH = re.compile(
    rf"\b{_NUMBER}[\s-]+(?:\w+[\s-]+)?{_UNIT}\b|\b(?:short|shorter|shorten\w*|brief\w*|concise\w*|terse\w*|succinct\w*|compact|"
    r"condense\w*|summar\w*|abridge\w*|tl;?dr|kurz\w*|knapp\w*|bref|brève\w*|breve\w*)\b(?!-)",
    re.IGNORECASE,
)


def sets_length(task: str) -> bool:
    """Return whether a task asks for a length, such as "in at most 150 words" or "briefly"."""
    return _SETS_LENGTH.search(task) is not None


def loses_draft(task: str, versions: Iterable[str], revision: str) -> bool:
    """Return whether a revision keeps less than a third of the longest version before it although the task sets no length.

    Of all versions, because several revisions may each lose a little.
    """
    before, after = max(map(_size, versions), default=0), _size(revision)
    return before >= MIN_DRAFT_CHARS and after < before * MIN_KEPT_SHARE and not sets_length(task)


def _size(text: str) -> int:
    return len("".join(text.split()))
