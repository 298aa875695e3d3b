"""What agents say, and what may be quoted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema

from consilience.domain.detail import capped
from consilience.domain.errors import SettingsError
from consilience.domain.events import text_id

Label = Annotated[str, WithJsonSchema({"type": "string", "x-labels": "message"})]
"""The short address under which somebody else's text was quoted in one prompt (`A`). The engine fills the schema's enum
with the labels shown, leaves out a field for which there are none, and drops and counts any other it gets back. `x-labels` may
also name one kind of messages; the enum then holds the labels of that kind alone."""

ObjectionLabel = Annotated[str, WithJsonSchema({"type": "string", "x-labels": "objection"})]
"""The address of a quoted objection (`A.1`)."""

LABELLED_APART = ("objection", "critique")
"""Kinds of messages that a field for messages never takes: an objection has a label of its own kind, and no
text rests on a critique."""


@dataclass(frozen=True)
class Message:
    """Something said. `audience` is who may ever be shown it, the sender aside; `id` is unique in the session."""

    id: str
    sender: str
    kind: str
    text: str
    audience: tuple[str, ...] = ()
    reply_to: str | None = None
    phase: tuple[str, int] | None = None

    @cached_property
    def text_id(self) -> str:
        """The content address of the text, made once: one message is quoted to many."""
        return text_id(self.text)


_SOURCE_FIELDS = {"text": "a string", "name": "a string", "agents": "a tuple of agents' ids, or None for all"}


class Source(BaseModel):
    """A document given with the task. `agents` restricts it to those ids; the engine numbers documents `S1`, `S2`, …

    Raises `SettingsError` for a value of another type."""

    model_config = ConfigDict(frozen=True)

    text: str
    name: str = ""
    agents: tuple[str, ...] | None = None

    def __init__(self, text: str, name: str = "", agents: tuple[str, ...] | None = None) -> None:
        try:
            super().__init__(text=text, name=name, agents=agents)
        except ValidationError as error:
            field = str(error.errors()[0]["loc"][0])
            given = {"text": text, "name": name, "agents": agents}[field]
            raise SettingsError(
                f"the {field} of a source must be {_SOURCE_FIELDS[field]}, not {given!r:.60}",
                where=f"Source({field}=…)",
                do='Write Source("The text.", name="report.md", agents=("L2N1",)); for a file pass its pathlib.Path instead.',
            ) from None


def numbered_lines(content: Sequence[str], name: str, lines: tuple[int, int] | None) -> str:
    """A document as agents read it: its name, then each line with its number. `lines` (first, last) selects some, from 1."""
    first, last = lines or (1, None)
    shown = (content or [""])[first - 1 : last]
    title = [" ".join(name.split())] if name else []
    return "\n".join([*title, *(f"{n}| {line}" for n, line in enumerate(shown, first))])


class Quotation(BaseModel):
    """`words` claimed to stand in `source` (`S2`) from `line` on; `verified` when they do.

    Case, whitespace and typographic quotation marks and dashes make no difference."""

    model_config = ConfigDict(frozen=True)

    words: str
    source: str
    line: int
    verified: bool
    agent: str = ""


_FREE = "free text"
FreeText = Annotated[str, _FREE]
"""A field that prose without JSON may fill. Decisions are never of this type."""


NO_OPTION = "no option"
"""Metadata of a setting that the command line does not offer, since something else decides it."""

FILE = "a file"
"""Metadata of a text setting that the command line takes as a file (`-` for standard input)."""


def is_free_text(metadata: list[object]) -> bool:
    return _FREE in metadata


class ClaimReply(BaseModel):
    """A claim of an answer, and the labels of the texts it rests on."""

    text: str
    ids: Annotated[list[Label], Field(json_schema_extra={"maxItems": 3})] = Field(default_factory=list)


Claims = Annotated[list[ClaimReply], Field(json_schema_extra=capped("claims"))]


class LeafReply(BaseModel):
    """`points` are the facts or arguments the text rests on."""

    points: Annotated[list[str], Field(json_schema_extra=capped("points"))] = Field(default_factory=list)
    text: FreeText


class Synthesis(BaseModel):
    text: FreeText


_NOTHING = frozenset(
    {"", "none", "no", "no issues", "no issue", "nothing", "nothing is missing", "n/a", "na", "null", "empty"}
)


def says_nothing(text: str) -> bool:
    """Whether this is what small models write where there is nothing to say, in whatever case and with whatever around it."""
    return " ".join(text.split()).strip(" .!-").casefold() in _NOTHING
