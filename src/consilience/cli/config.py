"""`consilience.toml`, environment files, and who wins: option, environment, ./consilience.toml, the user's, defaults.

model = "anthropic:claude-sonnet-4-5"
confirm_above = 2.0        # dollars

[emergence]
children = 4
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from consilience.cli.lazy import installed_protocols
from consilience.domain.errors import SettingsError

NAME = "consilience.toml"
CONFIRM_ABOVE = 0.5
"""US dollars above which a run on a terminal asks first."""


@dataclass(frozen=True)
class Config:
    """What the files say together. `origin` is the file each top-level key came from; `tables` are protocols' settings, with
    the file each of them came from."""

    model: str | None = None
    confirm_above: float = CONFIRM_ABOVE
    origin: Mapping[str, Path] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, tuple[object, Path]]] = field(default_factory=dict)


def config_files() -> tuple[Path, Path]:
    """The directory's file and the user's, in order of precedence, whether they exist or not."""
    return Path(NAME), user_config_dir() / NAME


def user_config_dir() -> Path:
    home = os.environ.get("CONSILIENCE_HOME")
    if home:
        return Path(home).expanduser()
    import platformdirs

    return Path(platformdirs.user_config_dir("consilience", appauthor=False))


def load_config() -> Config:
    """Read both files. Raises `SettingsError` naming file and key for what cannot be."""
    model: str | None = None
    confirm_above = CONFIRM_ABOVE
    origin: dict[str, Path] = {}
    tables: dict[str, dict[str, tuple[object, Path]]] = {}
    for path in reversed(config_files()):
        for key, value in read_config(path).items():
            if isinstance(value, dict):
                tables.setdefault(key, {}).update({name: (setting, path) for name, setting in value.items()})
                continue
            origin[key] = path
            if key == "model":
                model = str(value)
            else:
                confirm_above = float(value)
    return Config(model, confirm_above, origin, tables)


def read_config(path: Path) -> dict[str, str | float | dict[str, object]]:
    """What one file says, nothing where there is none. Raises `SettingsError` naming file and key for what cannot be."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(
            f"the configuration cannot be read: {reason}", where=str(path), do="Mend or remove it."
        ) from None
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsError(
            f"the configuration is not valid TOML: {error}",
            where=str(path),
            do="Correct that line, or remove the file.",
        ) from None
    return {key: _checked(key, value, path) for key, value in table.items()}


def _checked(key: str, value: object, path: Path) -> str | float | dict[str, object]:
    where = f"{path}, key {key!r}"
    if key == "model":
        if isinstance(value, str) and value.strip():
            return value.strip()
        raise SettingsError("the model must be a name in quotation marks", where=where, do='Write model = "local".')
    if key == "confirm_above":
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            return float(value)
        raise SettingsError("the amount must be a number of dollars", where=where, do="Write confirm_above = 0.5.")
    protocols = installed_protocols()
    if isinstance(value, dict) and key in protocols:
        return value
    if key in protocols:
        raise SettingsError(
            f"the settings of {key} must be a table",
            where=where,
            do=f"Write [{key}] on a line of its own, and its settings below it.",
        )
    import difflib

    known = ["model", "confirm_above", *protocols]
    close = difflib.get_close_matches(key, known, 1)
    meant = f"Did you mean {close[0]!r}? " if close else ""
    tables = ", ".join(f"[{name}]" for name in sorted(protocols))
    raise SettingsError(
        f"the configuration has an unknown key {key!r}",
        where=where,
        do=f"{meant}Known: model, confirm_above, {tables}.",
    )


def load_env_file(path: Path) -> list[str]:
    """Put `KEY=VALUE` lines into the environment where it has no such variable yet. Returns the names set.

    `export` in front, quotation marks around a value and lines that begin with `#` are understood. A mistake is named by
    line, never by content.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(
            f"the environment file cannot be read: {reason}",
            where=str(path),
            do="Name a readable file with --env-file.",
        ) from None
    names = []
    for number, line in enumerate(lines, 1):
        entry = line.strip().removeprefix("export ").strip()
        if not entry or entry.startswith("#"):
            continue
        name, equals, value = entry.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name.replace("_", "a").isalnum() or name[0].isdigit():
            raise SettingsError("the line is not KEY=VALUE", where=f"{path}, line {number}", do="Correct or remove it.")
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        if name not in os.environ:
            os.environ[name] = value
            names.append(name)
    return names
