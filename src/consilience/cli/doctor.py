"""What is here, what is missing, and what would be done."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import typer

from consilience.cli.commands import EnvFile, Json, installed_protocols, new_app
from consilience.cli.config import CONFIRM_ABOVE, config_files, ignored_words, load_config, load_env_file, read_config
from consilience.cli.errors import MISTAKE, print_json
from consilience.cli.inputs import read_settings
from consilience.cli.plan import check_models, choice_without_a_name, links, programs_words, setting_words
from consilience.cli.setup import local_weights, need_runtime
from consilience.domain.errors import SettingsError, UnknownName, UserError
from consilience.domain.paths import check_home, data_dir, is_open_to_others, journal_path, weights_dir
from consilience.engine.protocol import find_protocol
from consilience.journal.open_store import open_store
from consilience.models import endpoints
from consilience.models.endpoints import FREE, how_to_free, list_models, prices_of
from consilience.models.program import shown
from consilience.models.redaction import scrub
from consilience.models.registry import (
    alternatives,
    is_person,
    is_program,
    key_variables,
    known_providers,
    paid,
    resolve,
)
from consilience.models.weights import CATALOGUE, ENCODERS, installed, locate

doctor = new_app()

EXTRAS = {
    "local": "xllamacpp",
    "openai": "openai",
    "anthropic": "anthropic",
    "google": "google.genai",
    "encoder": "onnxruntime",
}
"""Optional dependencies, with the module that tells whether each is installed."""


ENDPOINT_SECONDS = 1.0
"""Time for an endpoint to answer."""
MAX_LISTED = 12
"""Models of an endpoint that are shown."""


class Row(NamedTuple):
    """One line; not `fine` where what it names could not be used."""

    name: str
    value: str
    fine: bool = True


@doctor.command("doctor")
def _doctor(
    as_json: Json = False,
    env_file: EnvFile = None,
) -> None:
    """What is here, what is missing, which model would be taken and why. Changes nothing and spends nothing.

    Exits with 2 where something it names is not usable.
    """

    loaded = load_env_file(env_file) if env_file is not None else []
    found: dict[str, list[Row]] = {
        "This installation": _installation(),
        "Data": _data(),
        "Model": _model(),
        "OpenAI-compatible endpoints (any address; one example for each kind of server)": _endpoints(),
        "Settings of protocols (an option goes before them)": _settings(),
        "Keys (names only; none is spent unless a model that needs it is named)": _keys(),
    }
    if env_file is not None:
        found["Data"].append(Row("environment file", f"{env_file}: set {', '.join(loaded) or 'nothing new'}"))
    found = {section: [row._replace(value=scrub(row.value, [])) for row in rows] for section, rows in found.items()}
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

    home = data_dir()
    try:
        check_home()
    except SettingsError as error:
        return [Row("directory", f"{home}: NOT USABLE: {error.what}", fine=False)]
    here = installed()
    journal = _journal(journal_path())  # closes the directory to others if it may
    warning = ""
    if home.is_dir() and is_open_to_others(home):
        warning = f": WARNING: other users may replace the files in it; close it: chmod go-w {shlex.quote(str(home))}"
    return [
        Row("directory", f"{home}{warning}"),
        journal,
        Row("weights", f"{weights_dir()}: {', '.join(here) or 'none'} (of {', '.join((*CATALOGUE, *ENCODERS))})"),
        *map(_configuration, ("configuration here", "configuration of the user"), config_files()),
    ]


def _configuration(whose: str, path: Path) -> Row:

    try:
        found = read_config(path)
    except UserError as error:
        return Row(whose, f"{path}: NOT USABLE: {error.what}", fine=False)
    above = CONFIRM_ABOVE
    with suppress(UserError):  # the section on models reports it
        above = load_config(tell=False).confirm_above
    ignored = ignored_words(path, found, above)
    return Row(whose, f"{path}: {'read' if path.is_file() else 'not there'}{ignored and f', but {ignored}'}")


def _journal(path: Path) -> Row:
    """Opens a journal that is there; of one that is not it only looks whether it could be made."""

    if not os.path.exists(path):  # nor where nobody may look
        if missing := _unmakable(path):
            return Row("journal", f"{path}: not there yet, CANNOT BE MADE: {missing}", fine=False)
        return Row("journal", f"{path}: not there yet, could be made")
    try:
        store = open_store(path, writing=True)
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

    try:
        config = load_config(tell=False)
    except UserError as error:
        return [Row("configuration", f"NOT USABLE: {error}", fine=False)]
    try:
        choice = choice_without_a_name(config)
    except UserError as error:
        return [Row("would be taken", f"NOT USABLE: {error}", fine=False)]
    weights = [name for name in local_weights([choice.name]) if locate(name) is None]
    note = f"; its weights are fetched at the first run: {', '.join(weights)}" if weights else ""
    spending, fine = _spending(choice.name)
    return [
        Row("would be taken", f"{shown(choice.name)}: {choice.why}{note}; {spending}", fine),
        Row("1. option", "--model, --models, --agent: PROVIDER:MODEL, http://HOST:PORT/v1#MODEL and others"),
        Row("2. environment", f"CONSILIENCE_MODEL={shown(os.environ.get('CONSILIENCE_MODEL') or '(not set)')}"),
        Row(
            "3. configuration",
            f"model = {shown(config.model)!r} in {config.origin['model']}" if config.model else "names no model",
        ),
        Row("4. server here", "Ollama, LM Studio, llama.cpp or vLLM on this machine, if one answers"),
        Row("5. else", "local, which needs no key"),
        Row("asks above", f"${config.confirm_above:.2f} on a terminal; elsewhere --yes or --max-cost is needed"),
    ]


def _spending(name: str) -> tuple[str, bool]:
    """What a run with that model would spend, and whether it could begin; why not, where it could not."""

    spending = "it costs nothing"
    try:
        programs = [one for one in links([name]) if is_program(one)]
        unknown = any(how_to_free(one, os.environ) for one in links([name]))
        words = ["its price is not known" if unknown else "it is paid for"] if paid(name) else []
        if programs:
            words.append(f"{programs_words([shown(one) for one in programs])}, so a run asks, or needs --yes")
        spending = "; ".join(words) or spending
        check_models([name], keys=True)
        if local_weights([name]):
            need_runtime()
        for one in links([name]):
            if not (is_person(one) or local_weights([one])):
                resolve(one)  # as a run does, to which the client library may be missing
    except UnknownName as error:  # nobody knows what it would spend
        return f"NOT USABLE: {error}", False
    except UserError as error:
        return f"{spending}; NOT USABLE: {error}", False
    return spending, True


def _endpoints() -> list[Row]:
    """How any endpoint is named, and whether those of the environment and the configuration answer, asked without a key."""

    rows = [Row(title, f"--model {example}") for title, example in endpoints.EXAMPLES.items()]
    key = "is set" if os.environ.get(endpoints.KEY_VARIABLE) else "is not set"
    rows.append(
        Row("key", f"{endpoints.KEY_VARIABLE} {key}; a known provider's address takes that provider's variable")
    )
    url = os.environ.get("OPENAI_BASE_URL", "").strip()
    rows.append(
        Row(
            "OPENAI_BASE_URL",
            f"{url.partition('?')[0] or '(not set)'}; with it, --model openai-chat:MODEL is asked there",
        )
    )
    configured = None
    with suppress(UserError):  # the section on models reports it
        configured = load_config(tell=False).model
    taken = filter(endpoints.is_endpoint, alternatives(os.environ.get("CONSILIENCE_MODEL") or configured or ""))
    named = dict.fromkeys([*endpoints.addresses(), *(endpoints.address_of(name, os.environ) or "" for name in taken)])
    return rows + [Row(address, _reached(address)) for address in named]


def _reached(address: str) -> str:
    """Whether an endpoint answers, the models it lists, and what it costs."""

    listing = list_models(address, ENDPOINT_SECONDS)
    names = ", ".join(listing.models[:MAX_LISTED]) + (", …" if len(listing.models) > MAX_LISTED else "")
    prices = prices_of(f"{address}#", os.environ)
    if prices == FREE:
        cost = "free, as configured"
    elif isinstance(prices, tuple):
        cost = f"${prices[0]:g} in and ${prices[1]:g} out per million tokens, as configured"
    else:
        cost = "price as listed for its provider" if prices == "listed" else "price not known"
    return f"{f'answers, lists {names}' if names else listing.problem}; {cost}"


def _settings() -> list[Row]:
    """What the configuration files set, by protocol, with the file."""

    try:
        tables = (config := load_config(tell=False)).tables
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

    allowed: dict[str, list[str]] = {}
    for provider in known_providers():
        for variable in key_variables(provider):
            if os.environ.get(variable):
                allowed.setdefault(variable, []).append(f"{provider}:MODEL")
    rows = [Row(variable, f"would allow --model {' or '.join(names)}") for variable, names in sorted(allowed.items())]
    return rows or [Row("none", "no key of a known provider is in the environment")]
