"""Reads a JSON object whose form is broken in ways that leave one reading: comments, trailing commas, other quotation marks, bare
keys, constants of other languages, and backslashes that begin no escape."""

from __future__ import annotations

import json
import re
from typing import NoReturn

MAX_DEPTH = 60
MAX_CHARS = 400_000
"""Length of an object that is mended."""

_SPACE = re.compile(r"(?:\s+|//[^\n]*|#[^\n]*|/\*.*?\*/)*", re.DOTALL)
_COMMA = re.compile("[,，]")
_COLON = re.compile("[:：]")
_STRINGS = {
    '"': re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL),
    "'": re.compile(r"'((?:[^'\\]|\\.|(?<=\w)'(?=\w))*)'", re.DOTALL),
    "“": re.compile(r"“((?:[^”\\]|\\.)*)”", re.DOTALL),
}
_KEY = re.compile(r"[A-Za-z_]\w*")
_CONSTANT = re.compile(r"(?:true|false|null|True|False|None|undefined)\b")
_CONSTANTS = {"true": True, "false": False, "True": True, "False": False}
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,300})(?:\.\d{1,300})?(?:[eE][+-]?\d{1,3})?(?![\w.])")
_SPECIAL = re.compile(r'\\(?:(?P<escape>u[0-9a-fA-F]{4}|["\\/bfnrt])|(?P<other>.))|(?P<bare>[\x00-\x1f"])', re.DOTALL)
_NEEDLESS = frozenset("'_*#`~&$“”\n")
"""Characters before which a backslash, which JSON does not allow there, has no meaning of its own."""


class _Unreadable(ValueError):
    """More than one reading, or none."""


def mended(text: str, begin: int) -> tuple[dict[str, object], int] | None:
    """Return the object that begins at `begin` and the position after it; None if its form does not leave one reading."""
    reader = _Reader(text[begin : begin + MAX_CHARS])
    try:
        return reader.read_object(0), begin + reader.place
    except _Unreadable:
        return None


class _Reader:
    """Reads values of `text` from `place` on."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0

    def read_value(self, depth: int) -> object:
        character = self.text[self.place : self.place + 1]
        if character == "{":
            return self.read_object(depth + 1)
        if character == "[":
            return self.read_array(depth + 1)
        if character in _STRINGS and character:
            return self.read_string()
        if (constant := self.take(_CONSTANT)) is not None:
            return _CONSTANTS.get(constant[0])
        number: object = json.loads(self.expect(_NUMBER)[0])
        return number

    def read_object(self, depth: int) -> dict[str, object]:
        fields: dict[str, object] = {}
        self.enter(depth)
        while not self.closes("}"):
            key = self.read_string() if self.text[self.place : self.place + 1] in _STRINGS else self.expect(_KEY)[0]
            self.skip()
            self.expect(_COLON)
            self.skip()
            if key in fields:
                self.fail()
            fields[key] = self.read_value(depth)
            self.separate("}")
        return fields

    def read_array(self, depth: int) -> list[object]:
        values: list[object] = []
        self.enter(depth)
        while not self.closes("]"):
            values.append(self.read_value(depth))
            self.separate("]")
        return values

    def read_string(self) -> str:
        written = self.expect(_STRINGS[self.text[self.place]])[1]
        try:
            value: str = json.loads(f'"{_SPECIAL.sub(_escaped, written)}"')
        except ValueError:
            self.fail()
        return value

    def enter(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            self.fail()
        self.place += 1
        self.skip()

    def closes(self, bracket: str) -> bool:
        if self.text[self.place : self.place + 1] != bracket:
            return False
        self.place += 1
        return True

    def separate(self, bracket: str) -> None:
        """Pass the comma behind a value, which may stand before the closing bracket too."""
        self.skip()
        if self.take(_COMMA) is not None:
            self.skip()
        elif self.text[self.place : self.place + 1] != bracket:
            self.fail()

    def skip(self) -> None:
        self.expect(_SPACE)

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.place)
        if match is not None:
            self.place = match.end()
        return match

    def expect(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = self.take(pattern)
        if match is None:
            self.fail()
        return match

    def fail(self) -> NoReturn:
        raise _Unreadable


def _escaped(found: re.Match[str]) -> str:
    r"""Return an escape that JSON allows: `\'` is a quotation mark, `\(` a backslash and a bracket."""
    if found["bare"]:
        return f"\\u{ord(found['bare']):04x}"
    if found["escape"]:
        return found[0]
    return found["other"] if found["other"] in _NEEDLESS else f"\\\\{found['other']}"
