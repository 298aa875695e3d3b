"""Beginning a session: what is recorded first, and the run that follows."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence

from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.events import AnyEvent, SessionStarted
from consilience.domain.report import Report
from consilience.engine.execution import Options, execute, leased, state_of
from consilience.engine.ports import AgentPort
from consilience.engine.protocol import Protocol, find_protocol
from consilience.engine.recorder import Recorder
from consilience.engine.seats import open_encoder
from consilience.engine.similarity import Encoder
from consilience.engine.sources import Document
from consilience.engine.templates import Templates
from consilience.journal.store import Store


def encoder_for(protocol: Protocol, encoder: str | Encoder | None) -> Encoder | None:
    """The encoder that is given, opened. Raises `SettingsError` where the protocol needs one and none is."""
    opened = open_encoder(encoder)
    if protocol.needs_encoder and opened is None:
        raise SettingsError(
            "comparing texts by embedding needs an encoder",
            do=f"Name one (--encoder openai:text-embedding-3-small), or {protocol.without_encoder}.",
        )
    return opened


def check_registered(protocol: Protocol) -> None:
    """Raise `SettingsError` unless the session could be gone on with: its journal has the protocol's name only."""
    name = protocol.name
    try:
        found = find_protocol(name)
    except UnknownName:
        found = None
    if found is not type(protocol):
        whose = f"; that name is {found.__module__}.{found.__qualname__}" if found else ""
        raise SettingsError(
            f"{type(protocol).__qualname__} is not registered as the protocol {name!r}{whose}",
            do="Give it a name of its own and register it: an entry point of the group consilience.protocols, or "
            "consilience.engine.protocol.register in the program.",
        )


async def launch(
    protocol: Protocol,
    started: SessionStarted,
    *,
    session: str | None,
    task: str,
    documents: tuple[Document, ...],
    templates: Templates,
    ports: Mapping[str, AgentPort],
    encoder: Encoder | None,
    store: Store,
    options: Options,
    texts: Iterable[str],
    inherited: Sequence[AnyEvent] = (),
) -> Report:
    """Record the beginning, with what is inherited and the `texts` that it names, and carry the run to its end."""
    journal = store.create(session or f"r{secrets.token_hex(4)}")
    async with leased(journal):
        recorder = Recorder(journal, list(inherited), replay=False, observer=options.observer)
        await recorder.begin(started, texts)
        state = state_of(protocol, journal.session, started, task, documents, templates, ports, recorder, options)
        state.encoder = encoder
        return await execute(protocol, state, options)
