"""`POST /api/debate-multi`: the interface of seed 002, its body and its stream of fifteen events, over a session of `debate`.

Every event follows from committed rows. Its id is the number of a row: a client that lost its connection posts the same body again,
with `Last-Event-ID`, and goes on where it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header
from pydantic import BaseModel, ConfigDict, Field
from sse_starlette import EventSourceResponse, ServerSentEvent

from consilience.domain.agents import voices
from consilience.domain.errors import ConsilienceError, SettingsError
from consilience.domain.events import AnyEvent, MessagePublished, Noted, SessionFinished, SessionStarted
from consilience.domain.notes import load_note
from consilience.domain.panels import Panel, Persona, load_panel, shipped_panels
from consilience.journal.store import Records
from consilience.protocols.debate.fold import DebateFold
from consilience.protocols.debate.notes import NOTES, Said
from consilience.protocols.debate.report import DebateReport, camel_case, crux_json
from consilience.server.bodies import NewSession
from consilience.server.dependencies import ERRORS, Service, Who
from consilience.server.errors import error_json
from consilience.server.feeds import HEARTBEAT_SECONDS
from consilience.server.joins import digest_of
from consilience.server.openai_errors import as_data
from consilience.server.stories import SESSION_HEADER
from consilience.server.uploads import BodyRoute

SEED_PERSONAS: Mapping[str, str] = {
    "michael-saylor": "bitcoin-treasurer",
    "arthur-hayes": "liquidity-trader",
    "nassim-taleb": "tail-risk-thinker",
    "jack-mallers": "payments-builder",
    "peter-schiff": "gold-investor",
}
"""The seed's ids of personas, and the roles of the panel `bitcoin` that answer to them. No agent speaks as a real person."""
EVENTS = (
    "message_published",
    "thread_created",
    "thread_converged",
    "crux_extracted",
    "coalition_detected",
    "global_convergence",
    "debate_complete",
    "stage_transition",
    "steelman_attempt",
    "steelman_graded",
    "crux_lock_failed",
    "crux_locked",
    "dcg_calculated",
    "crux_promoted",
    "moderator_intervention",
)
_RENAMED = {"agent": "agent_id", "thread": "thread_id", "at": "timestamp", "text": "content"}
"""Fields of records that the seed calls otherwise."""

routes = APIRouter(prefix="/api", route_class=BodyRoute, responses=ERRORS)

Cursor = tuple[int, int]
"""Number of a row, and of an event that follows from it."""


class DebateConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    maxDuration: int = Field(default=300_000, ge=10_000, le=7_200_000)
    """Max milliseconds of the debate on its own, virtual clock, which counts what its agents think and say, and not how long
    models take to answer."""
    maxMessages: int = Field(default=200, ge=2, le=2_000)
    """Max messages of all debaters together."""
    attentionThreshold: float = Field(default=0.6, ge=0, le=1)
    convergenceThreshold: float = Field(default=0.75, ge=0, le=1)


class DebateRequest(BaseModel):
    """A debate that is asked for, in the seed's form."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topic: str = Field(min_length=1)
    personaIds: tuple[str, ...] = Field(min_length=2)
    """Personas of shipped panels, by their names in lower case with hyphens, or the seed's five."""
    config: DebateConfig = DebateConfig()

    def new_session(self) -> NewSession:
        """Return the session. Raises `SettingsError` for a persona that is not there."""
        return NewSession(
            task=self.topic,
            protocol="debate",
            panel=Panel(name="debate-multi", description="Named by the request.", personas=self._personas()),
            settings={
                "max_duration": round(self.config.maxDuration / 1000),
                "max_messages": self.config.maxMessages,
                "attention_threshold": self.config.attentionThreshold,
                "convergence_threshold": self.config.convergenceThreshold,
            },
        )

    def _personas(self) -> tuple[Persona, ...]:
        known = {persona.slug: persona for name in shipped_panels() for persona in load_panel(name).personas}
        if len({SEED_PERSONAS.get(id, id) for id in self.personaIds}) < len(self.personaIds):
            raise SettingsError("a persona is named twice", where="personaIds", do="Name each once.")
        for id in self.personaIds:
            if SEED_PERSONAS.get(id, id) not in known:
                names = ", ".join((*SEED_PERSONAS, *sorted(known)))
                raise SettingsError(f"there is no persona {id!r}", where="personaIds", do=f"Known: {names}.")
        return tuple(known[SEED_PERSONAS.get(id, id)] for id in self.personaIds)

    def digest(self, owner: str) -> str:
        """Return the SHA-256 (hex) of all on which the session depends."""
        return digest_of({"owner": owner, "debate-multi": self.model_dump(mode="json")})


