"""The executor of this process: order, bounds, cancel, restart."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from consilience import Deliberation, Limits, Options, SqliteStore, StopReason, Vote
from consilience.domain.errors import CommitFailed, SettingsError, UnknownName, UserError
from consilience.domain.events import CallCompleted, SessionFinished
from consilience.domain.report import Report
from consilience.executor import MAX_SETBACKS, LocalExecutor
from consilience.journal.accounts import Allowance
from consilience.journal.sqlite_accounts import SqliteAccounts
from consilience.journal.statements import ADD_TEXT
from consilience.journal.writer import SqlStatement
from consilience.models.port import Completion, ModelRequest
from consilience.models.scripted import ScriptedModel
from kit.full_disks import fill, free

PATIENCE = 300


class Gated(ScriptedModel):
    """Replies to a session's calls once its gate is open."""

    def __init__(self) -> None:
        super().__init__(lambda request: f"said in {request.session}")
        self.asked: list[str] = []
        """Sessions in the order in which they first asked."""
        self.open: set[str] = set()
        self.changed = threading.Condition()

    async def complete(self, request: ModelRequest) -> Completion:
        with self.changed:
            if request.session not in self.asked:
                self.asked.append(request.session)
            self.changed.notify_all()
        while request.session not in self.open and "all" not in self.open:
            await asyncio.to_thread(self._wait)
        return await super().complete(request)

    def _wait(self) -> None:
        with self.changed:
            self.changed.wait(0.05)

    def let(self, session: str) -> None:
        with self.changed:
            self.open.add(session)
            self.changed.notify_all()

    def until_asked(self, n: int) -> list[str]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.asked) >= n, PATIENCE)
            return list(self.asked)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with_path = SqliteStore(tmp_path / "j.db")
    yield with_path
    with_path.close()


def prepared(store: SqliteStore, model: object, *sessions: str, seats: object = None) -> None:
    for session in sessions:
        deliberation = Deliberation(Vote(votes=1), model=seats or model, store=store)  # type: ignore[arg-type]
        asyncio.run(deliberation.prepare("Is it so?", session=session))


def stops(store: SqliteStore) -> dict[str, StopReason | None]:
    endings = {session: store.ending(session) for session in store.sessions()}
    return {s: e.stop_reason if isinstance(e, SessionFinished) else None for s, e in endings.items()}


def test_sessions_run_in_order_and_at_most_so_many_at_once(store: SqliteStore) -> None:
    model, ended = Gated(), []
    prepared(store, model, "a", "b", "c", "d")
    with LocalExecutor(
        store, running=2, model=model, on_end=lambda session, outcome: ended.append(session)
    ) as executor:
        assert model.until_asked(2) == ["a", "b"]
        model.let("b")
        assert model.until_asked(3) == ["a", "b", "c"]
        model.let("all")
        assert executor.join(PATIENCE)
    assert sorted(ended) == ["a", "b", "c", "d"]
    assert stops(store) == dict.fromkeys("abcd", StopReason.SETTLED)
    assert len(model.requests) == 4


def test_closed_executor_leaves_sessions_that_the_next_one_takes_up(store: SqliteStore) -> None:
    model = Gated()
    prepared(store, model, "a", "b")
    with LocalExecutor(store, running=1, model=model):
        model.until_asked(1)
    assert stops(store) == {"a": None, "b": None}
    assert store.holder("a") is None
    model.let("all")
    with LocalExecutor(store, running=1, model=model) as executor:
        assert executor.join(PATIENCE)
    assert stops(store) == dict.fromkeys("ab", StopReason.SETTLED)


def test_cancel_ends_running_and_queued_sessions(store: SqliteStore) -> None:
    model = Gated()
    prepared(store, model, "running", "queued")
    with LocalExecutor(store, running=1, model=model) as executor:
        assert model.until_asked(1) == ["running"]
        executor.cancel("queued")
        executor.cancel("running", by="Ada")
        assert executor.join(PATIENCE)
    assert stops(store) == dict.fromkeys(("running", "queued"), StopReason.CANCELLED)
    assert model.asked == ["running"]
    with LocalExecutor(store) as executor, pytest.raises(SettingsError, match="is finished"):
        executor.cancel("running")


