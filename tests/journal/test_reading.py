"""Opening a long session costs memory and queries in proportion to its events, and nothing that grows faster."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from consilience.domain.event_decoding import decode_event
from consilience.domain.events import EVENT, CallCompleted, text_id
from consilience.engine.templates import MAX_RENDERED_CHARS, Templates
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from kit import runner
from kit.cases import CASES

CASE = next(case for case in CASES if case.name == "emergence")


def completed(n: int) -> str:
    event = CallCompleted(
        place=f"4.{n}.0", key=f"round-1/leaf/L{n}", agent=f"L{n}", text=text_id(str(n)), digest=f"{n:032}", prompt="p" * 22,
        phase=("leaf", n), audience=("A", "B"), tokens_in=n, volatile={"t": n / 7, "model": "m", "requests": 2},
    )  # fmt: skip
    return f'{{"type":"call_completed",{event.model_dump_json(exclude_defaults=True)[1:]}'


def test_decoded_events_equal_pydantic() -> None:
    bodies = [completed(n) for n in range(1, 51)]
    events = [decode_event(body, n) for n, body in enumerate(bodies, 1)]
    assert [event.seq for event in events] == list(range(1, 51))
    assert [event.model_dump_json() for event in events] == [
        EVENT.validate_json(body).model_dump_json() for body in bodies
    ]
    copy = events[0].model_copy(update={"place": "9"})
    assert (copy.place, events[0].place, copy.seq) == ("9", "4.1.0", 1)


SIZES = """
import gc, sys, tracemalloc
from consilience.domain.event_decoding import decode_event
from consilience.domain.events import EVENT
bodies = sys.stdin.read().splitlines()
for decode in (lambda body: EVENT.validate_json(body), lambda body: decode_event(body, 1)):
    decode(bodies[0])
    gc.collect()
    tracemalloc.start()
    events = [decode(body) for body in bodies]
    print(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
"""


def test_decoded_events_are_smaller_than_those_of_pydantic() -> None:
    """In a process of its own: what other threads of this one allocate would be counted too."""
    bodies = "\n".join(completed(n) for n in range(1, 2001))
    done = subprocess.run([sys.executable, "-c", SIZES], input=bodies, capture_output=True, text=True, check=True)
    whole, small = map(int, done.stdout.split())
    assert small < 0.6 * whole


@pytest.mark.parametrize("replay", [False, True])
async def test_resume_reads_texts_in_batches(replay: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements against the journal do not grow with the calls that are recorded."""
    counts = []
    for rounds in (1, 6):
        store = SqliteStore(tmp_path / f"{rounds}.db")
        protocol = CASE.protocol.model_copy(update={"max_rounds": rounds, "tolerance": 1.0})
        await runner.start("Is it so?", protocol, models=ScriptedModel(CASE.script), store=store, session="s")
        store.close()
        if not replay:
            _forget_the_end(tmp_path / f"{rounds}.db")
        store = SqliteStore(tmp_path / f"{rounds}.db")
        statements = _recorded(store, monkeypatch)
        if replay:
            await runner.replay("s", store=store)
        else:
            await runner.resume("s", store=store, models=ScriptedModel([]))
        counts.append((len(store.read("s")), len(statements)))
        store.close()
    (few, statements_of_few), (many, statements_of_many) = counts
    assert many > 1.5 * few
    assert statements_of_many <= statements_of_few + 2


def _recorded(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Statements that the store executes to read, as they come."""
    statements: list[str] = []
    rows = store._rows

    def counted(sql: str, *values: object) -> list[tuple[object, ...]]:
        statements.append(sql)
        return rows(sql, *values)

    monkeypatch.setattr(store, "_rows", counted)
    return statements


def _forget_the_end(path: Path) -> None:
    import sqlite3

    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM events WHERE json_extract(body, '$.type') = 'session_finished'")
    db.close()


def test_caches_do_not_keep_long_texts() -> None:
    templates = Templates({"ask": "Read this: {{ text }}"})
    gc.collect()
    tracemalloc.start()
    for n in range(60):
        text = f"{n} " + "word " * 40_000
        text_id(text)
        assert templates.render("ask", text=text).startswith("Read this")
    del text
    gc.collect()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < MAX_RENDERED_CHARS
