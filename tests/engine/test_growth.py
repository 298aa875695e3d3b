"""Twice the work costs at most twice as much, counted and not timed: calls, rows, statements, bytes, characters, function calls.

A run is killed before its report is committed, resumed and replayed, at sizes that double. What a run costs however small it is
drops out: the step from the second size to the third is compared with the step from the first to the second.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import ClassVar

import pytest

import consilience
from consilience.domain.outcome import Estimate
from consilience.domain.report import Report
from consilience.engine.faults import Crash, Fault
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.protocol import Protocol, register
from consilience.engine.runner import Options
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.emergence import Emergence
from kit import runner
from kit.cases import Script, debating, emergent, plain
from kit.runs import TASK
from kit.throwaways import Throwaway, ToyDebate, close

SOURCE = str(Path(consilience.__file__).parent)
GROUPED = ("BEGIN", "COMMIT", "ROLLBACK", "PRAGMA")
WRITER = "journal/writer.py"
"""Not counted, nor are its functions: how many statements share a commit depends on how fast the disk is."""

MAX_FACTOR = 2.1
"""Numbers in keys and places grow a digit when they are many: 2 to the power of 1.07, where 1.1 is aimed at."""

COUNT_TOLERANCE = 40
"""Of each thing counted: what happens a few times a run."""


class Counts(Counter[str]):
    """What happened, by name."""

    @contextmanager
    def of_functions(self, step: str) -> Iterator[None]:
        """Calls of every function of the package in this thread, each turn of a coroutine or generator included."""
        clear_caches()

        def note(frame: FrameType, event: str, _: object) -> None:
            where = frame.f_code.co_filename
            if event == "call" and where.startswith(SOURCE) and not where.endswith(WRITER):
                where = where.removeprefix(SOURCE + "/")
                self[f"{step}: calls of {where} {frame.f_code.co_qualname}"] += 1

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(before)

    @contextmanager
    def of_statements(self, step: str) -> Iterator[None]:
        """On every connection opened inside, SQL statements by their first words, and how often SQLite steps from row to row."""
        connect = sqlite3.connect

        def note(sql: str) -> None:
            if not sql.startswith(GROUPED):
                self[f"{step}: statements {' '.join(sql.split()[:4]).partition('(')[0]}"] += 1

        def step_on() -> int:
            self[f"{step}: steps of SQLite"] += 1
            return 0

        def traced(*args: object, **options: object) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*args, **options)  # type: ignore[call-overload]
            connection.set_trace_callback(note)
            connection.set_progress_handler(step_on, 1)
            return connection

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sqlite3, "connect", traced)
            yield

    def read_file(self, path: Path) -> None:
        """Rows of every table, and bytes of all values of all rows."""
        with closing(sqlite3.connect(path)) as db:
            for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall():
                rows = db.execute(f"SELECT * FROM {table}").fetchall()
                self[f"rows of {table}"] = len(rows)
                self["bytes"] += sum(len(v if isinstance(v, bytes) else str(v).encode()) for row in rows for v in row)


def clear_caches() -> None:
    """Empty the caches of the package, as they are in a new process."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == consilience.__name__:
            for member in list(vars(module).values()):
                if hasattr(member, "cache_clear"):
                    member.cache_clear()


async def count_run(protocol: Protocol, script: Script, path: Path) -> Counts:
    """Everything that is counted of a run, of its being resumed, and of its replay."""
    counts = Counts()
    model = ScriptedModel(script)
    options = Options(faults=Fault("before_finish").hit)
    with counts.of_statements("run"), counts.of_functions("run"), suppress(Crash):
        await runner.start(TASK, protocol, models=model, store=SqliteStore(path), session="s", options=options)
    counts["calls of the model"] = len(model.requests)
    counts["characters of prompts"] = sum(len(request.text) for request in model.requests)
    again = ScriptedModel(script)
    with counts.of_statements("resume"), counts.of_functions("resume"), closing(SqliteStore(path)) as store:
        resumed = await runner.resume("s", store=store, models=again)
    assert again.requests == []
    with counts.of_statements("replay"), counts.of_functions("replay"), closing(SqliteStore(path)) as store:
        assert (await runner.replay("s", store=store)).digest() == resumed.digest()
    counts.read_file(path)
    return counts


def growing_faster(counts: list[Counts], than: Callable[[str], float]) -> list[str]:
    """What grows faster than `than` says: whose step to the third size is more than so many times the step to the second."""
    first, second, third = counts
    lines = []
    for name in sorted(third):
        allowed = than(name) * max(second[name] - first[name], 0) + COUNT_TOLERANCE
        if third[name] - second[name] > allowed:
            lines.append(f"{name}: {first[name]:,} → {second[name]:,} → {third[name]:,}")
    return lines


def without_objections(request: ModelRequest) -> str:
    """What agents of `emergence` say who have no objections."""
    body = emergent(dataclasses.replace(request, attempt=2))
    return json.dumps({**json.loads(body), "objections": []}) if '"objections"' in body else body


def with_repeated_objections(request: ModelRequest) -> str:
    """Some of them unreadable the first time, and all with an objection that they raise again every round."""
    body = emergent(request)
    if '"objections"' not in body:
        return body
    objection = {"to": "A", "text": f"{request.agent} sees no figures"}
    return json.dumps({**json.loads(body), "objections": [objection]})


