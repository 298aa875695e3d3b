"""Panels: named sets of personas, shipped with the package or written by the user as a TOML file.

    name = "launch"
    description = "Whether and how to launch a product."

    [[personas]]
    name = "Sceptical CFO"
    description = "You ask what it costs, who pays and what is given up."

Imported only where a panel is used, since pydantic is slow to import.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from consilience.domain.errors import SettingsError
from consilience.domain.shelves import Shelf, resembling

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SHELF = Shelf("panels", "panel")

MAX_PERSONAS = 64
MAX_NAME = 80
MAX_DESCRIPTION = 2_000

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
    return SHELF.names()


def load_panel(name_or_path: str | Path) -> Panel:
    """The shipped panel of that name, or the panel in that TOML file.

    A text that ends in `.toml` or holds a path separator is a path; any other is a shipped name first, then a file.
    Raises `UnknownName` where there is neither, `SettingsError` where the file cannot be read or is no panel.
    """
    table, where = SHELF.load(name_or_path)
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
            close = resembling(str(last), known)
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
