"""What is here, what is missing, and what would be done."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Annotated

import typer

from consilience.cli.output import print_json

doctor = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

EXTRAS = {"local": "xllamacpp", "openai": "openai", "anthropic": "anthropic", "google": "google.genai"}
"""Optional dependencies, with the module that tells whether each is installed."""


@doctor.command("doctor")
def _doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    env_file: Annotated[
        Path | None, typer.Option(help="Read environment variables (KEY=VALUE lines) first.", metavar="FILE")
    ] = None,
) -> None:
    """What is here, what is missing, which model would be taken and why. Changes nothing and spends nothing."""
    from consilience.cli.config import load_env_file

    loaded = load_env_file(env_file) if env_file is not None else []
    found: dict[str, list[tuple[str, str]]] = {
        "This installation": _installation(),
        "Data": _data(),
        "Model": _model(),
        "Settings of protocols (an option goes before them)": _settings(),
        "Keys (names only; none is spent unless a model that needs it is named)": _keys(),
    }
    if env_file is not None:
        found["Data"].append(("environment file", f"{env_file}: set {', '.join(loaded) or 'nothing new'}"))
    if as_json:
        print_json({section: dict(rows) for section, rows in found.items()})
        return
    for section, rows in found.items():
        print(section)
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            print(f"  {name:<{width}}  {value}")
        print()


def _installation() -> list[tuple[str, str]]:
    from importlib.metadata import version
    from importlib.util import find_spec

    from consilience.cli.lazy import installed_protocols

    def there(module: str) -> bool:
        try:
            return find_spec(module) is not None
        except ModuleNotFoundError:
            return False

    rows = [
        ("consilience", version("consilience")),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("protocols", ", ".join(sorted(installed_protocols()))),
    ]
    for extra, module in EXTRAS.items():
        state = "installed" if there(module) else f"not installed: pip install 'consilience[{extra}]'"
        rows.append((f"extra {extra}", state))
    return rows


def _data() -> list[tuple[str, str]]:
    from consilience.cli.config import config_files
    from consilience.domain.places import data_dir, journal_path, weights_dir
    from consilience.models.weights import CATALOGUE, installed

    rows = [("directory", str(data_dir())), ("journal", _journal(journal_path()))]
    here = installed()
    rows.append(("weights", f"{weights_dir()}: {', '.join(here) or 'none'} (of {', '.join(CATALOGUE)})"))
    for whose, path in zip(("configuration here", "configuration of the user"), config_files(), strict=True):
        rows.append((whose, f"{path}: {_configuration(path)}"))
    return rows


def _configuration(path: Path) -> str:
    from consilience.cli.config import read_config
    from consilience.domain.errors import UserError

    try:
        read_config(path)
    except UserError as error:
        return f"NOT USABLE: {error.what}"
    return "read" if path.is_file() else "not there"


def _journal(path: Path) -> str:
    """Opens a journal that is there; of one that is not it only looks whether it could be made."""
    from consilience.domain.errors import UserError
    from consilience.journal.sqlite import SqliteStore

    if not path.exists():
        nearest = next(parent for parent in path.absolute().parents if parent.exists())
        state = "could be made" if os.access(nearest, os.W_OK) else f"CANNOT BE MADE: {nearest} is not writable"
        return f"{path}: not there yet, {state}"
    try:
        store = SqliteStore(path, writing=True)
        number = len(store.sessions())
        store.close()
    except UserError as error:
        return f"{path}: NOT USABLE: {error.what}"
    return f"{path}: ok, {number:,} sessions, {path.stat().st_size / 1e6:.1f} MB"


def _model() -> list[tuple[str, str]]:
    """The steps of precedence in order, and the one that decides."""
    from consilience.cli.config import load_config
    from consilience.cli.fetch import local_weights
    from consilience.cli.plan import choice_without_a_name
    from consilience.domain.errors import UserError
    from consilience.models.weights import locate

    try:
        config = load_config()
    except UserError as error:
        return [("configuration", f"NOT USABLE: {error}")]
    choice = choice_without_a_name(config)
    weights = [name for name in local_weights([choice.name]) if locate(name) is None]
    note = f"; its weights are fetched at the first run: {', '.join(weights)}" if weights else ""
    return [
        ("would be taken", f"{choice.name}: {choice.why}{note}; {_spending(choice.name)}"),
        ("1. option", "--model, --models, --agent"),
        ("2. environment", f"CONSILIENCE_MODEL={os.environ.get('CONSILIENCE_MODEL') or '(not set)'}"),
        (
            "3. configuration",
            f"model = {config.model!r} in {config.origin['model']}" if config.model else "names no model",
        ),
        ("4. server here", "Ollama, LM Studio, llama.cpp or vLLM on this machine, if one answers"),
        ("5. else", "local, which needs no key"),
        ("asks above", f"${config.confirm_above:.2f} on a terminal; elsewhere --yes or --max-cost is needed"),
    ]


def _spending(name: str) -> str:
    """What a run with that model would spend, and why it could not begin where it could not."""
    from consilience.cli.fetch import local_weights, need_runtime
    from consilience.cli.plan import check_models
    from consilience.domain.errors import UserError
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
    except UserError as error:
        return f"{spending}; NOT USABLE: {error}"
    return spending


def _settings() -> list[tuple[str, str]]:
    """What the configuration files set, by protocol, with the file."""
    from consilience.cli.config import load_config
    from consilience.cli.inputs import read_settings
    from consilience.cli.plan import setting_words
    from consilience.domain.errors import UserError
    from consilience.engine.protocol import find_protocol

    try:
        tables = (config := load_config()).tables
    except UserError:
        return [("none", "the configuration is not usable")]
    rows = []
    for name, table in tables.items():
        try:
            protocol = read_settings(find_protocol(name), {}, config)
        except UserError as error:
            rows.append((name, f"NOT USABLE: {error}"))
        else:
            said = (f"{setting_words(protocol, key)} in {path}" for key, (_, path) in table.items())
            rows.append((name, "; ".join(said)))
    return rows or [("none", "no configuration file sets any")]


def _keys() -> list[tuple[str, str]]:
    from consilience.models.names import key_variables, known_providers

    allowed: dict[str, list[str]] = {}
    for provider in known_providers():
        for variable in key_variables(provider):
            if os.environ.get(variable):
                allowed.setdefault(variable, []).append(f"{provider}:MODEL")
    rows = [(variable, f"would allow --model {' or '.join(names)}") for variable, names in sorted(allowed.items())]
    return rows or [("none", "no key of a known provider is in the environment")]