def test_session_that_is_removed_while_it_waits_is_passed_over_in_silence(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    model, ended = Gated(), []
    prepared(store, model, "running", "removed", "last")
    with LocalExecutor(
        store, running=1, model=model, on_end=lambda session, outcome: ended.append(session)
    ) as executor:
        assert model.until_asked(1) == ["running"]
        store.admin.remove(["removed"])
        model.let("all")
        assert executor.join(PATIENCE)
    assert ended == ["running", "last"]
    assert stops(store) == dict.fromkeys(("running", "last"), StopReason.SETTLED)
    assert caplog.records == []


def test_cancelled_session_is_ended_while_others_fill_the_executor_and_the_allowance(store: SqliteStore) -> None:
    model, ended = Gated(), threading.Event()
    accounts = SqliteAccounts(lambda owner: Allowance(running=1))
    for session in ("running", "queued", "held"):
        prepared(store.of("ada"), model, session)
    options = Options(accounts=accounts)
    cancelled: list[str] = []

    def on_end(session: str, outcome: object) -> None:
        cancelled.append(session)
        if len(cancelled) == 2:
            ended.set()

    with LocalExecutor(store, running=2, model=model, options=options, on_end=on_end) as executor:
        (running,) = model.until_asked(1)  # "running" or "queued", whichever claims the one run of the allowance
        others = {"running", "queued", "held"} - {running}
        for session in others:
            executor.cancel(session)
        assert ended.wait(PATIENCE)
        assert stops(store)[running] is None
        model.let("all")
        assert executor.join(PATIENCE)
    assert stops(store) == {running: StopReason.SETTLED, **dict.fromkeys(others, StopReason.CANCELLED)}
    assert len(model.requests) == 1


def test_parked_session_goes_on_when_it_was_answered(store: SqliteStore) -> None:
    model, ended = Gated(), list[tuple[str, str]]()
    model.let("all")
    prepared(store, model, "s", seats="human")

    def note(session: str, outcome: Report | BaseException) -> None:
        ended.append((session, type(outcome).__name__))

    with LocalExecutor(store, on_end=note) as executor:
        assert executor.join(PATIENCE)
        (key,) = next(event.awaited for event in store.read("s") if event.type == "session_parked")
        store.post("s", "answer", key, "Yes.")
        executor.submit("s")
        assert executor.join(PATIENCE)
    assert ended == [("s", "SessionWaiting"), ("s", "VoteReport")]
    with LocalExecutor(store, on_end=note) as executor:
        assert executor.join(PATIENCE)
    assert len(ended) == 2, "a finished session is not taken up"


def test_waiting_session_is_not_taken_up_before_it_is_answered(store: SqliteStore) -> None:
    prepared(store, None, "s", seats="human")
    for _ in range(2):
        with LocalExecutor(store) as executor:
            assert executor.join(PATIENCE)
    assert [event.type for event in store.read("s")].count("session_resumed") == 1


def test_session_over_the_allowance_of_its_owner_waits_for_another_of_theirs(store: SqliteStore) -> None:
    model = Gated()
    accounts = SqliteAccounts(lambda owner: Allowance(running=1 if owner == "ada" else None))
    for session, owner in (("a", "ada"), ("b", "ada"), ("c", "bob")):
        prepared(store.of(owner), model, session)
    with LocalExecutor(store, model=model, options=Options(accounts=accounts)) as executor:
        first = (set(model.until_asked(2)) - {"c"}).pop()
        model.let(first)
        assert {first, model.until_asked(3)[2]} == {"a", "b"}
        model.let("all")
        assert executor.join(PATIENCE)
    assert stops(store) == dict.fromkeys("abc", StopReason.SETTLED)


def test_held_session_runs_once_its_owner_may_run_it_again(store: SqliteStore) -> None:
    model, taken = Gated(), [1]
    accounts = SqliteAccounts(lambda owner: Allowance(running=1 - taken[0]))  # as if another process ran one
    model.let("all")
    prepared(store, model, "a")
    with LocalExecutor(store, model=model, options=Options(accounts=accounts)) as executor:
        assert not executor.join(0.2)
        executor.submit("a")
        executor.submit("a")
        taken[0] = 0
        assert executor.join(PATIENCE)
    assert (stops(store), len(model.requests)) == ({"a": StopReason.SETTLED}, 1)


def test_closed_executor_takes_no_session_and_no_cancel(store: SqliteStore) -> None:
    model, problems = Gated(), list[BaseException]()
    model.let("all")
    prepared(store, model, "a", "b")

    def close(session: str, outcome: Report | BaseException) -> None:
        try:
            executor.close()
        except UserError as error:
            problems.append(error)

    executor = LocalExecutor(store, model=model, on_end=close)
    assert executor.join(PATIENCE)
    executor.close()
    executor.close()
    assert len(problems) == 2
    for late in (executor.submit, executor.cancel):
        with pytest.raises(UserError, match="closed"):
            late("a")


def test_session_that_cannot_run_does_not_stop_the_others(store: SqliteStore) -> None:
    model, ended = Gated(), dict[str, Report | BaseException]()
    model.let("all")
    prepared(store, model, "good")
    asyncio.run(
        Deliberation(Vote(votes=1), model=ScriptedModel(["yes"], name="other"), store=store).prepare("?", session="bad")
    )
    with LocalExecutor(store, model=model, on_end=ended.__setitem__) as executor:
        with pytest.raises(UnknownName):
            executor.submit("unknown")
        assert executor.join(PATIENCE)
    assert isinstance(ended["good"], Report)
    assert "other models" in str(ended["bad"])


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_what_is_called_at_the_end_of_a_session_cannot_stop_the_others(
    error: type[BaseException], store: SqliteStore
) -> None:
    model = Gated()
    model.let("all")
    prepared(store, model, "a", "b", "c")

    def leave(session: str, outcome: Report | BaseException) -> None:
        raise error

    with LocalExecutor(store, running=1, model=model, on_end=leave) as executor:
        assert executor.join(PATIENCE)
    assert stops(store) == dict.fromkeys("abc", StopReason.SETTLED)


# --- a full disk


class Interruptions(logging.Handler):
    """Notes that an executor has interrupted a session."""

    def __init__(self) -> None:
        super().__init__()
        self.first = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "was interrupted" in record.getMessage():
            self.first.set()


@pytest.fixture
def interrupted() -> Iterator[threading.Event]:
    handler, logger = Interruptions(), logging.getLogger("consilience")
    logger.addHandler(handler)
    yield handler.first
    logger.removeHandler(handler)


LONG = random.Random(0).randbytes(40_000).hex()


def test_sessions_that_a_full_disk_interrupted_go_on_when_there_is_room(
    store: SqliteStore, interrupted: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consilience.executor.HELD_SECONDS", 0.02)
    model, ended = ScriptedModel(lambda request: f"{request.key}: {LONG}"), []
    sessions = ("a", "b", "c")
    for session in sessions:
        deliberation = Deliberation(Vote(votes=3), model=model, store=store, limits=Limits(calls=20))
        asyncio.run(deliberation.prepare("Is it so?", session=session))
    fill(store)
    with LocalExecutor(store, model=model, on_end=lambda session, outcome: ended.append(session)) as executor:
        assert interrupted.wait(PATIENCE)
        assert not executor.join(0.1)
        assert ended == []
        with pytest.raises(CommitFailed):
            store.check_writable()
        free(store)
        assert executor.join(PATIENCE)
    assert sorted(ended) == list(sessions)
    for session in sessions:
        events = store.read(session)  # raises if one is missing
        assert isinstance(events[-1], SessionFinished)
        completed = [event.key for event in events if isinstance(event, CallCompleted)]
        assert len(completed) == len(set(completed)) == 3
        asyncio.run(Deliberation(store=store).replay(session))


def test_session_that_can_never_be_recorded_is_given_up(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consilience.executor.HELD_SECONDS", 0.02)
    model, outcomes = ScriptedModel(lambda request: LONG), list[BaseException | Report]()
    prepared(store, model, "s")
    execute = store._writer._execute

    def refusing(batch: Sequence[SqlStatement]) -> None:
        if any(sql is ADD_TEXT and LONG[:100] in str(values) for sql, values in batch):
            raise CommitFailed("the journal cannot be used: database or disk is full")
        execute(batch)

    monkeypatch.setattr(store._writer, "_execute", refusing)
    with LocalExecutor(store, model=model, on_end=lambda session, outcome: outcomes.append(outcome)) as executor:
        assert executor.join(PATIENCE)
    assert [type(outcome) for outcome in outcomes] == [CommitFailed]
    assert len(model.requests) == MAX_SETBACKS + 1, "each time the call may be paid for again"
