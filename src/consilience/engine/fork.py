"""A session that goes on from a point of another, with other settings, models, perspectives or prompts.

What the parent was told up to that point is inherited: copied into the fork's own journal as it starts, by reference to the
texts they share, and matched by key alone. So a fork resumes and replays by itself, also when its parent is gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from consilience.domain.agents import Agent
from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.events import (
    AnswerReceived,
    AnyEvent,
    CallFailed,
    Ended,
    Event,
    SessionStarted,
    TextsEmbedded,
    age_of,
)
from consilience.domain.outcome import Limits
from consilience.domain.report import Report
from consilience.engine.execution import Options, closing
from consilience.engine.launch import beginning_of, encoder_for, launch
from consilience.engine.protocol import Protocol, find_protocol
from consilience.engine.seats import Models, One, deal
from consilience.engine.similarity import Encoder
from consilience.engine.sources import Document
from consilience.engine.templates import Templates
from consilience.journal.store import Store

END = "end"


async def fork(
    parent: str,
    *,
    store: Store,
    at: int | str = END,
    settings: Mapping[str, object] | None = None,
    models: Models | None = None,
    replace: Mapping[str, One] | None = None,
    perspectives: Mapping[str, str] | None = None,
    prompts: Path | None = None,
    limits: Limits | None = None,
    encoder: str | Encoder | None = None,
    session: str | None = None,
    options: Options | None = None,
) -> Report:
    """Run a new session that inherits every reply the parent has up to `at`, and asks anew from there.

    `at` is as `position` reads it. `settings` change some of the protocol's; `models` replace all models, `replace` those of
    single agents, `perspectives` their points of view. What is not given is as in the parent; `limits` count what the fork
    itself spends. An inherited reply that the new settings cannot read is asked for again. Raises `UserError`s first.
    """
    options = options or Options()
    events = store.read(parent)
    old = beginning(parent, events)
    last = position(parent, events, at)
    protocol = changed(old, settings or {})
    opened = encoder_for(protocol, encoder if encoder is not None else old.encoder)
    templates = _templates(old, protocol, prompts, store)
    agents, ports, close = deal(seats(old, protocol, perspectives or {}), dealt(old, protocol, models, replace or {}))
    started = old.model_copy(
        update={
            "place": "",
            "volatile": {},
            "limits": limits if limits is not None else old.limits,
            "parent": parent,
            "forked_at": last,
            **_settled(old, options),
            **beginning_of(protocol, agents, ports, templates, opened),
        }
    )
    async with closing(close):
        return await launch(
            protocol,
            started,
            session=session,
            task=store.text(old.task),
            documents=tuple(Document(s.id, s.name, store.text(s.text), s.agents) for s in old.sources),
            templates=templates,
            ports=ports,
            encoder=opened,
            store=store,
            options=options,
            inherited=inheritance(events, last, started.encoder),
        )


def _settled(old: SessionStarted, options: Options) -> dict[str, object]:
    """What options settle for a whole session: as given, else as in the parent."""
    given = {name: getattr(options, name) for name in ("repairs", "cache", "temperature")}
    return {name: getattr(old, name) if value is None else value for name, value in given.items()}


def beginning(parent: str, events: Sequence[AnyEvent]) -> SessionStarted:
    started = events[0] if events else None
    if not isinstance(started, SessionStarted):
        raise SettingsError(
            f"session {parent} has no beginning, so there is nothing to inherit", do="Run its task anew."
        )
    return started


def position(parent: str, events: Sequence[AnyEvent], at: int | str) -> int:
    """The last event to inherit: its number, the key of a call, PHASE/INDEX for the last call of that phase, or `end`.

    Raises `SettingsError` for a number that is none, `UnknownName` for a key that is not recorded.
    """
    last = events[-1].seq
    if at == END:
        return last
    if isinstance(at, int) or at.isdecimal():
        if not 0 <= int(at) <= last:
            raise SettingsError(
                f"session {parent} has the events 1 to {last}",
                where=f"--at {at}",
                do="Give one of them, or 0 for none.",
            )
        return int(at)
    ended = [event for event in events if isinstance(event, Ended)]
    found = [event.seq for event in ended if at in (event.key, _phase(event))]
    if not found:
        known = {name for event in ended for name in (event.key, _phase(event)) if name}
        close = get_close_matches(at, sorted(known), 1)
        meant = f"Did you mean {close[0]!r}? " if close else ""
        raise UnknownName(
            f"session {parent} has no call {at!r}",
            where="--at",
            do=f"{meant}All of them: consilience show {parent} --events." if known else "It made no call.",
        )
    return max(found)


def inheritance(events: Sequence[AnyEvent], last: int, encoder: str | None) -> list[AnyEvent]:
    """What a fork is given: replies, failures, answers and this encoder's vectors up to `last`, marked. Refusals by a limit are
    not, nor what the parent had inherited itself and asked for again."""
    found: list[AnyEvent] = []
    anew = {e.key for e in events if isinstance(e, Ended) and e.seq <= last and not e.inherited and e.attempt == 1}
    for event in events:
        if event.seq > last:
            break
        if isinstance(event, Ended) and event.inherited and event.key in anew:
            continue
        if not isinstance(event, Ended | AnswerReceived | TextsEmbedded):
            continue
        if isinstance(event, CallFailed) and event.failure.is_limit:
            continue
        if isinstance(event, TextsEmbedded) and event.encoder != encoder:
            continue
        marked: dict[str, object] = {
            "inherited": True,
            "volatile": {name: value for name, value in event.volatile.items() if name != "t"},
        }
        if isinstance(event, Ended | AnswerReceived):
            marked["generations"] = age_of(event)
        if isinstance(event, Ended):
            marked["reserve"] = False
        found.append(event.model_copy(update=marked))
    return found


def changed(old: SessionStarted, settings: Mapping[str, object]) -> Protocol:
    """The parent's protocol with some settings changed. Raises `SettingsError`."""
    cls = find_protocol(old.protocol)
    unknown = [name for name in settings if name not in cls.model_fields]
    if unknown:
        close = get_close_matches(unknown[0], cls.model_fields, 1)
        meant = f"Did you mean {close[0]!r}? " if close else ""
        raise SettingsError(
            f"{cls.name} has no setting {unknown[0]!r}",
            where="--set",
            do=f"{meant}Known: {', '.join(cls.model_fields)}.",
        )
    kept = {name: value for name, value in old.settings.items() if name in cls.model_fields}
    return cls(**{**kept, **settings})


