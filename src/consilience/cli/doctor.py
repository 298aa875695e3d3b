"""What is here, what is missing, and what would be done."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from consilience.cli.output import print_json

doctor = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

EXTRAS = {"local": "xllamacpp", "openai": "openai", "anthropic": "anthropic", "google": "google.genai"}
"""Optional dependencies, with the module that tells whether each is installed."""


class Row(NamedTuple):
    """One line; not `fine` where what it names could not be used."""

    name: str
    value: str
    fine: bool = True


@doctor.command("doctor")
def _doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    env_file: Annotated[
        Path | None, typer.Option(help="Read environment variables (KEY=VALUE lines) first.", metavar="FILE")
    ] = None,
) -> None:
    """What is here, what is missing, which model would be taken and why. Changes nothing and spends nothing.

    Exits with 2 where something it names is not usable.
    """
    from consilience.cli.config import load_env_file
    from consilience.cli.failures import MISTAKE

    loaded = load_env_file(env_file) if env_file is not None else []
    found: dict[str, list[Row]] = {
        "This installation": _installation(),
        "Data": _data(),
        "Model": _model(),
        "Settings of protocols (an option goes before them)": _settings(),
        "Keys (names only; none is spent unless a model that needs it is named)": _keys(),
    }
    if env_file is not None:
        found["Data"].append(Row("environment file", f"{env_file}: set {', '.join(loaded) or 'nothing new'}"))
    if as_json:
        print_json({section: {row.name: row.value for row in rows} for section, rows in found.items()})
    else:
        _print(found)
    if not all(row.fine for rows in found.values() for row in rows):
        raise typer.Exit(MISTAKE)


def _print(found: dict[str, list[Row]]) -> None:
    for section, rows in found.items():
        print(section)
        width = max((len(row.name) for row in rows), default=0)
        for row in rows:
            print(f"  {row.name:<{width}}  {row.value}")
        print()


def _installation() -> list[Row]:
    from importlib.metadata import version
    from importlib.util import find_spec

    from consilience.cli.lazy import installed_protocols

    def there(module: str) -> bool:
        try:
            return find_spec(module) is not None
        except ModuleNotFoundError:
            return False

    rows = [
        Row("consilience", version("consilience")),
        Row("python", f"{platform.python_version()} ({sys.executable})"),
        Row("protocols", ", ".join(sorted(installed_protocols()))),
    ]
    for extra, module in EXTRAS.items():
        state = "installed" if there(module) else f"not installed: pip install 'consilience[{extra}]'"
        rows.append(Row(f"extra {extra}", state))
    return rows


def _data() -> list[Row]:
    from consilience.cli.config import config_files
    from consilience.domain.places import data_dir, journal_path, weights_dir
    from consilience.models.weights import CATALOGUE, installed

    here = installed()
    return [
        Row("directory", str(data_dir())),
        _journal(journal_path()),
        Row("weights", f"{weights_dir()}: {', '.join(here) or 'none'} (of {', '.join(CATALOGUE)})"),
        *map(_configuration, ("configuration here", "configuration of the user"), config_files()),
    ]


def _configuration(whose: str, path: Path) -> Row:
    from consilience.cli.config import read_config
    from consilience.domain.errors import UserError

    try:
        read_config(path)
    except UserError as error:
        return Row(whose, f"{path}: NOT USABLE: {error.what}", fine=False)
    return Row(whose, f"{path}: {'read' if path.is_file() else 'not there'}")


def _journal(path: Path) -> Row:
    """Opens a journal that is there; of one that is not it only looks whether it could be made."""
    from consilience.domain.errors import UserError
    from consilience.journal.sqlite import SqliteStore

    if not os.path.exists(path):  # nor where nobody may look
        if missing := _unmakable(path):
            return Row("journal", f"{path}: not there yet, CANNOT BE MADE: {missing}", fine=False)
        return Row("journal", f"{path}: not there yet, could be made")
    try:
        store = SqliteStore(path, writing=True)
        number = len(store.sessions())
        store.close()
    except UserError as error:
        return Row("journal", f"{path}: NOT USABLE: {error.what}", fine=False)
    return Row("journal", f"{path}: ok, {number:,} sessions, {path.stat().st_size / 1e6:.1f} MB")


def _unmakable(path: Path) -> str:
    """Why nothing could be made below the nearest directory that is there; found out by a file without a name."""
    nearest = next(parent for parent in path.absolute().parents if os.path.exists(parent))
    if not nearest.is_dir():
        return f"{nearest} is no directory"
    try:
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        return f"{nearest} is not writable ({error.strerror})"
    return ""


def _model() -> list[Row]:
    """The steps of precedence in order, and the one that decides."""
    from consilience.cli.config import load_config
    from consilience.cli.fetch import local_weights
    from consilience.cli.plan import choice_without_a_name
    from consilience.domain.errors import UserError
    from consilience.models.weights import locate

    try:
        config = load_config()
    except UserError as error:
        return [Row("configuration", f"NOT USABLE: {error}", fine=False)]
    choice = choice_without_a_name(config)
    weights = [name for name in local_weights([choice.name]) if locate(name) is None]
    note = f"; its weights are fetched at the first run: {', '.join(weights)}" if weights else ""
    spending, fine = _spending(choice.name)
    return [
        Row("would be taken", f"{choice.name}: {choice.why}{note}; {spending}", fine),
        Row("1. option", "--model, --models, --agent"),
        Row("2. environment", f"CONSILIENCE_MODEL={os.environ.get('CONSILIENCE_MODEL') or '(not set)'}"),
        Row(
            "3. configuration",
            f"model = {config.model!r} in {config.origin['model']}" if config.model else "names no model",
        ),
        Row("4. server here", "Ollama, LM Studio, llama.cpp or vLLM on this machine, if one answers"),
        Row("5. else", "local, which needs no key"),
        Row("asks above", f"${config.confirm_above:.2f} on a terminal; elsewhere --yes or --max-cost is needed"),
    ]


def _spending(name: str) -> tuple[str, bool]:
    """What a run with that model would spend, and whether it could begin; why not, where it could not."""
    from consilience.cli.fetch import local_weights, need_runtime
    from consilience.cli.plan import check_models
    from consilience.domain.errors import UnknownName, UserError
    from consilience.models.names import alternatives, is_person, is_program, paid, resolve

    if is_program(name):
        spending = "what it spends by itself is not known, so a run asks, or needs --yes"
    else:
        spending = "it is paid for" if paid(name) else "it costs nothing"
    try:
        check_models([name], keys=True)
        if local_weights([name]):
            need_runtime()
        for one in alternatives(name):
            if not (is_person(one) or local_weights([one])):
                resolve(one)  # as a run does, to which the client library may be missing
    except UnknownName as error:  # nobody knows what it would spend
        return f"NOT USABLE: {error}", False
    except UserError as error:
        return f"{spending}; NOT USABLE: {error}", False
    return spending, True


def _settings() -> list[Row]:
    """What the configuration files set, by protocol, with the file."""
    from consilience.cli.config import load_config
    from consilience.cli.inputs import read_settings
    from consilience.cli.plan import setting_words
    from consilience.domain.errors import UserError
    from consilience.engine.protocol import find_protocol

    try:
        tables = (config := load_config()).tables
    except UserError:
        return [Row("none", "the configuration is not usable", fine=False)]
    rows = []
    for name, table in tables.items():
        try:
            protocol = read_settings(find_protocol(name), {}, config)
        except UserError as error:
            rows.append(Row(name, f"NOT USABLE: {error}", fine=False))
        else:
            said = (f"{setting_words(protocol, key)} in {path}" for key, (_, path) in table.items())
            rows.append(Row(name, "; ".join(said)))
    return rows or [Row("none", "no configuration file sets any")]


def _keys() -> list[Row]:
    from consilience.models.names import key_variables, known_providers

    allowed: dict[str, list[str]] = {}
    for provider in known_providers():
        for variable in key_variables(provider):
            if os.environ.get(variable):
                allowed.setdefault(variable, []).append(f"{provider}:MODEL")
    rows = [Row(variable, f"would allow --model {' or '.join(names)}") for variable, names in sorted(allowed.items())]
    return rows or [Row("none", "no key of a known provider is in the environment")]
