"""Reading numbers as people and models write them.

A text is split from left to right into words, numbers and joined digits. A word begins with a letter and includes its digits,
also after a hyphen and in an exponent: `CO2`, `km2`, `GPT-4` and `m^2` contain no numbers. Digits joined without a space are one
token: a number if written as one, otherwise no number (`10:40`, `2024-05-01`, `3-5`, `2^10`, `12,00,000`, `1.2.3`). So a number
is never a part of another number, a date, a time, a range, an expression or a version.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_NARROW = "\u202f"
_ALIKE = str.maketrans(
    {
        **dict.fromkeys("−–‐‑‒﹣－", "-"),
        **dict.fromkeys("\u00a0\u2007\u2009", _NARROW),
        "’": "'",
        "·": "×",
        "⁄": "/",
    }
)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_VULGAR = {"½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4"}
_TEX = {r"\times": "×", r"\cdot": "×", "{,}": ",", r"\,": _NARROW, r"\$": "$", "**": "^"}
_DRESS = re.compile(
    r"[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+|\\times|\\cdot|\{,\}|\\,|\\\$|(?<=10)\*\*(?=-?\d)"
    r"|[½⅓⅔¼¾]|\\[dt]?frac\{(?P<above>\d+)\}\{(?P<below>\d+)\}"
)

_SCALES = {"dozen": 12, "hundred": 1e2, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_SUFFIXES = {"k": 1e3, "m": 1e6, "bn": 1e9}

_CURRENCY = (
    "(?: USD|EUR|GBP|CHF|JPY|CNY|INR|AUD|CAD|NZD|SEK|NOK|DKK|PLN|CZK|BRL|MXN|ZAR|KRW|SGD|HKD | [A-Z]{0,2}\\$ | [€£¥] )"
)

_DIGITS = rf"""
    (?: (?: 0 | \d{{4,}} | \d{{1,3}}(?:\.\d{{3}})+ | \d{{1,3}}(?:['{_NARROW}]\d{{3}})+ | \d{{1,3}}(?:[ ]\d{{3}})+ ) ,\d+
      | \d{{1,3}},(?:\d{{1,2}}|\d{{4,}})(?!\d)              # a decimal comma: the digits around it cannot be thousands
      | (?: \d{{1,3}}(?:[,'{_NARROW}]\d{{3}})+(?!\d)        # thousands
          | (?<!\d[ ])\d{{1,3}}(?:[ ]\d{{3}})+(?![ ]?\d)    # with plain spaces, unless other numbers are next to them
          | \d+
        ) (?:\.\d+)?
      | \.\d+
    )"""
_EXPONENT = r"(?:[eE][-+]?\d+)?"
_FRACTION = r"(?:(?P<whole>(?<!\d[ ])\d{1,3})[ ])? (?P<above>\d{1,9})/(?P<below>[1-9]\d{0,8})"
_PLAIN = re.compile(rf"(?P<sign>[-+]?) (?: {_FRACTION} | (?P<digits> {_DIGITS} {_EXPONENT} ) )", re.VERBOSE)
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_JOIN = r"(?: [.,'/:_^{~×*+]{0,3}\d | %?-+[$€£¥]?\d | [xh]\d )"
_TOKEN = re.compile(
    rf"""
    (?P<number>
        (?<![^\W_]) (?<!\.)
        (?P<sign> (?<!-)[-+] | (?<!-)(?<!\d[ ])(?i:minus|negative)\s+ )?
        (?: (?P<currency> {_CURRENCY} ) \s?(?P<debt> - )? )?
        (?: (?: (?P<mantissa> {_DIGITS} ) \s*[×x*]\s* )? 10\^ [{{(]? (?P<power> [-+]?\d+ ) [)}}]?
          | {_FRACTION}
          | (?P<digits> {_DIGITS} {_EXPONENT} ) (?!\^)
        )
        (?! {_JOIN} )
        (?: [\s*_`-]* (?P<scale> (?i:dozen|hundred|thousand|million|billion|trillion) )s?\b
          | (?P<suffix> k | bn | (?(currency)[KMm]|(?!)) ) (?![^\W_])
        )?
    )
    | [^\W\d_]\w* (?: -\d+ | \^ [{{(]? [-+]?\d+ [)}}]? )?   # a word
    | (?P<joined> \d {_JOIN}* )
    """,
    re.VERBOSE,
)


class _Token(NamedTuple):
    """A number or joined digits, and its place in the text."""

    value: float | None
    """None for joined digits that are no number."""
    begin: int
    end: int
    fraction: bool = False
    """It could also be a date or a score."""


def last_number(text: str) -> float | None:
    """Return the last number of a text; None without one.

    Thousands may be grouped by commas, apostrophes or spaces. Three digits after a plain space are thousands if one to three
    digits precede it and no other number is next to them. A comma that cannot group thousands is a decimal comma: `1,5`, `0,125`,
    `1.234,5`. `3.15e7`, `3.15 × 10^7`, `31.5 million` and `5k` are one number each. A minus sign, hyphen, en dash or the word
    *minus* before a number belongs to it, unless text precedes it directly. `1/2` and `1 1/2` are numbers if the text has no other.
    """
    return _last(list(_tokens(_plain(text)[0])))


def number_around(text: str, start: int, end: int, *, sole: bool = False) -> float | None:
    """Return the last number that overlaps a range of a text, read whole: -1,366 also if the range contains only 366.

    None if the range is in joined digits that are no number, or if `sole` is set and it contains different numbers.
    """
    plain, begin, stop = _plain(text, start, end)
    touched = [token for token in _tokens(plain) if token.begin < stop and token.end > begin]
    if sole and len({token.value for token in touched if token.value is not None and not token.fraction}) > 1:
        return None
    return _last(touched) if touched else last_number(text[start:end])


def parse_number(text: str) -> float | None:
    """Return the value of a text that is one finite number in digits, as in a reference; None for any other text."""
    plain = _PLAIN.fullmatch(_plain(text)[0].strip())
    value = _value(plain) if plain else math.inf
    return value if math.isfinite(value) else None


def _last(tokens: Sequence[_Token]) -> float | None:
    """Return the last number; a fraction only if there is no other."""
    values = [token.value for token in tokens if token.value is not None and not token.fraction]
    values = values or [token.value for token in tokens if token.value is not None]
    return values[-1] if values else None


def _tokens(plain: str) -> Iterator[_Token]:
    for token in _TOKEN.finditer(plain):
        if token["joined"] is not None:
            yield _Token(None, *token.span())
        elif token["number"] is not None:
            scale = _SCALES.get((token["scale"] or "").lower()) or _SUFFIXES.get((token["suffix"] or "").lower(), 1)
            if token["power"]:
                value = _float(f"{token['mantissa'] or 1}e{token['power']}")
                value = -value if _negative(token["sign"]) else value
            else:
                value = _value(token)
            yield _Token((-value if token["debt"] else value) * scale, *token.span(), fraction=bool(token["below"]))


def _value(token: re.Match[str]) -> float:
    """Return the value of a match with the groups `sign`, `digits`, and those of a fraction."""
    if token["below"]:
        above, below = int(token["above"]), int(token["below"])
        value = above / below + (int(token["whole"]) if token["whole"] and above < below else 0)
    else:
        value = _float(token["digits"])
    return -value if _negative(token["sign"]) else value


def _negative(sign: str | None) -> bool:
    return bool(sign) and sign != "+"


def _float(digits: str) -> float:
    digits = re.sub(f"[' {_NARROW}]", "", digits)
    if "," in digits and not _THOUSANDS.match(digits):
        digits = digits.replace(".", "").replace(",", ".")
    return float(digits.replace(",", ""))


def _plain(text: str, start: int = 0, end: int = 0) -> tuple[str, int, int]:
    """Return text with signs, spaces, exponents, fractions and their TeX forms normalized, and where a range of it moved to."""
    text = text.translate(_ALIKE)
    pieces, last, shift, begin, stop = [], 0, 0, start, end
    for match in _DRESS.finditer(text):
        plain = _normalized(match)
        grown = len(plain) - len(match[0])
        if match.end() <= start:
            begin += grown
        elif match.start() < start:
            begin = match.start() + shift
        if match.end() <= end:
            stop += grown
        elif match.start() < end:
            stop = match.start() + shift + len(plain)
        pieces += [text[last : match.start()], plain]
        last, shift = match.end(), shift + grown
    return "".join((*pieces, text[last:])), begin, stop


def _normalized(match: re.Match[str]) -> str:
    fraction = f"{match['above']}/{match['below']}" if match["above"] else _VULGAR.get(match[0])
    if fraction:
        return f" {fraction}" if match.string[max(match.start() - 1, 0) : match.start()].isdigit() else fraction
    return _TEX.get(match[0]) or f"^{match[0].translate(_RAISED)}"
