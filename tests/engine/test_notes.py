"""Events that a protocol defines: recorded, derived anew, found by removal, refused if they are not declared."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel

from consilience.domain.agents import Agent
from consilience.domain.errors import NewerSchema, ProtocolViolation, RequestMismatch
from consilience.domain.events import (
    SCHEMA_VERSION,
    AnyEvent,
    Noted,
    SessionFinished,
    SessionStarted,
    canonical_digest,
    text_id,
)
from consilience.domain.notes import MAX_NOTE_CHARS, LongText, load_note
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.panels import Panel
from consilience.domain.report import Report
from consilience.domain.sections import Paragraph, Presentation, Section
from consilience.domain.topology import Topology, independent
from consilience.engine.execution import Options
from consilience.engine.faults import Crash, Fault, crash
from consilience.engine.prompt import Prompt
from consilience.engine.protocol import Protocol, register
from consilience.engine.session import Session
from consilience.engine.work import Reply
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from consilience.reporting.export import event_rows
from consilience.reporting.record import read_record
from kit import runner

LONG = "The whole of a thread, as long as anybody wrote it. " * 40


class ThreadOpened(BaseModel):
    title: str
    body: LongText
    asides: list[LongText] = []


class NotingReport(Report):
    opened: int = 0

    def presentation(self) -> Presentation:
        return Presentation(
            sections=(
                Section(name="threads", part="differences", heading="Threads", blocks=(Paragraph(text="One thread."),)),
            )
        )


class Noting(Protocol):
    name: ClassVar[str] = "noting"
    summary: ClassVar[str] = "records what it does"
    report: ClassVar[type[Report]] = NotingReport
    notes: ClassVar[dict[str, type[BaseModel]]] = {"thread_opened": ThreadOpened}

    title: str = "first"
    undeclared: bool = False
    too_long: bool = False

    templates: ClassVar[Mapping[str, str]] = {"instructions": "Answer."}

    @property
    def max_quoted_replies(self) -> int:
        return 0

    def topology(self) -> Topology:
        return independent(("A1", "A2"))

    def agents(self, panel: Panel | None) -> tuple[Agent, ...]:
        return (Agent(id="A1", role="one"), Agent(id="A2", role="one"))

    def estimate(self) -> Estimate:
        return Estimate(min=2, max=2)

    async def run(self, session: Session) -> Report:
        async with session.phase("opening", 1):
            if self.undeclared:
                session.note("thread_closed", ThreadOpened(title="", body=""))
            title = "t" * (MAX_NOTE_CHARS + 1) if self.too_long else self.title
            session.note("thread_opened", ThreadOpened(title=title, body=LONG, asides=["by the way", "also"]))
        replies = await session.gather([self._side(session, id) for id in ("A1", "A2")])
        return await session.report(
            NotingReport, first=replies, stop_reason=StopReason.SETTLED, answer="done", opened=1
        )

    def _side(self, session: Session, agent: str):  # type: ignore[no-untyped-def]
        async def body() -> object:
            reply = await session.ask(agent, Prompt(f"Say it, {self.title}."), key=f"say/{agent}")
            text = reply.text if isinstance(reply, Reply) else "nothing"
            session.note("thread_opened", ThreadOpened(title=f"of {agent}", body=text))
            return reply

        return session.subtask(body(), calls=1)


register(Noting)


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "journal.db")


def notes(events: list[AnyEvent]) -> list[Noted]:
    return [event for event in events if isinstance(event, Noted)]


async def run(store: SqliteStore, protocol: Noting | None = None, **options: object) -> Report:
    model = ScriptedModel(lambda request: f"{request.agent} says so", price=0.0)
    return await runner.start("Is it so?", protocol or Noting(), models=model, store=store, session="s", **options)  # type: ignore[arg-type]


async def test_a_note_is_recorded_with_its_long_texts_by_id(store: SqliteStore) -> None:
    await run(store)
    first = next(note for note in notes(store.read("s")) if note.data["title"] == "first")
    assert first.phase == ("opening", 1)
    assert first.data["body"] == text_id(LONG)
    assert first.texts == (text_id(LONG), text_id("by the way"), text_id("also"))
    assert load_note(ThreadOpened, first, store.text) == ThreadOpened(
        title="first", body=LONG, asides=["by the way", "also"]
    )
    row = next(row for row in event_rows(read_record(store, "s")) if row["seq"] == first.seq)
    assert row["bodies"] == {text_id(LONG): LONG, text_id("by the way"): "by the way", text_id("also"): "also"}


class Measured(BaseModel):
    figure: float = 0.0
    words: str = ""
    body: LongText = ""


UNWRITABLE = {
    "nan": Measured(figure=float("nan")),
    "infinity": Measured(figure=float("inf")),
    "surrogate": Measured.model_construct(words="\ud800"),
    "surrogate in a long text": Measured.model_construct(body="\ud800"),
}


class Measuring(Noting):
    name: ClassVar[str] = "measuring"
    notes: ClassVar[dict[str, type[BaseModel]]] = {"measured": Measured}
    value: str = "nan"

    async def run(self, session: Session) -> Report:
        session.note("measured", UNWRITABLE[self.value])
        return await session.report(NotingReport, first=[], stop_reason=StopReason.SETTLED, answer="done", opened=1)


@pytest.mark.parametrize("value", UNWRITABLE)
async def test_note_with_a_value_invalid_in_json_is_a_violation(store: SqliteStore, value: str) -> None:
    with pytest.raises(ProtocolViolation, match="'measured' cannot be recorded"):
        await run(store, Measuring(value=value))


async def test_notes_are_in_the_canonical_digest_and_match_on_replay(store: SqliteStore) -> None:
    report = await run(store)
    before = canonical_digest(store.read("s"))
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    assert canonical_digest(store.read("s")) == before
    other = [
        e.model_copy(update={"data": {**e.data, "title": "?"}}) if isinstance(e, Noted) else e for e in store.read("s")
    ]
    assert canonical_digest(other) != before


async def test_replay_with_a_changed_note_is_refused(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await run(store)

    async def otherwise(self: Noting, session: Session) -> Report:
        async with session.phase("opening", 1):
            session.note("thread_opened", ThreadOpened(title="other", body=LONG))
        return await session.report(NotingReport, first=[], stop_reason=StopReason.SETTLED)

    monkeypatch.setattr(Noting, "run", otherwise)
    with pytest.raises(RequestMismatch, match=r"another Noted.*raise the `version`.*consilience fork .* --at"):
        await runner.replay("s", store=store)


@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_run_killed_after_a_note_resumes_to_the_same_journal(
    store: SqliteStore, nth: int, tmp_path: Path
) -> None:
    whole = SqliteStore(tmp_path / "other.db")
    await run(whole)
    fault = Fault("after_note", nth=nth, strike=crash)
    with pytest.raises(Crash):
        await run(store, options=Options(faults=fault.hit))
    again = SqliteStore(tmp_path / "journal.db")
    await runner.resume("s", store=again, models=ScriptedModel(lambda request: f"{request.agent} says so", price=0.0))
    assert canonical_digest(again.read("s")) == canonical_digest(whole.read("s"))


async def test_fork_records_its_own_notes(store: SqliteStore) -> None:
    await run(store)
    model = ScriptedModel(lambda request: f"{request.agent} says otherwise", price=0.0)
    await runner.fork("s", store=store, at=0, settings={"title": "second"}, models=model, session="f")
    forked = notes(store.read("f"))
    assert [note.data["title"] for note in sorted(forked, key=lambda note: note.place)] == ["second", "of A1", "of A2"]
    assert load_note(ThreadOpened, forked[-1], store.text).body.endswith("says otherwise")


async def test_removal_deletes_the_texts_of_notes_and_presentation(store: SqliteStore, tmp_path: Path) -> None:
    await run(store)
    (finished,) = [event for event in store.read("s") if isinstance(event, SessionFinished)]
    assert "One thread." in store.text(finished.presentation)
    store.admin.remove(["s"])
    store.close()
    with sqlite3.connect(tmp_path / "journal.db") as db:
        assert db.execute("SELECT count(*) FROM texts").fetchone() == (0,)
    db.close()


async def test_undeclared_note_is_a_violation(store: SqliteStore) -> None:
    with pytest.raises(ProtocolViolation, match=r"'thread_closed'.*declared: thread_opened \(ThreadOpened\)"):
        await run(store, Noting(undeclared=True))


async def test_note_of_any_length_is_recorded_as_a_text_and_read_back(store: SqliteStore) -> None:
    report = await run(store, Noting(too_long=True))
    first = notes(store.read("s"))[0]
    assert not first.data
    assert first.body in first.texts
    title = "t" * (MAX_NOTE_CHARS + 1)
    assert load_note(ThreadOpened, first, store.text) == ThreadOpened(
        title=title, body=LONG, asides=["by the way", "also"]
    )
    assert (await runner.replay("s", store=store)).digest() == report.digest()


async def test_new_sessions_and_forks_record_the_schema_version(store: SqliteStore) -> None:
    await run(store)
    await runner.fork("s", store=store, models=ScriptedModel(lambda request: "x", price=0.0), session="f")
    for session in ("s", "f"):
        started = store.beginning(session)
        assert isinstance(started, SessionStarted)
        assert started.schema_version == SCHEMA_VERSION == 7


async def test_session_of_a_newer_schema_is_refused_with_its_version(store: SqliteStore, tmp_path: Path) -> None:
    await run(store)
    store.close()
    with sqlite3.connect(tmp_path / "journal.db") as db:
        db.execute("UPDATE events SET body=json_set(body, '$.schema_version', 8) WHERE seq=1")
    db.close()
    again = SqliteStore(tmp_path / "journal.db")
    for read in (again.read, again.beginning):
        with pytest.raises(NewerSchema, match="schema 8"):
            read("s")
    again.close()
