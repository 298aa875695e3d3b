"""A configured deliberation, which runs, resumes, replays and forks sessions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from dataclasses import replace as copy_with  # `fork` has a parameter `replace`
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, cast

from typing_extensions import TypeVar

from consilience.blocking import as_blocking, run_blocking
from consilience.configuration import own_config
from consilience.domain.agents import Agent, in_dealing_order
from consilience.domain.detail import DetailChoice
from consilience.domain.errors import SettingsError, UserError
from consilience.domain.events import Event, SessionStarted
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits
from consilience.domain.panels import Panel, load_panel
from consilience.domain.report import Report
from consilience.domain.session_ids import new_session_id
from consilience.engine import fork as forks
from consilience.engine import runner, validation
from consilience.engine.dealing import deal_as_begun, deal_for, left_out_lines
from consilience.engine.protocol import Protocol, ReportingProtocol
from consilience.engine.readers import inventory_size
from consilience.engine.recorded_code import check_programs
from consilience.engine.runner import Models, Options
from consilience.engine.seats import (
    SeatModel,
    choose_detail,
    make_seats,
    model_names,
    models_by_agent,
    request_deadline,
    seat_warnings,
    with_own_models,
)
from consilience.engine.sent_prompts import SentPrompt, sent_prompts
from consilience.engine.similarity import Encoder
from consilience.engine.sources import document_refs, number_documents
from consilience.engine.usage import remaining_limits
from consilience.journal.open_store import opened
from consilience.journal.store import Store, check_name
from consilience.models.registry import choose
from consilience.protocols.propose import Propose, ProposeReport
from consilience.reporting.event_lines import notebook_progress

R = TypeVar("R", bound=Report, default=Report)

AUTO_PANEL = "auto"
"""The panel that a model proposes for the task."""

MIN_PERSONAS, MAX_PERSONAS = 2, 6
"""Bounds on the size of a proposed panel."""


@dataclass(frozen=True)
class Deliberation(Generic[R]):
    """The configuration of a session except its task. One object serves any number of sessions.

    Methods raise `UserError`s before anything is spent. A limit, or a model that fails, does not raise: the report has that
    outcome. `dataclasses.replace` returns a copy with other fields.
    """

    protocol: ReportingProtocol[R] | None = None
    """The protocol with its settings. None: the object can only resume, replay, fork and tell, sessions of any protocol."""
    _: KW_ONLY
    model: Models | None = None
    """One model for all agents, several to assign in turn in the order of `report.agents`, or one per agent id; names or models.
    In a mapping the id `"*"` stands for all agents not named.

    None: for a new session the model that `CONSILIENCE_MODEL` or the user's own `consilience.toml` names, else a server on this
    machine or the embedded model; for an existing session the recorded models.
    """
    panel: Panel | str | Path | None = None
    """Personas that replace the protocol's perspectives: a panel, the name or file of one, or "auto" to have one proposed."""
    sources: Sequence[Source | Path] = ()
    """Documents. A `pathlib.Path` is a file to read, a `Source` contains its text. A plain string is refused."""
    seed: int = 0
    """Random seed."""
    limits: Limits | None = None
    """Limits on calls, tokens, money, time and steps. None: no limit; in a fork, the parent's."""
    quorum: float = 0.5
    """Share of agents, 0 to 1, that must reply in the first phase."""
    encoder: str | Encoder | None = None
    """Encoder for similarity by embedding, or the name of its model. None: none; for an existing session, the recorded encoder."""
    store: Store | None = None
    """Where sessions are recorded. None: the user's journal."""
    prompts: Path | None = None
    """A directory of templates that replace the protocol's own."""
    detail: DetailChoice | None = None
    """Which set of prompts agents are shown: "full", "brief" or "auto" (brief if an agent runs on an embedded model). None: that of
    `options`, else "auto"; in a fork, the parent's."""
    options: Options | None = None
    """How to run: observer (in a notebook one that shows progress), patience, repairs, thinking, temperature, deadline and more."""

    def __post_init__(self) -> None:
        options = self.options or Options()
        if isinstance(options, Options) and options.observer is None and (progress := notebook_progress()):
            object.__setattr__(self, "options", options.observed_by(progress))

    async def run(self, task: str, *, session: str | None = None) -> R:
        """Run a new session and return its report. `session` is its id, by default a random one.

        With `panel="auto"` a panel is proposed first, in a session of its own. Raises `SessionWaiting` when the session is
        parked because it awaits a person or an outside process.
        """
        if self.panel == AUTO_PANEL:
            proposed = await self.proposing().run(task)
            return await self.with_proposed(proposed).run(task, session=session)
        setup = self._setup(task, session)
        with opened(self._store) as store:
            return cast(R, await runner.begin(setup, store=store, session=session))

    def run_sync(self, task: str, *, session: str | None = None) -> R:
        """Do the same as `run` in synchronous code, and in notebooks, in which an event loop is already running.

        Ctrl-C stops the run. Recorded calls are kept, and `resume` continues.
        """
        return run_blocking(self.run(task, session=session))

    def stream(self, task: str, *, session: str | None = None) -> Live[R]:
        """Return a new session with its events: `async for event in (live := deliberation.stream(task))`, then `live.report()`."""
        id = session or new_session_id()

        def begin(observe: Callable[[Event], None]) -> Coroutine[Any, Any, R]:
            options = self._options.observed_by(observe)
            return copy_with(self, options=options).run(task, session=id)

        return Live(id, begin)

    async def prepare(self, task: str, *, session: str | None = None) -> str:
        """Record a new session without running it, and return its id. `resume` runs it, in any process."""
        setup = self._setup(task, session)
        with opened(self._store) as store:
            return await runner.prepare(setup, store=store, session=session)

    async def resume(self, session: str) -> R:
        """Continue a recorded session where it was left. A completed call is never paid for twice.

        A finished session returns its report, even without its protocol's code. Raises `SettingsError` if it has another protocol.
        """
        with opened(self._store) as store:
            self._check_protocol(store, session)
            options = self._with_endpoints()
            report = await runner.resume(session, store=store, models=self.model, encoder=self.encoder, options=options)
        return cast(R, report)

    async def replay(self, session: str) -> R:
        """Run a recorded session again without any call and compare event by event.

        Raises `ReplayMiss` if the journal lacks an answer, `RequestMismatch` if anything differs.
        """
        with opened(self._store) as store:
            self._check_protocol(store, session)
            report = await runner.replay(session, store=store, options=self.options)
        return cast(R, report)

    async def sent_prompts(self, session: str, key: str) -> list[SentPrompt]:
        """Return the prompt of a recorded call as it was sent, one per attempt: instructions, text and schema of the reply.

        Nothing is sent or recorded, and the session may be unfinished or running. Raises `UnknownName` for a key that is not
        recorded, `VersionMismatch` for a session of other code.
        """
        with opened(self._store) as store:
            self._check_protocol(store, session)
            return await sent_prompts(session, key, store=store)

    async def fork(
        self,
        session: str,
        *,
        at: int | str = forks.END,
        settings: Mapping[str, object] | None = None,
        replace: Mapping[str, SeatModel] | None = None,
        perspectives: Mapping[str, str] | None = None,
        sources: Sequence[Source | Path] = (),
        task: str | None = None,
        name: str | None = None,
    ) -> R:
        """Run a new session, `name`, that inherits the replies of a recorded one up to `at` and asks again from there.

        `at` is the number of an event, the key of a call, PHASE/INDEX, or "end". `settings` replace recorded settings of the
        protocol; `replace` gives single agents other models, `perspectives` other perspectives. `sources` are documents
        to add; a document with the name of a recorded one replaces it. `task` replaces the task. Model, encoder, prompts
        and limits are those of this object if they are set. Everything else is taken from the parent.

        Replies before `at` are inherited, although their calls were not shown new documents or the new task. A call is
        repeated if its prompt quotes a new reply of the fork. The report lists inherited replies that the fork did not use.
        """
        changed = {"at": at, "settings": settings, "replace": replace, "perspectives": perspectives, "name": name}
        validation.check_types(changed if task is None else {**changed, "task": task})
        options = self._with_endpoints(*model_names(replace))
        changes = copy_with(
            self._changes(sources),
            settings=settings or {},
            replace=replace or {},
            perspectives=perspectives or {},
            task=task,
        )
        with opened(self._store) as store:
            self._check_protocol(store, session)
            planned = forks.plan_fork(session, store=store, at=at, changes=changes)
            check_programs(planned.started.agents, self.model, store, replace)
            return cast(R, await forks.fork(planned, store=store, session=name, options=options))

    async def tell(
        self, session: str, fact: str, *, sources: Sequence[Source | Path] = (), name: str | None = None
    ) -> R:
        """Tell a finished session a new fact, with documents that support it, and return the report of a new session, `name`.

        The new session is a fork: agents give their final positions again, the answer is written again, and the report names the
        agents that moved. Everything else is inherited; the parent does not change. Raises `SettingsError` if the protocol has no
        final positions, the session is not finished, or no agent gave a final position.
        """
        validation.check_types({"fact": fact, "name": name})
        changes, options = self._changes(sources), self._with_endpoints()
        with opened(self._store) as store:
            self._check_protocol(store, session)
            planned = forks.plan_telling(session, fact, store=store, changes=changes)
            check_programs(planned.started.agents, self.model, store)
            return cast(R, await forks.fork(planned, store=store, session=name, options=options))

    def _changes(self, sources: Sequence[Source | Path]) -> forks.ForkChanges:
        """What a fork by this object changes, besides the arguments of the method."""
        return forks.ForkChanges(
            models=self.model,
            prompts=self.prompts,
            limits=validation.to_limits(self.limits),
            encoder=self.encoder,
            sources=validation.load_sources(sources),
            detail=self._options.detail,
        )

    resume_sync = as_blocking(resume)
    replay_sync = as_blocking(replay)
    fork_sync = as_blocking(fork)
    tell_sync = as_blocking(tell)

    async def run_or_resume(self, session: str, task: str) -> R:
        """Run a new session, or resume it if it is recorded. A finished one returns its report. No completed call is paid twice.

        Raises `SettingsError` if another deliberation is recorded under this id.
        """
        self._checked(task=task, session=session)
        with opened(self._store) as store:
            here = copy_with(self, store=store)
            return await (
                here.resume(session) if here._is_begun(store, session, task) else here.run(task, session=session)
            )

    def proposing(self) -> Deliberation[ProposeReport]:
        """Return the deliberation, of one call, that proposes a panel for the seats of this one; see `with_proposed`.

        It calls the model of the first agent with the documents that all agents may see.
        """
        protocol, model = self._checked(), self.model
        if model is not None:
            agents = protocol.agents(None)
            model = models_by_agent(agents, model)[agents[0].id]
        return Deliberation(
            Propose(personas=min(max(len(protocol.first_speakers), MIN_PERSONAS), MAX_PERSONAS)),
            model=model,
            sources=[source for source in validation.load_sources(self.sources) if source.agents is None],
            seed=self.seed,
            limits=self._limits.model_copy(update={"agents": {}, "phases": {}}),
            store=self.store,
            options=copy_with(self._options, deal="none"),
        )

    def with_proposed(self, report: ProposeReport) -> Deliberation[R]:
        """Return this deliberation with the proposed panel and with the limits less the usage of the proposal.

        Raises `SettingsError` if no panel was proposed.
        """
        if report.panel is None:
            raise SettingsError(
                "no panel could be proposed for this task",
                where=f"session {report.session}",
                do="Name a panel (consilience panels lists them), or describe personas with --persona.",
            )
        return copy_with(self, panel=report.panel, limits=remaining_limits(self._limits, report.ledger.actual))

    def _is_begun(self, store: Store, session: str, task: str) -> bool:
        panel, choice = self._panel, self._options.detail
        protocol = self._checked().with_panel(panel)
        if session not in store.sessions():
            return False
        started = store.beginning(session)
        if started is None:  # killed before anything was asked
            store.admin.remove([session])
            return False
        detail = started.detail if choice in (None, "auto") else choice
        sources, window = validation.load_sources(self.sources), min(started.windows.values(), default=None)
        protocol, dealt = deal_as_begun(protocol, sources, self._options, started, panel, task)
        documents = number_documents(dealt)
        protocol = protocol.with_detail(started.detail).with_documents(documents, window)
        inventory = inventory_size(documents, self._options.inventory_tokens)
        for difference, recorded, now in (
            ("another detail", started.detail, detail),
            ("another protocol", started.protocol, protocol.name),
            ("other settings", started.settings, protocol.model_dump(mode="json")),
            ("another seed", started.seed, self.seed),
            ("another task", store.text(started.task), task),
            ("other documents", started.sources, document_refs(documents)),
            ("another size of inventories", started.inventory_tokens, inventory),
            ("other limits", started.limits, self._limits),
            ("another quorum", started.quorum, self.quorum),
            ("another panel", _seats(started.agents), _seats(protocol.agents(panel))),
        ):
            if recorded != now:
                raise SettingsError(
                    f"session {session} is recorded with {difference}", do="Give this deliberation an id of its own."
                )
        return True

    def _setup(self, task: str, session: str | None) -> runner.Setup:
        """Return the configuration of a new session with all names resolved. Models are opened last."""
        panel = self._panel
        protocol = self._checked(task=task, session=session).with_panel(panel)
        options, config = self._with_endpoints(), own_config()
        deadline = request_deadline(options.deadline, options.thinking)
        default = {} if config.model is None else {"model": config.model}
        model = choose(os.environ, default).name if self.model is None else self.model
        own_models = with_own_models(protocol.agents(panel), model)
        given = validation.load_sources(self.sources)
        protocol, sources = deal_for(protocol, given, options, own_models, panel, task)
        agents = protocol.agents(panel)
        validation.check_seats(sources, agents)
        models = with_own_models(agents, model)
        detail = choose_detail(options.detail, agents, models)
        protocol = protocol.with_detail(detail)
        return runner.Setup(
            protocol=protocol,
            task=task,
            documents=number_documents(sources),
            seed=self.seed,
            limits=self._limits,
            quorum=self.quorum,
            warnings=(*seat_warnings(protocol, panel), *left_out_lines(sources)),
            encoder=runner.encoder_for(protocol, self.encoder, options),
            templates=protocol.load_templates(self.prompts, detail),
            detail=detail,
            options=options,
            seats=make_seats(agents, models, deadline, options.endpoints, options.connections),
        )

    def _checked(self, **arguments: object) -> Protocol:
        """Return the protocol. Raises `SettingsError` if an argument or a field is of a wrong type."""
        own = {name: getattr(self, name) for name in ("panel", "seed", "quorum", "prompts", "options")}
        return validation.check_arguments(self.protocol, self.encoder, {**arguments, **own})

    def _check_protocol(self, store: Store, session: str) -> None:
        """Raise `SettingsError` if a session has another protocol than this deliberation, or an invalid id."""
        validation.check_types({"id": session})
        check_name(session)
        if self.protocol is None or session not in store.sessions():
            return
        started, protocol = store.beginning(session), self._checked()
        if isinstance(started, SessionStarted) and started.protocol != protocol.name:
            raise SettingsError(
                f"session {session} is of the protocol {started.protocol}, not {protocol.name}",
                do="Use a Deliberation of that protocol, or one without a protocol.",
            )

    @property
    def _store(self) -> Store | None:
        return validation.check_store(self.store)

    @property
    def _options(self) -> Options:
        options = self.options or Options()
        return options if self.detail is None else copy_with(options, detail=self.detail)

    def _with_endpoints(self, *names: str) -> Options:
        """Return the options with all endpoints that may have a key: also those that this object, `names` or the own file names."""
        panel = self.panel.personas if isinstance(self.panel, Panel) else ()
        own = [persona.model for persona in panel if persona.model]
        named = self._options.endpoints.name([*model_names(self.model), *model_names(self.encoder), *own, *names])
        return copy_with(self._options, endpoints=named.over(own_config().endpoints))

    @property
    def _limits(self) -> Limits:
        return validation.to_limits(self.limits) or Limits()

    @property
    def _panel(self) -> Panel | None:
        if self.panel == AUTO_PANEL:
            raise SettingsError(
                "a panel is proposed only when a session is run",
                where="panel",
                do="Propose it first: deliberation.with_proposed(await deliberation.proposing().run(task)).",
            )
        return load_panel(self.panel) if isinstance(self.panel, str | Path) else self.panel


