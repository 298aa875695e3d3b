"""Beginning a session: what is recorded first, and the run that follows."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import PydanticSerializationError

from consilience.domain.agents import Agent
from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.events import AnyEvent, SessionStarted, text_id
from consilience.domain.report import Report
from consilience.engine.execution import Options, execute, faults_of, leased, state_of
from consilience.engine.ports import AgentPort
from consilience.engine.prompt import PROMPT_FORMAT
from consilience.engine.protocol import Protocol, find_protocol
from consilience.engine.recorder import Recorder
from consilience.engine.seats import foreseen, open_encoder, prices_of, steps_of
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


def check_unicode(words: str, what: str) -> None:
    """Raise `SettingsError` for what no encoding can hold, such as bytes of a command line that are not UTF-8."""
    try:
        words.encode()
    except UnicodeEncodeError as error:
        raise SettingsError(
            f"{what} holds {words[error.start]!r} at character {error.start + 1}, which is no Unicode",
            do="Write it in UTF-8.",
        ) from None


def _check_registered(protocol: Protocol) -> None:
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


def beginning_of(
    protocol: Protocol,
    agents: tuple[Agent, ...],
    ports: Mapping[str, AgentPort],
    templates: Templates,
    encoder: Encoder | None,
) -> dict[str, Any]:
    """What of a `SessionStarted` follows from these."""
    steps = steps_of(ports)
    return {
        "prompt_format": PROMPT_FORMAT,
        "protocol": protocol.name,
        "protocol_version": protocol.version,
        "settings": protocol.model_dump(mode="json"),
        "agents": agents,
        "topology": protocol.topology(),
        "estimate": foreseen(protocol.estimate(), steps),
        "steps": steps,
        "prices": prices_of(ports),
        "templates": {name: text_id(source) for name, source in templates.sources.items()},
        "encoder": encoder.name if encoder else None,
    }


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
    inherited: Sequence[AnyEvent] = (),
) -> Report:
    """Record the beginning with the texts that it names and what is inherited, and carry the run to its end."""
    _check_registered(protocol)
    faults_of(options)  # says now what is spelt wrongly
    try:
        started.model_dump_json()
    except PydanticSerializationError:
        raise SettingsError(
            "a setting, a persona or the name of a model holds a character that is no Unicode", do="Write it in UTF-8."
        ) from None
    journal = store.create(session or f"r{secrets.token_hex(4)}")
    async with leased(journal):
        recorder = Recorder(journal, list(inherited), replay=False, observer=options.observer)
        await recorder.begin(started, [task, *(d.text for d in documents), *templates.sources.values()])
        state = state_of(protocol, journal.session, started, task, documents, templates, ports, recorder, options)
        state.encoder = encoder
        return await execute(protocol, state, options)
