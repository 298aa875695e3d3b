"""The configuration files: `consilience.toml` of the current directory, and the user's own.

model = "anthropic:claude-sonnet-4-5"
confirm_above = 2.0        # dollars

[emergence]
children = 4

[endpoints."http://127.0.0.1:8000/v1"]      # an OpenAI-compatible endpoint, or one model there: …/v1#NAME
free = true                                 # or its prices; also context_window, thinks, key_variable

The command line reads both. A Python program reads `model` and the endpoints of the user's own file (`own_config`): it states its
protocol and settings itself, and must not depend on the directory in which it is started.

A directory may come from another person, so its file cannot approve spending: what it declares of endpoints is ignored, and it can
lower `confirm_above` but not raise it. An endpoint that only its `model` names gets no key, and its `model` must not be a program
or a workspace.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from consilience.domain.errors import SettingsError
from consilience.domain.paths import check_home, read_bounded_text, user_config_dir
from consilience.domain.validation import did_you_mean
from consilience.models.endpoints import MAX_DOLLARS, Endpoints, is_amount, read_declaration

FILE_NAME = "consilience.toml"
ENDPOINTS = "endpoints"
"""The table of OpenAI-compatible endpoints."""
CONFIRM_ABOVE = 0.5
"""Cost in US dollars above which a run on a terminal asks for confirmation."""


@dataclass(frozen=True)
class Config:
    """The merged content of the configuration files."""

    model: str | None = None
    model_file: Path | None = None
    """The file that names the model."""
    confirm_above: float = CONFIRM_ABOVE
    tables: Mapping[str, Mapping[str, tuple[object, Path]]] = field(default_factory=dict)
    """Settings by protocol and name, with their file."""
    endpoints: Endpoints = field(default_factory=Endpoints)
    """What the user's own file declares of endpoints, and those that its model names; both may have a key."""


def config_files() -> tuple[Path, Path]:
    """Return the paths of the directory's file and the user's, by precedence; they may not exist."""
    return Path(FILE_NAME), user_config_dir() / FILE_NAME


def own_config() -> Config:
    """Read the user's own file for a program. Empty if there is no such file, or no home.

    Raises `SettingsError` naming file and key, and for a home of another user.
    """
    try:
        path = config_files()[1]
    except SettingsError:  # no home directory
        return Config()
    if not os.path.exists(path):
        return Config()
    check_home()
    return merge_configs((path,))


def merge_configs(paths: Sequence[Path]) -> Config:
    """Return the content of configuration files; later ones take precedence. Raises `SettingsError` naming file and key."""
    config = Config()
    tables: dict[str, dict[str, tuple[object, Path]]] = {}
    for path in paths:
        for key, value in read_config(path).items():
            if key == ENDPOINTS and isinstance(value, dict):
                for name, entry in value.items() if is_own(path) else ():
                    declared = config.endpoints.declare_table(name, entry, _table(path, name))
                    config = replace(config, endpoints=declared)
            elif isinstance(value, dict):
                tables.setdefault(key, {}).update({name: (setting, path) for name, setting in value.items()})
            elif key == "model":
                model = str(value)
                named = config.endpoints.name([model] if is_own(path) else [])
                config = replace(config, model=model, model_file=path, endpoints=named)
            else:
                limit = float(value)
                config = replace(config, confirm_above=limit if is_own(path) else min(limit, config.confirm_above))
    return replace(config, tables=tables)


def is_own(path: Path) -> bool:
    """Return whether this is the user's own file, not one that may have come with a directory."""
    return os.path.realpath(path) == os.path.realpath(config_files()[1])


def ignored_words(path: Path, content: Mapping[str, object], confirm_above: float = CONFIRM_ABOVE) -> str:
    """Return which keys of a directory's file are ignored; empty if none. `confirm_above` is the amount in effect."""
    if is_own(path):
        return ""
    limit = content.get("confirm_above")
    raised = isinstance(limit, float) and limit > confirm_above
    keys = [*(["[endpoints]"] if ENDPOINTS in content else []), *(["a higher confirm_above"] if raised else [])]
    return f"{' and '.join(keys)} ignored; only {config_files()[1]} may set that" if keys else ""


def read_config(path: Path) -> dict[str, str | float | dict[str, object]]:
    """Return the content of a file, empty if it does not exist. Raises `SettingsError` naming file and key."""
    try:
        text = read_bounded_text(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(
            f"the configuration cannot be read: {reason}", where=str(path), do="Fix or remove it."
        ) from None
    from consilience.domain.toml_catalog import parse_toml

    try:
        table = parse_toml(text)
    except (ValueError, RecursionError) as error:
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise SettingsError(
            f"the configuration is not valid TOML: {problem}",
            where=str(path),
            do="Correct that line, or remove the file.",
        ) from None
    return {key: _checked(key, value, path) for key, value in table.items()}


def _table(path: Path, name: str) -> str:
    return f'{path}, table [{ENDPOINTS}."{name}"]'


def _checked(key: str, value: object, path: Path) -> str | float | dict[str, object]:
    place = f"{path}, key {key!r}"
    if key == "model":
        if isinstance(value, str) and value.strip():
            return value.strip()
        raise SettingsError("the model must be a name in quotation marks", where=place, do='Write model = "local".')
    if key == "confirm_above":
        if is_amount(value):
            return float(value)
        raise SettingsError(
            f"the amount must be a number of dollars, at most {MAX_DOLLARS:,}",
            where=place,
            do="Write confirm_above = 0.5.",
        )
    if key == ENDPOINTS and isinstance(value, dict):
        for name, entry in value.items() if is_own(path) else ():
            read_declaration(name, entry, _table(path, name))
        return value
    from consilience.engine.protocol import installed_protocols

    protocols = (ENDPOINTS, *installed_protocols())
    if isinstance(value, dict) and key in protocols:
        return value
    if key in protocols:
        raise SettingsError(
            f"the settings of {key} must be a table",
            where=place,
            do=f"Write [{key}] on a line of its own, and its settings below it.",
        )
    meant = did_you_mean(key, ["model", "confirm_above", *protocols])
    tables = ", ".join(f"[{name}]" for name in sorted(protocols))
    raise SettingsError(
        f"the configuration has an unknown key {key!r}",
        where=place,
        do=f"{meant}Known: model, confirm_above, {tables}.",
    )
