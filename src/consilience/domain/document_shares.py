"""What agents are shown of documents, and what for."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Lines = tuple[int, int]
"""First and last line, from 1."""

Purpose = Literal["", "rules", "intent", "context", "repository"]
"""What a document is for: "" the subject itself; the rules that it has to keep; what its author says of it; further documents that
the user gives; and files of the same repository that speak of it."""


class DocumentShare(BaseModel):
    """What one agent is shown of a dealt document."""

    model_config = ConfigDict(frozen=True)

    agent: str
    lines: tuple[Lines, ...] = ()
    """Ranges of lines that are its own to read."""
    related: tuple[Lines, ...] = ()
    """Further lines, which are related to what else the agent reads."""
    left_out: int = 0
    """Related passages of this document for which there was no room."""
