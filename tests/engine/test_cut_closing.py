"""A closing call whose reply was cut is asked once more, with twice the room, while the limits allow it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consilience.domain.errors import ServerError
from consilience.domain.events import CallCompleted, CallFailed, ReplyRejected
from consilience.domain.outcome import Limits
from consilience.domain.report import Report
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import Scripted, ScriptedModel
from consilience.protocols.emergence import Emergence
from consilience.reporting.export import as_html
from consilience.reporting.record import read_record
from kit import runner

PROTOCOL = Emergence(children=2, max_rounds=1)
LEAVES = 4
"""Calls before the closing one."""

Reply = Callable[[ModelRequest], Any]


def cut(text: str) -> Scripted:
    return Scripted(json.dumps({"text": text}), finish_reason="length", tokens_out=10)


def whole(text: str) -> Scripted:
    return Scripted(json.dumps({"text": text}), tokens_out=10)


def script(*answers: Any) -> Reply:
    """The root's replies, attempt by attempt; an error is raised."""

    def reply(request: ModelRequest) -> Any:
        if request.agent != "L1N1":
            return whole(f"{request.key} was said.")
        answer = answers[request.attempt - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return reply


async def run(*answers: Any, store: SqliteStore | None = None, **fields: Any) -> tuple[Report, ScriptedModel]:
    model = ScriptedModel(script(*answers), price=0.001)
    store = store or SqliteStore(":memory:")
    return await runner.start("Which?", PROTOCOL, models=model, store=store, session="s", **fields), model


def closing_requests(model: ScriptedModel) -> list[ModelRequest]:
    return [request for request in model.requests if request.agent == "L1N1"]


async def test_cut_closing_reply_is_repeated_with_twice_the_tokens() -> None:
    report, model = await run(cut("Yes, bec"), whole("Yes, because it is."))
    first, second = closing_requests(model)
    assert second.max_tokens == 2 * first.max_tokens
    assert second.user == first.user
    assert (report.answer, report.answer_cut, report.cut_replies) == ("Yes, because it is.", False, ())
    assert report.ledger.actual.calls == PROTOCOL.estimate().max, "it counts as no call of its own"
    assert report.ledger.actual.repairs == 1
    assert not any("cut" in warning for warning in report.warnings)


@pytest.mark.parametrize(
    ("again", "kept"),
    [
        (cut("Yes, because it"), "Yes, because it"),
        (cut("Yes"), "Yes, bec"),
        (Scripted("{}", tokens_out=3), "Yes, bec"),
        (ServerError("down"), "Yes, bec"),
    ],
    ids=["cut again", "cut again and shorter", "unusable", "failed"],
)
async def test_closing_reply_cut_twice_keeps_the_longer_text_marked_as_cut(again: Any, kept: str) -> None:
    report, model = await run(cut("Yes, bec"), again)
    assert (report.answer, report.answer_cut) == (kept, True)
    assert report.cut_replies == ("round-1/observe/L1N1",)
    assert (report.failed_calls, report.missing, report.degraded) == ((), (), None), "the call was answered"
    assert {request.attempt for request in closing_requests(model)} == {1, 2}


async def test_cut_reply_of_another_call_is_not_repeated() -> None:
    model = ScriptedModel(lambda request: cut("So") if request.agent == "L2N1" else whole(f"{request.key}."))
    report = await runner.start("Which?", PROTOCOL, models=model, store=SqliteStore(":memory:"))
    assert len(model.requests) == PROTOCOL.estimate().max
    assert set(report.cut_replies) == {"round-1/leaf_respond/L2N1", "round-1/lateral/L2N1"}


async def test_cut_closing_reply_without_repairs_is_not_repeated() -> None:
    report, model = await run(cut("Yes, bec"), options=Options(repairs=0))
    assert len(closing_requests(model)) == 1
    assert report.answer_cut


@pytest.mark.parametrize("limits", [Limits(calls=LEAVES + 1), Limits(tokens=20_000), Limits(cost=12), Limits(cost=30)])
async def test_repeat_of_a_cut_closing_reply_stays_within_every_limit(limits: Limits) -> None:
    report, _ = await run(cut("Yes, bec"), whole("Yes, because it is."), limits=limits)
    spent = report.ledger.actual
    assert limits.calls is None or spent.requests <= limits.calls
    assert limits.cost is None or (spent.cost or 0) <= limits.cost
    assert limits.tokens is None or spent.tokens_in + spent.tokens_out <= limits.tokens
    assert report.answer in ("Yes, bec", "Yes, because it is.")
    assert report.answer_cut == (report.answer == "Yes, bec")
    assert report.failed_calls == ()


async def test_repeat_of_a_cut_closing_reply_refused_by_a_limit_keeps_the_first(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "j.db")
    report, model = await run(cut("Yes, bec"), limits=Limits(calls=LEAVES + 1), store=store)
    assert len(model.requests) == LEAVES + 1
    events = [event for event in store.read("s") if getattr(event, "key", "") == "round-1/observe/L1N1"]
    ended = [event for event in events if isinstance(event, CallCompleted | CallFailed | ReplyRejected)]
    assert [type(event) for event in ended] == [CallCompleted, CallFailed]
    assert report.answer_cut
    assert (await runner.replay("s", store=store)).digest() == report.digest()


@pytest.mark.parametrize("again", [whole("Yes, because it is."), cut("Yes"), Scripted("{}"), ServerError("down")])
async def test_repeated_closing_reply_replays_forks_and_is_on_the_page(again: Any, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "j.db")
    report, _ = await run(cut("Yes, bec"), again, store=store)
    assert (await runner.replay("s", store=store)).digest() == report.digest()
    failed = isinstance(again, ServerError)
    model = ScriptedModel([again] if failed else [])
    forked = await runner.fork("s", store=store, models=model, at="end", session="f")
    assert len(model.requests) == failed, "a fork makes a failed call again, and no other"
    assert (forked.answer, forked.answer_cut) == (report.answer, report.answer_cut)
    page = as_html(read_record(store, "s"))
    assert "Yes, bec" in page
    assert ("was cut off at the token limit" in page) == report.answer_cut


async def test_run_killed_before_the_repeat_of_a_cut_closing_reply_resumes_with_it(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "j.db")

    class Killed(BaseException):
        pass

    def killing(request: ModelRequest) -> Any:
        if request.agent == "L1N1" and request.attempt == 2:
            raise Killed
        return script(cut("Yes, bec"))(request)

    with pytest.raises(Killed):
        await runner.start("Which?", PROTOCOL, models=ScriptedModel(killing), store=store, session="s")
    model = ScriptedModel(script(cut("Yes, bec"), whole("Yes, because it is.")))
    report = await runner.resume("s", store=store, models=model)
    assert [(request.agent, request.attempt) for request in model.requests] == [("L1N1", 2)]
    assert (report.answer, report.answer_cut) == ("Yes, because it is.", False)


async def test_closing_reply_cut_to_unreadable_json_is_repeated_with_twice_the_tokens() -> None:
    report, model = await run(Scripted('{"claims": [{"te', finish_reason="length"), whole("Yes, because it is."))
    first, second = closing_requests(model)
    assert second.max_tokens == 2 * first.max_tokens
    assert report.answer == "Yes, because it is."
