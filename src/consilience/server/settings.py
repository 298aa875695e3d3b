"""What the operator of a server allows, read from the operator's file.

models = ["anthropic:claude-sonnet-4-5", "openai:gpt-5"]
running = 16

[presets.board-paper]
protocol = "debate"
panel = "strategy"
summary = "A board paper with its cruxes."
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from consilience.domain.errors import SettingsError, UserError
from consilience.domain.model_names import kind_of
from consilience.domain.panels import load_panel
from consilience.domain.paths import read_bounded_text
from consilience.domain.toml_catalog import parse_toml
from consilience.domain.validation import describe_invalid
from consilience.engine.protocol import find_protocol
from consilience.executor import MAX_RUNNING
from consilience.server.access_settings import AccessSettings

BY_HAND = ("person", "program", "workspace")
"""Kinds of names that a server does not offer as models. People are seated by callers."""


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
    waiting: int = Field(default=1_000, ge=0)
    """Sessions that wait for their turn. With more, a new one is refused with status 429."""
    min_free: int = Field(default=100_000_000, ge=0)
    """Bytes that must be free on the journal's disk. With fewer, nothing new is begun (status 507), and `/healthz` is red."""
    access: AccessSettings = AccessSettings()
    """Who may reach the server, and how."""


def read_settings(
    path: Path | None,
    *,
    default_model: Callable[[], str] | None = None,
    access: Mapping[str, object] | None = None,
    **given: object,
) -> ServerSettings:
    """Return the settings of a TOML file, if there is one, and those `given` in place of its own, None for those that are not.

    `default_model` returns the model if none is named. Raises `SettingsError`, which names the file and the key.
    """
    where = str(path) if path else ""
    table = {**(_read(path) if path else {}), **_given(given)}
    if access is not None and isinstance(table.setdefault("access", {}), dict):
        table["access"] |= _given(access)
    if default_model is not None and "models" not in table:
        table["models"] = (default_model(),)
    try:
        settings = ServerSettings.model_validate(table)
    except ValidationError as error:
        known = ", ".join(ServerSettings.model_fields)
        what = describe_invalid(error, table, model=ServerSettings, owner="the server's configuration")
        raise SettingsError(what, where=where, do=f"Known: {known}.") from None
    for name in (*settings.models, *filter(None, [settings.helper_model])):
        if kind_of(name) in BY_HAND:
            raise SettingsError(
                f"{name!r} is not a model that callers can be offered",
                where=where or "--model",
                do="Name a model of a provider, an endpoint or this machine. People take seats without being listed.",
            )
    for name, preset in settings.presets.items():
        _check_preset(preset, settings, f"{where}, preset {name}")
    return settings


def read_access(path: Path | None, given: Mapping[str, object]) -> AccessSettings:
    """Return only who may reach the server, as `read_settings` does."""
    table = _read(path).get("access", {}) if path else {}
    try:
        return AccessSettings.model_validate({**(table if isinstance(table, dict) else {}), **_given(given)})
    except ValidationError as error:
        what = describe_invalid(error, table, model=AccessSettings, owner="access")
        raise SettingsError(what, where=str(path or "access"), do="Correct it.") from None


def _given(options: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in options.items() if value is not None}


def _read(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(read_bounded_text(path))
    except OSError as error:
        raise SettingsError(
            f"the server's configuration cannot be read: {error.strerror or error}",
            where=str(path),
            do="Check the path and your rights.",
        ) from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            f"the server's configuration is not valid TOML: {error or 'it is nested too deeply'}",
            where=str(path),
            do="Correct that line.",
        ) from None


def _check_preset(preset: Preset, settings: ServerSettings, where: str) -> None:
    """Raise `SettingsError` for a preset that no caller could use."""
    if foreign := [name for name in preset.models if name not in settings.models]:
        raise SettingsError(
            f"the model {foreign[0]!r} is not among the server's", where=where, do="Add it to `models`."
        )
    try:
        find_protocol(preset.protocol)(**preset.settings)
        if preset.panel is not None:
            load_panel(preset.panel)
    except UserError as error:
        raise SettingsError(error.what, where=where, do=error.do) from None
