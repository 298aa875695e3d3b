"""What agents are shown of dealt documents."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

Lines = tuple[int, int]
"""First and last line, from 1."""


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
