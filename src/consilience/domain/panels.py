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
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from consilience.domain.agents import Agent
from consilience.domain.errors import SettingsError
from consilience.domain.model_names import BY_HAND, named_by_hand
from consilience.domain.toml_catalog import TomlCatalog
from consilience.domain.validation import UserWritten

MAX_PERSONAS = 64
MAX_NAME_CHARS = 80
MAX_DESCRIPTION_CHARS = 2_000
MAX_INTERESTS = 12
MAX_FIELD_CHARS = 500

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _one_line(text: str) -> str:
    if _CONTROL.search(text):
        raise PydanticCustomError("one_line", "has a line break or control character; a name is one line")
    return text


PersonaName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS), AfterValidator(_one_line)]
Description = Annotated[str, Field(min_length=1, max_length=MAX_DESCRIPTION_CHARS)]


def _is_name(model: object) -> object:
    if not isinstance(model, str):
        raise PydanticCustomError(
            "no_name",
            "must be the name of a model, not {kind}; an object is given by agent, in Python: model={ID: OBJECT}",
            {"kind": f"{model!r:.60}" if isinstance(model, int | float | list | dict) else f"a {type(model).__name__}"},
        )
    return model


def _no_program(name: str) -> str:
    if kind := named_by_hand(name):
        way = f"--agent ID={BY_HAND[kind]}, in Python model={{ID: {BY_HAND[kind]!r}}}"
        raise PydanticCustomError("not_of_a_persona", f"names a {kind}; seat it yourself: {way}")
    return name


Passage = Annotated[str, Field(min_length=1, max_length=MAX_FIELD_CHARS)]
ModelName = Annotated[
    str,
    BeforeValidator(_is_name),
    Field(min_length=1, max_length=MAX_FIELD_CHARS),
    AfterValidator(_one_line),
    AfterValidator(_no_program),
]


class Persona(UserWritten):
    """The point of view of one agent, an entry of a `Panel`; its fields are part of every prompt of the agent, except `model`."""

    name: PersonaName
    """A short neutral role."""
    description: Description
    """Addresses the agent: "You ask what it costs." """
    interests: Annotated[tuple[PersonaName, ...], Field(max_length=MAX_INTERESTS)] = ()
    """What it attends to, in a few words each."""
    horizon: PersonaName | None = None
    """The time over which it judges: "5 years"."""
    evidence: Passage | None = None
    """What it accepts as evidence."""
    claim: Passage | None = None
    """The claim it starts with."""
    model: ModelName | None = None
    """The model of its seat, unless the caller names one for that seat. Never a program: a panel file may be another person's."""

    def seat(self, agent: Agent) -> Agent:
        """Return the agent with this point of view."""
        optional = {name: getattr(self, name) or "" for name in ("horizon", "evidence", "claim", "model")}
        fields = {
            "perspective": self.description,
            "persona": self.name,
            "interests": self.interests,
            "own_model": bool(self.model),
        }
        return agent.model_copy(update={**fields, **optional})

    @property
    def slug(self) -> str:
        """The name as an agent id: letters and digits of any script, in lower case, joined by hyphens."""
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", self.name).casefold())
        characters = (char if unicodedata.category(char)[0] in "LNM" else " " for char in folded)
        return "-".join("".join(characters).split())


class Panel(UserWritten):
    """A named set of 1 to 64 personas in order of importance: a protocol with fewer seats than personas takes the first ones."""

    name: PersonaName
    description: Description
    personas: Annotated[tuple[Persona, ...], Field(min_length=1, max_length=MAX_PERSONAS)]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(persona.name for persona in self.personas)

    def slugs(self, taken: Collection[str] = ()) -> tuple[str, ...]:
        """Return the agent ids of the personas. Raises `SettingsError`, naming the personas, for ids that are equal, empty or
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
                former = self.names[earlier - 1]
                same = (
                    f"both named '{name}'"
                    if name == former
                    else f"named '{former}' and '{name}', the same but for capitals"
                )
                raise PydanticCustomError(
                    "duplicate_persona",
                    "personas {earlier} and {number} are {same}",
                    {"earlier": earlier, "number": number, "same": same},
                )
        return self


CATALOG = TomlCatalog(
    "panels",
    Panel,
    "A panel has a name, a description, and one [[personas]] table with name and description for each persona. "
    "A persona may also have interests, horizon, evidence, claim and model.",
)


def shipped_panels() -> list[str]:
    """Return the names of the shipped panels, sorted."""
    return CATALOG.names()


def load_panel(name_or_path: str | Path) -> Panel:
    """Return a shipped panel or the panel in a TOML file. Raises `UnknownName`, `SettingsError`; see `TomlCatalog.load`."""
    return CATALOG.load(name_or_path)
