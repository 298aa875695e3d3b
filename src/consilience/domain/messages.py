"""What agents say, and what may be quoted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, WithJsonSchema

Label = Annotated[str, WithJsonSchema({"type": "string", "x-labels": "message"})]
"""The short address under which somebody else's text was quoted in one prompt (`A`). The engine fills the schema's enum
with the labels shown, leaves out a field for which there are none, and drops and counts any other it gets back."""

ObjectionLabel = Annotated[str, WithJsonSchema({"type": "string", "x-labels": "objection"})]
"""The address of a quoted objection (`A.1`)."""


@dataclass(frozen=True, slots=True)
class Message:
    """Something said. `audience` is who may ever be shown it, the sender aside; `id` is unique in the session."""

    id: str
    sender: str
    kind: str
    text: str
    audience: tuple[str, ...] = ()
    reply_to: str | None = None
    phase: tuple[str, int] | None = None


class Source(BaseModel):
    """A document given with the task. `agents` restricts it to those ids; the engine numbers documents `S1`, `S2`, …"""

    model_config = ConfigDict(frozen=True)

    text: str
    name: str = ""
    agents: tuple[str, ...] | None = None

    def __init__(self, text: str, name: str = "", agents: tuple[str, ...] | None = None) -> None:
        super().__init__(text=text, name=name, agents=agents)


class Quotation(BaseModel):
    """`words` claimed to stand in `source` (`S2`) from `line` on; `verified` when they do, after collapsing whitespace."""

    model_config = ConfigDict(frozen=True)

    words: str
    source: str
    line: int
    verified: bool
    agent: str = ""


_FREE = "free text"
FreeText = Annotated[str, _FREE]
"""A field that prose without JSON may fill. Decisions are never of this type."""


FILE = "a file"
"""Metadata of a text setting that the command line takes as a file (`-` for standard input)."""


def is_free_text(metadata: list[object]) -> bool:
    return _FREE in metadata
