"""Events that were shown belong to the journal, whenever the process is killed; a tail in another process sees the same."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from kit import runner
from kit.cases import CASES
from kit.forks import PYTHONPATH, Fork

CASE = next(case for case in CASES if case.name == "emergence")

RUN = """
import asyncio, os, signal, sys
from kit import runner
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from kit.cases import CASES
from kit.forks import PYTHONPATH, Fork

case = next(case for case in CASES if case.name == "emergence")
path, last = sys.argv[1], int(sys.argv[2])

def observe(event):
    if event.seq:
        print(event.seq, event.type, event.place, flush=True)
    if event.seq == last:
        os.kill(os.getpid(), signal.SIGKILL)

model = ScriptedModel(case.script)
asyncio.run(runner.start("Is it so?", case.protocol, models=model, store=SqliteStore(path), session="s",
                         options=Options(observer=observe)))
"""
TAIL = """
import asyncio, sys
from consilience.journal.sqlite import SqliteStore

async def follow():
    store = SqliteStore(sys.argv[1])
    async for event in store.reader.tail("s"):
        print(event.seq, event.type, event.place, flush=True)
    store.close()

asyncio.run(follow())
"""


def start(program: str, *arguments: object) -> Fork:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return Fork(command, env={**os.environ, "PYTHONPATH": PYTHONPATH}, stdout=PIPE, text=True)


def rows(store: SqliteStore) -> list[str]:
    return [f"{event.seq} {event.type} {event.place}".rstrip() for event in store.read("s")]


@pytest.mark.parametrize("last", [2, 7, 11, 20, 33])
async def test_events_observed_before_a_kill_are_in_the_resumed_journal(last: int, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with start(RUN, path, last) as process:
        shown, _ = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    lines = [line.rstrip() for line in shown.splitlines()]
    store = SqliteStore(path)
    assert [int(line.split()[0]) for line in lines] == list(range(1, last + 1))
    assert rows(store)[:last] == lines, "an event was shown before its commit"
    tail = start(TAIL, path)
    await runner.resume("s", store=store, models=ScriptedModel(CASE.script))
    seen, _ = await asyncio.to_thread(tail.communicate, timeout=300)
    assert [line.rstrip() for line in seen.splitlines()] == rows(store)
    assert rows(store)[:last] == lines
    store.close()
