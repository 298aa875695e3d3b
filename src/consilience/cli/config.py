"""`consilience.toml`, environment files, and who wins: option, environment, ./consilience.toml, the user's, defaults.

model = "anthropic:claude-sonnet-4-5"
confirm_above = 2.0        # dollars

[emergence]
children = 4

[endpoints."http://127.0.0.1:8000/v1"]      # an OpenAI-compatible endpoint, or one model there: …/v1#NAME
free = true                                 # or its prices: input_price = 2.5, output_price = 10 (dollars per million tokens)

A directory may be somebody else's. So its file cannot agree to spend money: prices of endpoints in it are ignored, and it can
lower `confirm_above` but not raise it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from consilience.cli.commands import installed_protocols
from consilience.domain.errors import SettingsError
from consilience.domain.paths import check_home, home_dir, read_bounded_text
from consilience.models.endpoints import FREE, configure, is_endpoint

NAME = "consilience.toml"
ENDPOINTS = "endpoints"
"""The table of OpenAI-compatible endpoints."""
CONFIRM_ABOVE = 0.5
"""US dollars above which a run on a terminal asks first."""
MOST_DOLLARS = 1_000_000
"""The most that an amount or a price per million tokens may be."""


@dataclass(frozen=True)
class Config:
    """What the files say together. `origin` is the file each top-level key came from; `tables` are protocols' settings, with
    the file each of them came from."""

    model: str | None = None
    confirm_above: float = CONFIRM_ABOVE
    origin: Mapping[str, Path] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, tuple[object, Path]]] = field(default_factory=dict)
    endpoints: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Prices (in, out) of endpoints, in dollars per million tokens, by address or full name."""


def config_files() -> tuple[Path, Path]:
    """The directory's file and the user's, in order of precedence, whether they exist or not."""
    return Path(NAME), user_config_dir() / NAME


def user_config_dir() -> Path:
    if home := home_dir():
        return home
    import platformdirs

    return Path(platformdirs.user_config_dir("consilience", appauthor=False))


def load_config(*, tell: bool = True, env_file: Path | None = None) -> Config:
    """Read both files, after `env_file`, and put the prices of endpoints into effect. With `tell`, print what is ignored to
    standard error.

    Raises `SettingsError` naming file and key, and for a home of another user.
    """
    if env_file is not None:
        load_env_file(env_file)
    check_home()
    model: str | None = None
    confirm_above = CONFIRM_ABOVE
    origin: dict[str, Path] = {}
    tables: dict[str, dict[str, tuple[object, Path]]] = {}
    endpoints: dict[str, tuple[float, float]] = {}
    for path in reversed(config_files()):
        found = read_config(path)
        for key, value in found.items():
            if key == ENDPOINTS and isinstance(value, dict):
                if is_own(path):
                    endpoints = {name: _prices(name, entry, path) for name, entry in value.items()}
                continue
            if isinstance(value, dict):
                tables.setdefault(key, {}).update({name: (setting, path) for name, setting in value.items()})
                continue
            origin[key] = path
            if key == "model":
                model = str(value)
            else:
                confirm_above = float(value) if is_own(path) else min(float(value), confirm_above)
        if tell and (words := ignored_words(path, found, confirm_above)):
            print(f"{path}: {words}", file=sys.stderr)
    configure(endpoints)
    return Config(model, confirm_above, origin, tables, endpoints)


def is_own(path: Path) -> bool:
    """Whether a file is the user's own, and not one that may have come with a directory."""
    return os.path.realpath(path) == os.path.realpath(user_config_dir() / NAME)


def ignored_words(path: Path, found: Mapping[str, object], confirm_above: float = CONFIRM_ABOVE) -> str:
    """What a directory's file says and may not decide; empty where that is nothing. `confirm_above` is the amount in effect."""
    if is_own(path):
        return ""
    above = found.get("confirm_above")
    raised = isinstance(above, float) and above > confirm_above
    keys = [*(["[endpoints]"] if ENDPOINTS in found else []), *(["a higher confirm_above"] if raised else [])]
    return f"{' and '.join(keys)} ignored; only {user_config_dir() / NAME} may set that" if keys else ""


def read_config(path: Path) -> dict[str, str | float | dict[str, object]]:
    """What one file says, nothing where there is none. Raises `SettingsError` naming file and key for what cannot be."""
    try:
        text = read_bounded_text(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SettingsError(
            f"the configuration cannot be read: {reason}", where=str(path), do="Mend or remove it."
        ) from None
    from consilience.domain.toml_catalog import parse_toml

    try:
        table = parse_toml(text)
    except (ValueError, RecursionError) as error:
        what = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise SettingsError(
            f"the configuration is not valid TOML: {what}",
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
        if (dollars := _dollars(value)) is not None:
            return dollars
        raise SettingsError(
            f"the amount must be a number of dollars, at most {MOST_DOLLARS:,}",
            where=where,
            do="Write confirm_above = 0.5.",
        )
    if key == ENDPOINTS and isinstance(value, dict):
        for name, entry in value.items() if is_own(path) else ():
            _prices(name, entry, path)
        return value
    protocols = (ENDPOINTS, *installed_protocols())
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


def _prices(name: str, entry: object, path: Path) -> tuple[float, float]:
    """Dollars per million tokens (in, out) of one endpoint or model. Raises `SettingsError`."""
    where = f"{path}, table [{ENDPOINTS}]"
    if not is_endpoint(name) or "@" in name.partition("#")[0]:
        raise SettingsError(
            "an endpoint is not named by its address",
            where=where,
            do='Write [endpoints."http://127.0.0.1:8000/v1"], without a user name or password.',
        )
    table = entry if isinstance(entry, dict) else {}
    prices = [_dollars(table.get(key)) for key in ("input_price", "output_price")]
    valid = [price for price in prices if price is not None]
    if table == {"free": True}:
        return FREE
    if len(table) == len(valid) == 2:
        return valid[0], valid[1]
    raise SettingsError(
        f"the price of {name} is not valid",
        where=where,
        do="Write free = true, or input_price = 2.5 and output_price = 10 (US dollars per million tokens, "
        f"at most {MOST_DOLLARS:,}).",
    )


def _dollars(value: object) -> float | None:
    """A number of dollars from 0 to `MOST_DOLLARS`; None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_DOLLARS:
        return float(value)
    return None


def load_env_file(path: Path) -> list[str]:
    """Put `KEY=VALUE` lines into the environment where it has no such variable yet. Returns the names set.

    `export` in front, quotation marks around a value and lines that begin with `#` are understood. A mistake is named by
    line, never by content.
    """
    try:
        lines = read_bounded_text(path).splitlines()
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
        if not equals or not name.replace("_", "a").isalnum() or name[0].isdigit() or "\0" in value:
            what = "the value holds a NUL character" if "\0" in value else "the line is not KEY=VALUE"
            raise SettingsError(what, where=f"{path}, line {number}", do="Correct or remove it.")
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        if name not in os.environ:
            os.environ[name] = value
            names.append(name)
    return names
