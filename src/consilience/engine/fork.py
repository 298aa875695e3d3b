"""A session that continues from a point of another, with other settings, models, perspectives, prompts, documents or task.

The parent's replies up to that point are inherited: copied into the fork's own journal as it starts, by reference to shared
texts, and matched by key alone. So a fork resumes and replays by itself, also if its parent has been removed. Calls without a
reply are made again, except those whose model answered with something unusable and has not changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from consilience.domain.agents import Agent, in_dealing_order, unknown_agent
from consilience.domain.detail import Detail, DetailChoice
from consilience.domain.errors import Command, SettingsError
from consilience.domain.events import (
    CUT,
    AnswerReceived,
    AnyEvent,
    CallCompleted,
    CallFailed,
    Ended,
    Event,
    ReplyRejected,
    SessionFinished,
    SessionStarted,
    TextsEmbedded,
    age_of,
)
from consilience.domain.messages import Source
from consilience.domain.outcome import CUT_SHORT, FailureKind, Limits
from consilience.domain.report import Report
from consilience.domain.validation import did_you_mean
from consilience.engine.execution import Options, Setup
from consilience.engine.fork_points import END as END
from consilience.engine.fork_points import fork_position
from consilience.engine.protocol import Protocol, check_phases, recorded_protocol
from consilience.engine.recorded_code import check_code
from consilience.engine.runner import Inheritance, begin, encoder_for, prepare, start_event
from consilience.engine.seats import Models, SeatModel, choose_detail, make_seats, models_by_agent, request_deadline
from consilience.engine.similarity import Encoder
from consilience.engine.sources import Document, document_from_ref
from consilience.engine.templates import Templates, recorded_templates
from consilience.journal.store import Store
from consilience.models.registry import canonical_name


@dataclass(frozen=True, kw_only=True)
class ForkChanges:
    """What a fork changes. All else is as in the parent."""

    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of the protocol, by name."""
    models: Models | None = None
    """Models that replace all of the parent's."""
    replace: Mapping[str, SeatModel] = field(default_factory=dict)
    """Models of single agents, by id."""
    perspectives: Mapping[str, str] = field(default_factory=dict)
    """Points of view of single agents, by id."""
    prompts: Path | None = None
    """A directory of templates that replace the protocol's own."""
    limits: Limits | None = None
    """Limits on what the fork itself spends, instead of the parent's."""
    encoder: str | Encoder | None = None
    sources: Sequence[Source] = ()
    """Documents to add. One with the name of a document of the parent replaces it and keeps its number."""
    task: str | None = None
    detail: DetailChoice | None = None
    """Which set of prompts; `auto` follows from the fork's models."""


