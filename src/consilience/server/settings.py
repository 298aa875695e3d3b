"""What the operator of a server allows, read from the operator's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from consilience.executor import MAX_RUNNING
from consilience.server.access_settings import AccessSettings


class Preset(BaseModel):
    """A protocol with its settings under a name of the operator's, for chat clients and requests."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    protocol: str
    """Name of the protocol."""
    settings: Mapping[str, Any] = {}
    """Settings of the protocol."""
    panel: str | None = None
    """Name of a shipped panel."""
    models: tuple[str, ...] = ()
    """Models to assign to the agents in turn. Empty: the server's first model."""
    summary: str = ""
    """What it is for, in a line."""


class ServerSettings(BaseModel):
    """What all callers of a server may do. A caller may be allowed less."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: tuple[str, ...] = Field(min_length=1)
    """Names of the models that callers may choose. The first is the default."""
    helper_model: str | None = None
    """A cheap model for the helper requests of chat programs (titles, tags). None: they are refused."""
    presets: Mapping[str, Preset] = {}
    """By name."""
    max_body: int = Field(default=20_000_000, gt=0)
    """Bytes of a request."""
    running: int = Field(default=MAX_RUNNING, gt=0)
    """Sessions that run at the same time; the others wait in order."""
    access: AccessSettings = AccessSettings()
    """Who may reach the server, and how."""
