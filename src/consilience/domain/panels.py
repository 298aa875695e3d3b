"""Panels: named sets of personas, shipped with the package or written by the user as a TOML file.

    name = "launch"
    description = "Whether and how to launch a product."

    [[personas]]
    name = "Sceptical CFO"
    description = "You ask what it costs, who pays and what is given up."

Imported only where a panel is used, since pydantic is slow to import.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from consilience.domain.errors import SettingsError, UnknownName

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from pydantic_core import ErrorDetails

MAX_PERSONAS = 64
MAX_NAME = 80
MAX_DESCRIPTION = 2_000
MAX_FILE_BYTES = 1_000_000

_MISTAKES_NAMED = 5
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _one_line(text: str) -> str:
    if _CONTROL.search(text):
        raise PydanticCustomError("one_line", "has a line break or control character; a name is one line")
    return text


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME), AfterValidator(_one_line)]
Description = Annotated[str, Field(min_length=1, max_length=MAX_DESCRIPTION)]


class Persona(BaseModel):
    """A point of view. `name` is a short neutral role; `description` addresses the agent: "You ask what it costs." """

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    name: Name
    description: Description


class Panel(BaseModel):
    """Personas in order of importance: a protocol with fewer seats than personas takes the first ones."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    name: Name
    description: Description
    personas: Annotated[tuple[Persona, ...], Field(min_length=1, max_length=MAX_PERSONAS)]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(persona.name for persona in self.personas)

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        first: dict[str, int] = {}
        for number, name in enumerate(self.names, start=1):
            earlier = first.setdefault(name.casefold(), number)
            if earlier != number:
                raise PydanticCustomError(
                    "duplicate_persona",
                    "personas {earlier} and {number} are both named '{name}'",
                    {"earlier": earlier, "number": number, "name": name},
                )
        return self


def shipped_panels() -> list[str]:
    """Names of the panels that come with the package, sorted."""
    return sorted(entry.name.removesuffix(".toml") for entry in _shipped_dir().iterdir() if _is_toml(entry.name))


def load_panel(name_or_path: str | Path) -> Panel:
    """The shipped panel of that name, or the panel in that TOML file.

    A text that ends in `.toml` or holds a path separator is a path; any other is a shipped name first, then a file.
    Raises `UnknownName` where there is neither, `SettingsError` where the file cannot be read or is no panel.
    """
    if isinstance(name_or_path, str):
        if not name_or_path.strip():
            raise SettingsError("The name of the panel is empty", do=_choices())
        if not _looks_like_path(name_or_path):
            if name_or_path in shipped_panels():
                shipped = _shipped_dir() / f"{name_or_path}.toml"
                return _parse(shipped.read_bytes(), where=f"shipped panel {name_or_path}")
            if not os.path.isfile(name_or_path):
                _unknown(name_or_path)
    path = Path(os.path.expanduser(name_or_path))
    return _parse(_read(path), where=str(path))


def _shipped_dir() -> Traversable:
    return files("consilience") / "panels"


def _is_toml(name: str) -> bool:
    return name.casefold().endswith(".toml")


def _looks_like_path(text: str) -> bool:
    return _is_toml(text) or "/" in text or "\\" in text or text.startswith("~")


def _choices() -> str:
    return f"Give a path to a TOML file or one of the shipped panels: {', '.join(shipped_panels())}."


def _close(word: str, known: list[str]) -> str:
    """The known words nearest to this one: "'policy' or 'security'", or nothing."""
    return " or ".join(map(repr, difflib.get_close_matches(word.casefold(), known, n=3, cutoff=0.5)))


def _unknown(name: str) -> NoReturn:
    close = f"the file {name}.toml" if os.path.isfile(f"{name}.toml") else _close(name, shipped_panels())
    hint = f"Did you mean {close}? " if close else ""
    shown = name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}…"
    raise UnknownName(f"There is no panel named {shown!r}", do=hint + _choices())


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise SettingsError("There is no such panel file", where=str(path), do=_choices()) from None
    except IsADirectoryError:
        do = "Name the TOML file inside it."
        raise SettingsError("The panel is a directory, not a file", where=str(path), do=do) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        reason = getattr(error, "strerror", None) or str(error)
        do = "Check the path and that you may read the file."
        raise SettingsError(f"The panel file cannot be read: {reason}", where=str(path), do=do) from None
    if len(data) > MAX_FILE_BYTES:
        do = "A panel is a short text file; check that this is the right one."
        raise SettingsError(f"The panel file has more than {MAX_FILE_BYTES:,} bytes", where=str(path), do=do)
    return data


