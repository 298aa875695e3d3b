"""A hostile holder of a seat, on every protocol: no face shows them more than their own calls were shown, before the end."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pytest
from mcp import Client
from pydantic import BaseModel

from consilience import Deliberation, Options
from consilience.domain.events import AnyEvent, CallCompleted, MessagePublished
from consilience.domain.messages import Message, Source
from consilience.domain.outcome import Estimate
from consilience.domain.report import Report
from consilience.engine.ports import Person
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.protocol import Protocol, register
from consilience.engine.session import Session
from consilience.engine.sources import number_documents
from consilience.engine.work import Reply
from consilience.journal.store import Records
from consilience.models.port import ModelRequest
from consilience.protocols.baselines import Vote
from consilience.protocols.broadcast import Broadcast
from consilience.protocols.debate import Debate
from consilience.protocols.decompose import Decompose
from consilience.protocols.emergence import Emergence
from consilience.protocols.refinement import Refinement
from consilience.protocols.review import Review
from consilience.reporting.export import FORMATS
from consilience.reporting.record import read_record
from consilience.reporting.views import views_of
from consilience.server import feeds
from consilience.server.callers import LOCAL
from consilience.server.debate_multi import SeedEvents
from consilience.server.mcp_face import ToolFace
from consilience.server.mcp_tools import build_mcp
from consilience.server.narration import Narrator
from consilience.testing import AnyModel, ScriptedModel
from kit.cases import HOUSE
from kit.council import Council
from kit.reviewing import SOURCES, finding
from kit.throwaways import Throwaway, close
from server.inprocess import Served, served

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TASK = "Is it so, yes or no?"
SENTENCE = re.compile(r"[a-z_0-9]+ [0-9a-f]{6}(?=\.)")
"""What an agent writes into a field: its name, and a number that no other text has."""
ANSWERS = 3
"""Questions that the holder answers at most; what they must not see is there before."""


class SealedEstimate(BaseModel):
    """A figure that nobody is shown before the end, and a reason that the others read."""

    figure: int
    confidential: str
    reason: str


@register
class Delphi(Throwaway):
    """Sealed estimates in two rounds. Between them each reads the reasons of the others, without figures and names.

    The minutes of each round, which nobody reads, are published in the name of A2.
    """

    name: ClassVar[str] = "delphi"

    def estimate(self) -> Estimate:
        return Estimate(min=2 * self.size + 1, max=2 * self.size + 1)

    async def run(self, session: Session) -> Report:
        ids = tuple(agent.id for agent in session.agents)
        shown: tuple[Quote, ...] = ()
        results: list[Any] = []
        for n in (1, 2):
            async with session.phase("estimate", n):
                asks = [
                    session.ask(
                        id,
                        Prompt("estimate", shown),
                        key=f"estimate-{n}/{id}",
                        returns=SealedEstimate,
                        audience=ids,
                        quoted=lambda reply: reply.reason,
                    )
                    for id in ids
                ]
                results = list(await session.gather(asks))
            replies = [reply for reply in results if isinstance(reply, Reply)]
            summary = Message(f"summary-{n}", "A1", "summary", f"Figures: {len(replies)}.", ids)
            session.publish(summary)
            sealed = " ".join(reply.value.confidential for reply in replies)
            session.publish(Message(f"minutes-{n}", "A2", "minutes", sealed, ids))
            reasons = [Quote(reply.key, f"reason {n}") for n, reply in enumerate(replies, 1)]
            shown = (*reasons, Quote(summary.id, "summary"))
        answer = await session.ask("A1", Prompt("close", shown), key="close", closing=True)
        return await close(session, results, (), answer)


def reply(request: ModelRequest) -> str:
    """A reply of the form that is asked for. Its texts name no agent and no call."""
    text = re.sub(r"[\w-]+ on [^\s\"]+: (\w+) ([0-9a-f]{6})\.", r"\1 \2.", AnyModel().reply(request))
    value = json.loads(text) if request.schema is not None else None
    if not isinstance(value, dict):
        return text
    if "propositions" in value:  # of the framing of a debate
        value |= {"form": "yes/no", "propositions": ["Should it be so?"]}
    if "question" in value:
        value |= {"question": "Would it pay within a year?"}
    if "findings" in value:  # all find one defect
        claim = f"claim {AnyModel().reply(replace(request, schema=None))[-7:]}"
        value |= {"vote": "changes", "findings": [finding(claim=claim, title=claim.replace("claim", "title"))]}
    return json.dumps(value)


@dataclass(frozen=True)
class HeldSeat:
    protocol: Protocol
    seat: str
    sources: tuple[Source, ...] = ()


CASES = {
    "vote": HeldSeat(Vote(votes=3, answer_pattern="yes|no"), "V1"),
    "delphi": HeldSeat(Delphi(), "A2"),
    "emergence": HeldSeat(Emergence(children=2, max_rounds=2, strange_loops=1, answer_pattern="yes|no"), "L2N1"),
    "broadcast": HeldSeat(Broadcast(children=2, strange_loops=1, answer_pattern="yes|no"), "L2N1"),
    "broadcast, root": HeldSeat(Broadcast(children=2, max_iterations=2), "L1N1"),
    "decompose": HeldSeat(Decompose(children=2, depth=3, strange_loops=1), "L3N2"),
    "debate": HeldSeat(Debate(debaters=3, max_messages=30, discovery_messages=6, evidence_messages=6), "D1"),
    "debate, crystallizer": HeldSeat(Debate(debaters=3, max_messages=12, discovery_messages=6), "crystallizer"),
    "refinement": HeldSeat(Refinement(hierarchy=HOUSE, max_passes=2, draft="It was so."), "one"),
    "refinement, critic": HeldSeat(Refinement(hierarchy=HOUSE, max_passes=2), "critic"),
    "review": HeldSeat(Review(max_iterations=2).with_documents(number_documents(SOURCES), None), "red", SOURCES),
    "review, lead": HeldSeat(Review(max_iterations=2).with_documents(number_documents(SOURCES), None), "lead", SOURCES),
    "council": HeldSeat(Council(size=2), "A1"),
}
"""The shipped protocols in which seats read one another, and two of tests. `solo`, `propose` and `choose` have one seat."""


@dataclass
class HostileHolder:
    """The owner of a session, who holds a seat in it and looks everywhere."""

    server: Served
    session: str
    seat: str
    asked: list[ModelRequest]
    """What the engine has put before the seat: the truth about what it was shown."""
    given: list[str] = field(default_factory=list)
    """Their own answers."""

    def allowed(self) -> set[str]:
        own = [text for request in self.asked for text in (request.text, request.for_person)]
        return {sentence for text in (*own, *self.given) for sentence in SENTENCE.findall(text)}

    def answer(self) -> bool:
        """Answer a question, if there is one, until it is taken."""
        questions = asyncio.run(self.server.sessions.questions(LOCAL, self.session))
        if not questions:
            return False
        question = questions[0]
        schema: Any = question.form.schema if question.form else None
        text = reply(ModelRequest(agent=self.seat, key=question.key, system="", user=question.text, schema=schema))
        self.given.append(text)
        sent = self.server.client().post(
            f"/api/sessions/{self.session}/answer", json={"key": question.key, "text": text}
        )
        assert sent.status_code == 200, sent.text
        self.server.settle()
        return True

    def look(self) -> dict[str, str]:
        """Everything that each face shows."""
        shown = {**self.over_http(), **asyncio.run(self.by_reading()), **asyncio.run(self.as_an_agent())}
        return {face: text.replace("\\n", "\n") for face, text in shown.items()}

    def over_http(self) -> dict[str, str]:
        client, path = self.server.client(), f"/api/sessions/{self.session}"
        views = asyncio.run(self.server.sessions.read(LOCAL, lambda r: list(views_of(read_record(r, self.session)))))
        paths = [
            path,
            f"{path}/questions",
            f"{path}/links",
            "/api/sessions?q=so",
            "/api/due",
            "/api/scores",
            "/metrics",
        ]
        paths += [f"{path}/export?format={format}" for format in (*FORMATS, "sarif")]
        paths += [f"{path}/views/{name}" for name in views]
        page = f"/sessions/{self.session}"
        paths += ["/", "/sessions", page, f"{page}/calls", f"{page}/fragments", f"{page}/compare", f"{page}/links"]
        paths += [f"{page}/fork", f"{page}/tell", f"{page}/delete", f"{page}?before=1000000"]
        events = self.server.store.read(self.session)
        paths += [f"{page}/at/{n}" for n in (1, len(events) // 2, len(events))]
        paths += [f"{page}/fragments?at={len(events)}", *(f"{page}/views/{name}" for name in views)]
        paths += [f"{page}/calls/{quote(key)}" for key in {getattr(event, "key", "") for event in events} if key]
        shown = {path: client.get(path).text for path in paths}
        attempts: list[tuple[str, Any, int]] = [
            (f"{path}/fork", {"dry_run": True}, 403),
            (f"{path}/fork", {}, 403),
            (f"{path}/tell", {"fact": "It rains.", "dry_run": True}, 403),
            (f"{path}/share", {}, 422),
            (f"{path}/resolve", {"question": "p1", "outcome": True}, 404),
            (f"{path}/answer", {"key": "nothing", "text": "x"}, 404),
            ("/api/choices", {"task": TASK, "reading": self.session}, 422),
        ]
        for place, body, status in attempts:
            refused = client.post(place, json=body)
            assert refused.status_code == status, (place, refused.text)
            shown[f"POST {place}"] = refused.text
        return shown

    async def by_reading(self) -> dict[str, str]:
        """Streams up to now: the events, the transcript of a chat, the events of the seed."""
        sessions = self.server.sessions
        seen: list[AnyEvent] = await sessions.read(LOCAL, lambda records: records.read(self.session))
        rows = await sessions.follow(LOCAL, self.session)
        assert rows is not None
        streamed = b""
        async for chunk in rows:
            streamed += chunk
            if chunk == b":\n\n" and b"id: %d\n" % seen[-1].seq in streamed:
                break
        await rows.aclose()
        narrator, seed, told = Narrator(answer_follows=False), SeedEvents(("a", "b", "c")), []
        async for event in sessions.tail(LOCAL, self.session):

            def tell(records: Records, event: AnyEvent = event) -> str:
                words = narrator.tell(event, records.text)
                return words + str(seed.taken(event, records) if find_name(seen) == "debate" else "")

            told.append(await sessions.read(LOCAL, tell, told=[event]))
            if len(told) == len(seen):
                break

        def raw(records: Records) -> str:
            parts = [records.flights, records.mail, records.arrivals, records.beginning, records.ending]
            texts = [text for event in records.read(self.session) for text in texts_of(event, records)]
            return "\n".join((*(str(part(self.session)) for part in parts), *texts))

        return {
            "events": streamed.decode(),
            "transcript": "\n".join(told),
            "records": await sessions.read(LOCAL, raw),
        }

    async def as_an_agent(self) -> dict[str, str]:
        """What the tools and resources of MCP return."""

        async def opened() -> Any:
            return self.server.sessions

        shown = {}
        async with Client(build_mcp(ToolFace(opened, lambda request: LOCAL))) as client:
            for name, more in (("status", {"session": self.session, "wait_s": 0}), ("due", {})):
                shown[f"tool {name}"] = str(await client.call_tool(name, more))
            for name in ("report", "transcript"):
                uri = f"consilience://sessions/{self.session}/{name}"
                shown[f"resource {name}"] = str(await client.read_resource(uri))
        return shown


def find_name(events: list[AnyEvent]) -> str:
    return str(getattr(events[0], "protocol", ""))


def texts_of(event: AnyEvent, records: Records) -> Iterator[str]:
    """All texts that can be read of an event that is seen, those of its prompt too."""
    ids = [getattr(event, name, "") for name in ("text", "form", "report", "presentation")]
    yield from (records.text(id) for id in (*filter(None, ids), *getattr(event, "quoted", ())))
    if prompt := getattr(event, "prompt", ""):
        yield str(records.prompt(prompt))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ModelRequest]:
    requests: list[ModelRequest] = []
    send = Person.send

    async def noted(self: Person, request: ModelRequest) -> Any:
        requests.append(request)
        return await send(self, request)

    monkeypatch.setattr(Person, "send", noted)
    monkeypatch.setattr(feeds, "HEARTBEAT_SECONDS", 0.01)
    return requests


@pytest.fixture(params=CASES)
def holder(request: pytest.FixtureRequest, tmp_path: Path, asked: list[ModelRequest]) -> Iterator[HostileHolder]:
    case = CASES[request.param]
    protocol = case.protocol
    agents = [agent.id for agent in protocol.agents(None)]
    seat = case.seat or protocol.first_speakers[0]
    assert seat in agents
    models: Any = {id: "human" if id == seat else ScriptedModel(reply, name="scripted") for id in agents}
    with served(tmp_path, models=models) as server:
        deliberation: Any = Deliberation(
            protocol,
            model=models,
            sources=case.sources,
            store=server.store.of(""),
            options=Options(human_deadline=86_400),
        )
        session = asyncio.run(deliberation.prepare(TASK, session="s1"))
        server.executor.submit(session)
        server.settle()
        yield HostileHolder(server, session, seat, asked)


def test_no_face_shows_the_holder_of_a_seat_more_than_it_was_shown(holder: HostileHolder) -> None:
    server, session = holder.server, holder.session
    withheld = 0
    for _ in range(ANSWERS):
        if server.client().get(f"/api/sessions/{session}").json()["state"] != "waiting":
            break
        shown, allowed = holder.look(), holder.allowed()
        for face, text in shown.items():
            assert set(SENTENCE.findall(text)) <= allowed, face
        events = server.store.read(session)
        own = {getattr(e, "prompt", "") for e in events if getattr(e, "agent", "") == holder.seat}
        others = [e for e in events if isinstance(e, CallCompleted) and e.agent != holder.seat]
        for event in others:  # neither what they said nor that this was said by them
            said = set(SENTENCE.findall(server.store.text(event.text)))
            withheld += bool(said - allowed)
            for face, text in shown.items():
                assert event.prompt in own or event.prompt not in text, face
                assert said <= allowed or event.text not in text, face
                assert f":{event.key}" not in text, face
                assert f'"{event.key}' not in text or "/" not in event.key, face
        if not holder.answer():
            break
    assert withheld  # there was something to see
    seen = asyncio.run(server.sessions.read(LOCAL, lambda records: records.read(session)))
    finished = server.client().get(f"/api/sessions/{session}").json()["state"] == "finished"
    assert finished or all(
        e.sender == holder.seat or e.kind == "quoted" for e in seen if isinstance(e, MessagePublished)
    )


def test_what_is_quoted_to_a_person_is_what_is_quoted_to_a_model(tmp_path: Path, asked: list[ModelRequest]) -> None:
    models: Any = {"A1": ScriptedModel(reply), "A2": "human", "A3": ScriptedModel(reply)}
    with served(tmp_path, models=models) as server:
        deliberation: Any = Deliberation(Delphi(), model=models, store=server.store.of(""))
        session = asyncio.run(deliberation.prepare(TASK, session="s1"))
        server.executor.submit(session)
        server.settle()
        holder = HostileHolder(server, session, "A2", asked)
        assert holder.answer()
        (question,) = asyncio.run(server.sessions.questions(LOCAL, session))
    assert len(re.findall(r"reason [0-9a-f]{6}", question.text)) == 3  # of all, theirs too
    assert "confidential" not in question.text
    assert "figure" not in question.text
    assert set(SENTENCE.findall(question.text)) == set(SENTENCE.findall(asked[-1].text))
