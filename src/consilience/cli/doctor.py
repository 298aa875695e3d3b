"""`doctor`: check the installation and show which model would be used."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import typer

from consilience.cli.errors import EXIT_USAGE, print_result
from consilience.cli.options import EnvFile, JsonOption, new_app
from consilience.cli.settings import default_model, load_config, load_env_file, read_settings
from consilience.cli.setup import local_weights
from consilience.configuration import Config, config_files, ignored_words, read_config
from consilience.domain.errors import SettingsError, UnknownName, UserError
from consilience.domain.paths import check_home, data_dir, is_open_to_others, journal_path, weights_dir
from consilience.engine.protocol import find_protocol, installed_protocols
from consilience.journal.open_store import open_store
from consilience.models import endpoints
from consilience.models.endpoints import FREE, Endpoints
from consilience.models.facts import ModelFacts
from consilience.models.kinds import find_kind, installed_kinds
from consilience.models.local import need_libraries
from consilience.models.program import without_secret
from consilience.models.providers import ENDPOINT_KEY_VARIABLE, key_variables, known_providers
from consilience.models.redaction import scrub
from consilience.models.registry import LocalName, ProgramName, facts_of, paid, parse
from consilience.models.server_models import list_models
from consilience.models.weights import CATALOGUE, ENCODERS, installed, locate
from consilience.planning import check_models, links, programs_words, setting_words
from consilience.reporting.formatting import count

doctor = new_app()

EXTRAS = {
    "local": "xllamacpp",
    "openai": "openai",
    "anthropic": "anthropic",
    "google": "google.genai",
    "encoder": "onnxruntime",
}
"""Optional dependencies, with a module that each one installs."""


ENDPOINT_SECONDS = 1.0
"""Time for an endpoint to answer."""
MAX_LISTED = 12
"""Models of an endpoint that are shown."""


class Row(NamedTuple):
    """One line of the output; not `fine` if the thing it names is unusable."""

    name: str
    value: str
    fine: bool = True


@doctor.command("doctor")
def _doctor(
    as_json: JsonOption = False,
    env_file: EnvFile = None,
) -> None:
    """Check the installation and show which model would be used. Changes and spends nothing.

    Exits with 2 if anything is unusable.
    """
    loaded = load_env_file(env_file) if env_file is not None else []
    config, problem = Config(), ""
    try:
        config = load_config(tell=False)
    except UserError as error:
        problem = str(error)
    sections: dict[str, list[Row]] = {
        "This installation": _installation(),
        "Data": _data(config),
        "Model": _model(config, problem),
        "OpenAI-compatible endpoints (any address; one example for each kind of server)": _endpoints(config),
        "Settings of protocols (options take precedence)": _settings(config, problem),
        "Keys (names only; a key is used only for a model you name)": _keys(),
    }
    if env_file is not None:
        sections["Data"].append(Row("environment file", f"{env_file}: set {', '.join(loaded) or 'nothing new'}"))
    sections = {
        section: [row._replace(value=scrub(row.value, [])) for row in rows] for section, rows in sections.items()
    }
    value = {section: {row.name: row.value for row in rows} for section, rows in sections.items()}
    print_result(
        value, "\n".join(line for section, rows in sections.items() for line in _lines(section, rows)), as_json=as_json
    )
    if not all(row.fine for rows in sections.values() for row in rows):
        raise typer.Exit(EXIT_USAGE)


def _lines(section: str, rows: Sequence[Row]) -> list[str]:
    width = max((len(row.name) for row in rows), default=0)
    return [section, *(f"  {row.name:<{width}}  {row.value}" for row in rows), ""]


def _installation() -> list[Row]:
    from importlib.metadata import version
    from importlib.util import find_spec

    def is_installed(module: str) -> bool:
        try:
            return find_spec(module) is not None
        except ModuleNotFoundError:
            return False

    rows = [
        Row("consilience", version("consilience")),
        Row("python", f"{platform.python_version()} ({sys.executable})"),
        _protocols(),
        *_kinds(),
    ]
    for extra, module in EXTRAS.items():
        state = "installed" if is_installed(module) else f"not installed: pip install 'consilience[{extra}]'"
        rows.append(Row(f"extra {extra}", state))
    return rows


def _protocols() -> Row:
    names, problems = [], []
    for name in sorted(installed_protocols()):
        try:
            names.append(find_protocol(name).name)
        except UnknownName as error:
            problems.append(f"NOT USABLE: {error}")
    return Row("protocols", "; ".join([", ".join(names), *problems]), fine=not problems)


def _kinds() -> list[Row]:
    """Return the kinds of models that installed packages add, if there are any."""
    names, problems = [], []
    for prefix in sorted(installed_kinds()):
        try:
            find_kind(prefix)
            names.append(f"{prefix}:MODEL")
        except UnknownName as error:
            problems.append(f"NOT USABLE: {error}")
    row = Row("added models", "; ".join(filter(None, [", ".join(names), *problems])), fine=not problems)
    return [row] if row.value else []


def _data(config: Config) -> list[Row]:
    home = data_dir()
    try:
        check_home()
    except SettingsError as error:
        return [Row("directory", f"{home}: NOT USABLE: {error.what}", fine=False)]
    files = zip(("configuration here", "configuration of the user"), config_files(), strict=True)
    weights = installed()
    journal = _journal(journal_path())  # first, because it closes the directory to others if it can
    warning = ""
    if home.is_dir() and is_open_to_others(home):
        warning = (
            f": WARNING: other users may replace the files in it; to close it: chmod go-w {shlex.quote(str(home))}"
        )
    return [
        Row("directory", f"{home}{warning}"),
        journal,
        Row("weights", f"{weights_dir()}: {', '.join(weights) or 'none'} (of {', '.join((*CATALOGUE, *ENCODERS))})"),
        *(_configuration(whose, path, config.confirm_above) for whose, path in files),
    ]


def _configuration(whose: str, path: Path, confirm_above: float) -> Row:
    try:
        table = read_config(path)
    except UserError as error:
        return Row(whose, f"{path}: NOT USABLE: {error.what}", fine=False)
    ignored = ignored_words(path, table, confirm_above)
    return Row(whose, f"{path}: {'read' if path.is_file() else 'missing'}{ignored and f', but {ignored}'}")


def _journal(path: Path) -> Row:
    """Open an existing journal; for a missing one, only check whether it could be created."""
    if not os.path.exists(path):  # missing or not accessible
        if reason := _why_not_creatable(path):
            return Row("journal", f"{path}: missing, CANNOT BE CREATED: {reason}", fine=False)
        return Row("journal", f"{path}: missing, will be created")
    try:
        store = open_store(path, writing=True)
        number = len(store.sessions())
        store.close()
    except UserError as error:
        return Row("journal", f"{path}: NOT USABLE: {error.what}", fine=False)
    return Row("journal", f"{path}: ok, {count(number, 'session')}, {path.stat().st_size / 1e6:.1f} MB")


def _why_not_creatable(path: Path) -> str:
    """Return why no file could be created below the nearest existing directory; tested with an unnamed file."""
    nearest = next(parent for parent in path.absolute().parents if os.path.exists(parent))
    if not nearest.is_dir():
        return f"{nearest} is not a directory"
    try:
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        return f"{nearest} is not writable ({error.strerror})"
    return ""


def _model(config: Config, problem: str) -> list[Row]:
    """Return the model that would be used, and the sources of its name by precedence."""
    if problem:
        return [Row("configuration", f"NOT USABLE: {problem}", fine=False)]
    try:
        choice = default_model(config)
    except UserError as error:
        return [Row("would be used", f"NOT USABLE: {error}", fine=False)]
    weights = [name for name in local_weights([choice.name]) if locate(name) is None]
    note = f"; its weights are downloaded at the first run: {', '.join(weights)}" if weights else ""
    spending, fine = _spending(choice.name, config.endpoints)
    return [
        Row("would be used", f"{without_secret(choice.name)}: {choice.why}{note}; {spending}", fine),
        *(_windows(choice.name, config.endpoints) if fine else []),
        Row("1. option", "--model, --models, --agent: PROVIDER:MODEL, http://HOST:PORT/v1#MODEL and others"),
        Row(
            "2. environment", f"CONSILIENCE_MODEL={without_secret(os.environ.get('CONSILIENCE_MODEL') or '(not set)')}"
        ),
        Row(
            "3. configuration",
            f"model = {without_secret(config.model)!r} in {config.model_file}" if config.model else "names no model",
        ),
        Row("4. local server", "Ollama, LM Studio, llama.cpp or vLLM on this machine, if it answers"),
        Row("5. else", "local, which needs no key"),
        Row(
            "asks above",
            f"${config.confirm_above:.2f} per run, on a terminal; without one a paid run needs --yes or --max-cost",
        ),
    ]


def _windows(name: str, known: Endpoints) -> list[Row]:
    """Return the context windows of the models of that name that are known, or for which a server of the user's own is asked."""
    rows = []
    for facts in facts_of(name, known):
        if facts.context_window is not None:
            rows.append(Row("context window", f"{without_secret(facts.name)}: {facts.context_window:,} tokens"))
        elif facts.own_server is not None:
            rows.append(Row("context window", f"{facts.name}: its server does not say, or has not loaded it yet"))
    return rows


