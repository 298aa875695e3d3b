"""A resizable row costs as much as the most expensive other row, or a note reports the difference."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

import numpy
import pytest

from consilience.domain.errors import ServerError, SettingsError
from consilience.domain.events import CallCompleted, Event
from consilience.domain.outcome import Estimate
from consilience.domain.report import Report
from consilience.engine import protocol as registry
from consilience.engine.prompt import Prompt
from consilience.engine.session import Session
from consilience.evaluation import Budget, Comparison, Match, Task, TaskSource, compare, markdown
from consilience.evaluation.comparison import MAX_PROBES, MAX_REPEATS
from consilience.evaluation.rows import PROBE_CALLS, REVIEWED, CompareRow, price_of
from consilience.journal.sqlite import SqliteStore
from consilience.models.limiter import Limited, Pace
from consilience.models.port import ModelRequest
from consilience.testing import Refused, Scripted, ScriptedModel
from kit import forks
from kit.juries import Alone, Circle, Poll, adding_up

OPEN = Task(id="open", task="Ann has 3 apples. How many are there?", answer="3", answer_pattern=r"answer:\W*(\d+)")


class Probed(ScriptedModel):
    """Whose voters give other answers as long as `first`, told how often that voter was asked, returns one."""

    def __init__(self, first: Callable[[int], Scripted | Refused | None]) -> None:
        asked = self.asked = Counter[str]()

        def reply(request: ModelRequest) -> Scripted | Refused:
            if request.key.startswith("vote/"):
                asked[request.key] += 1
                if (other := first(asked[request.key])) is not None:
                    return other
            return adding_up(request)

        super().__init__(reply)


def vote(comparison: Comparison) -> tuple[int | None, int]:
    (run,) = comparison.of("vote")
    return run.size, run.tokens


def refusing(times: int) -> Probed:
    return Probed(lambda n: Refused("content filter") if n <= times else None)


@pytest.mark.parametrize("refused", range(MAX_PROBES))
async def test_failed_probe_is_repeated(store: SqliteStore, refused: int) -> None:
    model = refusing(refused)
    comparison = await compare(OPEN, ["circle", "vote"], models=model, store=store)
    assert vote(comparison) == (4, 1_000)
    assert comparison.notes == ()
    assert model.asked == {f"vote/V{n}": refused + 2 for n in range(1, PROBE_CALLS + 1)}
    again = await compare(OPEN, ["circle", "vote"], models=ScriptedModel([]), store=store)
    assert vote(again) == (4, 1_000)


async def test_size_without_a_measured_cost_is_reported(store: SqliteStore) -> None:
    model = refusing(MAX_PROBES)
    comparison = await compare(OPEN, ["circle", "vote"], models=model, store=store)
    size, tokens = vote(comparison)
    assert size == 1
    (note,) = comparison.notes
    assert note == (
        f"vote on task open, seed 0: 3 probes did not measure the cost of a call (refused); its size of 1 follows "
        f"from the max cost of a call, and it cost {tokens:,} tokens where the most expensive other row spent 1,000 tokens."
    )
    assert f"- {note}" in markdown(comparison)
    again = await compare(OPEN, ["circle", "vote"], models=ScriptedModel([]), store=store)
    assert again.notes == comparison.notes


async def test_probe_answered_only_by_seats_with_sources_is_repeated(store: SqliteStore) -> None:
    task = OPEN.model_copy(update={"sources": (TaskSource(text="A long story. " * 300, seat=1),)})
    plain: list[str] = []

    def reply(request: ModelRequest) -> Scripted | Refused:
        if request.key in {f"vote/V{n}" for n in range(2, PROBE_CALLS + 2)}:
            plain.append(request.agent)
            if len(plain) <= PROBE_CALLS:
                return Refused("content filter")
        return adding_up(request)

    comparison = await compare(task, ["circle", "vote"], models=ScriptedModel(reply), store=store)
    assert vote(comparison) == (4, 1_000)
    assert comparison.notes == ()


@pytest.mark.parametrize(("expected", "size", "each"), [(100, 10, 500), (900, 1, 250), (250, 4, 250)])
async def test_probe_with_an_unusual_cost_is_reported(store: SqliteStore, expected: int, size: int, each: int) -> None:
    def reply(request: ModelRequest) -> Scripted:
        if not request.key.startswith("vote"):
            return adding_up(request)
        probed = sum(r.key.startswith("vote") for r in model.requests) <= PROBE_CALLS
        tokens = expected if probed else each
        return Scripted("Answer: 3", tokens_in=tokens - 50, tokens_out=50)

    model = ScriptedModel(reply)
    comparison = await compare(OPEN, ["circle", "vote"], models=model, store=store)
    assert vote(comparison) == (size, size * each)
    if expected == each:
        assert comparison.notes == ()
    else:
        assert comparison.notes == (
            f"vote on task open, seed 0: its size of {size} is far from the one to be matched: it cost {size * each:,} tokens "
            "where the most expensive other row spent 1,000 tokens; "
            f"the probe measured {expected} tokens a call, and the run took {each} tokens.",
        )


async def test_repeated_probes_are_in_no_row(store: SqliteStore) -> None:
    """Their seeds lie apart from those of any repeat."""
    comparison = await compare(OPEN, ["circle", "vote"], models=refusing(1), store=store, repeat=2)
    assert len(comparison.seeds) <= MAX_REPEATS
    assert {run.seed for run in comparison.runs} == {0, 1}
    assert comparison.notes == ()


async def test_share_of_a_call_budget_counts_retries(store: SqliteStore) -> None:
    """Each of four is sent twice."""
    sent: set[str] = set()

    def reply(request: ModelRequest) -> Scripted | ServerError:
        if request.key not in sent:
            sent.add(request.key)
            return ServerError("busy")
        return adding_up(request)

    model = Limited(
        ScriptedModel(reply), deadline=5.0, retries=4, pace=Pace(backoff_seconds=1e-4, max_backoff_seconds=1e-3)
    )
    comparison = await compare(OPEN, ["circle"], models=model, store=store, budget=Budget(calls=16))
    (run,), (row,) = comparison.runs, comparison.rows
    assert (run.calls, run.requests) == (4, 8)
    assert row.spent == 0.5
    assert row.calls == 4


async def test_row_beyond_its_limit_is_reported(store: SqliteStore) -> None:
    """Its model counts ten tokens where one was estimated."""

    def reply(request: ModelRequest) -> Scripted:
        return Scripted("Answer: 3", tokens_in=len(request.text) * 40, tokens_out=request.max_tokens)

    bound = Budget(tokens=3_000)
    comparison = await compare([OPEN], ["solo", "vote"], models=ScriptedModel(reply), store=store, budget=bound)
    over = {run.row: run.tokens / run.limit - 1 for run in comparison.runs if run.tokens > run.limit}
    assert over
    (note,) = comparison.notes
    assert note.startswith("Over the limit, since calls used more than estimated: ")
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
    done = forks.run([sys.executable, "-c", KILLED, str(journal)], timeout=300, cwd=tests)
    assert done.returncode == 9


async def test_lost_calls_are_reported(store: SqliteStore, tmp_path: Path) -> None:
    """The process ends while a call is on its way; the same command asks it again."""
    killed_in_a_call(tmp_path / "compared.db")
    comparison = await compare("Is it so?", [Alone()], models=ScriptedModel(adding_up), store=store)
    (run,) = comparison.runs
    assert (run.calls, run.lost) == (1, 1)
    text = "Calls interrupted when a process ended, possibly charged and in no figure: solo 1."
    assert comparison.notes == (text,)
    assert f"- {text}" in markdown(comparison)
    again = await compare("Is it so?", [Alone()], models=ScriptedModel([]), store=store)
    assert again.notes == (text,)


# --- what is matched, and by how much it is missed


def priced_reply(request: ModelRequest) -> Scripted:
    voting = request.key.startswith("vote")
    read = 100 if voting else 400
    return Scripted("Answer: 3", tokens_in=read, tokens_out=100, cost=(read + 9 * 100) / 1_000_000)


def free_reply(request: ModelRequest) -> Scripted:
    return replace(priced_reply(request), cost=0.0)


@pytest.mark.parametrize(("match", "votes"), [("tokens", 10), ("calls", 4), ("cost", 5)])
async def test_vote_is_matched_by_tokens_or_cost_as_set(store: SqliteStore, match: Match, votes: int) -> None:
    """The circle makes four calls of 400 and 100 tokens: 2,000 tokens, 5,200 millionths of a dollar."""
    budget = Budget(match=match)
    comparison = await compare(OPEN, ["circle", "vote"], models=ScriptedModel(priced_reply), store=store, budget=budget)
    (run,) = comparison.of("vote")
    assert run.size == votes
    assert comparison.notes == ()


async def test_match_by_zero_cost_is_refused(store: SqliteStore) -> None:
    with pytest.raises(SettingsError, match="no row can be matched"):
        await compare(
            OPEN, ["circle", "vote"], models=ScriptedModel(free_reply), store=store, budget=Budget(match="cost")
        )
    with pytest.raises(SettingsError, match="not matched by calls"):
        await compare(OPEN, ["circle"], models=ScriptedModel(priced_reply), budget=Budget(tokens=9, match="calls"))


def probe_of(costs: Sequence[int]) -> list[Event]:
    return [
        CallCompleted(seq=n, key=f"vote/V{n}", agent=f"V{n}", text="3", tokens_in=cost)
        for n, cost in enumerate(costs, 1)
    ]


def test_vote_size_is_unbiased_under_varying_probe_costs() -> None:
    """Calls that vary by half of their mean, as replies do; a single one would make the vote a fifth too large."""
    generator = numpy.random.default_rng(1)
    spread = math.sqrt(math.log(1.25))
    row, target = CompareRow("vote", Poll(size=PROBE_CALLS)), 20_000
    sizes = []
    for _ in range(4_000):
        costs = generator.lognormal(math.log(250) - spread**2 / 2, spread, PROBE_CALLS).astype(int)
        sizes.append(row.nearest(target / price_of(row, OPEN, probe_of(costs), "tokens").each))
    assert sum(sizes) / len(sizes) * 250 == pytest.approx(target, rel=0.03)


class Reviewing(Alone):
    """Its first call is dearer than those of a review."""

    name: ClassVar[str] = "solo"
    reviews: int = 0

    def resized_for_calls(self, calls: int) -> Self:
        return self.model_copy(update={"reviews": max(calls - 1, 0) // 2})

    def estimate(self) -> Estimate:
        return Estimate(min=1 + 2 * self.reviews, max=1 + 2 * self.reviews)

    async def run(self, session: Session) -> Report:
        result = await session.ask("A1", Prompt("answer"), key="answer")
        for n in range(self.reviews):
            await session.ask("A1", Prompt("answer"), key=f"critique-{n}")
            result = await session.ask("A1", Prompt("answer"), key=f"again-{n}")
        return await self.conclude(session, [result], "Answer: 3", {"3": 1})


@pytest.mark.parametrize(
    ("budget", "reviews"), [(Budget(), 4), (Budget(match="calls"), 2), (Budget(calls=8), 3), (Budget(calls=2), 0)]
)
async def test_solo_has_as_many_reviews_as_the_budget_allows(
    monkeypatch: pytest.MonkeyPatch, store: SqliteStore, budget: Budget, reviews: int
) -> None:
    """A circle of four makes five calls of 250 tokens; here the first takes 250 and all others 125."""
    monkeypatch.setitem(registry._registered, "solo", Reviewing)

    def reply(request: ModelRequest) -> Scripted | Refused:
        if request.key.startswith(("critique", "again")):
            return Scripted("Answer: 3", tokens_in=100, tokens_out=25)
        return adding_up(request)

    rows = ["solo", REVIEWED, Circle(size=4)]
    comparison = await compare(OPEN, rows, models=ScriptedModel(reply), store=store, budget=budget)
    (run,), (alone,) = comparison.of(REVIEWED), comparison.of("solo")
    assert (run.size, run.calls) == (1 + 2 * reviews, 1 + 2 * reviews)
    assert alone.calls == 1
    references = [d.reference for d in comparison.differences]
    assert references == []
    assert comparison.notes == ()
