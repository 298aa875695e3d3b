"""Patterns of users on hostile replies: the loop goes on, limits hold, replies are kept, and a replay finds the same."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
import regex

from consilience.domain.events import CallCompleted, SearchExpired
from consilience.domain.outcome import Limits
from consilience.engine.searches import matches_of
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
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


class PatternOnABusyMachine:
    """A pattern whose first searches end by the CPU time of other threads: their bound is up and this thread did nothing."""

    def __init__(self, ends: int) -> None:
        self.ends = ends
        self.bounds: list[float] = []

    def finditer(self, text: str, *, timeout: float) -> Iterator[regex.Match[str]]:
        self.bounds.append(timeout)
        if len(self.bounds) <= self.ends:
            raise TimeoutError
        return regex.finditer("a+", text, timeout=timeout)


def test_search_that_ends_by_the_time_of_others_is_begun_anew_with_a_longer_bound() -> None:
    pattern = PatternOnABusyMachine(ends=5)
    found = matches_of(cast("regex.Pattern[str]", pattern), "aa!a", seconds=10)
    assert [match.group() for match in found] == ["aa", "a"]
    assert pattern.bounds == [10, 20, 40, 80, 160, 320]


def test_search_that_takes_its_own_time_ends() -> None:
    with pytest.raises(TimeoutError):
        matches_of(regex.compile(HOSTILE_PATTERN), "a" * 60 + "!", seconds=0.05)


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