def _parse(data: bytes, *, where: str) -> Panel:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = f"{where}, {_position(data[: error.start].decode('utf-8', 'replace'))}"
        raise SettingsError("The panel file is not UTF-8 text", where=at, do="Save it as UTF-8.") from None
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        what, at = _toml_mistake(error, text)
        do = "Correct that line, or compare with a shipped panel."
        raise SettingsError(f"The panel file is not valid TOML: {what}", where=f"{where}, {at}", do=do) from None
    try:
        return Panel.model_validate(table)
    except ValidationError as error:
        # pydantic counts only valid personas, and then calls a list of broken ones empty as well
        found = [one for one in error.errors(include_url=False) if one["type"] != "too_short" or not one["input"]]
        mistakes = [_mistake(detail, table) for detail in found[:_MISTAKES_NAMED]]
        if len(found) > _MISTAKES_NAMED:
            mistakes.append(f"and {len(found) - _MISTAKES_NAMED} more")
        do = "A panel has a name, a description, and one [[personas]] table with name and description for each persona."
        raise SettingsError(f"The panel cannot be used: {'; '.join(mistakes)}", where=where, do=do) from None


def _position(before: str) -> str:
    """Line and column of the character that follows `before`, both from 1."""
    newline = "\n"
    line = before.count(newline) + 1
    return f"line {line}, column {len(before) - before.rfind(newline)}"


def _toml_mistake(error: Exception, text: str) -> tuple[str, str]:
    """What is wrong, and at which line and column; the parser says "at end of document" where it ran out."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply", _position("")
    message = str(error).replace("\n", "\\n")
    located = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", message)
    if located:
        return located[1], f"line {located[2]}, column {located[3]}"
    return message.removesuffix(" (at end of document)"), _position(text.rstrip("\r\n"))


def _mistake(detail: ErrorDetails, table: Mapping[str, object]) -> str:
    """One mistake as a clause: which key of which persona, and what about it."""
    *place, last = detail["loc"] or ("",)
    context = detail.get("ctx", {})
    key = repr(last)
    owner = _owner((*place, last) if isinstance(last, int) else tuple(place), table)
    given = detail["input"]
    match detail["type"]:
        case "missing":
            return f"{owner} has no {key}"
        case "extra_forbidden":
            known = ["name", "description"] if place else ["name", "description", "personas"]
            close = _close(str(last), known)
            return f"{owner} has an unknown key {key}" + (f" (did you mean {close}?)" if close else "")
        case "string_too_short":
            return f"{key} of {owner} is empty"
        case "string_too_long":
            return f"{key} of {owner} has {len(str(given).strip()):,} characters, at most {context['max_length']:,}"
        case "string_type":
            return f"{key} of {owner} must be a text in quotation marks"
        case "too_short":
            return "it has no personas"
        case "too_long":
            count = len(given) if isinstance(given, list) else context["actual_length"]
            return f"it has {count} personas, at most {MAX_PERSONAS}"
        case "tuple_type":
            return "'personas' must be written as [[personas]] tables"
        case "model_type" | "model_attributes_type":
            return f"{owner} must be a table with name and description"
        case "one_line":
            return f"{key} of {owner} {detail['msg']}"
        case _:
            return detail["msg"]


def _owner(place: tuple[str | int, ...], table: Mapping[str, object]) -> str:
    """'the panel', or 'persona 2 (Sceptical CFO)' if its name can be read."""
    if not place or not isinstance(place[-1], int):
        return "the panel"
    personas = table.get("personas")
    persona = personas[place[-1]] if isinstance(personas, list) else None
    name = persona.get("name") if isinstance(persona, dict) else None
    readable = isinstance(name, str) and 0 < len(name) <= MAX_NAME and not _CONTROL.search(name)
    return f"persona {place[-1] + 1}" + (f" ({name})" if readable else "")
