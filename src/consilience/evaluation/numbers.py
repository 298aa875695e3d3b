"""Reading numbers as people and models write them.

A text is read from left to right as words, numbers and digits that are joined otherwise. A word begins with a letter and keeps
the digits in it, after a hyphen, or in its exponent: those of `CO2`, `km2`, `GPT-4` and `m^2` are no numbers. Digits that are
joined to others otherwise than within a number (`1/2`, `10:40`, `12,00,000`, `1.2.3`) are none at all.
"""

from __future__ import annotations

import math
import re

_NARROW = "\u202f"
_ALIKE = str.maketrans(
    {"−": "-", "–": "-", "’": "'", "·": "×", "\u00a0": _NARROW, "\u2007": _NARROW, "\u2009": _NARROW}
)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_TEX = {r"\times": "×", r"\cdot": "×", "{,}": ",", r"\,": _NARROW, "**": "^"}
_DRESS = re.compile(r"[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+|\\times|\\cdot|\{,\}|\\,|(?<=10)\*\*(?=-?\d)")

_SCALES = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}

_CURRENCY = "(?:USD|EUR|GBP|CHF|JPY|CNY|INR|AUD|CAD|NZD|SEK|NOK|DKK|PLN|CZK|BRL|MXN|ZAR|KRW|SGD|HKD)"

_DIGITS = rf"""
    (?: (?: \d{{1,3}}(?:[,'{_NARROW}]\d{{3}})+(?!\d)        # thousands
          | (?<!\d[ ])\d{{1,3}}(?:[ ]\d{{3}})+(?![ ]?\d)    # with plain blanks, unless other numbers stand beside them
          | \d+
        ) (?:\.\d+)?
      | \.\d+
    )"""
_EXPONENT = r"(?:[eE][-+]?\d+)?"
_PLAIN = re.compile(rf"[-+]? {_DIGITS} {_EXPONENT}", re.VERBOSE)
_TOKEN = re.compile(
    rf"""
    (?P<number>
        (?<![^\W_]) (?<!\.)
        (?P<sign> (?<!-)[-+] )? (?: {_CURRENCY} | [$€£¥](?P<debt> - )? )?
        (?: (?: (?P<mantissa> {_DIGITS} ) \s*[×x*]\s* )? 10\^ [{{(]? (?P<power> [-+]?\d+ ) [)}}]?
          | (?P<digits> {_DIGITS} {_EXPONENT} ) (?!\^)
        )
        (?: [\s*_`-]* (?P<scale> (?i:thousand|million|billion|trillion) )s?\b )?
        (?! [.,'/:_]?\d )
    )
    | [^\W\d_]\w* (?: -\d+ | \^ [{{(]? [-+]?\d+ [)}}]? )?   # a word
    | \d (?: [\d.,'/:_^{{]*\d )?                            # digits joined otherwise
    """,
    re.VERBOSE,
)


def number_in(text: str) -> float | None:
    """The last number of a text; None where there is none.

    Thousands are grouped by commas, apostrophes or blanks, or not at all. Behind a plain blank three digits are thousands where
    one to three stand before it, and no other number beside them. `3.15e7`, `3.15 × 10^7` and `31.5 million` are one number each.
    A minus sign, a hyphen or an en dash before it belongs to it, unless something stands before that.
    """
    values = [value for value, _, _ in _numbers(_plain(text))]
    return values[-1] if values else None


def number_around(text: str, start: int, end: int) -> float | None:
    """The last whole number of which something stands between two places of a text: -1,366 also where they hold 366 alone."""
    parts = [_plain(part) for part in (text[:start], text[start:end], text[end:])]
    start, end = len(parts[0]), len(parts[0]) + len(parts[1])
    values = [value for value, begins, ends in _numbers("".join(parts)) if begins < end and ends > start]
    return values[-1] if values else None


def plain_number(text: str) -> float | None:
    """A text that is one number in digits, as whoever writes a reference gives it; None for all else, and for an endless one."""
    plain = _plain(text).strip()
    if not _PLAIN.fullmatch(plain):
        return None
    value = _value(plain)
    return value if math.isfinite(value) else None


def _numbers(plain: str) -> list[tuple[float, int, int]]:
    """Every number, and where it stands."""
    found = []
    for token in _TOKEN.finditer(plain):
        if token["number"] is None:
            continue
        digits = f"{token['mantissa'] or 1}e{token['power']}" if token["power"] else token["digits"]
        value = _value(digits) * (_SCALES[token["scale"].lower()] if token["scale"] else 1)
        found.append((-value if "-" in (token["sign"], token["debt"]) else value, token.start(), token.end()))
    return found


def _value(digits: str) -> float:
    return float(re.sub(f"[,' {_NARROW}]", "", digits))


def _plain(text: str) -> str:
    """Signs, blanks, exponents and what TeX writes for them made alike."""

    def alike(found: re.Match[str]) -> str:
        return _TEX.get(found[0]) or f"^{found[0].translate(_RAISED)}"

    return _DRESS.sub(alike, text.translate(_ALIKE))
