"""Validate API arguments before any money is spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from consilience.documents import read_document
from consilience.domain.agents import Agent, unknown_agent
from consilience.domain.errors import SettingsError
from consilience.domain.messages import Source
from consilience.domain.outcome import LIMITS_FORM, Limits
from consilience.domain.panels import Panel
from consilience.engine.execution import Options
from consilience.engine.protocol import Protocol, find_protocol, protocol_names
from consilience.engine.runner import check_task
from consilience.engine.similarity import Encoder
from consilience.journal.store import Store

_ARGUMENTS: Mapping[str, tuple[tuple[type, ...], str, str]] = {
    "task": ((str,), "a text", "Give the question in quotation marks."),
    "panel": ((Panel, str, Path, NoneType), "a panel", 'Give a Panel, or the name or file of one: "markets".'),
    "seed": ((int,), "a whole number", "Give one, such as 0."),
    "limits": ((Limits, Mapping, NoneType), "a set of limits", LIMITS_FORM),
    "quorum": ((int, float), "a number", "Give a share from 0 to 1."),
    "prompts": ((Path, NoneType), "a path", "Give the directory of your prompts as a pathlib.Path."),
    "session": ((str, NoneType), "a text", "Give the session's id, or leave it out."),
    "options": ((Options, NoneType), "options", "Give consilience.Options(…)."),
    "id": ((str,), "the id of a session", "consilience sessions list shows them."),
    "name": ((str, NoneType), "a text", "Give the id of the fork, or leave it out."),
    "fact": ((str,), "a text", "Give the new fact in a sentence."),
    "at": ((int, str), "a point of a session", "Give the number of an event, the key of a call, PHASE/INDEX or end."),
    "settings": ((Mapping, NoneType), "a mapping", 'Give settings by name: {"NAME": VALUE}.'),
    "replace": ((Mapping, NoneType), "a mapping", "Give models by the id of their agent."),
    "perspectives": ((Mapping, NoneType), "a mapping", "Give points of view by the id of their agent."),
}
"""By name of the argument: its types, their description, and what to do about others."""


def check_arguments(protocol: object, encoder: str | Encoder | None, plain: Mapping[str, object]) -> Protocol:
    """Return the protocol. Raises `SettingsError` if it, the encoder or a `plain` argument is of a wrong type."""
    if not isinstance(protocol, Protocol):
        raise _protocol_error(protocol)
    check_types(plain)
    if encoder is not None and not isinstance(encoder, str) and not hasattr(encoder, "encode"):
        raise SettingsError(
            f"{_describe(encoder)} is not an encoder",
            where="encoder",
            do='Give the name of one: "openai:text-embedding-3-small".',
        )
    return protocol


def check_types(arguments: Mapping[str, object]) -> None:
    """Raise `SettingsError` for an argument of a wrong type, by its name in `_ARGUMENTS`, and for an invalid task."""
    for name, value in arguments.items():
        types, words, do = _ARGUMENTS[name]
        if not isinstance(value, types):
            raise SettingsError(f"{_describe(value)} is not {words}", where=name, do=do)
        if value == "" and name in ("session", "name"):
            raise SettingsError("the id is empty", where=name, do=do)
        if isinstance(value, Mapping):
            texts = [*value, *(value.values() if name == "perspectives" else ())]
            for not_text in (text for text in texts if not isinstance(text, str)):
                raise SettingsError(f"{_describe(not_text)} is not a text", where=name, do=do)
        if name == "task":
            check_task(str(value), name)


def check_store(store: Store | None) -> Store | None:
    """Return the store, if any. Raises `SettingsError` if it is not a store."""
    if store is not None and not hasattr(store, "create"):
        path = str(store) if isinstance(store, str | Path) else "journal.db"
        raise SettingsError(
            f"{_describe(store)} is not a store", where="store", do=f"Open one: consilience.SqliteStore({path!r})."
        )
    return store


def load_sources(sources: Sequence[Source | Path]) -> list[Source]:
    """Return the documents; a path is read and names its document. A text alone is refused: it may be meant as a path.

    Raises `SettingsError` for what is not a document, `SourceError` for a file that cannot be read.
    """
    if isinstance(sources, str | Source) or not isinstance(sources, Sequence):
        raise SettingsError(
            f"{_describe(sources)} is not a list of documents",
            where="sources",
            do='Give a list: sources=[pathlib.Path("file.txt"), consilience.Source(text, name)].',
        )
    return [_to_source(n, source) for n, source in enumerate(sources, 1)]


def check_seats(sources: Sequence[Source], agents: Sequence[Agent]) -> None:
    """Raise `UnknownName` if a source is private to an agent that does not exist."""
    ids = {agent.id for agent in agents}
    for source in sources:
        for agent in (*(source.agents or ()), *(share.agent for share in source.shares)):
            if agent not in ids:
                raise unknown_agent(agent, agents, f"the agents of source {source.name or source.text[:40]!r}")


def _to_source(n: int, source: Any) -> Source:
    if isinstance(source, Source):
        return source
    if isinstance(source, Path):
        return read_document(source, "the document").source(str(source))
    path = repr(source) if isinstance(source, str) and len(source) <= 60 and "\n" not in source else '"file.txt"'
    raise SettingsError(
        f"{_describe(source)} is neither a Source nor a path",
        where=f"source {n}",
        do=f"Write pathlib.Path({path}) to read a file, or consilience.Source(text, name) to give a text.",
    )


def to_limits(limits: Limits | None) -> Limits | None:
    check_types({"limits": limits})
    return Limits(**limits) if isinstance(limits, Mapping) else limits


def _protocol_error(protocol: object) -> SettingsError:
    if isinstance(protocol, type) and issubclass(protocol, Protocol):
        return SettingsError(
            f"{protocol.__name__} is a class, not a protocol with its settings",
            where="protocol",
            do=f"Write {protocol.__name__}().",
        )
    do = "Pass a protocol instance, for example consilience.Emergence(children=3)."
    if isinstance(protocol, str) and protocol in protocol_names():
        do = f"Pass an instance: consilience.{find_protocol(protocol).__name__}()."
    return SettingsError(f"{_describe(protocol)} is not a protocol", where="protocol", do=do)


def _describe(value: object) -> str:
    """Return the value, if it is short, with its type."""
    representation = repr(value)
    return f"{representation} ({type(value).__name__})" if len(representation) <= 60 else f"a {type(value).__name__}"
