"""Comparing what two passages say of one thing: dates, amounts, durations and numbers as such, else words.

Pure, and careful rather than clever: what cannot be compared is neither equal nor different.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Literal
from unicodedata import normalize

from consilience.documents.words import with_figures_apart, words_in

ValueRelation = Literal["equal", "different", "incomparable"]
ValueKind = Literal["date", "time", "money", "percent", "days", "months", "number"]

FigureReading = tuple[str | float | None, ...]
"""One way to read a figure: year, month and day of a date, of which some may be None; a currency and an amount; a number."""


@dataclass(frozen=True)
class Figure:
    """A figure of a text with its possible readings: `04/03/2027` is a day in March or in April, `1.200` has two sizes."""

    kind: ValueKind
    readings: frozenset[FigureReading]

    def agrees_with(self, other: Figure) -> bool:
        """Whether some reading of both agrees. Parts that one of them does not state, such as the day of a date, do not count."""
        return any(
            all(a is None or b is None or a == b for a, b in zip(one, two, strict=True))
            for one, two in product(self.readings, other.readings)
        )


@dataclass(frozen=True)
class ReadValue:
    """The figures of a value in their order, and its other words."""

    figures: tuple[Figure, ...]
    words: frozenset[str]
    bounds: frozenset[str]
    """Whether it says `at least` or `at most`."""
    negated: bool

    @property
    def kinds(self) -> frozenset[ValueKind]:
        return frozenset(figure.kind for figure in self.figures)


_MONTHS = {
    "january": 1, "jan": 1, "february": 2, "feb": 2, "march": 3, "mar": 3, "april": 4, "apr": 4, "may": 5, "june": 6, "jun": 6,
    "july": 7, "jul": 7, "august": 8, "aug": 8, "september": 9, "sept": 9, "sep": 9, "october": 10, "oct": 10, "november": 11,
    "nov": 11, "december": 12, "dec": 12,
}  # fmt: skip
_SMALL = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18,
    "nineteen": 19,
}  # fmt: skip
_TENS = {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}  # fmt: skip
_SCALES = {"k": 1e3, "thousand": 1e3, "m": 1e6, "mn": 1e6, "million": 1e6, "bn": 1e9, "billion": 1e9}
_CURRENCIES = {
    "€": "EUR", "eur": "EUR", "euro": "EUR", "euros": "EUR", "$": "USD", "usd": "USD", "dollar": "USD", "dollars": "USD",
    "£": "GBP", "gbp": "GBP", "pound": "GBP", "pounds": "GBP", "chf": "CHF", "franc": "CHF", "francs": "CHF", "¥": "JPY",
    "jpy": "JPY", "yen": "JPY",
}  # fmt: skip
_UNITS: dict[str, tuple[ValueKind, float]] = {
    "day": ("days", 1), "days": ("days", 1), "week": ("days", 7), "weeks": ("days", 7), "fortnight": ("days", 14),
    "month": ("months", 1), "months": ("months", 1), "quarter": ("months", 3), "quarters": ("months", 3),
    "year": ("months", 12), "years": ("months", 12),
}  # fmt: skip
_MONTH = "|".join(sorted(_MONTHS, key=len, reverse=True))
_DATES = re.compile(
    rf"\b(?P<iso>\d{{4}})-(?P<iso_month>\d\d)-(?P<iso_day>\d\d)\b"
    rf"|\b(?P<one>\d\d?)(?P<mark>[./-])(?P<two>\d\d?)(?P=mark)(?P<short>\d{{4}}|\d\d)\b"
    rf"|\b(?:(?P<day>\d\d?)(?:st|nd|rd|th)?(?: of)? )?(?P<month>{_MONTH})\b\.?"
    rf"(?:,? (?P<us_day>\d\d?)(?:st|nd|rd|th)?(?!\d)(?=,? \d{{4}}\b|\W|$))?(?:,? (?P<year>\d{{4}})\b)?",
)
_TIME = re.compile(r"\b(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)\b")
_CURRENCY = "|".join(re.escape(name) for name in sorted(_CURRENCIES, key=len, reverse=True))
_SCALE = "|".join(sorted(_SCALES, key=len, reverse=True))
_AMOUNT = re.compile(
    rf"(?:(?P<before>{_CURRENCY})\s?)?(?<![\w.,])(?P<sign>-)?(?P<number>\d[\d.,' ]*\d|\d)"
    rf"(?:\s?(?P<scale>{_SCALE})\b)?(?:\s?(?P<percent>%|percent\b|per cent\b)|\s?(?P<after>{_CURRENCY})(?!\w))?"
    rf"(?:[ -](?:(?:calendar|working|business) )?(?P<unit>{'|'.join(_UNITS)})\b)?",
)
_GROUPED = re.compile(r"\d{1,3}([.,' ])\d{3}(?:\1\d{3})*")
_NUMBER_WORDS = re.compile(
    rf"\b(?:(?P<tens>{'|'.join(_TENS)})(?:[- ](?P<ones>{'|'.join(_SMALL)}))?|(?P<small>{'|'.join(_SMALL)}))\b"
)
_BOUNDS = {
    "least": re.compile(r"\b(?:at least|minimum|not? less than|no fewer than|or more|from)\b"),
    "most": re.compile(r"\b(?:at most|maximum|no(?:t)? more than|up to|not exceed(?:ing)?|or less|or fewer)\b"),
}
_NEGATION = re.compile(r"\b(?:not|no|never|without|neither|nor|none|cannot|can't|isn't|won't|prohibited|forbidden)\b")
_EMPTY_WORDS = frozenset((
    "a", "an", "the", "of", "to", "in", "on", "at", "by", "for", "from", "and", "or", "is", "are", "be", "was", "were", "will",
    "shall", "must", "may", "per", "each", "about", "approximately", "circa", "ca", "least", "most", "up", "until", "than", "more",
    "less", "ms", "mr", "mrs", "dr",
))  # fmt: skip
_SUPERSCRIPTS = dict.fromkeys(map(ord, "¹²³⁰⁴⁵⁶⁷⁸⁹"))
"""They mark footnotes, and would become digits of the figure before them."""
MAX_VALUE_CHARS = 300
"""What is behind them is not compared."""


@lru_cache(maxsize=16_384)
def read_value(text: str) -> ReadValue:
    """Return what can be compared of a value as a document or a reader words it."""
    written = normalize("NFKC", text[:MAX_VALUE_CHARS].translate(_SUPERSCRIPTS)).casefold().translate(_DASHES)
    plain = " ".join(with_figures_apart(written).split())
    bounds = frozenset(name for name, pattern in _BOUNDS.items() if pattern.search(plain))
    negated = bool(_NEGATION.search(plain)) and not bounds
    figures: list[tuple[int, Figure]] = []
    rest = _NUMBER_WORDS.sub(_in_digits, plain)
    for pattern, read in ((_DATES, _date), (_TIME, _time), (_AMOUNT, _amount)):
        for match in pattern.finditer(rest):
            if figure := read(match):
                figures.append((match.start(), figure))
                rest = rest[: match.start()] + " " * len(match[0]) + rest[match.end() :]
    words = frozenset(word for word in words_in(rest, joints="'’") if word not in _EMPTY_WORDS)
    return ReadValue(tuple(figure for _, figure in sorted(figures, key=lambda f: f[0])), words, bounds, negated)


def compare_values(one: str, other: str) -> ValueRelation:
    """Return whether two values of one attribute are equal or different, or cannot be compared.

    Figures of one kind are compared with each other; a bare number with an amount or a duration of any unit. Where no figure is
    given, words are compared: a value that holds all words of the other one is equal, unless only one of them is negated.
    """
    a, b = read_value(one), read_value(other)
    if a.bounds and b.bounds and a.bounds.isdisjoint(b.bounds):
        return "different"
    if a.figures and b.figures:
        return _compare_figures(a.figures, b.figures)
    if a.figures or b.figures or not a.words or not b.words:
        return "incomparable"
    if a.words <= b.words or b.words <= a.words:
        return "different" if a.negated != b.negated else "equal"
    return "different"


def _compare_figures(one: tuple[Figure, ...], other: tuple[Figure, ...]) -> ValueRelation:
    kinds = Counter(f.kind for f in one), Counter(f.kind for f in other)
    common = [kind for kind in kinds[0] if kind in kinds[1]]
    if not common:
        bare = {"number", "money", "days", "months", "percent"}
        if len(one) == len(other) == 1 and "number" in (one[0].kind, other[0].kind) and {*kinds[0], *kinds[1]} <= bare:
            sizes = [{reading[-1] for reading in figure.readings} for figure in (one[0], other[0])]
            return "equal" if sizes[0] & sizes[1] else "different"
        return "incomparable"
    for kind in common:
        few, many = sorted(([f for f in side if f.kind == kind] for side in (one, other)), key=len)
        if not all(any(figure.agrees_with(candidate) for candidate in many) for figure in few):
            return "different"
    return "equal"


_DASHES = str.maketrans(dict.fromkeys("‐‑‒–—―−", "-") | {"’": "'", "\u00a0": " ", "\u202f": " "})


def _in_digits(match: re.Match[str]) -> str:
    if match["small"]:
        return str(_SMALL[match["small"]])
    return str(_TENS[match["tens"]] + _SMALL.get(match["ones"] or "zero", 0))


def _date(match: re.Match[str]) -> Figure | None:
    if match["iso"]:
        readings: Iterable[FigureReading] = [(float(match["iso"]), float(match["iso_month"]), float(match["iso_day"]))]
    elif match["one"]:
        year = float(match["short"]) + (2000 if len(match["short"]) == 2 else 0)
        one, two = float(match["one"]), float(match["two"])
        orders = [(two, one)] if match["mark"] == "." else [(two, one), (one, two)]
        readings = [(year, month, day) for month, day in orders if 1 <= month <= 12 and 1 <= day <= 31]
    else:
        day = match["day"] or match["us_day"]
        if not day and not match["year"] and match["month"] in ("may", "mar", "sep", "dec"):
            return None  # more often another word
        number = float(match["year"]) if match["year"] else None
        readings = [(number, float(_MONTHS[match["month"]]), float(day) if day else None)]
    found = frozenset(readings)
    return Figure("date", found) if found else None


def _time(match: re.Match[str]) -> Figure:
    return Figure("time", frozenset({(float(match["hour"]), float(match["minute"]))}))


def _amount(match: re.Match[str]) -> Figure | None:
    scale = _SCALES.get(match["scale"] or "", 1.0) * (-1 if match["sign"] else 1)
    sizes = {size * scale for size in _sizes(match["number"])}
    if not sizes:
        return None
    if currency := match["before"] or match["after"]:
        return Figure("money", frozenset((_CURRENCIES[currency], size) for size in sizes))
    if match["percent"]:
        return Figure("percent", frozenset((size,) for size in sizes))
    if match["unit"]:
        kind, factor = _UNITS[match["unit"]]
        return Figure(kind, frozenset((size * factor,) for size in sizes))
    return Figure("number", frozenset((size,) for size in sizes))


def _sizes(digits: str) -> Iterator[float]:
    """Yield the numbers that digits may stand for: `12,100` is twelve thousand and, in some countries, twelve and a tenth."""
    text = digits.strip(" .,'")
    if grouped := _GROUPED.fullmatch(text):
        yield float(re.sub(r"[.,' ]", "", text))
        if grouped[1] == "." and text.count(".") == 1:
            yield float(text)
        return
    decimal = max(text.rfind("."), text.rfind(","))
    whole, fraction = (text, "") if decimal < 0 else (text[:decimal], text[decimal + 1 :])
    whole, fraction = re.sub(r"[.,' ]", "", whole), fraction.strip()
    if whole.isdecimal() and (not fraction or fraction.isdecimal()):
        yield float(f"{whole}.{fraction or 0}")