@dataclass(frozen=True)
class Fork:
    """A fork before it runs."""

    parent: str
    at: int
    """The last event of the parent that is inherited."""
    started: SessionStarted
    """How the parent began."""
    protocol: Protocol
    agents: tuple[Agent, ...]
    models: Mapping[str, SeatModel]
    task: str
    documents: tuple[Document, ...]
    templates: Templates
    limits: Limits
    encoder: str | Encoder | None
    detail: Detail
    events: tuple[AnyEvent, ...]
    """The parent's events that may be inherited, marked as such."""
    calls: int | None = None
    """Max calls that the fork makes, without retries; None if that is not known."""
    failed: tuple[Ended, ...] = ()
    """The last attempts of the parent's calls that ended without a whole reply, if the fork may make them again."""
    complete: bool = False
    """Whether the parent is finished, not by a limit, and the fork is made after its last call."""

    def with_models(self, models: Mapping[str, SeatModel]) -> Fork:
        """This fork with other models. A call without a reply is made again if its agent has another model than in the parent, and
        a call whose reply was cut if replies may be longer."""
        before = {agent.id: _model_name(agent.model) for agent in self.started.agents}
        longer = self.protocol.max_reply_tokens > changed_protocol(self.started, {}).max_reply_tokens
        again = {
            end.key
            for end in self.failed
            if (longer and _is_cut(end))
            or (not isinstance(end, CallCompleted) and before.get(end.agent) != _model_name(models.get(end.agent)))
        }
        events = (
            event for event in self.events if not (isinstance(event, Ended | AnswerReceived) and event.key in again)
        )
        return replace(self, models=models, events=tuple(events))

    def with_sources(self, sources: Sequence[Source], *, limits: Limits) -> Fork:
        """This fork with other limits, and with documents added as in `ForkChanges.sources`."""
        return replace(self, documents=_with_added(self.documents, sources), limits=limits)

    @property
    def replies(self) -> int:
        """Number of calls whose reply is inherited."""
        return len({event.key for event in self.events if isinstance(event, CallCompleted)})

    @property
    def failures(self) -> list[ReplyRejected | CallFailed]:
        """The inherited ends of calls without a reply: their models answered, and are asked nothing again."""
        return [end for end in self.failed if end.key in self._inherited_keys and not isinstance(end, CallCompleted)]

    @property
    def kinds_kept(self) -> str:
        return ", ".join(dict.fromkeys(end.failure.value for end in self.failures))

    @property
    def asked_again(self) -> int:
        """Number of the parent's calls without a whole reply that the fork makes again if it comes to them."""
        return sum(end.key not in self._inherited_keys for end in self.failed)

    @property
    def _inherited_keys(self) -> set[str]:
        return {event.key for event in self.events if isinstance(event, Ended)}

    @property
    def makes_no_call(self) -> bool:
        """Whether the fork would only write its parent's report again: it inherits every call, and no change leads to another one.

        A model, a task or a prompt changes no call that is inherited.
        """
        old = self.started
        same = (self.protocol, self.detail, _encoder_name(self.encoder), self._max_steps(self.protocol, self.limits))
        before = changed_protocol(old, {})
        return (
            self.complete
            and not self.asked_again
            and same == (before, old.detail, old.encoder, self._max_steps(before, old.limits))
            and self.protocol.version == old.protocol_version
            and all(document.generations != 0 for document in self.documents)
        )

    @staticmethod
    def _max_steps(protocol: Protocol, limits: Limits) -> int | None:
        steps = (getattr(protocol, protocol.report.step_setting, None), limits.steps)
        return min((n for n in steps if n is not None), default=None)


def plan_fork(parent: str, *, store: Store, at: int | str, changes: ForkChanges) -> Fork:
    """Return a fork before it runs. `at`: see `fork_position`. Raises `UserError`s; nothing is recorded or opened."""
    cls = recorded_protocol(start_event(parent, store.read(parent)).protocol)
    _check_known(cls, changes.settings, cls.own_settings())
    return _plan_fork(parent, store=store, at=at, changes=changes)


def _plan_fork(parent: str, *, store: Store, at: int | str, changes: ForkChanges) -> Fork:
    """Return a fork, also one that changes settings which no user sets."""
    events = store.read(parent)
    old = start_event(parent, events)
    last = fork_position(parent, events, at)
    check_code(old, store)
    protocol = changed_protocol(old, changes.settings)
    agents = _agents(old, protocol, changes.perspectives)
    limits = old.limits if changes.limits is None else changes.limits
    check_phases(protocol, limits)
    encoder = old.encoder if changes.encoder is None else changes.encoder
    models = _assign_models(old, agents, changes.models, changes.replace)
    detail = old.detail if changes.detail is None else choose_detail(changes.detail, agents, models)
    if detail != old.detail and "reply_tokens" not in changes.settings:
        protocol = _resized(protocol, old.detail, detail)
    planned = Fork(
        parent=parent,
        at=last,
        started=old,
        protocol=protocol,
        agents=agents,
        models=models,
        task=store.text(old.task) if changes.task is None else changes.task,
        documents=_documents(old, agents, changes.sources, store),
        templates=_templates(old, protocol, changes.prompts, store, detail),
        limits=limits,
        encoder=encoder,
        detail=detail,
        events=tuple(inherited_events(events, last, _encoder_name(encoder))),
        failed=tuple(_failed(events, last, old.repairs)),
        complete=_is_complete(events, last),
    )
    return planned.with_models(models)


