"""Deadlines as people write them: the last day of the period that a text names."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator
from datetime import date

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
ORDINALS = {"1st": 1, "first": 1, "2nd": 2, "second": 2, "3rd": 3, "third": 3, "4th": 4, "fourth": 4}

_YEAR = r"(?P<year>(?:19|20|21)\d\d)"
_MONTH = (
    r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
    r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
)
_DAY = r"(?P<day>[0-3]?\d)(?:st|nd|rd|th)?"
_QUARTER = r"(?:q(?P<quarter>[1-4])|(?P<nth>1st|2nd|3rd|4th|first|second|third|fourth)\s+quarter(?:\s+of)?)"
_HALF = r"(?:h(?P<half>[12])|(?P<nth_half>1st|2nd|first|second)\s+half(?:\s+of)?)"
_PART = r"(?P<part>early|beginning of|start of|mid|middle of)"

_FORMS = [
    re.compile(form)
    for form in (
        rf"\b{_YEAR}-(?P<number>[01]?\d)-(?P<day>[0-3]?\d)\b",
        rf"\b{_DAY}(?:\s+of)?\s+{_MONTH},?\s+{_YEAR}\b",
        rf"\b{_MONTH}\s+{_DAY},?\s+{_YEAR}\b",
        rf"\b{_MONTH},?(?:\s+of)?\s+{_YEAR}\b",
        rf"\b{_QUARTER}[\s/-]*{_YEAR}\b",
        rf"\b{_YEAR}[\s/-]*q(?P<quarter>[1-4])\b",
        rf"\b{_HALF}[\s/-]*{_YEAR}\b",
        rf"\b{_YEAR}[\s/-]*h(?P<half>[12])\b",
        rf"\b{_YEAR}-(?P<number>[01]\d)\b",
        rf"\b{_PART}[\s-]*(?:the year\s+)?{_YEAR}\b",
        rf"\b{_YEAR}\b",
    )
]
"""The most exact form first: what one has read is not read again by the next."""


def deadline_of(text: str) -> date | None:
    """Return the last day of the latest period that a text names: a day, month, quarter, half or year. None if it names none.

    "early" and "beginning of" a year are its first quarter, "mid" its first half; "end of" and no word its last day. Periods
    without a year ("in six months", "next spring") are not read: they would need the day on which they were written.
    """
    return max(_days(text.casefold()), default=None)


def _days(text: str) -> Iterator[date]:
    for form in _FORMS:
        for match in form.finditer(text):
            day = _day(match.groupdict())
            if day is not None:
                yield day
        text = form.sub(" ", text)


def _day(parts: dict[str, str | None]) -> date | None:
    year = int(parts["year"] or 0)
    month = 12
    if name := parts.get("month"):
        month = MONTHS.index(name[:3]) + 1
    elif number := parts.get("number"):
        month = int(number)
    elif quarter := parts.get("quarter") or parts.get("nth"):
        month = 3 * ORDINALS.get(quarter, int(quarter) if quarter.isdecimal() else 0)
    elif half := parts.get("half") or parts.get("nth_half"):
        month = 6 * ORDINALS.get(half, int(half) if half.isdecimal() else 0)
    elif part := parts.get("part"):
        month = 6 if part.startswith("mid") else 3
    try:
        return date(year, month, int(parts.get("day") or 0) or monthrange(year, month)[1])
    except (ValueError, IndexError):
        return None
