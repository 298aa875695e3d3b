"""Patterns of users on hostile replies: the loop goes on, limits hold, replies are kept, and a replay finds the same."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path

import pytest

from consilience.domain.events import CallCompleted, SearchExpired
from consilience.domain.outcome import Limits
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.protocols._common.answers import find
from consilience.protocols.baselines import Vote, VoteReport
from consilience.protocols.emergence import Emergence
from consilience.testing import ScriptedModel
from kit import runner

HOSTILE_PATTERN = r"(?:a|a|aa)+$"
SECONDS_OF_A_SEARCH = 0.5


def hostile(request: ModelRequest) -> str:
    return f"{request.key}: {'a' * 60}!"


async def test_loop_and_journal_go_on_while_a_hostile_pattern_runs(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "journal.db")
    asked: list[str] = []
    seen: set[int] = set()

    def reply(request: ModelRequest) -> str:
        asked.append(request.key)
        return hostile(request)

    async def watch() -> None:
        other = SqliteStore(tmp_path / "journal.db")
        while True:
            if len(asked) == 2:
                events = other.read("s")
                if not any(isinstance(event, SearchExpired) for event in events):
                    seen.add(sum(isinstance(event, CallCompleted) for event in events))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    protocol = Vote(votes=2, answer_pattern=HOSTILE_PATTERN)
    report = await runner.start("Which?", protocol, models=ScriptedModel(reply), store=store, session="s")
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    assert 2 in seen, "both replies are read by another connection before the first search ends"
    assert isinstance(report, VoteReport)
    assert [vote.position for vote in report.votes] == [None, None]
    assert sum("took too long on what V" in warning for warning in report.warnings) == 2
    assert (await runner.replay("s", store=store)).digest() == report.digest()


def letters_of_a_long_search() -> int:
    """How many letters make a search take between a tenth and a quarter of what it may, on this machine."""
    for letters in range(16, 60):
        began = time.thread_time()
        find(HOSTILE_PATTERN, "a" * letters + "!", seconds=10)
        if time.thread_time() - began > SECONDS_OF_A_SEARCH / 10:
            return letters
    raise AssertionError("no search takes long")


async def test_searches_in_parallel_do_not_expire_by_the_cpu_time_of_one_another() -> None:
    field = "a" * letters_of_a_long_search() + "!a"

    def reply(request: ModelRequest) -> str:
        if "/ballot/" in request.key:
            return json.dumps({"position": field, "confidence": "certain", "reason": request.key})
        return json.dumps({"text": "yes"})

    model = ScriptedModel(reply)
    protocol = Emergence(children=4, depth=3, max_rounds=1, answer_pattern=HOSTILE_PATTERN)
    report = await runner.start("Which?", protocol, models=model, store=SqliteStore(":memory:"))
    assert report.ledger.actual.repairs == 0
    assert len(report.ballots) == 32  # type: ignore[attr-defined]


async def test_recorded_expiry_is_not_searched_again(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "journal.db")
    protocol = Vote(votes=3, answer_pattern=HOSTILE_PATTERN)
    await runner.start("Which?", protocol, models=ScriptedModel(hostile), store=store, session="s")
    began = time.process_time()
    await runner.replay("s", store=store)
    assert time.process_time() - began < 3 * SECONDS_OF_A_SEARCH


async def test_searches_end_at_the_time_limit() -> None:
    protocol, votes = Vote(votes=40, answer_pattern=HOSTILE_PATTERN), 40
    began = time.process_time()
    report = await runner.start(
        "Which?", protocol, models=ScriptedModel(hostile), store=SqliteStore(":memory:"), limits=Limits(seconds=1)
    )
    assert time.process_time() - began < votes * SECONDS_OF_A_SEARCH / 3
    assert report.answer is not None


async def test_ballot_that_takes_too_long_is_asked_again_and_counts_for_nobody() -> None:
    def reply(request: ModelRequest) -> str:
        if "/ballot/" in request.key:
            return json.dumps({"position": f"{request.attempt} {hostile(request)}", "reason": "so"})
        return "A text."

    store = SqliteStore(":memory:")
    protocol = Emergence(children=2, max_rounds=1, answer_pattern=HOSTILE_PATTERN)
    model = ScriptedModel(reply)
    report = await runner.start("Which?", protocol, models=model, store=store)
    assert not report.ballots  # type: ignore[attr-defined]
    ballots = [request for request in model.requests if "/ballot/" in request.key]
    assert {request.attempt for request in ballots} == {1, 2}
    assert (await runner.replay(report.session, store=store)).digest() == report.digest()


@pytest.mark.parametrize("mark", [".", ":", ". ", ": ", "…. "])
async def test_long_run_of_marks_in_a_reply_takes_linear_time(mark: str) -> None:
    text = f"Answer: yes\n{mark * 20_000}"
    began = time.process_time()
    report = await runner.start(
        "Which?", Vote(votes=1, answer_pattern="yes|no"), models=ScriptedModel([text]), store=SqliteStore(":memory:")
    )
    assert time.process_time() - began < 10
    assert report.position == "yes"  # type: ignore[attr-defined]