def plan_telling(parent: str, fact: str, *, store: Store, changes: ForkChanges) -> Fork:
    """Return a fork of a finished session that is told a fact: every reply is inherited but those that follow from the positions.

    Failures and refusals by a limit are inherited as well, or the fork would continue what they had ended. Raises `SettingsError`
    for a session that is not finished, or that holds no positions.
    """
    events = store.read(parent)
    old = start_event(parent, events)
    telling = recorded_protocol(old.protocol).telling
    if telling is None:
        raise SettingsError(
            f"session {parent} is of the protocol {old.protocol}, which takes no new fact after its end",
            do="Ask again with the fact in the task",
            command=Command("fork", parent, {"at": 0, "task": "TEXT"}),
        )
    if not fact.strip():
        raise SettingsError("the fact is empty", do="Give it in a sentence.")
    if not any(isinstance(event, SessionFinished) for event in events):
        raise SettingsError(
            f"session {parent} is not finished", do="Resume it first", command=Command("resume", parent)
        )
    positions = {e.key for e in events if isinstance(e, CallCompleted) and _has_phase(e, (telling.positions,))}
    if not positions:
        raise SettingsError(
            f"in session {parent} no agent took a position at the end, so a fact can change none",
            do="See how it ended",
            command=Command("show", parent),
        )
    earlier_facts = old.settings.get(telling.setting)
    facts = (*(earlier_facts if isinstance(earlier_facts, list) else ()), fact.strip())
    changes = replace(changes, settings={**changes.settings, telling.setting: facts})
    planned = _plan_fork(parent, store=store, at=END, changes=changes)
    kept = inherited_events(events, planned.at, _encoder_name(planned.encoder), failures=True)
    again = {event.key for event in kept if isinstance(event, Ended) and _has_phase(event, telling.again)}
    return replace(
        planned,
        events=tuple(event for event in kept if not _has_phase(event, telling.again)),
        calls=len(positions) + max(len(again), 1),
        failed=(),
        complete=False,
    )


def _has_phase(event: Event, phases: Sequence[str]) -> bool:
    return isinstance(event, Ended) and event.phase is not None and event.phase[0] in phases


def no_call_error(planned: Fork, notes: Sequence[str] = ()) -> SettingsError:
    """Return the error of a fork that `makes_no_call`, with what leads to calls; `notes` are sentences put before it."""
    ways, larger = [f"{note.removesuffix('.')}." for note in notes], planned.protocol.report.step_setting
    if planned.failures:
        ways.append(f"Calls without a usable reply ({planned.kinds_kept}) are made again with another model.")
    if any(_is_cut(end) for end in planned.failed):
        ways.append("Replies that were cut are asked for again if they may be longer.")
        larger = "reply_tokens"
    ways.append("To ask again with another model, task or prompt, name an earlier point; 0 asks every call again.")
    if larger:
        ways.append(f"Or raise {larger}")
    return SettingsError(
        f"the fork would make no call: session {planned.parent} is finished and every reply is inherited",
        field="at",
        where=f"event {planned.at}",
        do=" ".join(ways),
        command=Command("fork", planned.parent, {"at": "end", "settings": f"{larger}=N"}) if larger else None,
    )


def _is_cut(end: Ended) -> bool:
    return not isinstance(end, CallFailed) and end.finish == CUT


async def fork(planned: Fork, *, store: Store, session: str | None = None, options: Options | None = None) -> Report:
    """Run a new session that inherits the parent's replies up to a point. Raises `UserError`s before anything is spent.

    A call is repeated if the new settings cannot read its inherited reply, or if it is shown something younger than the reply.
    """
    return await begin(_setup(planned, options), store=store, session=session, inherited=_inheritance(planned))


async def prepare_fork(
    planned: Fork, *, store: Store, session: str | None = None, options: Options | None = None
) -> str:
    """Record the start of a fork without a call, and return its id; `resume` runs it. Raises as `fork`."""
    return await prepare(_setup(planned, options), store=store, session=session, inherited=_inheritance(planned))


def _inheritance(planned: Fork) -> Inheritance:
    return Inheritance(planned.parent, planned.at, planned.events)


def _setup(planned: Fork, options: Options | None) -> Setup:
    old = planned.started
    options = _inherited_options(old, options or Options())
    return Setup(
        protocol=planned.protocol,
        task=planned.task,
        documents=planned.documents,
        templates=planned.templates,
        encoder=encoder_for(planned.protocol, planned.encoder, options),
        seats=make_seats(
            planned.agents,
            planned.models,
            request_deadline(options.deadline, options.thinking),
            options.endpoints,
            options.connections,
        ),
        detail=planned.detail,
        seed=old.seed,
        quorum=old.quorum,
        limits=planned.limits,
        warnings=old.warnings,
        options=options,
    )


