"""Shelves of TOML files: some come with the package and have names, others are the user's own and have paths."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.paths import read_bounded

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

MAX_KEY_PARTS = 32
"""Parts of a dotted key. The time that tomllib takes grows with their square, and more so with nested tables."""

_LONGEST_NAME = 80


@dataclass(frozen=True)
class Shelf:
    """Files of one kind: `folder` of the package holds those that come with it, `noun` is what one of them is called."""

    folder: str
    noun: str

    def names(self) -> list[str]:
        """Those that come with the package, sorted."""
        return sorted(entry.name.removesuffix(".toml") for entry in self._shipped().iterdir() if _is_toml(entry.name))

    def load(self, name_or_path: str | Path) -> tuple[dict[str, Any], str]:
        """The table of that shipped name or file, and in words where it stands.

        A text that ends in `.toml` or holds a path separator is a path; any other is a shipped name first, then a file.
        Raises `UnknownName` where there is neither, `SettingsError` where the file cannot be read or is no TOML.
        """
        if isinstance(name_or_path, str):
            if not name_or_path.strip():
                raise SettingsError(f"The name of the {self.noun} is empty", do=self._choices())
            if not _looks_like_path(name_or_path):
                if name_or_path in self.names():
                    shipped = self._shipped() / f"{name_or_path}.toml"
                    where = f"shipped {self.noun} {name_or_path}"
                    return self._parse(shipped.read_bytes(), where), where
                if not os.path.isfile(name_or_path):
                    self._unknown(name_or_path)
        path = Path(os.path.expanduser(name_or_path))
        return self._parse(self._read(path), str(path)), str(path)

    def _shipped(self) -> Traversable:
        return files("consilience") / self.folder

    def _choices(self) -> str:
        return f"Give a path to a TOML file or one of the shipped {self._plural}: {', '.join(self.names())}."

    @property
    def _plural(self) -> str:
        return f"{self.noun.removesuffix('y')}ies" if self.noun.endswith("y") else f"{self.noun}s"

    def _unknown(self, name: str) -> NoReturn:
        close_to = resembling(name, self.names())
        near = f"the file {name}.toml" if os.path.isfile(f"{name}.toml") else close_to
        hint = f"Did you mean {near}? " if near else ""
        shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
        raise UnknownName(f"There is no {self.noun} named {shown!r}", do=hint + self._choices())

    def _read(self, path: Path) -> bytes:
        noun = self.noun
        try:
            return read_bounded(path)
        except FileNotFoundError:
            raise SettingsError(f"There is no such {noun} file", where=str(path), do=self._choices()) from None
        except IsADirectoryError:
            do = "Name the TOML file inside it."
            raise SettingsError(f"The {noun} is a directory, not a file", where=str(path), do=do) from None
        except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
            reason = getattr(error, "strerror", None) or str(error)
            do = "Check the path, that you may read the file, and that it is a short text file."
            raise SettingsError(f"The {noun} file cannot be read: {reason}", where=str(path), do=do) from None

    def _parse(self, data: bytes, where: str) -> dict[str, Any]:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            at = f"{where}, {_position(data[: error.start].decode('utf-8', 'replace'))}"
            raise SettingsError(f"The {self.noun} file is not UTF-8 text", where=at, do="Save it as UTF-8.") from None
        try:
            return parse_toml(text)
        except (ValueError, RecursionError) as error:
            what, at = _toml_mistake(error, text)
            raise SettingsError(
                f"The {self.noun} file is not valid TOML: {what}",
                where=f"{where}, {at}",
                do=f"Correct that line, or compare with a shipped {self.noun}.",
            ) from None


_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:\.[ \t]*+{_PART}){{{MAX_KEY_PARTS}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """The table that `text` holds. Takes a second or so per megabyte, whatever it holds.

    Raises `ValueError`, with line and column, for what is not TOML and for a key of more than `MAX_KEY_PARTS` parts;
    `RecursionError` for values nested too deeply.
    """
    if long := _LONG_KEY.search(text):
        line, column = _place(text[: long.start()])
        raise ValueError(f"A key has more than {MAX_KEY_PARTS} parts (at line {line}, column {column})")
    return tomllib.loads(text)


def resembling(word: str, known: list[str]) -> str:
    """The known words nearest to this one: "'policy' or 'security'", or nothing."""
    return " or ".join(map(repr, difflib.get_close_matches(word.casefold(), known, n=3, cutoff=0.5)))


def _is_toml(name: str) -> bool:
    return name.casefold().endswith(".toml")


def _looks_like_path(text: str) -> bool:
    return _is_toml(text) or "/" in text or "\\" in text or text.startswith("~")


def _position(before: str) -> str:
    return "line {}, column {}".format(*_place(before))


def _place(before: str) -> tuple[int, int]:
    """Line and column of the character that follows `before`, both from 1."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def _toml_mistake(error: Exception, text: str) -> tuple[str, str]:
    """What is wrong, and at which line and column; the parser says "at end of document" where it ran out."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply", _position("")
    message = str(error).replace("\n", "\\n")
    located = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", message)
    if located:
        return located[1], f"line {located[2]}, column {located[3]}"
    return message.removesuffix(" (at end of document)"), _position(text.rstrip("\r\n"))