def deliberation_from(
    protocol: ReportingProtocol[R] | None, arguments: Mapping[str, Any], **others: Any
) -> Deliberation[R]:
    """Return a deliberation from the arguments of a function whose parameters are named like its fields: pass `locals()`.

    `others` are fields whose value is not the argument's.
    """
    names = {field.name for field in fields(Deliberation)} - {"protocol"}
    return Deliberation(protocol, **{**{name: arguments[name] for name in names & arguments.keys()}, **others})


def _seats(agents: Sequence[Agent]) -> list[tuple[str, str]]:
    """The seats without their models, which the resume compares."""
    return [(agent.id, agent.introduction()) for agent in in_dealing_order(agents)]


class Live(Generic[R]):
    """A running session: `async with consilience.live(…) as session`, then `events()` and `report()`.

    Leaving the block before the end stops the run. Recorded calls are kept, and `consilience.resume(session.id)` continues.
    `async for event in session` without the block yields the events of the whole run and raises the error that ended it; leaving
    the loop stops the run.
    """

    def __init__(self, id: str, begin: Callable[[Callable[[Event], None]], Coroutine[Any, Any, R]]) -> None:
        self.id = id
        self._begin = begin
        self._task: asyncio.Task[R] | None = None
        self._seen: list[Event] = []
        self._news: asyncio.Future[None] | None = None

    async def events(self) -> AsyncIterator[Event]:
        """Yield every event from the first on, as it is recorded, until the run ends. Any number of readers can call this.

        Includes `call_started`, which is not in the journal. An error that ends the run ends the events too; `report` raises it.
        """
        task = self._begun()
        at = 0
        while True:
            while at < len(self._seen):
                at += 1
                yield self._seen[at - 1]
            if task.done():
                return
            if self._news is None:
                self._news = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._news)

    async def report(self) -> R:
        """Return the report once the run has ended. Raises the error that ended it, `UserError` if it was stopped."""
        task = self._begun()
        await asyncio.wait((task,))
        if task.cancelled():
            raise UserError(
                f"session {self.id} was stopped before its end, so it has no report",
                do=f"Await it inside the block, or continue: consilience.resume({self.id!r}).",
            )
        return task.result()

    async def __aiter__(self) -> AsyncIterator[Event]:
        async with self:
            async for event in self.events():
                yield event
            await self.report()

    async def __aenter__(self) -> Live[R]:
        if self._task is not None:
            raise UserError(f"session {self.id} has begun already", do="Read `events()` inside the block.")
        self._task = asyncio.get_running_loop().create_task(self._begin(self._observe))
        self._task.add_done_callback(lambda task: self._wake())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = self._begun()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _begun(self) -> asyncio.Task[R]:
        if self._task is None:
            raise UserError(
                "the session has not begun", do="Enter it first: async with consilience.live(…) as session."
            )
        return self._task

    def _observe(self, event: Event) -> None:
        self._seen.append(event)
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)
