"""Letters of several processes to one session: each is taken exactly once, in order, also by processes that are killed."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from consilience.domain.events import AnswerReceived, AnyEvent, SessionFinished, SessionParked, text_id
from consilience.domain.outcome import StopReason
from consilience.journal.sqlite import SqliteStore
from kit import forks

POST = """
import sys
from consilience.journal.sqlite import SqliteStore

path, name, letters = sys.argv[1:]
store = SqliteStore(path)
for n in range(int(letters)):
    store.post("s", "answer", "k", f"{name} {n}", by=name)
store.close()
"""

TAKE = """
import asyncio, sys
from consilience.journal.sqlite import SqliteStore


async def take(path, wanted):
    store = SqliteStore(path)
    journal, mail = store.open("s"), asyncio.Queue()
    journal.receive(mail.put_nowait)
    last = 0
    print("open", flush=True)
    while sum(event.type == "answer_received" for event in store.read("s")) < wanted:
        for letter in await mail.get():
            if letter.number > last:
                last = letter.number
                await journal.take(letter, letter.event())
                print(letter.number, flush=True)
    await journal.close()
    store.close()

asyncio.run(take(sys.argv[1], int(sys.argv[2])))
"""
FINISH = SessionFinished(stop_reason=StopReason.SETTLED, report=text_id("r"), report_digest="d", presentation="p")
SENDERS, LETTERS = ("A", "B", "C", "D"), 12


def posting(path: Path) -> list[forks.Fork]:
    return [forks.Fork([sys.executable, "-c", POST, str(path), name, str(LETTERS)], stderr=PIPE) for name in SENDERS]


def finished(processes: list[forks.Fork]) -> None:
    for process in processes:
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error


async def parked(path: Path) -> None:
    store = SqliteStore(path)
    journal = store.create("s")
    await journal.commit(SessionParked(awaited=("k",)))
    await journal.close()
    store.close()


def check_each_once_in_order(path: Path) -> None:
    store = SqliteStore(path)
    answers = [event for event in store.read("s") if isinstance(event, AnswerReceived)]
    texts = [store.text(event.text) for event in answers]
    for name in SENDERS:
        assert [text for text in texts if text.startswith(name)] == [f"{name} {n}" for n in range(LETTERS)]
    assert (len(texts), store.mail("s")) == (len(SENDERS) * LETTERS, [])
    store.close()


async def test_letters_of_four_processes_to_a_parked_session_are_each_recorded_once_in_order(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    await parked(path)
    finished(posting(path))
    store = SqliteStore(path)
    store.post("s", "answer", "k", "last")  # whatever was posted while another poster held the session
    store.close()
    store = SqliteStore(path)
    assert store.text([e for e in store.read("s") if isinstance(e, AnswerReceived)][-1].text) == "last"
    journal = store.open("s")
    await journal.close()
    assert store.mail("s") == []
    store.close()


async def test_letters_are_taken_once_and_in_order_by_processes_that_are_killed(tmp_path: Path) -> None:
    path, draw = tmp_path / "j.db", random.Random(7)
    await parked(path)
    total = len(SENDERS) * LETTERS
    command = [sys.executable, "-c", TAKE, str(path), str(total)]
    taker = forks.Fork(command, stdout=PIPE, stderr=PIPE, text=True)
    assert taker.stdout is not None
    assert taker.stdout.readline() == "open\n"
    senders, kills = posting(path), 0
    while True:
        lines = draw.randrange(1, 12)
        while lines and taker.stdout.readline():
            lines -= 1
        if lines:
            break
        taker.send_signal(signal.SIGKILL)
        taker.communicate(timeout=300)
        kills += 1
        taker = forks.Fork(command, stdout=PIPE, stderr=PIPE, text=True)
        assert taker.stdout is not None
    _, error = taker.communicate(timeout=300)
    assert taker.returncode == 0, error
    finished(senders)
    assert kills, "the first taker held the session before the first letter was posted"
    check_each_once_in_order(path)


async def test_letter_to_a_session_that_finishes_meanwhile_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j.db"
    store, other = SqliteStore(path), SqliteStore(path)
    journal, ending = store.create("s"), other.ending
    await journal.commit(SessionParked(awaited=("k",)))
    await journal.close()
    looks = 0

    def finish_after_the_first_look(session: str) -> AnyEvent | None:
        nonlocal looks
        looks += 1
        seen = ending(session)
        if looks == 1:
            asyncio.run(finish())
        return seen

    async def finish() -> None:
        journal = store.open("s")
        await journal.commit(FINISH)
        await journal.close()

    monkeypatch.setattr(other, "ending", finish_after_the_first_look)
    await asyncio.to_thread(other.post, "s", "cancel")
    assert (looks > 1, type(ending("s")), store.mail("s")) == (True, SessionFinished, [])
    store.close()
    other.close()
