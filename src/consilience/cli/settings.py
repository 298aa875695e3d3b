"""Configuration and environment files as commands read them, and settings of protocols as options of their commands.

Precedence: option, environment, ./consilience.toml, the user's file, default.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

from consilience.cli.errors import can_confirm, confirm, option_spelling
from consilience.cli.options import REPEATED, names_option
from consilience.configuration import Config, config_files, ignored_words, is_own, merge_configs, read_config
from consilience.domain.errors import SettingsError
from consilience.domain.model_names import BY_HAND, named_by_hand
from consilience.domain.paths import check_home, data_dir, is_own_journal, journal_path, read_bounded_text
from consilience.domain.validation import InvalidValues, did_you_mean

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from consilience.domain.events import SessionStarted
    from consilience.engine.protocol import Protocol
    from consilience.journal.store import Store
    from consilience.models.registry import Choice


def load_config(*, tell: bool = True, env_file: Path | None = None, named: Sequence[str] = ()) -> Config:
    """Read `env_file`, then both configuration files. With `tell`, report ignored keys.

    `named` are the names of models on the command line. Only they, the environment and the user's own file name endpoints that may
    have a key.

    Raises `SettingsError` naming file and key, and for a data directory of another user.
    """
    if env_file is not None:
        load_env_file(env_file)
    check_home()
    here, own = config_files()
    config = merge_configs((own, here))
    if tell and (ignored := ignored_words(here, read_config(here), config.confirm_above)):
        print(f"{here}: {ignored}", file=sys.stderr)
    return replace(config, endpoints=replace(config.endpoints.name(named), complete=True))


def default_model(config: Config) -> Choice:
    """Return the model used if the command line names none; the reason names the configuration file, if it decided.

    Raises `SettingsError` for a program or a workspace in a directory's file, which may come from another person: a program runs
    with the user's rights, and `--yes` agrees only to the cost.
    """
    from consilience.models.program import without_secret
    from consilience.models.registry import Choice, choose

    choice = choose(os.environ, {"model": config.model} if config.model else {}, config.endpoints)
    if config.model_file is None or os.environ.get("CONSILIENCE_MODEL", "").strip():
        return choice
    if (kind := named_by_hand(choice.name)) and not is_own(config.model_file):
        option = f"--model '{BY_HAND[kind]}'"
        raise SettingsError(
            f"the configuration of the current directory must not name a {kind}: {without_secret(choice.name)}",
            where=f"{config.model_file.absolute()}, key 'model'",
            do=f"If you trust it, give {option}, set CONSILIENCE_MODEL, or move the line to {config_files()[1]}.",
        )
    return Choice(choice.name, f"{config.model_file} names it", choice.unspent_keys)


def load_env_file(path: Path) -> list[str]:
    """Set environment variables from `KEY=VALUE` lines, unless they are set already. Return the names that were set.

    A line may begin with `export`, a value may be quoted, and lines that begin with `#` are skipped. Errors name the line and never
    quote it, because it may contain a key.
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
            problem = "the value holds a NUL character" if "\0" in value else "the line is not KEY=VALUE"
            raise SettingsError(problem, where=f"{path}, line {number}", do="Correct or remove it.")
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        if name not in os.environ:
            os.environ[name] = value
            names.append(name)
    return names


# --- settings of protocols


def read_settings(cls: type[Protocol], settings: Mapping[str, object], config: Config) -> Protocol:
    """Return the protocol with `settings`, then the configuration's. Raises `SettingsError` with the place of a wrong setting."""
    table = config.tables.get(cls.name, {})
    for key, (value, path) in table.items():
        place = f"{path}, table [{cls.name}]"
        if key not in (known := cls.own_settings()):
            raise SettingsError(
                f"the configuration has an unknown key {key!r}",
                where=place,
                do=f"{did_you_mean(key, known)}Known: {', '.join(known)}.",
            )
        if key not in settings:
            _check_imports(cls, key, value, path)
            try:
                cls(**{key: value})
            except InvalidValues as error:
                if key in error.names:
                    raise SettingsError(error.what, where=place, do="Correct it there.") from None
    return cls(**{**{key: value for key, (value, _) in table.items()}, **settings})


def _check_imports(cls: type[Protocol], key: str, value: object, path: Path) -> None:
    """Raise `SettingsError` for code to import that a directory's file names: it may come from another person, and runs when it is
    imported, before anything is asked."""
    from consilience.engine.recorded_code import code_named

    named = code_named(cls, {key: value})
    if named and not is_own(path):
        option = option_spelling(key)
        raise SettingsError(
            f"the configuration of the current directory must not name code to import: {', '.join(named)}",
            where=f"{path.absolute()}, table [{cls.name}], key {key!r}",
            do=f"If you trust it, give {option} {','.join(named)}, or move the line to {config_files()[1]}.",
        )


