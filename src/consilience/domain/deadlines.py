"""Deadlines as people write them: the last day of the period that a text names."""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator
from datetime import date, timedelta

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
ORDINALS = {"1st": 1, "first": 1, "2nd": 2, "second": 2, "3rd": 3, "third": 3, "4th": 4, "fourth": 4}
ORDINALS |= {str(number): number for number in range(1, 5)}

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

NUMBERS = {
    word: number
    for number, word in enumerate(
        ("a", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"), 1
    )
} | {"an": 1, "one": 1}
MAX_SPAN, MAX_YEAR = 10_000, 2199
_UNIT = r"(?P<unit>day|week|month|quarter|year)"
_SPAN = re.compile(
    rf"\b(?:in|within)\s+(?:the\s+next\s+)?(?P<number>\d{{1,4}}|{'|'.join(NUMBERS)})\s+{_UNIT}s?\b"
    rf"(?!\s+(?:of|after|from|following|before|since)\b(?!\s+(?:now|today)\b))"
)
_PERIOD = re.compile(
    r"\b(?:this|next|end of (?:the|this))\s+(?P<unit>week|month|quarter|year)\b(?!\s+(?:of|after|before)\b)"
)
_YEAR_END = re.compile(r"\byear[- ]end\b|\bend of year\b")
_DATES = [re.compile(rf"\b{_DAY}(?:\s+of)?\s+{_MONTH}"), re.compile(rf"\b{_MONTH}\s+{_DAY}\b")]
"""A day of a month without a year: the next one."""


def deadline_of(text: str, since: date | None = None) -> date | None:
    """Return the last day of the latest period that a text names: a day, month, quarter, half or year. None if it names none.

    "early" and "beginning of" a year are its first quarter, "mid" its first half; "end of" and no word its last day. A text that
    names none is read from the day on which it was written, if that is given: "in six weeks", "within a year", "by 15 July",
    "next quarter", "end of the year". A time that runs from something else ("six weeks after the start") is not read.
    """
    named = max(_days(text.casefold()), default=None)
    return named if named is not None or since is None else max(_relative(text.casefold(), since), default=None)


def _relative(text: str, since: date) -> Iterator[date]:
    for match in _SPAN.finditer(text):
        words = match["number"]
        number = int(words) if words.isdecimal() else NUMBERS[words]
        if day := _later(since, number, match["unit"]):
            yield day
    for match in _PERIOD.finditer(text):
        if day := _end_of_period(since, match["unit"], 1 if "next" in match[0] else 0):
            yield day
    if _YEAR_END.search(text):
        yield date(since.year, 12, 31)
    for form in _DATES:
        for match in form.finditer(text):
            month = MONTHS.index(match["month"][:3]) + 1
            days = (_date(year, month, int(match["day"])) for year in (since.year, since.year + 1))
            yield from [day for day in days if day and day >= since][:1]


def _later(day: date, number: int, unit: str) -> date | None:
    """Return the day so many units later; of a month that is shorter, the last one."""
    if unit in ("day", "week"):
        return day + timedelta(days=number * (7 if unit == "week" else 1)) if number <= MAX_SPAN else None
    months = day.month - 1 + number * {"month": 1, "quarter": 3, "year": 12}[unit]
    year, month = day.year + months // 12, months % 12 + 1
    return date(year, month, min(day.day, monthrange(year, month)[1])) if year <= MAX_YEAR else None


def _end_of_period(day: date, unit: str, ahead: int) -> date | None:
    """Return the last day of the period in which a day is, or of the next one."""
    if unit == "week":
        return day + timedelta(days=6 - day.weekday() + 7 * ahead)
    length = {"month": 1, "quarter": 3, "year": 12}[unit]
    last = (day.month - 1) // length * length + length
    first = _later(date(day.year, last, 1), ahead * length, "month")
    return first and first.replace(day=monthrange(first.year, first.month)[1])


def _date(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


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
        month = 3 * ORDINALS[quarter]
    elif half_of_year := parts.get("half") or parts.get("nth_half"):
        month = 6 * ORDINALS[half_of_year]
    elif part := parts.get("part"):
        month = 6 if part.startswith("mid") else 3
    try:
        return date(year, month, int(parts.get("day") or 0) or monthrange(year, month)[1])
    except (ValueError, IndexError):
        return None