def _inherited_options(old: SessionStarted, options: Options) -> Options:
    """Return the options; those recorded for a whole session default to the parent's."""
    names = ("repairs", "cache", "temperature", "thinking", "deadline", "human_deadline", "inventory_tokens")
    return replace(options, **{name: getattr(old, name) for name in names if getattr(options, name) is None})


def _documents(
    old: SessionStarted, agents: Sequence[Agent], added: Sequence[Source], store: Store
) -> tuple[Document, ...]:
    """Return the documents of a fork. Raises `SettingsError` if they are dealt to agents that it does not have."""
    documents = _with_added([document_from_ref(ref, store.text(ref.text), forks=1) for ref in old.sources], added)
    ids = {agent.id for agent in agents}
    if gone := sorted({s.agent for document in documents for s in document.shares if s.agent not in ids}):
        raise SettingsError(
            f"documents are dealt to {', '.join(gone)}, and the fork has no such agents",
            field="settings",
            do="Keep the number of agents, or begin a new session, which deals the documents again.",
        )
    return documents


def _with_added(documents: Sequence[Document], sources: Sequence[Source]) -> tuple[Document, ...]:
    """Return documents with `sources` added. A source replaces a document of the same name."""
    by_id = {document.id: document for document in documents}
    numbers = {document.name: document.id for document in documents if document.name}
    for source in sources:
        id = numbers.pop(source.name, f"S{len(by_id) + 1}")
        by_id[id] = Document(
            id, source.name, source.text, source.agents, None, 0, source.remarks, source.shares, source.purpose
        )
    return tuple(by_id.values())


def inherited_events(
    events: Sequence[AnyEvent], last: int, encoder: str | None, *, failures: bool = False
) -> list[AnyEvent]:
    """Return replies, unusable ones too, answers and this encoder's vectors up to `last`, marked as inherited.

    Other failures, refusals by a limit and withdrawals at a quorum are left out, unless `failures` are asked for.
    """
    inherited: list[AnyEvent] = []
    for event in _valid(events, last):
        if not isinstance(event, Ended | AnswerReceived | TextsEmbedded):
            continue
        if isinstance(event, CallFailed) and event.failure is not FailureKind.REFUSED and not failures:
            continue
        if isinstance(event, TextsEmbedded) and (event.encoder != encoder or (event.error and not failures)):
            continue
        marked: dict[str, object] = {
            "inherited": True,
            "volatile": {name: value for name, value in event.volatile.items() if name != "t"},
        }
        if isinstance(event, Ended | AnswerReceived):
            marked["generations"] = age_of(event)
        if isinstance(event, Ended):
            marked["reserve"] = False
        inherited.append(event.model_copy(update=marked))
    return inherited


def _valid(events: Sequence[AnyEvent], last: int) -> Iterator[AnyEvent]:
    """Yield the events up to `last` without those that the parent had inherited and repeated."""
    repeated = {e.key for e in events if isinstance(e, Ended) and e.seq <= last and not e.inherited and e.attempt == 1}
    for event in events:
        if event.seq <= last and not (isinstance(event, Ended) and event.inherited and event.key in repeated):
            yield event


def _failed(events: Sequence[AnyEvent], last: int, repairs: int) -> Iterator[Ended]:
    """Yield the last attempt of every call up to `last` that ended without a reply, or the reply if it was cut; a call with a
    repair left goes on."""
    ended = [event for event in _valid(events, last) if isinstance(event, Ended)]
    replies = {event.key: event for event in ended if isinstance(event, CallCompleted)}
    for end in ({event.key: event for event in ended} | replies).values():
        if end.cut if isinstance(end, CallCompleted) else isinstance(end, CallFailed) or end.attempt > repairs:
            yield end


def _is_complete(events: Sequence[AnyEvent], last: int) -> bool:
    finished = next((event for event in events if isinstance(event, SessionFinished)), None)
    if finished is None or finished.stop_reason in CUT_SHORT:
        return False
    return all(event.seq <= last for event in events if isinstance(event, Ended | AnswerReceived))