@routes.post("/debate-multi")
async def debate_multi(
    body: DebateRequest,
    sessions: Service,
    caller: Who,
    last_event_id: Annotated[str | None, Header()] = None,
) -> EventSourceResponse:
    """Debate, and stream the seed's fifteen events. The same body joins the debate while it runs and for 15 minutes after."""
    asked = body.new_session()

    async def begin(session: str, noted: object) -> None:
        await sessions.begin(caller, asked, session=session)

    joined = await sessions.joins.joined(caller, body.digest(caller.owner), begin)
    await joined.beginning
    after = _cursor(last_event_id)

    async def stream() -> AsyncIterator[ServerSentEvent]:
        view = SeedEvents(body.personaIds)
        try:
            async with aclosing(sessions.events(caller, joined.session)) as events:
                async for event in events:
                    found = await sessions.read(caller, partial(view.taken, event), told=[event])
                    for number, (name, data) in enumerate(found):
                        if (event.seq, number) > after:
                            id = f"{event.seq}-{number}" if number else str(event.seq)
                            yield ServerSentEvent(as_data(data), event=name, id=id)
        except ConsilienceError as error:
            yield ServerSentEvent(as_data({"error": error_json(error)}), event="error")

    headers = {SESSION_HEADER: joined.session}
    return EventSourceResponse(stream(), ping=int(HEARTBEAT_SECONDS), headers=headers)


def _cursor(last_event_id: str | None) -> Cursor:
    row, _, number = (last_event_id or "").partition("-")
    return (int(row), int(number) if number.isdecimal() else 0) if row.isdecimal() else (0, 0)


class SeedEvents:
    """The rows of a debate as the seed's events."""

    def __init__(self, persona_ids: tuple[str, ...]) -> None:
        self._persona_ids = persona_ids
        self._ids: dict[str, str] = {}
        """The caller's ids of personas, by id of the agent."""
        self._fold = DebateFold([], ())

    def taken(self, event: AnyEvent, records: Records) -> list[tuple[str, dict[str, Any]]]:
        """Return names and data of the events that a row adds."""
        return list(self._take(event, records))

    def _take(self, event: AnyEvent, records: Records) -> Iterator[tuple[str, dict[str, Any]]]:
        match event:
            case SessionStarted():
                debaters = [agent.id for agent in voices(event.agents)]
                self._ids = dict(zip(debaters, self._persona_ids, strict=True))
                texts = (records.text(source.text) for source in event.sources)
                self._fold = DebateFold(debaters, (records.text(event.task), *texts))
            case MessagePublished():
                words = records.text(event.text)
                self._fold.publish(event.id, event.sender, event.kind, words, event.reply_to)
            case Noted() if event.name in NOTES:
                yield from self._noted(event, records)
            case SessionFinished():
                yield "debate_complete", self._complete(records, event)

    def _noted(self, event: Noted, records: Records) -> Iterator[tuple[str, dict[str, Any]]]:
        note = load_note(NOTES[event.name], event, records.text)
        self._fold.apply(note)
        data = note.model_dump(mode="json")
        if isinstance(note, Said):
            message = self._fold.by_id[note.message]
            yield "message_published", self._seed_form(message.model_dump(mode="json"))
            if note.intervention is not None:
                about = {"thread": note.thread, "at": note.at, "intervention": note.intervention}
                yield "moderator_intervention", self._seed_form({**about, "message": message.id, "text": message.text})
        elif event.name == "crux_extracted":
            thread = self._fold.threads[data["thread"]].record()
            crux = crux_json(thread.crux, thread) if thread.crux else None
            yield event.name, self._seed_form({**data, "crux": crux})
        elif event.name in EVENTS:
            yield event.name, self._seed_form(data)

    def _complete(self, records: Records, event: SessionFinished) -> dict[str, Any]:
        report = DebateReport.model_validate_json(records.text(event.report))
        data = self._renamed(report.debate_json())
        assert isinstance(data, dict)
        return {**data, "sessionId": report.session, "wallClockMs": round(report.ledger.actual.seconds * 1000)}

    def _seed_form(self, data: Mapping[str, Any]) -> dict[str, Any]:
        renamed = self._renamed(
            camel_case({_RENAMED.get(name, name): value for name, value in data.items() if value is not None})
        )
        assert isinstance(renamed, dict)
        return renamed

    def _renamed(self, value: object) -> object:
        """Return data with the caller's ids of personas in place of ids of agents, as keys and as values."""
        match value:
            case dict():
                return {self._ids.get(key, key): self._renamed(inner) for key, inner in value.items()}
            case list() | tuple():
                return [self._renamed(inner) for inner in value]
            case str():
                return self._ids.get(value, value)
        return value
