"""What a program hands over, checked before anything is spent: Python itself lets anybody hand over anything."""

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
from consilience.engine.runner import MOST_TASK
from consilience.engine.similarity import Encoder
from consilience.journal.store import Store

_PLAIN: Mapping[str, tuple[tuple[type, ...], str, str]] = {
    "task": ((str,), "a text", "Give the question in quotation marks."),
    "panel": ((Panel, str, Path, NoneType), "a panel", 'Give a Panel, or the name or file of one: "markets".'),
    "seed": ((int,), "a whole number", "Give one, such as 0."),
    "quorum": ((int, float), "a number", "Give a share from 0 to 1."),
    "prompts": ((Path, NoneType), "a path", "Give the directory of your prompts as a pathlib.Path."),
    "session": ((str, NoneType), "a text", "Give the session's id, or leave it out."),
    "options": ((Options, NoneType), "options", "Give consilience.engine.runner.Options(…)."),
}
"""By the name of the argument: what it may be, in words too, and what to do instead."""


def check(protocol: object, encoder: str | Encoder | None, plain: Mapping[str, object]) -> Protocol:
    """The protocol. Raises `SettingsError` for one, an encoder or a `plain` argument that is none."""
    if not isinstance(protocol, Protocol):
        raise _no_protocol(protocol)
    for name, value in plain.items():
        types, words, do = _PLAIN[name]
        if not isinstance(value, types):
            raise SettingsError(f"{_named(value)} is not {words}", where=name, do=do)
        if name == "task" and len(str(value)) > MOST_TASK:
            raise SettingsError(
                f"the task has {len(str(value)):,} characters; at most {MOST_TASK:,} are allowed",
                where=name,
                do="Give long material as documents, sources=[…], and ask about them.",
            )
    if encoder is not None and not isinstance(encoder, str) and not hasattr(encoder, "encode"):
        raise SettingsError(
            f"{_named(encoder)} compares no texts",
            where="encoder",
            do='Give the name of one: "openai:text-embedding-3-small".',
        )
    return protocol


def store_of(store: Store | None) -> Store | None:
    """The store given, if any. Raises `SettingsError` for what is none."""
    if store is not None and not hasattr(store, "create"):
        path = str(store) if isinstance(store, str | Path) else "journal.db"
        raise SettingsError(
            f"{_named(store)} is not a store", where="store", do=f"Open one: consilience.SqliteStore({path!r})."
        )
    return store


def sources_of(given: Sequence[Source | str]) -> list[Source]:
    """Documents, plain texts among them."""
    if isinstance(given, str | Source) or not isinstance(given, Sequence):
        raise SettingsError(
            f"{_named(given)} is not a list of documents", where="sources", do="Give a list: sources=[…]."
        )
    return [_source(n, one) for n, one in enumerate(given, 1)]


def _source(n: int, given: Any) -> Source:
    if isinstance(given, Source):
        return given
    if isinstance(given, str):
        return Source(text=given)
    do = "Give its text, or a Source."
    if isinstance(given, Path):
        do = "Read the file: Source(text=path.read_text(), name=path.name)."
    raise SettingsError(f"{_named(given)} is not a document", where=f"source {n}", do=do)


def limits_of(given: Limits | None) -> Limits | None:
    if given is None or isinstance(given, Limits):
        return given
    if not isinstance(given, Mapping):
        raise LimitsError(f"{_named(given)} is none")
    return Limits(**{str(kind): value for kind, value in given.items()})


def _no_protocol(given: object) -> SettingsError:
    if isinstance(given, type) and issubclass(given, Protocol):
        return SettingsError(
            f"{given.__name__} is a kind of protocol, not one with its settings",
            where="protocol",
            do=f"Write {given.__name__}().",
        )
    do = "Give one with its settings: consilience.Emergence(children=3)."
    if isinstance(given, str) and given in protocol_names():
        do = f"Give it with its settings: consilience.{find_protocol(given).__name__}()."
    return SettingsError(f"{_named(given)} is not a protocol", where="protocol", do=do)


def _named(value: object) -> str:
    """The value where it is short, with its type."""
    shown = repr(value)
    return f"{shown} ({type(value).__name__})" if len(shown) <= 60 else f"a {type(value).__name__}"