def changed_protocol(old: SessionStarted, settings: Mapping[str, object]) -> Protocol:
    """Return the parent's protocol with some settings changed. Raises `SettingsError`."""
    cls = recorded_protocol(old.protocol)
    _check_known(cls, settings, cls.model_fields)
    settings_kept = {name: value for name, value in old.settings.items() if name in cls.model_fields}
    if "reply_tokens" in settings:
        settings_kept.pop("closing_reply_tokens", None)
    return cls(**{**settings_kept, **settings})


def _check_known(cls: type[Protocol], settings: Iterable[str], known: Iterable[str]) -> None:
    """Raise `SettingsError` for a setting that is not among the `known` ones."""
    names = tuple(known)
    if unknown := [name for name in settings if name not in names]:
        do = f"{did_you_mean(unknown[0], names)}Known: {', '.join(names)}."
        raise SettingsError(f"{cls.name} has no setting {unknown[0]!r}", field="settings", do=do)


def _model_name(model: SeatModel | None) -> str | None:
    return canonical_name(model) if isinstance(model, str) else getattr(model, "name", None)


def _encoder_name(encoder: str | Encoder | None) -> str | None:
    return encoder if encoder is None or isinstance(encoder, str) else encoder.name


def _agents(old: SessionStarted, protocol: Protocol, perspectives: Mapping[str, str]) -> tuple[Agent, ...]:
    """Return the agents of the changed protocol, without models, service seats last. An agent of the parent that the changed
    settings do not affect stays as it was."""
    parent_agents = {agent.id: agent for agent in old.agents}
    recorded_protocol_agents = {agent.id: agent for agent in changed_protocol(old, {}).agents(None)}
    new_agents = in_dealing_order(protocol.agents(None))
    unknown = [id for id in perspectives if id not in {agent.id for agent in new_agents}]
    if unknown:
        raise unknown_agent(unknown[0], new_agents, field="perspectives")
    agents = []
    for agent in new_agents:
        if agent == recorded_protocol_agents.get(agent.id) and agent.id in parent_agents:
            agent = parent_agents[agent.id].model_copy(update={"model": ""})
        if agent.id in perspectives:
            identity = {name: getattr(agent, name) for name in ("id", "role", "voice")}
            agent = Agent(**identity, perspective=perspectives[agent.id])
        agents.append(agent)
    return tuple(agents)


def _assign_models(
    old: SessionStarted, agents: Sequence[Agent], models: Models | None, replace: Mapping[str, SeatModel]
) -> Mapping[str, SeatModel]:
    """Return a model for each agent: from `replace`, else from `models`, else the parent's. New agents get the parent's in turn."""
    ids = [agent.id for agent in agents]
    unknown = [id for id in replace if id not in ids]
    if unknown:
        raise unknown_agent(unknown[0], agents, field="replace")
    if isinstance(models, Mapping):
        return models_by_agent(agents, {**models, **replace})
    if models is not None:
        return {**models_by_agent(agents, models), **replace}
    recorded = {agent.id: agent.model for agent in old.agents}
    recorded_models = list(recorded.values())
    return {**{id: recorded.get(id, recorded_models[n % len(recorded_models)]) for n, id in enumerate(ids)}, **replace}


def _resized(protocol: Protocol, old_detail: Detail, new_detail: Detail) -> Protocol:
    """Return the protocol with another size of replies, if the recorded one was the default of its detail."""
    unsized = protocol.model_copy(update={"reply_tokens": None})
    if protocol.reply_tokens != unsized.with_detail(old_detail).reply_tokens:
        return protocol
    return protocol.model_copy(update={"reply_tokens": unsized.with_detail(new_detail).reply_tokens})


def _templates(
    old: SessionStarted, protocol: Protocol, prompts: Path | None, store: Store, detail: Detail
) -> Templates:
    """Return the parent's templates, unless others, another detail or another version of the protocol apply."""
    if prompts is not None or detail != old.detail or protocol.version != old.protocol_version:
        return protocol.load_templates(prompts, detail)
    return recorded_templates(type(protocol), old, store.text)