def seats(old: SessionStarted, protocol: Protocol, perspectives: Mapping[str, str]) -> tuple[Agent, ...]:
    """The agents of the changed protocol. Who sat in the parent, and whom the settings leave alone, is the same."""
    before = {agent.id: agent for agent in old.agents}
    as_set = {agent.id: agent for agent in changed(old, {}).agents(None)}
    now = protocol.agents(None)
    unknown = [id for id in perspectives if id not in {agent.id for agent in now}]
    if unknown:
        raise UnknownName(
            f"there is no agent {unknown[0]!r}",
            where="--perspective",
            do=f"Agents: {', '.join(a.id for a in now[:12])}.",
        )
    found = []
    for agent in now:
        if agent == as_set.get(agent.id) and agent.id in before:
            agent = before[agent.id]
        if agent.id in perspectives:
            agent = agent.model_copy(update={"perspective": perspectives[agent.id], "persona": ""})
        found.append(agent)
    return tuple(found)


def dealt(
    old: SessionStarted, protocol: Protocol, models: Models | None, replace: Mapping[str, One]
) -> Mapping[str, One] | Models:
    """A model for each agent: replaced, else dealt from `models`, else the parent's; who is new takes one in turn from there."""
    ids = [agent.id for agent in protocol.agents(None)]
    unknown = [id for id in replace if id not in ids]
    if unknown:
        raise UnknownName(
            f"there is no agent {unknown[0]!r}", where="--replace-agent", do=f"Agents: {', '.join(ids[:12])}."
        )
    if isinstance(models, Mapping):
        return {**models, **replace}
    if models is None:
        before = {agent.id: agent.model for agent in old.agents}
        turn = [agent.model for agent in old.agents]
        found: dict[str, One] = {id: before.get(id, turn[n % len(turn)]) for n, id in enumerate(ids)}
    else:
        given = [models] if isinstance(models, str) or not isinstance(models, Sequence) else list(models)
        if not given:
            raise SettingsError("no model is given", do="Name at least one.")
        found = {id: given[n % len(given)] for n, id in enumerate(ids)}
    return {**found, **replace}


def _templates(old: SessionStarted, protocol: Protocol, prompts: Path | None, store: Store) -> Templates:
    """The parent's, unless others are given or another version of the protocol wrote them."""
    if prompts is not None or protocol.version != old.protocol_version:
        return protocol.templates(prompts)
    return Templates({name: store.text(id) for name, id in old.templates.items()})


def _phase(event: Event) -> str:
    phase = getattr(event, "phase", None)
    return f"{phase[0]}/{phase[1]}" if phase else ""
