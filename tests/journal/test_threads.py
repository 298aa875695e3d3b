"""A journal in memory shares one connection between the thread that writes and those that read."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from consilience.domain.errors import StoreUnusable
from consilience.journal.writer import Author, SqlStatement, Writer

PROGRAM = """
import sys
from consilience.domain.events import MessagePublished, text_id
from consilience.journal.sqlite import SqliteStore

sys.setswitchinterval(1e-6)  # meet in every place where they can
store = SqliteStore(":memory:")
journal = store.create("s")

def write(text):
    journal.append(MessagePublished(id=text[:8], sender="a", kind="reply", text=text_id(text)), texts=[text])

short = [f"short {n}" for n in range(200)]
long = [f"{n} " * 3000 for n in range(200)]
for text in short:
    write(text)
store._writer.flush()
for text in long:
    write(text)
    store.texts([text_id(text) for text in short])
store._writer.flush()
assert store.texts([text_id(text) for text in long]) == {text_id(text): text for text in long}
"""


def test_reading_during_long_writes_does_not_deadlock() -> None:
    """In a process of its own: threads that wait for each other inside the database hold the interpreter, too."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


async def test_dropped_commit_raises_in_every_waiter() -> None:
    entered, go = threading.Event(), threading.Event()
    written: list[str] = []

    def execute(batch: Sequence[SqlStatement]) -> None:
        entered.set()
        go.wait(10)
        written.extend(sql for sql, _ in batch)

    writer = Writer(execute, "dropped")
    first = writer.put_and_wait(Author(), [("A", ())])
    await asyncio.to_thread(entered.wait, 10)
    second = writer.put_and_wait(Author(), [("B", ())])
    closing = asyncio.create_task(asyncio.to_thread(writer.close, drop=True))

    async def until_refused() -> None:
        while True:
            writer.put(Author(), [])
            await asyncio.sleep(0)

    with pytest.raises(StoreUnusable):
        await until_refused()
    go.set()
    await closing
    assert written == ["A"]
    for future in (first, second):
        with pytest.raises(StoreUnusable):
            await future
