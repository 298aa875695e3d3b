"""What all faces of a server do with sessions: the only way from HTTP, chat and MCP to the store and the executor.

Every method takes the caller: they see and act on the sessions of their owner, and another's session does not exist for them. What
blocks on the disk runs on threads, so that a slow disk stops no reader.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from consilience.choosing import Given, follow_up_sources
from consilience.deliberation import Deliberation
from consilience.domain.agents import Agent, in_dealing_order
from consilience.domain.errors import SessionBusy, SessionWaiting, SettingsError, UnknownName
from consilience.domain.events import AnyEvent, SessionFinished, SessionStarted
from consilience.domain.messages import Source
from consilience.domain.model_names import PERSON, kind_of
from consilience.domain.panels import CATALOG, Panel, load_panel
from consilience.domain.report import Report
from consilience.engine.execution import Options
from consilience.engine.protocol import Protocol, find_protocol, protocol_names
from consilience.engine.recorded_code import code_named
from consilience.engine.seats import choose_detail
from consilience.executor import Executor
from consilience.journal.store import LetterKind, Records, Store
from consilience.models.endpoints import Endpoints
from consilience.models.port import Completion, ModelRequest
from consilience.models.registry import Choice, canonical_name, resolve, window_by_name
from consilience.planning import AS_ASKED, RunPlan, make_plan, with_documents
from consilience.protocols.choose import Choose
from consilience.reporting.questions import Question, named_question, pending_questions
from consilience.reporting.record import SessionRecord, read_record
from consilience.server.bodies import NewSession
from consilience.server.callers import Caller, Forbidden
from consilience.server.settings import ServerSettings

T = TypeVar("T")
INTERNAL = frozenset({"choose", "propose"})
"""Protocols that no caller names: they are parts of other requests."""
SERVED = "server"
"""Key among the recorded deliveries of a session that a server began, and takes up after a restart."""
REQUIRE = "require"


def is_served(started: SessionStarted) -> bool:
    """Return whether a server began the session."""
    return SERVED in started.deliveries


@dataclass(frozen=True)
class Prepared:
    """A session that was recorded and waits for its turn."""

    session: str
    plan: RunPlan


class Sessions:
    """The sessions of a server."""

    def __init__(
        self, store: Store, executor: Executor, settings: ServerSettings, *, options: Options | None = None
    ) -> None:
        """`options` are those of the executor: endpoints, accounts."""
        self._store = store
        self._executor = executor
        self.settings = settings
        self._options = options or Options()

    # --- beginning sessions

    async def plan(self, caller: Caller, body: NewSession) -> RunPlan:
        """Return what a request would run, without recording anything. Raises `UserError`, `Forbidden`."""
        return await asyncio.to_thread(lambda: self._planned(caller, body)[1])

    async def begin(
        self,
        caller: Caller,
        body: NewSession,
        *,
        session: str | None = None,
        derived: Mapping[str, Any] = {},
    ) -> Prepared:
        """Record a new session, durably, and hand it to the executor. Raises `UserError`, `Forbidden` before anything is spent.

        `session` is its id, by default a random one. `derived` are settings that no caller gives, since they follow from the
        documents. With them also the protocols can run that are parts of other requests.
        """

        def prepare() -> Prepared:
            deliberation, plan = self._planned(caller, body, derived)
            if plan.unfit is not None:
                raise plan.unfit
            id = session or f"r{secrets.token_hex(8)}"
            return Prepared(asyncio.run(deliberation.prepare(body.task, session=id)), plan)

        prepared = await asyncio.to_thread(prepare)
        self._executor.submit(prepared.session)
        return prepared

    def _planned(
        self, caller: Caller, body: NewSession, derived: Mapping[str, Any] = {}
    ) -> tuple[Deliberation[Report], RunPlan]:
        cls, settings, panel, named = self._named(body, internal=bool(derived))
        if cls.name not in INTERNAL:
            caller.check_protocol(cls.name)
        if code := code_named(cls, settings):
            raise SettingsError(
                f"a setting names code to import: {', '.join(code)}", where="settings", do="Name one that is installed."
            )
        unknown = [name for name in settings if name not in cls.own_settings()]
        if unknown:
            raise SettingsError(
                f"{cls.name} has no setting {unknown[0]!r}",
                where="settings",
                do=f"Known: {', '.join(cls.own_settings())}.",
            )
        protocol = cls(**settings, **derived).with_panel(panel)
        agents = in_dealing_order(protocol.agents(panel))
        models = self._assigned(caller, agents, named)
        detail = choose_detail("auto", agents, models)
        known = self._options.endpoints
        protocol = with_documents(protocol.with_detail(detail), body.sources, models.values(), known)
        plan = make_plan(
            protocol,
            agents,
            models,
            Choice("", AS_ASKED),
            known=known,
            limits=body.limits,
            task=body.task,
            sources=body.sources,
            templates=protocol.load_templates(None, detail),
            encoder=None,
            thinking=body.thinking,
            detail=detail,
        )
        require = {REQUIRE: ",".join(body.require)} if body.require else {}
        deliberation = Deliberation[Report](
            protocol,
            model=models,
            panel=panel,
            sources=body.sources,
            seed=body.seed,
            limits=body.limits,
            quorum=body.quorum,
            store=self._store.of(caller.owner),
            options=Options(
                thinking=body.thinking,
                name=body.name,
                deliveries={SERVED: "yes", **require},
                endpoints=known,
            ),
        )
        return deliberation, plan

    def _named(
        self, body: NewSession, *, internal: bool
    ) -> tuple[type[Protocol], dict[str, Any], Panel | None, Sequence[str] | Mapping[str, str]]:
        """Return protocol, settings, panel and models of a request, completed by the preset that it names."""
        name, settings, panel, models = body.protocol, dict(body.settings), body.panel, body.models
        if (preset := self.settings.presets.get(name)) is not None:
            name, settings = preset.protocol, {**preset.settings, **settings}
            panel, models = panel or preset.panel, models or preset.models
        if name not in protocol_names() or (name in INTERNAL and not internal):
            known = sorted({*protocol_names(), *self.settings.presets} - INTERNAL)
            raise UnknownName(f"there is no protocol {name!r}", where="protocol", do=f"Known: {', '.join(known)}.")
        if isinstance(panel, str):
            if panel not in CATALOG.names():
                raise UnknownName(
                    f"there is no panel {panel!r}", where="panel", do=f"Known: {', '.join(CATALOG.names())}."
                )
            panel = load_panel(panel)
        return find_protocol(name), settings, panel, models

    def models_of(self, caller: Caller) -> tuple[str, ...]:
        """Return the names of the server's models that the caller may use."""
        return tuple(name for name in self.settings.models if caller.models is None or name in caller.models)

    @property
    def endpoints(self) -> Endpoints:
        """What is known of the endpoints of models."""
        return self._options.endpoints

    def _assigned(
        self, caller: Caller, agents: Sequence[Agent], named: Sequence[str] | Mapping[str, str]
    ) -> dict[str, str]:
        """Return a model for every agent. Raises `SettingsError` for one that the caller may not choose."""
        allowed = self.models_of(caller)
        default = next(iter(allowed), PERSON)
        if isinstance(named, Mapping):
            unknown = set(named) - {agent.id for agent in agents}
            if unknown:
                ids = ", ".join(agent.id for agent in agents)
                raise SettingsError(f"there is no agent {min(unknown)!r}", where="models", do=f"Agents: {ids}.")
            models = {agent.id: named.get(agent.id) or agent.model or default for agent in agents}
        else:
            shared = named or (default,)
            models = {agent.id: agent.model or shared[n % len(shared)] for n, agent in enumerate(agents)}
        for name in models.values():
            if name not in allowed and kind_of(name) != "person":
                raise SettingsError(
                    f"the model {name!r} is not allowed",
                    where="models",
                    do=f"Allowed: {', '.join((*allowed, PERSON))}.",
                )
        return {id: canonical_name(name) for id, name in models.items()}

    # --- reading sessions

    async def read(self, caller: Caller, work: Callable[[Records], T]) -> T:
        """Return `work(records)` over the caller's sessions, executed on the reading thread."""
        return await self._store.reader.of(caller.owner).run(work)

    async def record(self, caller: Caller, session: str) -> SessionRecord:
        """Return a session of the caller. Its texts are read when asked for: use it within `read` where there are many.

        Raises `UnknownName` for a session that is not there or another's.
        """
        return await self.read(caller, lambda records: read_record(records, session))

    async def texts(self, caller: Caller, ids: Sequence[str]) -> dict[str, str]:
        """Return stored texts by id. The ids must come from an event of a session of the caller."""
        return await self._store.reader.texts(ids)

    def tail(self, caller: Caller, session: str, *, after: int = 0) -> AsyncGenerator[AnyEvent]:
        """Yield committed events after a number, as they appear, until the session ends. Raises `UnknownName`."""
        return self._store.reader.of(caller.owner).tail(session, after=after)

    # --- acting on sessions

    async def questions(self, caller: Caller, session: str) -> list[Question]:
        """Return the open questions of a session to people and outside processes."""
        return await self.read(
            caller, lambda records: pending_questions(records.read(session), records.text, records.prompt)
        )

    async def answer(self, caller: Caller, session: str, key: str, text: str, *, by: str = "") -> str:
        """Answer an open question and let the session go on; return the key of its call. Raises `UserError`."""
        asked = {question.key: question for question in await self.questions(caller, session)}
        name = named_question(key, list(asked.values()))
        if name not in asked:
            choices = f"Open questions: {', '.join(asked)}." if asked else "There are none."
            raise UnknownName(f"session {session} has no open question {name!r}", do=choices)
        form = asked[name].form
        try:
            reply = form.reply_from(text) if form else text.strip()
        except ValueError as wrong:
            raise SettingsError(f"invalid answer to {name}: {wrong}", where="text", do="Correct it.") from None
        await self._post(caller, session, "answer", name, reply, by)
        self._executor.submit(session)
        return name

    async def cancel(self, caller: Caller, session: str, *, answer: bool = False, by: str = "") -> None:
        """End a session with a report, wherever it runs. Raises `UserError` if it is finished."""
        await self.read(caller, lambda records: records.owner(session))  # theirs
        await asyncio.to_thread(lambda: self._executor.cancel(session, answer=answer, by=by))

    async def comment(self, caller: Caller, session: str, text: str, *, by: str = "") -> None:
        """Put a comment on the record of a session that is not finished. Raises `UserError`."""
        await self._post(caller, session, "comment", "", text, by)

    async def resume(self, caller: Caller, session: str) -> None:
        """Hand a session to the executor, which runs it when its turn comes; a finished one stays as it is."""
        await self.read(caller, lambda records: records.owner(session))
        self._executor.submit(session)

    async def remove(self, caller: Caller, session: str) -> None:
        """Remove a session with its texts. Raises `UnknownName`, `SessionBusy`."""
        await asyncio.to_thread(lambda: self._store.of(caller.owner).admin.remove([session]))

    async def _post(self, caller: Caller, session: str, kind: LetterKind, key: str, text: str, by: str) -> None:
        store = self._store.of(caller.owner)
        await asyncio.to_thread(lambda: store.post(session, kind, key, text, by or caller.owner))

    # --- for chat clients

    failures: Mapping[str, str] = MappingProxyType({})
    """Kept by `serving`. A restart runs these sessions again."""

    def models(self, caller: Caller) -> dict[str, str]:
        """Return what a caller may name as the model of a chat, with what each is for: protocols, then the operator's presets."""
        names = {name: find_protocol(name) for name in sorted(set(protocol_names()) - INTERNAL)}
        models = {name: (name, cls.summary) for name, cls in names.items() if not cls.reads_target}
        models |= {name: (preset.protocol, preset.summary) for name, preset in self.settings.presets.items()}
        return {name: summary for name, (protocol, summary) in models.items() if _is_allowed(caller, protocol)}

    async def ended_at(self, caller: Caller, session: str) -> float | None:
        """Return when a session ended, in seconds since the epoch; None for one that goes on. Raises `UnknownName`."""

        def read(records: Records) -> float | None:
            records.owner(session)
            end = records.ending(session)
            return float(end.volatile.get("ended_at") or 0) if isinstance(end, SessionFinished) else None

        return await self.read(caller, read)

    async def follow_up_sources(self, caller: Caller, session: str) -> list[Source]:
        """Return what a session leaves for a follow-up. Raises `UnknownName`, and `SettingsError` if it has no answer."""
        return await self.read(caller, lambda records: follow_up_sources(read_record(records, session)))

    def given(self, caller: Caller, body: NewSession) -> Given:
        """Return what is known of a task before anybody has read it. Raises `SettingsError` for a model that is not allowed."""
        seats = Choose().agents(None)
        models = tuple(dict.fromkeys(body.models)) or self.models_of(caller)[:1]
        windows = [window_by_name(name, self._options.endpoints) for name in models]
        return Given(
            documents=body.sources,
            models=models,
            window=min((window for window in windows if window is not None), default=None),
            personas=len(body.panel.personas) if isinstance(body.panel, Panel) else 0,
            embedded=any(choose_detail("auto", seats, {seats[0].id: name}) == "brief" for name in models),
        )

    async def help(self, system: str, text: str, *, max_tokens: int) -> Completion:
        """Return the operator's helper model's answer to a request of a chat program for itself. Not recorded.

        Raises `SettingsError` without such a model, `ProviderError` if it fails.
        """
        if self.settings.helper_model is None:
            raise SettingsError(
                "this server answers no helper requests, such as titles and tags",
                do="Turn them off in the chat program, or ask the operator for a `helper_model`.",
            )
        model = resolve(self.settings.helper_model, known=self._options.endpoints)
        try:
            return await model.complete(
                ModelRequest(agent="helper", key="helper", system=system, user=text, max_tokens=max_tokens)
            )
        finally:
            await model.close()


class RunFailures(dict[str, str]):
    """Why the last run of a session ended without a report, by session."""

    def note(self, session: str, outcome: Report | BaseException) -> None:
        """Take in how a run ended, as the executor tells it."""
        if isinstance(outcome, Report | SessionWaiting | SessionBusy):
            self.pop(session, None)
        else:
            self[session] = str(outcome)


def _is_allowed(caller: Caller, protocol: str) -> bool:
    try:
        caller.check_protocol(protocol)
    except Forbidden:
        return False
    return True


def require_met(record: SessionRecord) -> bool | None:
    """Return whether the report has one of the stop reasons that its request requires; None without both."""
    started, report = record.state.started, record.report
    required = started.deliveries.get(REQUIRE) if started else None
    return None if not required or report is None else report.stop_reason.value in required.split(",")


def plan_json(plan: RunPlan) -> dict[str, Any]:
    """Return a plan as data."""
    data: dict[str, Any] = json.loads(json.dumps(plan.as_json(), default=str))
    return data
