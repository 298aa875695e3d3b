"""Kept journals: shown and digested by every later version, replayed by their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from consilience.domain.agents import Agent
from consilience.domain.errors import VersionMismatch
from consilience.domain.events import SessionFinished, SessionStarted, canonical_digest
from consilience.engine.prompt import PROMPT_FORMAT
from consilience.engine.protocol import find_protocol, protocol_names
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from consilience.reporting.export import as_events, as_html, as_json, as_markdown, as_svg
from consilience.reporting.markdown import markdown
from consilience.reporting.partial_report import partial_markdown
from consilience.reporting.record import AnyReport, read_record
from consilience.reporting.views import views_of
from kit import runner
from kit.cases import CASES, Case
from kit.runs import Seat
from kit.throwaways import Outside
from kit.tools import tooled

FIXTURE_JOURNALS = sorted((Path(__file__).parent.parent / "fixtures" / "journals").glob("*.db"))
EXPECTED = {path.stem: json.loads(path.with_suffix(".json").read_text()) for path in FIXTURE_JOURNALS}
SESSIONS = [(path, session) for path in FIXTURE_JOURNALS for session in EXPECTED[path.stem]]

every_session = pytest.mark.parametrize(("kept", "session"), SESSIONS, ids=lambda value: getattr(value, "stem", value))


def test_fixture_journal_contains_every_kind_of_session() -> None:
    for path in FIXTURE_JOURNALS:
        states = {session.rpartition("-")[2] for session in EXPECTED[path.stem]}
        assert {"plain", "killed", "limited"} <= states
        if path.stem == "emergence":
            assert {"forked", "waiting", "cached", "embedded"} <= states


def test_every_shipped_protocol_has_a_kept_journal() -> None:
    shipped = [name for name in protocol_names() if find_protocol(name).__module__.startswith("consilience.")]
    assert [name for name in shipped if name not in EXPECTED] == []


@pytest.fixture
def store(kept: Path, tmp_path: Path) -> SqliteStore:
    shutil.copy(kept, tmp_path / "journal.db")
    return SqliteStore(tmp_path / "journal.db")


@every_session
def test_fixture_journal_is_read_digested_and_shown(kept: Path, session: str, store: SqliteStore) -> None:
    expected = EXPECTED[kept.stem][session]
    events = store.read(session)
    assert len(events) == expected["events"]
    assert canonical_digest(events) == expected["canonical"]
    assert [flight.key for flight in store.flights(session)] == expected["flights"]
    finished = next((e for e in events if isinstance(e, SessionFinished)), None)
    if finished is None:
        text = partial_markdown(read_record(store, session))
        assert f"consilience resume {session}" in text
    else:
        report = AnyReport.model_validate_json(store.text(finished.report))
        assert f"consilience show {session} --view" in markdown(report)
    store.close()


@pytest.mark.parametrize(
    ("kept", "session"),
    [(path, name) for path, name in SESSIONS if path.stem == "emergence" or name.endswith(("-plain", "-killed"))],
    ids=lambda value: getattr(value, "stem", value),
)
def test_fixture_journal_is_exported_in_every_format(kept: Path, session: str, store: SqliteStore) -> None:
    """Finished and unfinished ones of every protocol; those of one protocol in every state that a session may have."""
    record = read_record(store, session)
    assert json.loads(as_json(record))["session"] == session
    assert session in as_markdown(record)
    assert len(as_events(record).splitlines()) == EXPECTED[kept.stem][session]["events"]
    assert session in as_html(record)
    for view in views_of(record):
        assert as_svg(record, view).startswith("<svg")
    store.close()


@every_session
async def test_fixture_journal_replays_for_its_version(kept: Path, session: str, store: SqliteStore) -> None:
    started = store.beginning(session)
    assert isinstance(started, SessionStarted)
    same = (
        find_protocol(started.protocol).version == started.protocol_version and started.prompt_format == PROMPT_FORMAT
    )
    if not same:
        with pytest.raises(VersionMismatch, match=f"consilience fork {session}"):
            await runner.replay(session, store=store)
    elif EXPECTED[kept.stem][session]["report"] is not None:
        assert (await runner.replay(session, store=store)).digest() == EXPECTED[kept.stem][session]["report"]
    else:
        model = ScriptedModel(_case(started, kept).script, price=0.00001)
        before = {(e.key, e.attempt) for e in store.read(session) if e.type in ("call_completed", "reply_rejected")}
        report = await runner.resume(
            session, store=store, models=_seats(started, model, kept), options=Options(patience=0)
        )
        assert report.answer is not None
        assert not before & {(r.key, r.attempt) for r in model.requests}
    store.close()


def _case(started: SessionStarted, kept: Path) -> Case:
    return next(c for c in CASES if c.protocol.name == started.protocol and bool(c.tools) == (kept.stem == "tools"))


def _seats(started: SessionStarted, model: ScriptedModel, kept: Path) -> dict[str, Seat]:
    with_tools = _case(started, kept).tools

    def seat(agent: Agent) -> Seat:
        if agent.id == with_tools:
            return tooled(agent.id, model, None)
        return Outside() if agent.model == "outside" else model

    return {agent.id: seat(agent) for agent in started.agents}
