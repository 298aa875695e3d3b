"""Journal files as a power cut or a bad disk leaves them: the end of the log torn off, bytes turned, garbage in the middle."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from consilience.domain.errors import (
    ConsilienceError,
    NewerSchema,
    SettingsError,
    StoreUnusable,
    UnknownName,
    UserError,
)
from consilience.domain.events import AnyEvent, CallCompleted, canonical_digest
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.journal.sqlite_open import ids_in
from consilience.models.scripted import ScriptedModel
from kit import runner
from kit.cases import CALLING, Case
from kit.processes import Processes, Run
from kit.runs import run, seated, to_the_end

WAL_HEADER = 32
FRAME_HEADER = 24
case_named = pytest.mark.parametrize("case", CALLING, ids=lambda case: case.name)


@dataclass(frozen=True)
class KilledSession:
    """What a killed process left, copied before anybody opened it. `commits` are the lengths of the log at which a commit
    is complete, `known` what is recorded there."""

    directory: Path
    commits: tuple[int, ...]
    known: tuple[tuple[AnyEvent, ...], ...]

    def copy(self, into: Path, *, index: bool) -> Path:
        """The files, with or without the log's index in shared memory; returns the journal's path."""
        into.mkdir()
        for name in ("j.db", "j.db-wal", *(("j.db-shm",) if index else ())):
            shutil.copy(self.directory / name, into / name)
        return into / "j.db"

    def at(self, length: int) -> tuple[AnyEvent, ...]:
        """What must be there when only so much of the log is."""
        complete = sum(commit <= length for commit in self.commits)
        return self.known[complete - 1] if complete else ()


def commits_in(log: bytes) -> tuple[int, ...]:
    """Ends of the commits in a write-ahead log: frames whose header says how large the database is afterwards."""
    (page,) = struct.unpack(">I", log[8:12])
    size = FRAME_HEADER + page
    ends = range(WAL_HEADER + size, len(log) + 1, size)
    return tuple(end for end in ends if struct.unpack(">I", log[end - size + 4 : end - size + 8])[0])


@pytest.fixture(scope="module")
def killed_sessions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, KilledSession]:
    """For every case the files of a process killed before it could finish."""
    processes = Processes()
    sessions = {}
    for case in CALLING:
        directory = tmp_path_factory.mktemp(case.name)
        assert processes.one(case.name, directory / "j.db", Run("start", "before_finish")).killed
        commits = commits_in((directory / "j.db-wal").read_bytes())
        whole = KilledSession(directory, commits, ())
        known = tuple(events_at(whole, commit, directory / str(commit)) for commit in commits)
        calls = sum(isinstance(event, CallCompleted) for event in known[-1])
        assert len(known) > calls // 4, "commits are shared by what is ready at the same time"
        assert all(a == b[: len(a)] for a, b in itertools.pairwise(known)), "each commit only adds"
        sessions[case.name] = KilledSession(directory, commits, known)
    return sessions


def events_at(killed_sessions: KilledSession, length: int, scratch: Path) -> tuple[AnyEvent, ...]:
    journal = killed_sessions.copy(scratch, index=False)
    truncate_log(journal, length)
    return tuple(recorded(journal))


def truncate_log(journal: Path, length: int) -> None:
    with Path(f"{journal}-wal").open("r+b") as log:
        log.truncate(length)


def flip_byte(journal: Path, offset: int) -> None:
    """Turn every bit of one byte of the log."""
    with Path(f"{journal}-wal").open("r+b") as log:
        log.seek(offset)
        (byte,) = log.read(1)
        log.seek(offset)
        log.write(bytes([byte ^ 0xFF]))


def recorded(journal: Path) -> list[AnyEvent]:
    """The events, with every text and prompt they name there; none where the session itself was torn off."""
    store = SqliteStore(journal)
    try:
        events = store.read("s")
        for event in events:
            for id in ids_in(event.model_dump_json()):
                if getattr(event, "prompt", "") == id:
                    assert store.prompt(id)
                else:
                    store.text(id)
        return events
    except UnknownName:
        return []
    finally:
        store.close()


@cache
def reference(name: str) -> tuple[str, str]:
    case = next(case for case in CALLING if case.name == name)
    return asyncio.run(run(case)).same


def resumed(case: Case, journal: Path, events: tuple[AnyEvent, ...]) -> None:
    """It goes on to the same end, and asks nothing that is there."""
    store, model = SqliteStore(journal), ScriptedModel(case.script)
    seats = seated(case, model)
    try:
        begun = runner.resume("s", store=store, models=seats, options=Options(patience=0))
        if not events:
            with pytest.raises((UnknownName, SettingsError), match=r"no session|before its start"):
                asyncio.run(to_the_end(store, seats, begun))
            return
        report = asyncio.run(to_the_end(store, seats, begun))
        assert (canonical_digest(store.read("s")), report.digest()) == reference(case.name)
        done = {(e.key, e.attempt) for e in events if e.type in ("call_completed", "reply_rejected")}
        asked = [(request.key, request.attempt) for request in model.requests]
        assert not done & set(asked)
        assert len(asked) == len(set(asked))
    finally:
        store.close()


@case_named
def test_torn_log_keeps_acknowledged_commits(
    case: Case, killed_sessions: dict[str, KilledSession], tmp_path: Path, sample
) -> None:  # type: ignore[no-untyped-def]
    """Cut at the end of every commit, a byte before and after it, and at random."""
    whole = killed_sessions[case.name]
    length = (whole.directory / "j.db-wal").stat().st_size
    dice = random.Random(case.name)
    edges = {commit + by for commit in whole.commits for by in (-1, 0, 1)}
    cuts = sorted({0, 1, WAL_HEADER, *edges, *(dice.randrange(length) for _ in range(60))})
    for cut in sample([cut for cut in cuts if cut <= length], 3, whole=40):
        journal = whole.copy(tmp_path / str(cut), index=bool(cut % 2))
        truncate_log(journal, cut)
        assert tuple(recorded(journal)) == whole.at(cut), f"cut at {cut}"
        resumed(case, journal, whole.at(cut))


@case_named
def test_flipped_byte_in_the_log_loses_only_later_commits(
    case: Case, killed_sessions: dict[str, KilledSession], tmp_path: Path, sample
) -> None:  # type: ignore[no-untyped-def]
    """Every frame is summed, so nothing wrong is ever read as right."""
    whole = killed_sessions[case.name]
    dice = random.Random(case.name)
    offsets = sorted(dice.randrange(WAL_HEADER, whole.commits[-1]) for _ in range(60))
    for offset in sample(offsets, 3, whole=20):
        journal = whole.copy(tmp_path / str(offset), index=bool(offset % 2))
        flip_byte(journal, offset)
        assert tuple(recorded(journal)) == whole.at(offset), f"turned at {offset}"
        resumed(case, journal, whole.at(offset))


DEMO = Path(__file__).parent.parent / "fixtures" / "demo.db"
SIZES = (1, 8, 64, 512, 4096)


@pytest.mark.matrix(keep=40, whole=300)
@pytest.mark.parametrize("seed", range(600))
def test_garbage_in_the_file_is_a_user_error(seed: int, tmp_path: Path) -> None:
    """A quarter of it in the first page, where SQLite keeps what everything else hangs on."""
    dice = random.Random(seed)
    data = bytearray(DEMO.read_bytes())
    size = dice.choice(SIZES)
    at = dice.randrange((4096 if seed % 4 == 0 else len(data) - 4096) - size + 1)
    data[at : at + size] = dice.randbytes(size)
    (tmp_path / "j.db").write_bytes(data)
    errors: list[ConsilienceError] = []
    try:
        store = SqliteStore(tmp_path / "j.db")
    except (StoreUnusable, NewerSchema) as refusal:
        errors.append(refusal)
    else:
        errors += what_goes_wrong_with(store)
        store.close()
    for error in errors:
        assert "\n" not in str(error)
        assert str(error).isprintable()
        if isinstance(error, StoreUnusable):
            assert error.what
            assert str(tmp_path / "j.db") in error.where
            assert error.do


def what_goes_wrong_with(store: SqliteStore) -> list[ConsilienceError]:
    """The errors of everything that can be asked of it; any other exception goes through."""
    errors: list[ConsilienceError] = []
    sessions: list[str] = []
    with collecting(errors, StoreUnusable):
        sessions = store.sessions()
    for session in sessions:
        events: list[AnyEvent] = []
        with collecting(errors, StoreUnusable, UnknownName):
            events = store.read(session)
        for read in (store.created, store.holder, store.flights, lambda id: store.admin.weight([id])):
            with collecting(errors, StoreUnusable, UnknownName):
                read(session)
        for event in events:
            for id in ids_in(event.model_dump_json()):
                with collecting(errors, StoreUnusable):
                    assert store.prompt(id) if getattr(event, "prompt", "") == id else store.text(id) is not None
        with collecting(errors, ConsilienceError):  # a record that can be read and is another may also not replay
            asyncio.run(runner.replay(session, store=store))
        with suppress(UnknownName, StoreUnusable):
            assert store.holder(session) is None, "a lease is given back whatever happened"
        with collecting(errors, StoreUnusable, UnknownName):
            store.admin.remove([session])
            assert session not in store.sessions()
    return errors


@contextmanager
def collecting(text: list[ConsilienceError], *kinds: type[ConsilienceError]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        text.append(error)


@pytest.mark.parametrize("inputs", [b"", b"SQLite format 3\0" + bytes(84), b"hello " * 1000, bytes(5000)])
def test_file_that_is_not_a_journal_is_refused(inputs: bytes, tmp_path: Path) -> None:
    """An empty file is a journal that nobody wrote to yet; anything else is left as it is."""
    (tmp_path / "j.db").write_bytes(inputs)
    if not inputs:
        store = SqliteStore(tmp_path / "j.db")
        assert store.sessions() == []
        store.close()
        return
    with pytest.raises(UserError, match="damaged or not a journal") as refusal:
        SqliteStore(tmp_path / "j.db")
    assert "move it away" in str(refusal.value)
    assert (tmp_path / "j.db").read_bytes() == inputs