@register
class Transcript(Throwaway):
    """Members speak in turn, and each is shown everything said before."""

    name: ClassVar[str] = "transcript"
    turns: int = 8

    def estimate(self) -> Estimate:
        return Estimate(min=self.turns, max=self.turns)

    async def run(self, session: Session) -> Report:
        everyone = [agent.id for agent in session.agents]
        replies: list[Reply[str] | Failure] = []
        for n in range(self.turns):
            shown = tuple(Quote(reply.key, reply.agent) for reply in replies)
            prompt = Prompt("Your turn.", (), shown)
            replies.append(await session.ask(everyone[n % self.size], prompt, key=f"turn/{n}", audience=everyone))
        return await close(session, replies[: self.size], replies[self.size :], replies[-1])


@dataclass(frozen=True)
class Doubling:
    """A way in which work doubles, and three sizes that do. `calls` is how much more often a function may be called."""

    name: str
    made: Callable[[int], Protocol]
    sizes: tuple[int, int, int]
    script: Script = without_objections
    calls: float = MAX_FACTOR


def rounds(n: int) -> Protocol:
    return Emergence(children=2, depth=3, max_rounds=n, threshold=1.0)


def levels(n: int) -> Protocol:
    return Emergence(children=2, depth=n, max_rounds=2, threshold=1.0)


def family(n: int) -> Protocol:
    return Emergence(children=n, max_rounds=2, threshold=1.0)


DOUBLINGS = [
    Doubling("messages", lambda n: ToyDebate(size=3, turns=n), (40, 80, 160), debating),
    Doubling("rounds", rounds, (6, 12, 24), with_repeated_objections),
    # a level more doubles the agents, and whoever asks how many calls a branch needs asks all below it
    Doubling("agents", levels, (4, 5, 6), calls=2.6),
]


async def growth(doubling: Doubling, directory: Path) -> list[Counts]:
    """Counts at the three sizes; that the work doubles is seen from the calls asked for."""
    measured = [await count_run(doubling.made(n), doubling.script, directory / f"{n}.db") for n in doubling.sizes]
    calls = [counts["calls of the model"] for counts in measured]
    assert 1.9 < calls[1] / calls[0] < 2.3
    assert 1.9 < calls[2] / calls[1] < 2.3
    return measured


async def growing_faster_in_two_runs(doubling: Doubling, directory: Path, than: Callable[[str], float]) -> list[str]:
    """What grows faster in two measurements. How often a coroutine waits depends a little on which of two replies comes first."""
    lines: list[str] = []
    for n in ("first", "again"):
        (directory / n).mkdir()
        once = growing_faster(await growth(doubling, directory / n), than)
        names = {line.rpartition(": ")[0] for line in lines}
        lines = [line for line in once if n == "first" or line.rpartition(": ")[0] in names]
        if not lines:
            break
    return lines


@pytest.mark.parametrize("doubling", DOUBLINGS, ids=lambda doubling: doubling.name)
async def test_run_of_twice_the_size_costs_at_most_twice(doubling: Doubling, tmp_path: Path) -> None:
    assert (
        await growing_faster_in_two_runs(
            doubling, tmp_path, lambda name: doubling.calls if ": calls of " in name else MAX_FACTOR
        )
        == []
    )


async def test_family_of_twice_the_children_makes_twice_the_calls_with_twice_the_prompt(tmp_path: Path) -> None:
    """Everybody reads everybody, so what is read grows with the square; calls, rows and statements do not."""
    linear = ("calls of the model", "rows of ", "run: statements", "resume: statements", "replay: statements")
    assert (
        await growing_faster_in_two_runs(
            Doubling("a family", family, (8, 16, 32), with_repeated_objections),
            tmp_path,
            lambda name: MAX_FACTOR if name.startswith(linear) else 2 * MAX_FACTOR,
        )
        == []
    )


async def test_growing_transcript_is_stored_once(tmp_path: Path) -> None:
    """What is sent grows with the square, and what is kept does not."""
    kept = ("calls of the model", "rows of ", "bytes", "run: statements", "resume: statements", "replay: statements")
    assert (
        await growing_faster_in_two_runs(
            Doubling("a transcript", lambda n: Transcript(turns=n), (20, 40, 80), plain),
            tmp_path,
            lambda name: MAX_FACTOR if name.startswith(kept) else 2 * MAX_FACTOR,
        )
        == []
    )


async def test_run_with_twice_the_objections_costs_at_most_twice(tmp_path: Path) -> None:
    assert (
        await growing_faster_in_two_runs(
            Doubling("objections", levels, (4, 5, 6), with_repeated_objections),
            tmp_path,
            lambda name: 2.6 if ": calls of " in name else MAX_FACTOR,
        )
        == []
    )


async def test_growth_check_detects_superlinear_cost(tmp_path: Path) -> None:
    """The count itself: a family twice as wide is not twice as much to read, and that is seen in characters and in functions."""
    counts = await growth(Doubling("a family", family, (8, 16, 32)), tmp_path)
    lines = "\n".join(growing_faster(counts, lambda _: MAX_FACTOR))
    assert "characters of prompts" in lines
    assert "run: calls of engine/state.py State.message" in lines
