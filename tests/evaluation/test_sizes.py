"""A row of any size costs what the dearest other did, or it is said that it does not; and so are bounds that do not hold."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from consilience.domain.errors import ServerError
from consilience.evaluation import Budget, Comparison, Task, TaskSource, compare, markdown
from consilience.evaluation.comparison import MOST_REPEATS, PROBES
from consilience.journal.sqlite import SqliteStore
from consilience.models.limiter import Limited, Pace
from consilience.models.port import ModelRequest
from consilience.testing import Refused, Scripted, ScriptedModel
from kit.juries import Alone, adding_up

OPEN = Task(id="open", task="Ann has 3 apples. How many are there?", answer="3", answer_pattern=r"answer:\W*(\d+)")


class Probed(ScriptedModel):
    """One of whose first voter the first answers are others."""

    def __init__(self, first: Callable[[int, ModelRequest], Scripted | Refused | None]) -> None:
        self.asked = 0

        def reply(request: ModelRequest) -> Scripted | Refused:
            if request.key == "vote/V1":
                self.asked += 1
                if (other := first(self.asked, request)) is not None:
                    return other
            return adding_up(request)

        super().__init__(reply)


def vote(comparison: Comparison) -> tuple[int | None, int]:
    (run,) = comparison.of("vote")
    return run.size, run.tokens


def refusing(times: int) -> Probed:
    return Probed(lambda n, request: Refused("content filter") if n <= times else None)


@pytest.mark.parametrize("refused", range(PROBES))
async def test_a_probe_that_failed_is_made_again(store: SqliteStore, refused: int) -> None:
    model = refusing(refused)
    comparison = await compare(OPEN, ["circle", "vote"], models=model, store=store)
    assert vote(comparison) == (4, 1_000)
    assert comparison.notes == ()
    assert model.asked == refused + 2
    again = await compare(OPEN, ["circle", "vote"], models=ScriptedModel([]), store=store)
    assert vote(again) == (4, 1_000)


async def test_a_size_that_no_probe_could_tell_is_said_each_time(store: SqliteStore) -> None:
    model = refusing(PROBES)
    comparison = await compare(OPEN, ["circle", "vote"], models=model, store=store)
    size, tokens = vote(comparison)
    assert size == 1
    (note,) = comparison.notes
    assert note == (
        f"vote on task open, seed 0: what a call costs was not told by 3 probes (refused); its size of 1 follows "
        f"from the most that a call can cost, and it cost {tokens:,} tokens where the dearest other row spent 1,000."
    )
    assert f"- {note}" in markdown(comparison)
    again = await compare(OPEN, ["circle", "vote"], models=ScriptedModel([]), store=store)
    assert again.notes == comparison.notes


async def test_a_probe_of_which_only_holders_answered_is_made_again(store: SqliteStore) -> None:
    task = OPEN.model_copy(update={"sources": (TaskSource(text="A long story. " * 300, seat=1),)})
    plain: list[str] = []

    def reply(request: ModelRequest) -> Scripted | Refused:
        if request.key == "vote/V2":
            plain.append(request.agent)
            if len(plain) == 1:
                return Refused("content filter")
        return adding_up(request)

    comparison = await compare(task, ["circle", "vote"], models=ScriptedModel(reply), store=store)
    assert vote(comparison) == (4, 1_000)
    assert comparison.notes == ()


@pytest.mark.parametrize(("told", "size", "each"), [(100, 10, 500), (900, 1, 250), (250, 4, 250)])
async def test_a_probe_unlike_the_other_answers_is_named(store: SqliteStore, told: int, size: int, each: int) -> None:
    def reply(request: ModelRequest) -> Scripted:
        if not request.key.startswith("vote"):
            return adding_up(request)
        first = not any(r.key == request.key for r in model.requests[:-1])
        tokens = told if first and request.key == "vote/V1" else each
        return Scripted("Answer: 3", tokens_in=tokens - 50, tokens_out=50)

    model = ScriptedModel(reply)
    comparison = await compare(OPEN, ["circle", "vote"], models=model, store=store)
    assert vote(comparison) == (size, size * each)
    if told == each:
        assert comparison.notes == ()
    else:
        assert comparison.notes == (
            f"vote on task open, seed 0: its size of {size} is far from the one to be matched: it cost {size * each:,} tokens "
            f"where the dearest other row spent 1,000; the probe told {told} a call, and the run took {each}.",
        )


async def test_probes_made_again_are_nobodys_repeats(store: SqliteStore) -> None:
    """Their seeds lie apart from those of any repeat."""
    comparison = await compare(OPEN, ["circle", "vote"], models=refusing(1), store=store, repeat=2)
    assert len(comparison.seeds) <= MOST_REPEATS
    assert {run.seed for run in comparison.runs} == {0, 1}
    assert comparison.notes == ()


async def test_a_share_of_calls_counts_what_the_limit_counts(store: SqliteStore) -> None:
    """Each of four is sent twice."""
    sent: set[str] = set()

    def reply(request: ModelRequest) -> Scripted | ServerError:
        if request.key not in sent:
            sent.add(request.key)
            return ServerError("busy")
        return adding_up(request)

    model = Limited(ScriptedModel(reply), deadline=5.0, retries=4, pace=Pace(backoff=1e-4, longest_backoff=1e-3))
    comparison = await compare(OPEN, ["circle"], models=model, store=store, budget=Budget(calls=16))
    (run,), (row,) = comparison.runs, comparison.rows
    assert (run.calls, run.requests) == (4, 8)
    assert row.spent == 0.5
    assert row.calls == 4


async def test_a_row_beyond_its_bound_is_named(store: SqliteStore) -> None:
    """Its model counts ten tokens where one was estimated."""

    def reply(request: ModelRequest) -> Scripted:
        return Scripted("Answer: 3", tokens_in=len(request.text) * 40, tokens_out=request.max_tokens)

    bound = Budget(tokens=3_000)
    comparison = await compare([OPEN], ["solo", "vote"], models=ScriptedModel(reply), store=store, budget=bound)
    over = {run.row: run.tokens / run.limit - 1 for run in comparison.runs if run.tokens > run.limit}
    assert over
    (note,) = comparison.notes
    assert note.startswith("Beyond the bound, since calls took more than was estimated: ")
    for row, part in over.items():
        assert f"{row} in 1 of 1 run, by up to {round(100 * part)} %" in note
    within = await compare([OPEN], ["solo"], models=ScriptedModel(adding_up, name="thrifty"), store=store, budget=bound)
    assert within.notes == ()


KILLED = """
import asyncio, os, sys
import pytest
from consilience.evaluation import compare
from consilience.journal.sqlite import SqliteStore
from consilience.testing import ScriptedModel
from kit.juries import Alone, seated

seated(pytest.MonkeyPatch())
model = ScriptedModel(lambda request: os._exit(9))
asyncio.run(compare("Is it so?", [Alone()], models=model, store=SqliteStore(sys.argv[1])))
"""


def killed_in_a_call(journal: Path) -> None:
    tests = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", KILLED, journal], timeout=60, check=False, cwd=tests)
    assert done.returncode == 9


async def test_lost_calls_are_said(store: SqliteStore, tmp_path: Path) -> None:
    """The process ends while a call is on its way; the same command asks it again."""
    killed_in_a_call(tmp_path / "compared.db")
    comparison = await compare("Is it so?", [Alone()], models=ScriptedModel(adding_up), store=store)
    (run,) = comparison.runs
    assert (run.calls, run.lost) == (1, 1)
    said = "Calls lost in flight when a process ended, perhaps paid for and in no figure: solo 1."
    assert comparison.notes == (said,)
    assert f"- {said}" in markdown(comparison)
    again = await compare("Is it so?", [Alone()], models=ScriptedModel([]), store=store)
    assert again.notes == (said,)
