"""Validate API arguments before any money is spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from consilience.domain.errors import SettingsError
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits, LimitsError
from consilience.domain.panels import Panel
from consilience.engine.execution import Options
from consilience.engine.protocol import Protocol, find_protocol, protocol_names
from consilience.engine.runner import MAX_TASK_CHARS
from consilience.engine.similarity import Encoder
from consilience.engine.sources import read_text_file
from consilience.journal.store import Store

_ARGUMENTS: Mapping[str, tuple[tuple[type, ...], str, str]] = {
    "task": ((str,), "a text", "Give the question in quotation marks."),
    "panel": ((Panel, str, Path, NoneType), "a panel", 'Give a Panel, or the name or file of one: "markets".'),
    "seed": ((int,), "a whole number", "Give one, such as 0."),
    "quorum": ((int, float), "a number", "Give a share from 0 to 1."),
    "prompts": ((Path, NoneType), "a path", "Give the directory of your prompts as a pathlib.Path."),
    "session": ((str, NoneType), "a text", "Give the session's id, or leave it out."),
    "options": ((Options, NoneType), "options", "Give consilience.engine.runner.Options(…)."),
    "id": ((str,), "the id of a session", "consilience sessions list shows them."),
    "name": ((str, NoneType), "a text", "Give the id of the fork, or leave it out."),
    "at": ((int, str), "a point of a session", "Give the number of an event, the key of a call, PHASE/INDEX or end."),
    "settings": ((Mapping, NoneType), "a mapping", 'Give settings by name: {"NAME": VALUE}.'),
    "replace": ((Mapping, NoneType), "a mapping", "Give models by the id of their agent."),
    "perspectives": ((Mapping, NoneType), "a mapping", "Give points of view by the id of their agent."),
}
"""By the name of the argument: what it may be, in words too, and what to do instead."""


def check_arguments(protocol: object, encoder: str | Encoder | None, plain: Mapping[str, object]) -> Protocol:
    """The protocol. Raises `SettingsError` for one, an encoder or a `plain` argument that is none."""
    if not isinstance(protocol, Protocol):
        raise _protocol_error(protocol)
    check_types(plain)
    if encoder is not None and not isinstance(encoder, str) and not hasattr(encoder, "encode"):
        raise SettingsError(
            f"{_describe(encoder)} compares no texts",
            where="encoder",
            do='Give the name of one: "openai:text-embedding-3-small".',
        )
    return protocol


def check_types(arguments: Mapping[str, object]) -> None:
    """Raise `SettingsError` for an argument of a wrong type, by its name in `_ARGUMENTS`, and for a task that is too long."""
    for name, value in arguments.items():
        types, words, do = _ARGUMENTS[name]
        if not isinstance(value, types):
            raise SettingsError(f"{_describe(value)} is not {words}", where=name, do=do)
        if value == "" and name in ("session", "name"):
            raise SettingsError("the id is empty", where=name, do=do)
        if isinstance(value, Mapping):
            texts = [*value, *(value.values() if name == "perspectives" else ())]
            for other in (text for text in texts if not isinstance(text, str)):
                raise SettingsError(f"{_describe(other)} is not a text", where=name, do=do)
        if name == "task" and len(str(value)) > MAX_TASK_CHARS:
            raise SettingsError(
                f"the task has {len(str(value)):,} characters; at most {MAX_TASK_CHARS:,} are allowed",
                where=name,
                do="Give long material as documents, sources=[…], and ask about them.",
            )


def check_store(store: Store | None) -> Store | None:
    """The store given, if any. Raises `SettingsError` for what is none."""
    if store is not None and not hasattr(store, "create"):
        path = str(store) if isinstance(store, str | Path) else "journal.db"
        raise SettingsError(
            f"{_describe(store)} is not a store", where="store", do=f"Open one: consilience.SqliteStore({path!r})."
        )
    return store


def load_sources(given: Sequence[Source | Path]) -> list[Source]:
    """Return the documents; a path is read and names its document. A text alone is refused: it may be meant as a path.

    Raises `SettingsError` for what is not a document, `SourceError` for a file that cannot be read.
    """
    if isinstance(given, str | Source) or not isinstance(given, Sequence):
        raise SettingsError(
            f"{_describe(given)} is not a list of documents",
            where="sources",
            do='Give a list: sources=[pathlib.Path("file.txt"), consilience.Source(text, name)].',
        )
    return [_source(n, one) for n, one in enumerate(given, 1)]


def check_seats(sources: Sequence[Source], agents: Sequence[str]) -> None:
    """Raise `SettingsError` if a source is private to an agent that does not exist."""
    for source in sources:
        for agent in source.agents or ():
            if agent not in agents:
                raise SettingsError(
                    f"there is no agent {agent!r}",
                    where=f"the agents of source {source.name or source.text[:40]!r}",
                    do=f"Agents: {', '.join(agents[:12])}.",
                )


def _source(n: int, given: Any) -> Source:
    if isinstance(given, Source):
        return given
    if isinstance(given, Path):
        return Source(text=read_text_file(given, "the document"), name=str(given))
    path = repr(given) if isinstance(given, str) and len(given) <= 60 and "\n" not in given else '"file.txt"'
    raise SettingsError(
        f"{_describe(given)} is neither a Source nor a path",
        where=f"source {n}",
        do=f"Write pathlib.Path({path}) to read a file, or consilience.Source(text, name) to give a text.",
    )


def to_limits(given: Limits | None) -> Limits | None:
    if given is None or isinstance(given, Limits):
        return given
    if not isinstance(given, Mapping):
        raise LimitsError(f"{_describe(given)} is none")
    return Limits(**{str(kind): value for kind, value in given.items()})


def _protocol_error(given: object) -> SettingsError:
    if isinstance(given, type) and issubclass(given, Protocol):
        return SettingsError(
            f"{given.__name__} is a kind of protocol, not one with its settings",
            where="protocol",
            do=f"Write {given.__name__}().",
        )
    do = "Give one with its settings: consilience.Emergence(children=3)."
    if isinstance(given, str) and given in protocol_names():
        do = f"Give it with its settings: consilience.{find_protocol(given).__name__}()."
    return SettingsError(f"{_describe(given)} is not a protocol", where="protocol", do=do)


def _describe(value: object) -> str:
    """The value where it is short, with its type."""
    shown = repr(value)
    return f"{shown} ({type(value).__name__})" if len(shown) <= 60 else f"a {type(value).__name__}"
