"""Reading numbers as people and models write them.

A text is read from left to right as words, numbers and joined digits. A word begins with a letter and keeps the digits in it,
after a hyphen, or in its exponent: those of `CO2`, `km2`, `GPT-4` and `m^2` are no numbers. Digits that are joined without a blank
are one thing: a number if they are written as one, else none at all (`10:40`, `2024-05-01`, `3-5`, `2^10`, `12,00,000`, `1.2.3`).
So a number never is a part of another one, of a date, a time, a range, an expression or a version.
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
      | \d{{1,3}},(?:\d{{1,2}}|\d{{4,}})(?!\d)              # a decimal comma: what stands around it cannot be thousands
      | (?: \d{{1,3}}(?:[,'{_NARROW}]\d{{3}})+(?!\d)        # thousands
          | (?<!\d[ ])\d{{1,3}}(?:[ ]\d{{3}})+(?![ ]?\d)    # with plain blanks, unless other numbers stand beside them
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
    """A number, or joined digits that are none (`value` None), and where it stands. A `fraction` may be a date or a score too."""

    value: float | None
    begin: int
    end: int
    fraction: bool = False


def last_number(text: str) -> float | None:
    """The last number of a text; None where there is none.

    Thousands are grouped by commas, apostrophes or blanks, or not at all. Behind a plain blank three digits are thousands where
    one to three stand before it, and no other number beside them. A comma is a decimal one where it cannot group thousands: `1,5`,
    `0,125`, `1.234,5`. `3.15e7`, `3.15 × 10^7`, `31.5 million` and `5k` are one number each. A minus sign, a hyphen, an en dash or
    the word *minus* before it belongs to it, unless something stands before that. `1/2` and `1 1/2` are numbers where the text
    holds no other.
    """
    return _last(list(_tokens(_plain(text)[0])))


def number_around(text: str, start: int, end: int, *, sole: bool = False) -> float | None:
    """The last whole number of which something stands between two places of a text: -1,366 also where they hold 366 alone. None
    where they hold a part of joined digits that are no number, and where it is to be the `sole` one, but they hold different ones.
    """
    plain, begin, stop = _plain(text, start, end)
    touched = [token for token in _tokens(plain) if token.begin < stop and token.end > begin]
    if sole and len({token.value for token in touched if token.value is not None and not token.fraction}) > 1:
        return None
    return _last(touched) if touched else last_number(text[start:end])


def parse_number(text: str) -> float | None:
    """A text that is one number in digits, as whoever writes a reference gives it; None for all else, and for an endless one."""
    plain = _PLAIN.fullmatch(_plain(text)[0].strip())
    value = _value(plain) if plain else math.inf
    return value if math.isfinite(value) else None


def _last(tokens: Sequence[_Token]) -> float | None:
    """The last number, a fraction only if there is no other."""
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
    """Of a match with the groups `sign`, `digits`, and those of a fraction."""
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
    """Signs, blanks, exponents, fractions and what TeX writes for them made alike; and where that stands which stood between two
    places."""
    text = text.translate(_ALIKE)
    pieces, last, shift, begin, stop = [], 0, 0, start, end
    for found in _DRESS.finditer(text):
        plain = _made_alike(found)
        grown = len(plain) - len(found[0])
        if found.end() <= start:
            begin += grown
        elif found.start() < start:
            begin = found.start() + shift
        if found.end() <= end:
            stop += grown
        elif found.start() < end:
            stop = found.start() + shift + len(plain)
        pieces += [text[last : found.start()], plain]
        last, shift = found.end(), shift + grown
    return "".join((*pieces, text[last:])), begin, stop


def _made_alike(found: re.Match[str]) -> str:
    fraction = f"{found['above']}/{found['below']}" if found["above"] else _VULGAR.get(found[0])
    if fraction:
        return f" {fraction}" if found.string[max(found.start() - 1, 0) : found.start()].isdigit() else fraction
    return _TEX.get(found[0]) or f"^{found[0].translate(_RAISED)}"
