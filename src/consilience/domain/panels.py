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
import unicodedata
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from consilience.domain.agents import Agent
from consilience.domain.errors import SettingsError
from consilience.domain.toml_catalog import Shelf, resembling

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

SHELF = Shelf("panels", "panel")

MAX_PERSONAS = 64
MAX_NAME = 80
MAX_DESCRIPTION = 2_000
MAX_INTERESTS = 12
MAX_FIELD = 500

_MISTAKES_NAMED = 5
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _one_line(text: str) -> str:
    if _CONTROL.search(text):
        raise PydanticCustomError("one_line", "has a line break or control character; a name is one line")
    return text


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME), AfterValidator(_one_line)]
Description = Annotated[str, Field(min_length=1, max_length=MAX_DESCRIPTION)]


def _no_program(name: str) -> str:
    if any(link.strip().startswith("exec:") for link in name.split("|")):
        raise PydanticCustomError("no_program", "names a program; seat it yourself: --agent ID=exec:COMMAND")
    return name


Passage = Annotated[str, Field(min_length=1, max_length=MAX_FIELD)]
ModelName = Annotated[
    str, Field(min_length=1, max_length=MAX_FIELD), AfterValidator(_one_line), AfterValidator(_no_program)
]


class Persona(BaseModel):
    """A point of view. `name` is a short neutral role; `description` addresses the agent: "You ask what it costs." """

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    name: Name
    description: Description
    interests: Annotated[tuple[Name, ...], Field(max_length=MAX_INTERESTS)] = ()
    """What it attends to, in a few words each."""
    horizon: Name | None = None
    """The time over which it judges: "5 years"."""
    evidence: Passage | None = None
    """What it accepts as evidence."""
    claim: Passage | None = None
    """The claim it starts with."""
    model: ModelName | None = None
    """The model of its seat, unless the caller names one for that seat. Never a program: a panel file may be another person's."""

    def seat(self, agent: Agent) -> Agent:
        """The agent with this point of view."""
        given = {name: getattr(self, name) or "" for name in ("horizon", "evidence", "claim", "model")}
        own = {
            "perspective": self.description,
            "persona": self.name,
            "interests": self.interests,
            "own_model": bool(self.model),
        }
        return agent.model_copy(update={**own, **given})

    @property
    def slug(self) -> str:
        """The name as an agent's id: letters and digits of any script, folded to lower case, joined by hyphens."""
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", self.name).casefold())
        kept = (char if unicodedata.category(char)[0] in "LNM" else " " for char in folded)
        return "-".join("".join(kept).split())


class Panel(BaseModel):
    """Personas in order of importance: a protocol with fewer seats than personas takes the first ones."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    name: Name
    description: Description
    personas: Annotated[tuple[Persona, ...], Field(min_length=1, max_length=MAX_PERSONAS)]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(persona.name for persona in self.personas)

    def slugs(self, taken: Collection[str] = ()) -> tuple[str, ...]:
        """The personas' ids where each has a seat. Raises `SettingsError`, naming the personas, for ids that are equal, empty or
        `taken` by service seats."""
        owners: dict[str, str] = {}
        for name, slug in ((persona.name, persona.slug) for persona in self.personas):
            problem = ""
            if not slug:
                problem = f"the name of the persona {name!r} has no letter or digit to make an agent's id of"
            elif slug in taken:
                problem = f"the persona {name!r} would be the agent {slug!r}, which is a service seat"
            elif slug in owners:
                problem = f"the personas {owners[slug]!r} and {name!r} would both be the agent {slug!r}"
            if problem:
                raise SettingsError(problem, where=f"panel {self.name}", do="Give it another name.")
            owners[slug] = name
        return tuple(owners)

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
        mistakes = [describe_mistake(detail, table) for detail in found[:_MISTAKES_NAMED]]
        if len(found) > _MISTAKES_NAMED:
            mistakes.append(f"and {len(found) - _MISTAKES_NAMED} more")
        do = (
            "A panel has a name, a description, and one [[personas]] table with name and description for each persona. "
            "A persona may also have interests, horizon, evidence, claim and model."
        )
        raise SettingsError(f"The panel cannot be used: {'; '.join(mistakes)}", where=where, do=do) from None


def describe_mistake(detail: ErrorDetails, table: Mapping[str, object]) -> str:
    """Return one mistake in the table of a panel as a clause: which key of which persona, and what about it."""
    loc = detail["loc"] or ("",)
    in_persona = loc[0] == "personas" and len(loc) > 1
    field, *number = loc[2:] or ("",) if in_persona else loc
    context = detail.get("ctx", {})
    key = repr(field) + (f" number {int(number[0]) + 1}" if number else "")
    owner = _owner(loc[:2] if in_persona else (), table)
    given = detail["input"]
    match detail["type"]:
        case "missing":
            return f"{owner} has no {key}"
        case "extra_forbidden":
            known = list(Persona.model_fields if in_persona else Panel.model_fields)
            close = resembling(str(field), known)
            return f"{owner} has an unknown key {key}" + (f" (did you mean {close}?)" if close else "")
        case "string_too_short":
            return f"{key} of {owner} is empty"
        case "string_too_long":
            return f"{key} of {owner} has {len(str(given).strip()):,} characters, at most {context['max_length']:,}"
        case "string_type":
            return f"{key} of {owner} must be a text in quotation marks"
        case "too_short":
            return "it has no personas"
        case "too_long" if in_persona:
            return f"{key} of {owner} has more than {MAX_INTERESTS} texts"
        case "too_long":
            count = len(given) if isinstance(given, list) else context["actual_length"]
            return f"it has {count} personas, at most {MAX_PERSONAS}"
        case "tuple_type" if in_persona:
            return f"{key} of {owner} must be a list of texts"
        case "tuple_type":
            return "'personas' must be written as [[personas]] tables"
        case "model_type" | "model_attributes_type":
            return f"{owner} must be a table with name and description"
        case "one_line" | "no_program":
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