def confirm_recorded_programs(programs: Iterable[str]) -> None:
    """Ask before programs start that a journal outside of the user's own directory has recorded: it may come from another person,
    and `--yes` agrees only to the cost. Raises `SettingsError` without a terminal, `Declined` after a no."""
    if not is_own_journal(str(journal_path())):
        _confirm_recorded("start", list(programs), "; a fork takes another model with --replace-agent")


def confirm_recorded_code(started: SessionStarted, store: Store) -> None:
    """Ask likewise before code is imported that such a journal has recorded; then import it."""
    from consilience.engine.recorded_code import foreign_code

    names = foreign_code(started, store)
    _confirm_recorded("import", names)
    if names:
        from consilience.coordination.gates import load_gate

        for name in names:
            load_gate(name)


def _confirm_recorded(verb: str, recorded: Sequence[str], otherwise: str = "") -> None:
    path, names = journal_path(), ", ".join(recorded)
    if not names:
        return
    if not can_confirm():
        raise SettingsError(
            f"the session would {verb} what a journal outside of your own directory has recorded: {names}",
            where=str(path),
            do=f"If you trust it, run the command at a terminal, or move the journal into {data_dir()}{otherwise}.",
        )
    confirm(
        f"{verb.capitalize()} {names}, as recorded in {path}, with your rights?", otherwise=f"Nothing was {verb}ed."
    )


def setting_value(accept: Callable[[Mapping[str, object]], object], name: str, text: str) -> object:
    """Return the text of a setting if `accept` takes it, else its value as JSON, as lists are written, or else the text.

    `accept` raises `SettingsError` for settings that the protocol refuses.
    """
    try:
        accept({name: text})
    except SettingsError:
        with suppress(ValueError):
            return json.loads(text)
    return text


def setting_options(cls: type[Protocol], used_names: Sequence[str]) -> dict[str, str]:
    """Return the settings of a protocol by the parameter of their option, prefixed by the protocol if its name is `used_names`."""
    from consilience.domain.messages import OptionName

    options = {}
    for setting in cls.own_settings():
        marks = cls.model_fields[setting].metadata
        name = next((mark.name for mark in marks if isinstance(mark, OptionName)), setting)
        options[f"{cls.name}_{name}" if name in used_names else name] = setting
    return {name.replace("-", "_"): setting for name, setting in options.items()}


def setting_parameter(info: FieldInfo, name: str, section: str) -> inspect.Parameter:
    """Return the option `name` of a setting."""
    from consilience.domain.messages import FILE, NAMES

    parsed, default = option_type(info.annotation), info.get_default(call_default_factory=True)
    spelling = option_spelling(name)
    if parsed is bool:
        spelling = f"{spelling}/--no-{spelling.removeprefix('--')}"
    if isinstance(default, tuple | list | frozenset):
        default = list(default)
    if isinstance(default, Enum):
        default = default.value
    defaults: dict[str, Any] = {
        "show_default": default not in ("", None, []),
        "rich_help_panel": section,
    }
    (element,) = get_args(parsed) if get_origin(parsed) is list else (None,)
    description: Any
    if element in (int, float):
        description = names_option(
            spelling, help=help_of(info), metavar=metavar_of(element) or "", kind=element, **defaults
        )
    elif NAMES in info.metadata or get_origin(element) is Literal:
        parsed = list[str]
        description = names_option(spelling, help=help_of(info), metavar="NAME", **defaults)
    else:
        metavar = "FILE|-" if FILE in info.metadata else metavar_of(element or parsed)
        repeated = f" {REPEATED}" if element else ""
        description = typer.Option(spelling, help=f"{help_of(info)}{repeated}".strip(), metavar=metavar, **defaults)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[parsed | None, description], default=default
    )


def option_type(annotation: object) -> Any:
    """Return the type that the command line parses, without None: the field's own if it is simple, else text that the settings
    validate."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return option_type(arguments[0])
    if origin is Union or origin is types.UnionType:
        inner = [option_type(a) for a in arguments if a is not type(None)]
        return inner[0] if len(inner) == 1 else str
    if origin is Literal:
        return annotation
    if origin in (tuple, list, frozenset, set, Sequence):
        return list[option_type(arguments[0]) if arguments else str]  # type: ignore[misc]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return Literal[tuple(member.value for member in annotation)]
    return annotation if annotation in (bool, int, float) else str


def metavar_of(parsed: Any) -> str | None:
    """Return the placeholder of the value in help; None for a flag."""
    if get_origin(parsed) is Literal:
        return "|".join(map(str, get_args(parsed)))
    return {bool: None, int: "N", float: "NUMBER"}.get(parsed, "TEXT")


def help_of(info: FieldInfo) -> str:
    """Return the field's description and its bounds."""
    text = (info.description or "").strip()
    if text.partition(",")[0] != info.default:  # the description begins with a value, which keeps its spelling
        text = f"{text[:1].upper()}{text[1:]}"
    low = next((m.ge for m in info.metadata if hasattr(m, "ge")), None)
    high = next((m.le for m in info.metadata if hasattr(m, "le")), None)
    if low is not None and high is not None:
        text += f" ({low} to {high})"
    return f"{text}." if text and not text.endswith(".") else text