def _spending(name: str, known: Endpoints) -> tuple[str, bool]:
    """Return what a run with that model would spend, or why it could not start, and whether it could."""
    spending = "it costs nothing"
    try:
        programs = [link.text for link in parse(name).links if isinstance(link, ProgramName)]
        has_unknown_price = any(ModelFacts(link, known).unpriced for link in links([name]))
        words = ["its price is not known" if has_unknown_price else "it is paid for"] if paid(name, known) else []
        if programs:
            shown = programs_words([without_secret(program) for program in programs])
            words.append(f"cost not known: {shown}, so a run asks, or needs --yes")
        spending = "; ".join(words) or spending
        check_models([name], known, keys=True)
        if local_weights([name]):
            need_libraries()
        for link in parse(name, known).links:
            if not (link.waits_for or isinstance(link, LocalName)):
                link.open()  # fails, as a run would, if the client library is missing
    except UnknownName as error:  # its cost is unknown
        return f"NOT USABLE: {error}", False
    except UserError as error:
        return f"{spending}; NOT USABLE: {error}", False
    return spending, True


def _endpoints(config: Config) -> list[Row]:
    """Return how endpoints are named, and whether those of environment and configuration answer to a run's key."""
    rows = [Row(title, f"--model {example}") for title, example in endpoints.EXAMPLES.items()]
    key = "is set" if os.environ.get(ENDPOINT_KEY_VARIABLE) else "is not set"
    rows.append(
        Row(
            "key",
            f"{ENDPOINT_KEY_VARIABLE} {key}; it is sent only to endpoints that you name, on the command line, in the environment "
            "or in your own configuration; for a known provider's address, that provider's variable is used",
        )
    )
    url = os.environ.get("OPENAI_BASE_URL", "").strip()
    rows.append(
        Row(
            "OPENAI_BASE_URL",
            f"{url.partition('?')[0] or '(not set)'}; if set, --model openai-chat:MODEL is called there",
        )
    )
    configured = endpoints.addresses_in(config.model or "") if not os.environ.get("CONSILIENCE_MODEL") else []
    addresses = dict.fromkeys([*config.endpoints.addresses(), *configured])
    return rows + [Row(address, _reached(address, config.endpoints)) for address in addresses]


