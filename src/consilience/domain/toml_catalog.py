"""Catalogs of TOML files: shipped ones are loaded by name, the user's own by path."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.paths import read_bounded
from consilience.domain.validation import describe_invalid, similar_names

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

M = TypeVar("M", bound=BaseModel)

MAX_KEY_PARTS = 32
"""Max parts of a dotted key. tomllib takes time quadratic in them, and more with nested tables."""

_MAX_NAME_CHARS = 80


@dataclass(frozen=True)
class TomlCatalog(Generic[M]):
    """Files of one kind."""

    folder: str
    """The folder of the package with the shipped ones; also their noun in the plural."""
    model: type[M]
    """What a file holds; its name is the noun in messages."""
    content: str
    """What a file must contain, for error messages."""

    @property
    def noun(self) -> str:
        return self.model.__name__.lower()

    def names(self) -> list[str]:
        """Return the names of the shipped files, sorted."""
        return sorted(entry.name.removesuffix(".toml") for entry in self._shipped().iterdir() if _is_toml(entry.name))

    def load(self, name_or_path: str | Path) -> M:
        """Return the model of a shipped name or a file.

        A text that ends in `.toml` or contains a path separator is a path. Any other text is a shipped name, or else a file.
        Raises `UnknownName` if there is neither, `SettingsError` if the file is unreadable, not TOML, or invalid.
        """
        data, where = self._data(name_or_path)
        table = self._parse(data, where)
        try:
            return self.model.model_validate(table)
        except ValidationError as error:
            raise SettingsError(self.describe(error, table), where=where, do=self.content) from None

    def text(self, name_or_path: str | Path) -> str:
        """Return the TOML text of a shipped name or a file, as `load` finds it. Raises as `load`."""
        self.load(name_or_path)
        return self._data(name_or_path)[0].decode("utf-8-sig")

    def describe(self, error: ValidationError, table: object) -> str:
        """Return why a table is not valid."""
        return f"invalid {self.noun}: {describe_invalid(error, table, model=self.model, owner=f'the {self.noun}')}"

    def _data(self, name_or_path: str | Path) -> tuple[bytes, str]:
        """Return the bytes of the file and its place in words."""
        if isinstance(name_or_path, str):
            if not name_or_path.strip():
                raise SettingsError(f"the name of the {self.noun} is empty", do=self._choices())
            if not _looks_like_path(name_or_path):
                if name_or_path in self.names():
                    shipped = self._shipped() / f"{name_or_path}.toml"
                    return shipped.read_bytes(), f"shipped {self.noun} {name_or_path}"
                if not os.path.isfile(name_or_path):
                    self._unknown(name_or_path)
        path = Path(os.path.expanduser(name_or_path))
        return self._read(path), str(path)

    def _shipped(self) -> Traversable:
        return files("consilience") / self.folder

    def _choices(self) -> str:
        return f"Give a path to a TOML file or one of the shipped {self.folder}: {', '.join(self.names())}."

    def _unknown(self, name: str) -> NoReturn:
        similar = f"the file {name}.toml" if os.path.isfile(f"{name}.toml") else similar_names(name, self.names())
        hint = f"Did you mean {similar}? " if similar else ""
        quoted_name = name if len(name) <= _MAX_NAME_CHARS else f"{name[:_MAX_NAME_CHARS]}…"
        raise UnknownName(f"there is no {self.noun} named {quoted_name!r}", do=hint + self._choices())

    def _read(self, path: Path) -> bytes:
        noun = self.noun
        try:
            return read_bounded(path)
        except FileNotFoundError:
            raise SettingsError(f"there is no such {noun} file", where=str(path), do=self._choices()) from None
        except IsADirectoryError:
            do = "Name the TOML file inside it."
            raise SettingsError(f"the {noun} is a directory, not a file", where=str(path), do=do) from None
        except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
            reason = getattr(error, "strerror", None) or str(error)
            do = "Check the path, that you may read the file, and that it is a short text file."
            raise SettingsError(f"the {noun} file cannot be read: {reason}", where=str(path), do=do) from None

    def _parse(self, data: bytes, where: str) -> dict[str, Any]:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            place = f"{where}, {_place(data[: error.start].decode('utf-8', 'replace'))}"
            raise SettingsError(
                f"the {self.noun} file is not UTF-8 text", where=place, do="Save it as UTF-8."
            ) from None
        try:
            return parse_toml(text)
        except (ValueError, RecursionError) as error:
            problem, place = _toml_mistake(error, text)
            raise SettingsError(
                f"the {self.noun} file is not valid TOML: {problem}",
                where=f"{where}, {place}",
                do=f"Correct that line, or compare with a shipped {self.noun}: "
                f"consilience {self.folder} show {self.names()[0]} --toml.",
            ) from None


_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:\.[ \t]*+{_PART}){{{MAX_KEY_PARTS}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table in a text. Takes about a second per megabyte, whatever the text.

    Raises `ValueError`, with line and column, for invalid TOML and for a key of more than `MAX_KEY_PARTS` parts;
    `RecursionError` for values nested too deeply.
    """
    if long := _LONG_KEY.search(text):
        raise ValueError(f"A key has more than {MAX_KEY_PARTS} parts (at {_place(text[: long.start()])})")
    return tomllib.loads(text)


def _is_toml(name: str) -> bool:
    return name.casefold().endswith(".toml")


def _looks_like_path(text: str) -> bool:
    return _is_toml(text) or "/" in text or "\\" in text or text.startswith("~")


def _place(before: str) -> str:
    """Return line and column of the character that follows `before`, both from 1."""
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def _toml_mistake(error: Exception, text: str) -> tuple[str, str]:
    """Return the error, and its line and column."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply", _place("")
    message = str(error).replace("\n", "\\n")
    located = re.fullmatch(r"(.*) \(at (line \d+, column \d+)\)", message)
    if located:
        return located[1], located[2]
    return message.removesuffix(" (at end of document)"), _place(text.rstrip("\r\n"))
