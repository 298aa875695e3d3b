"""Progress of a running debate: lines, columns of threads, and the views of an unfinished session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from rich.console import Console

import consilience
from consilience import Source
from consilience.cli.display import RunProgress
from consilience.domain.events import AnyEvent, CallCompleted, Noted, SessionStarted
from consilience.domain.report import UnfinishedSession
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols.debate import Debate, DebateReport
from consilience.protocols.debate.progress import state_so_far
from consilience.protocols.debate.state import DebateState
from consilience.reporting.event_lines import event_line
from consilience.reporting.partial_report import partial_markdown
from consilience.reporting.record import SessionRecord
from consilience.reporting.session_state import fold_events
from consilience.reporting.terminal import view_text
from consilience.testing import AnyModel, ScriptedModel
from kit.debating import Debaters, moves_of
from kit.golden import Golden, lines_with


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore(":memory:")
    yield store
    store.close()


async def recorded(
    store: SqliteStore, task: str = "Should we move the orders to queues?", source: str = "Orders come in at noon."
) -> Sequence[AnyEvent]:
    report = await consilience.deliberate(
        task,
        Debate(debaters=3, as_is=True),
        model=ScriptedModel(Debaters()),
        store=store,
        sources=[Source(source, "memo")],
    )
    return store.read(report.session)


def until(events: Sequence[AnyEvent], note: str) -> Sequence[AnyEvent]:
    at = next(n for n, event in enumerate(events) if isinstance(event, Noted) and event.name == note)
    return events[: at + 1]


def unfinished(events: Sequence[AnyEvent], store: SqliteStore) -> UnfinishedSession:
    started = next(event for event in events if isinstance(event, SessionStarted))
    return UnfinishedSession(started, events, store.text)


async def test_progress_of_an_unfinished_debate_has_threads_with_stages_and_messages(
    store: SqliteStore, golden: Golden
) -> None:
    events = until(await recorded(store), "crux_locked")
    shown = DebateReport.progress(unfinished(events, store))
    for view in shown.views:
        golden(view_text(view, 100), view.name)
    (column,) = shown.columns
    assert column.badge == "crux lock"
    assert column.has("commit/D1/3/thread-1")
    assert not column.has("commit/D1/3/thread-11")
    assert column.bar is not None
    assert column.bar.name == "convergence"
    golden("\n".join(column.lines), "column of the live screen")


async def test_unfinished_debate_has_the_messages_of_its_report_with_what_they_declare(store: SqliteStore) -> None:
    def turn(request: ModelRequest) -> dict[str, object]:
        shift = {"new_side": "NO", "confidence": "unsure", "top_claim": "NO", "claim": "not yet", "metric": "losses"}
        move = {"D3": "CONCEDE", "D2": "UPDATE_POSITION"}.get(request.agent, "")
        return {"move": move, "conceded": "the peak is long", **shift} if move in moves_of(request) else {}

    model = ScriptedModel(Debaters({"turn": turn}))
    report = await consilience.deliberate("Move?", Debate(debaters=3, as_is=True), model=model, store=store)
    assert isinstance(report, DebateReport)
    assert {"CONCEDE", "UPDATE_POSITION"} <= {message.move for message in report.messages}
    shown = state_so_far(unfinished(store.read(report.session), store)).messages
    assert [(m.id, m.text, m.parts) for m in shown] == [(m.id, m.text, m.parts) for m in report.messages]


def shifting(request: ModelRequest) -> dict[str, object]:
    """Every move in turn, with all that it may declare."""
    moves = moves_of(request)
    number = int(request.key.split("/")[2])
    body: dict[str, object] = {"move": moves[number % len(moves)], "question": f"Would it hold in case {number % 3}?"}
    shift = {"new_side": "NO", "confidence": "unsure", "top_claim": "NO", "claim": "not yet", "metric": "losses"}
    return {**body, "conceded": "the peak is long", "strongest_reason": "it is slow", **shift}


def graded(request: ModelRequest) -> dict[str, object]:
    fails = int(request.key.split("/")[2]) % 2
    return {"grade": "PARTIAL", "corrections": "the peak is missing"} if fails else {}


def objecting(request: ModelRequest) -> dict[str, object]:
    return {"objects": True, "objection": "it is about the peak"} if request.agent == "D2" else {}


FOLDED = [
    *(ScriptedModel(Debaters(changes)) for changes in ({}, {"turn": shifting}, {"grade": graded}, {"flip": objecting})),
    ScriptedModel(Debaters({"commit": lambda request: {"side": "YES"}})),
    ScriptedModel(Debaters({"commit": lambda request: {"metric": "", "threshold": ""}, "turn": shifting})),
    *(AnyModel(malformed=0.1) for _ in range(4)),
]


@pytest.mark.parametrize("case", range(len(FOLDED)))
async def test_fold_of_a_journal_equals_the_debate_of_its_report(case: int, store: SqliteStore) -> None:
    protocol = Debate(debaters=2 + case % 4, spawning="moderator" if case % 3 == 2 else "agents")
    report = await consilience.deliberate(
        "Should we move the orders to queues?", protocol, model=FOLDED[case], store=store, seed=case
    )
    assert isinstance(report, DebateReport)
    folded = state_so_far(unfinished(store.read(report.session), store))
    told = {"ballots", "duration"} | (set() if report.messages else {"letters"})  # sealed ballots are shown at the end
    assert isinstance(report, DebateState)
    for name in DebateState.model_fields.keys() - told:
        assert getattr(folded, name) == getattr(report, name), name


async def test_unfinished_debate_shows_positions_and_what_would_change_a_mind(store: SqliteStore) -> None:
    """Commitments and lock criteria are those of the running debate, before there is a report."""
    events = until(await recorded(store), "crux_locked")
    (thread,) = state_so_far(unfinished(events, store)).threads
    assert {c.agent: c.side for c in thread.commitments} == {"D1": "YES", "D2": "NO", "D3": "YES"}
    assert all(
        c.statement and c.falsifier and c.falsifier.metric == "orders lost in a year" for c in thread.commitments
    )
    assert {steelman.reason for steelman in thread.steelmen} == {"their reason"}


async def test_unfinished_debate_names_agents_as_its_report_does(store: SqliteStore) -> None:
    events = await recorded(store, "Should we move the orders to site A?", "The other one is site C, says the memo.")
    shown = DebateReport.progress(unfinished(until(events, "crux_locked"), store))
    recorded_report = SessionRecord("r1", events, store.text, store.prompt).report
    assert recorded_report is not None
    finished = DebateReport.model_validate(recorded_report.model_dump())
    assert sorted(finished.letters.values()) == ["B", "D", "E"]
    for view in (shown, finished.presentation()):
        threads = next(view_text(view, 200) for view in view.views if view.name == "threads")
        assert all(f"({letter})" in threads for letter in finished.letters.values())


async def test_partial_report_of_an_unfinished_debate_lists_its_threads(store: SqliteStore, golden: Golden) -> None:
    events = until(await recorded(store), "stage_transition")
    golden(partial_markdown(SessionRecord("r1", events, store.text, store.prompt)))


async def test_progress_of_a_finished_debate_agrees_with_its_report(store: SqliteStore) -> None:
    events = await recorded(store)
    shown = DebateReport.progress(unfinished(events, store))
    assert shown.columns == ()
    threads = next(view_text(view, 100) for view in shown.views if view.name == "threads")
    report = await consilience.replay(
        events[0].session if hasattr(events[0], "session") else store.sessions()[0], store=store
    )
    assert threads == next(view_text(v, 100) for v in report.presentation().views if v.name == "threads")


async def test_progress_lines_name_threads_stages_locks_and_cruxes(store: SqliteStore, golden: Golden) -> None:
    events = await recorded(store)
    state = fold_events(events)
    golden("\n".join(line for event in events if isinstance(event, Noted) and (line := event_line(event, state))))


async def test_progress_lines_of_a_thread_without_a_lock_say_what_it_lacks(store: SqliteStore, golden: Golden) -> None:
    """Letters, grades and sides are worded as in the report; a line has no letters, so it names agents by id."""
    wrong = {"grade": lambda request: {"grade": "WRONG", "corrections": "It is about debt."}}
    protocol = Debate(debaters=2, as_is=True)
    report = await consilience.deliberate("Move?", protocol, model=ScriptedModel(Debaters(wrong)), store=store)
    events = list(store.read(report.session))
    state = fold_events(events)
    lines = [event_line(event, state) for event in events if isinstance(event, Noted)]
    golden(lines_with("lock 1 failed|validated crux", "\n".join(lines)))
    golden(lines_with("Its lock failed", report.markdown()), "report")
    (thread,) = report.debate_json()["threads"]  # type: ignore[attr-defined]
    assert thread["crux"]["validationFailures"][0] == "not locked"


async def test_lines_of_calls_name_their_agent_once(store: SqliteStore) -> None:
    events = await recorded(store)
    state = fold_events(events)
    lines = [event_line(event, state) for event in events if isinstance(event, CallCompleted)]
    turns = [line for line in lines if line.startswith("message, turn ")]
    assert turns
    assert all(line.count("D1") + line.count("D2") + line.count("D3") == 1 for line in turns), turns[0]


async def test_live_screen_has_a_column_per_thread_with_its_stage(store: SqliteStore) -> None:
    progress = RunProgress(title="debate r1", text=store.text)
    for event in until(await recorded(store), "crux_locked"):
        progress.take(event)
    console = Console(width=100, height=40, record=True, force_terminal=True)
    with console.capture() as capture:
        console.print(progress.screen(40, 100))
    screen = capture.get()
    assert "Would queues lose orders at the peak?" in screen
    assert "crux lock" in screen
    assert "C20 grades a steelman" in screen