def _key_for(address: str, known: Endpoints) -> str | None:
    """Return the key that a run would send to an address."""
    if ModelFacts("openai-chat:").address == address:
        return os.environ.get("OPENAI_API_KEY")
    return known.key(address)


def _reached(address: str, known: Endpoints) -> str:
    """Return whether an endpoint answers, the models it lists, and their prices."""
    listing = list_models(address, ENDPOINT_SECONDS, _key_for(address, known))
    names = ", ".join(listing.models[:MAX_LISTED]) + (", …" if len(listing.models) > MAX_LISTED else "")
    declared = [f"{model}: {_price_words(f'{address}#{model}', known)}" for model in known.models_at(address)]
    general = f"{'other models: ' if declared else ''}{_price_words(f'{address}#', known)}"
    withheld = ModelFacts(f"{address}#", known).withheld_key
    parts = [f"answers, lists {names}" if names else listing.problem, *declared, general, withheld]
    return "; ".join(filter(None, parts))


def _price_words(name: str, known: Endpoints) -> str:
    prices = ModelFacts(name, known).prices
    if prices == FREE:
        return "free, as configured"
    if isinstance(prices, tuple):
        return f"${prices[0]:g} in and ${prices[1]:g} out per million tokens, as configured"
    return "price as listed for its provider" if prices == "listed" else "price not known"


def _settings(config: Config, problem: str) -> list[Row]:
    """Return the settings in configuration files, by protocol, with the file."""
    if problem:
        return [Row("none", "the configuration is not usable", fine=False)]
    rows = []
    for name, table in config.tables.items():
        try:
            protocol = read_settings(find_protocol(name), {}, config)
        except UserError as error:
            rows.append(Row(name, f"NOT USABLE: {error}", fine=False))
        else:
            settings = (f"{setting_words(protocol, key)} in {path}" for key, (_, path) in table.items())
            rows.append(Row(name, "; ".join(settings)))
    return rows or [Row("none", "no configuration file sets any")]


def _keys() -> list[Row]:
    allowed: dict[str, list[str]] = {}
    for provider in known_providers():
        for variable in key_variables(provider):
            if os.environ.get(variable):
                allowed.setdefault(variable, []).append(f"{provider}:MODEL")
    rows = [Row(variable, f"would allow --model {' or '.join(names)}") for variable, names in sorted(allowed.items())]
    return rows or [Row("none", "no key of a known provider is set")]
