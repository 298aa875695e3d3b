"""The rules of a session: keys, visibility, repair, limits, time, waiting for the outside."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from consilience.domain.errors import (
    ProtocolViolation,
    RateLimited,
    ReplayMiss,
    RequestMismatch,
    SessionBusy,
    SessionWaiting,
    SettingsError,
    VersionMismatch,
)
from consilience.domain.events import CallCompleted, Event, canonical_digest
from consilience.domain.messages import Message
from consilience.domain.outcome import Check, FailureKind, Limits, StopReason
from consilience.domain.report import Report
from consilience.engine import recorder
from consilience.engine.conditions import ConditionInput, StopCondition
from consilience.engine.faults import Crash
from consilience.engine.ledger import BranchBudget
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.runner import Options
from consilience.engine.session import Session
from consilience.engine.sizes import Demand, Usage
from consilience.engine.work import Failure, Reply
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import Scripted, ScriptedModel
from kit import runner
from kit.golden import Golden
from kit.throwaways import Body, Made, Outside, OutsideAgent


async def play(body: Body, model: object = None, **options: object) -> tuple[Report, SqliteStore]:
    Made.body = staticmethod(body)  # type: ignore[assignment]
    store = options.pop("store", None) or SqliteStore(":memory:")
    model = model or ScriptedModel(lambda r: f"said {r.key}")
    report = await runner.start("Why?", Made(), models=model, store=store, **options)  # type: ignore[arg-type]
    return report, store  # type: ignore[return-value]


async def test_key_used_twice_is_a_violation() -> None:
    async def body(session: Session) -> None:
        await session.ask("A1", Prompt("a"), key="k")
        await session.ask("A1", Prompt("a"), key="k")

    with pytest.raises(ProtocolViolation, match="'k' is used twice"):
        await play(body)


async def test_quote_outside_its_audience_is_a_violation() -> None:
    async def body(session: Session) -> None:
        await session.ask("A1", Prompt("a"), key="private", audience=["A2"])
        await session.ask("A2", Prompt("b", (Quote("private", "A"),)), key="ok")
        await session.ask("A3", Prompt("b", (Quote("private", "A"),)), key="leak")

    with pytest.raises(ProtocolViolation, match="A3 may not be shown private"):
        await play(body)


async def test_malformed_reply_is_repaired_once_with_the_reason_and_its_cost_counted(golden: Golden) -> None:
    from consilience.domain.positions import BallotReply

    async def body(session: Session) -> object:
        got = await session.ask("A1", Prompt("vote"), key="v", returns=BallotReply)
        assert isinstance(got, Reply)
        assert got.value.position == "yes"

    model = ScriptedModel(["I vote yes!", '{"position": "yes"}'])
    report, _ = await play(body, model)
    second = model.requests[1]
    assert "I vote yes!" in second.text
    assert "could not be used: the reply is not a JSON object" in second.text
    spent = report.ledger.actual
    assert (spent.calls, spent.requests, spent.repairs, spent.retries) == (1, 2, 1, 0)
    golden(report.warnings)


@pytest.mark.parametrize("end", [KeyError("x"), Crash()], ids=["defect", "killed"])
async def test_reply_is_kept_before_it_is_checked_and_never_paid_again(tmp_path: Path, end: BaseException) -> None:
    from consilience.domain.positions import BallotReply

    path = tmp_path / "journal.db"
    kept: list[str] = []

    def check(_: BallotReply) -> None:
        if not kept:
            kept.extend(arrival.key for arrival in SqliteStore(path).arrivals("s"))
            raise end

    async def body(session: Session) -> object:
        got = await session.ask("A1", Prompt("vote"), key="v", returns=BallotReply, accept=check)
        assert isinstance(got, Reply)
        assert got.value.position == "yes"

    store = SqliteStore(path)
    with pytest.raises(type(end)):
        await play(body, ScriptedModel(['{"position": "yes"}']), store=store, session="s")
    assert kept == ["v"]
    store = SqliteStore(path)
    report = await runner.resume("s", store=store, models=ScriptedModel([]))
    spent = report.ledger.actual
    assert (spent.calls, spent.requests, spent.lost) == (1, 1, 0)
    assert store.arrivals("s") == []
    assert (await runner.replay("s", store=store)).digest() == report.digest()


async def test_failed_call_is_returned_as_a_failure_and_siblings_continue() -> None:
    async def body(session: Session) -> None:
        got = await session.gather([session.ask(a, Prompt("x"), key=a) for a in ("A1", "A2", "A3")])
        assert [type(g).__name__ for g in got] == ["Reply", "Failure", "Reply"]
        assert got[1].kind is FailureKind.RATE_LIMITED

    await play(body, ScriptedModel(lambda r: RateLimited("slow down") if r.agent == "A2" else "fine"))


async def test_exception_in_one_branch_is_raised_and_cancels_the_others() -> None:
    async def bad(session: Session) -> None:
        raise ZeroDivisionError

    async def body(session: Session) -> None:
        await session.gather([session.subtask(bad(session), calls=0), session.ask("A1", Prompt("x"), key="x")])

    with pytest.raises(ZeroDivisionError):
        await play(body, ScriptedModel(lambda r: "late", latency=60))


def test_budget_split_funds_needs_in_order_before_retries() -> None:
    first, seven = Usage(1, 10, 0), Usage(7, 70, 0)

    def calls(budget: float, needs: list[Usage]) -> list[float]:
        branches = BranchBudget(Usage(budget, 1000, 1)).split([Demand(need, need) for need in needs])
        return [branch.left.calls for branch in branches]

    assert calls(2, [first, first, first]) == [1, 1, 0]
    assert calls(5, [seven, first]) == [0, 0], "who does not fit gets nothing, nor does anyone after"
    assert calls(4, [first, first, first]) == [2, 1, 1]
    assert calls(8, [seven, first]) == [7, 1]


async def test_fifty_parallel_calls_on_a_budget_of_three_make_three_and_end_in_an_answer() -> None:
    class Fifty(Made):
        pass

    async def body(session: Session) -> object:
        await session.gather([session.ask("A1", Prompt("x"), key=f"k{n}") for n in range(50)])
        return await session.ask("A1", Prompt("close"), key="close", closing=True)

    model = ScriptedModel(lambda r: f"said {r.key}", latency=0.001)
    report, _ = await play(body, model, limits=Limits(calls=3))
    assert sorted(r.key for r in model.requests) == ["close", "k0", "k1"]
    assert report.answer == "said close"
    assert report.ledger.reserve_drawn


async def test_token_limit_is_kept_with_exact_estimates() -> None:
    async def body(session: Session) -> object:
        for n in range(50):
            await session.ask("A1", Prompt("x"), key=f"k{n}", max_tokens=100)
        return await session.ask("A1", Prompt("close"), key="close", closing=True, max_tokens=100)

    model = ScriptedModel(lambda r: Scripted("t", tokens_in=40, tokens_out=100))
    report, _ = await play(body, model, limits=Limits(tokens=20_000))
    spent = report.ledger.actual
    assert spent.tokens_in + spent.tokens_out <= 20_000
    assert report.answer == "t"


async def test_money_limit_is_kept_and_an_unknown_price_is_a_warning(golden: Golden) -> None:
    async def body(session: Session) -> object:
        for n in range(50):
            await session.ask("A1", Prompt("x"), key=f"k{n}", max_tokens=100)
        return await session.ask("A1", Prompt("close"), key="close", closing=True, max_tokens=100)

    priced = ScriptedModel(lambda r: Scripted("t", tokens_in=50, tokens_out=50, cost=0.1), price=0.001)
    report, _ = await play(body, priced, limits=Limits(cost=10.0))
    assert report.ledger.actual.cost is not None
    assert 0 < report.ledger.actual.cost <= 10.0
    unpriced = ScriptedModel(lambda r: Scripted("t", cost=None), price=None)
    report, _ = await play(body, unpriced)
    assert report.ledger.actual.cost is None
    golden(report.warnings)


async def test_calls_after_the_time_limit_are_refused_except_the_closing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(recorder, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def nine_seconds_later(request: ModelRequest) -> str:
        clock[0] = 9.0
        return "t"

    async def body(session: Session) -> object:
        early = await session.ask("A1", Prompt("x"), key="early")
        late = await session.ask("A1", Prompt("x"), key="late")
        assert isinstance(early, Reply)
        assert isinstance(late, Failure)
        assert late.kind is FailureKind.TIME
        return await session.ask("A1", Prompt("close"), key="close", closing=True)

    model = ScriptedModel(nine_seconds_later)
    report, store = await play(body, model, limits=Limits(seconds=10))
    assert [r.key for r in model.requests] == ["early", "close"]
    assert report.answer == "t"
    await runner.replay(report.session, store=store)


async def test_overlong_reply_is_cut_and_marked(golden: Golden) -> None:
    async def body(session: Session) -> object:
        return await session.ask("A1", Prompt("x"), key="k", max_tokens=1000)

    report, _ = await play(body, ScriptedModel(["word " * 200_000]))
    assert report.answer is not None
    assert len(report.answer) <= 8000
    golden(report.warnings)


# the outside


async def test_session_that_waits_only_for_outside_answers_parks_and_resumes_when_answered(tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    store = SqliteStore(path)
    outside, model = Outside(), ScriptedModel(lambda r: f"said {r.key}")
    seats = {"A1": model, "A2": outside, "A3": model}
    with pytest.raises(SessionWaiting) as parked:
        await runner.start("Why?", OutsideAgent(), models=seats, store=store, options=Options(patience=0))
    session = parked.value.session
    assert parked.value.awaited == ("say/A2",)
    assert store.holder(session) is None
    store.close()

    store = SqliteStore(path)  # another process, later
    store.post(session, "answer", "say/A2", "I was out", by="A2")
    before = len(model.requests)
    report = await runner.resume(session, store=store, models=seats)
    assert [r.key for r in model.requests[before:]] == ["close"]
    assert "I was out" in model.requests[-1].text
    assert report.replied == 3
    assert report.ledger.actual.lost == 0, "who was awaited is not lost"
    assert outside.sent == ["say/A2"]
    assert (await runner.replay(session, store=store)).digest() == report.digest()
    store.close()


async def test_outside_answer_within_patience_is_used_without_parking() -> None:
    outside, model = Outside(), ScriptedModel(lambda r: f"said {r.key}", latency=0.01)
    store = SqliteStore(":memory:")
    seats = {"A1": model, "A2": outside, "A3": model}
    run = asyncio.ensure_future(
        runner.start("Why?", OutsideAgent(), models=seats, store=store, options=Options(patience=60))
    )
    await asyncio.wait_for(outside.asked.wait(), 10)
    outside.answer("say/A2", "here")
    report = await run
    assert report.stop_reason is StopReason.SETTLED
    store.close()


async def test_resumed_session_collects_outside_questions_without_sending_them_again(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "j.db")
    outside, model = Outside(), ScriptedModel(lambda r: "t")
    seats = {"A1": model, "A2": outside, "A3": model}
    with pytest.raises(SessionWaiting) as parked:
        await runner.start("Why?", OutsideAgent(), models=seats, store=store, options=Options(patience=0))
    outside.asked.clear()
    run = asyncio.ensure_future(runner.resume(parked.value.session, store=store, models=seats))
    await asyncio.wait_for(outside.asked.wait(), 10)
    outside.answer("say/A2", "at last")
    assert (await run).replied == 3
    assert outside.sent == ["say/A2"]
    store.close()


async def test_branches_that_wait_for_each_other_are_a_deadlock_violation() -> None:
    async def body(session: Session) -> None:
        futures: list[object] = []

        async def wait_for(n: int) -> None:
            await futures[n]  # type: ignore[misc]

        futures.append(session.start(session.subtask(wait_for(1), calls=0)))
        futures.append(session.start(session.subtask(wait_for(0), calls=0)))
        await futures[0]  # type: ignore[misc]

    with pytest.raises(ProtocolViolation, match="deadlock"):
        await play(body)


# resume and replay refuse what does not fit


async def test_replay_with_a_changed_prompt_or_key_is_refused_with_the_call(tmp_path: Path) -> None:
    async def once(session: Session) -> object:
        return await session.ask("A1", Prompt("one"), key="k")

    async def other(session: Session) -> object:
        return await session.ask("A1", Prompt("two"), key="k")

    async def renamed(session: Session) -> object:
        return await session.ask("A1", Prompt("one"), key="kk")

    report, store = await play(once)
    Made.body = staticmethod(other)  # type: ignore[assignment]
    with pytest.raises(RequestMismatch, match="'k' is recorded with another request"):
        await runner.replay(report.session, store=store)
    Made.body = staticmethod(renamed)  # type: ignore[assignment]
    with pytest.raises(ReplayMiss, match="the nearest recorded is 'k'"):
        await runner.replay(report.session, store=store)


async def test_replay_with_another_protocol_version_is_refused_with_both_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(session: Session) -> object:
        return await session.ask("A1", Prompt("one"), key="k")

    report, store = await play(body)
    monkeypatch.setattr(Made, "version", 2)
    with pytest.raises(VersionMismatch, match="version 1 of made; this is 2"):
        await runner.replay(report.session, store=store)
    assert await runner.resume(report.session, store=store) == report, "a finished report can always be read"


async def test_concurrent_runs_of_a_session_are_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "j.db")
    journal = store.create("s")
    with pytest.raises(SessionBusy):
        await runner.resume("s", store=store)
    await journal.close()
    with pytest.raises(SettingsError, match="interrupted before its start"):
        await runner.resume("s", store=store)
    store.close()


async def test_replay_uses_the_recorded_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session replays with the templates that it was recorded with."""
    from consilience.engine.templates import Templates

    async def body(session: Session) -> object:
        return await session.ask("A1", Prompt(session.render_template("seat")), key="k")

    monkeypatch.setattr(
        Made,
        "load_templates",
        classmethod(lambda cls, o=None, detail="full": Templates({"instructions": "i", "seat": "old"})),
    )
    report, store = await play(body)
    monkeypatch.setattr(
        Made,
        "load_templates",
        classmethod(lambda cls, o=None, detail="full": Templates({"instructions": "i", "seat": "new"})),
    )
    assert (await runner.replay(report.session, store=store)).digest() == report.digest()


# drawing and waiting


async def test_started_call_that_is_not_read_is_recorded_with_a_warning(golden: Golden) -> None:
    async def body(session: Session) -> None:
        async with session.phase("aside", 3):
            session.start(session.ask("A1", Prompt("x"), key="aside"))

    report, _ = await play(body, ScriptedModel(lambda r: "t", latency=0.01))
    assert report.ledger.actual.calls == 1
    golden(report.warnings)


async def test_unread_message_of_a_kind_that_must_be_read_is_a_warning() -> None:
    async def body(session: Session) -> None:
        await session.ask("A1", Prompt("x"), key="n", kind="hint", audience=["A2"])
        await session.ask("A1", Prompt("x"), key="m", kind="remark", audience=["A2"])

    report, _ = await play(body)
    assert [w for w in report.warnings if "was read by no later call" in w] == ["the hint n was read by no later call"]


async def test_published_message_is_not_appended_again_on_replay(tmp_path: Path) -> None:
    async def body(session: Session) -> object:
        session.publish(Message(id="m", sender="A1", kind="note", text="hello", audience=("A2",)))
        return await session.ask("A2", Prompt("x", (Quote("m", "A"),)), key="k")

    report, store = await play(body)
    await runner.replay(report.session, store=store)
    assert [e.type for e in store.read(report.session)].count("message_published") == 1


async def test_random_draws_are_the_same_in_any_order_of_replies() -> None:
    drawn: list[dict[str, float]] = []

    async def member(session: Session, n: int, into: dict[str, float]) -> None:
        await session.ask("A1", Prompt(str(n)), key=f"k{n}")
        into[f"{n}"] = session.rng("dice").random()

    async def body(session: Session) -> None:
        into: dict[str, float] = {}
        await session.gather([session.subtask(member(session, n, into), calls=1) for n in range(6)])
        drawn.append(into)

    for order in (lambda r: 0.001 * int(r.key[1:]), lambda r: 0.01 - 0.001 * int(r.key[1:])):
        await play(body, ScriptedModel(lambda r: "t", latency=order))
    assert drawn[0] == drawn[1]
    assert list(drawn[0]) != list(drawn[1])
    assert len(set(drawn[0].values())) == 6


class FixedCondition(StopCondition):
    def __init__(self, met: bool) -> None:
        self.met = met

    async def check(self, session: Session, progress: ConditionInput) -> Check:
        return Check(met=self.met, kind="said", score=0.5)


@pytest.mark.parametrize(("left", "right"), [(True, True), (True, False), (False, True), (False, False)])
async def test_combined_conditions_are_met_by_and_or_without_a_score(left: bool, right: bool) -> None:
    both = await (FixedCondition(left) & FixedCondition(right)).check(None, ConditionInput(2, []))  # type: ignore[arg-type]
    either = await (FixedCondition(left) | FixedCondition(right)).check(None, ConditionInput(2, []))  # type: ignore[arg-type]
    assert (both.met, either.met) == (left and right, left or right)
    assert both.score is either.score is None
    assert len(both.parts) == 2


class TwoVectorEncoder:
    """An encoder with two directions."""

    name = "two"

    def __init__(self) -> None:
        self.calls = 0

    async def encode(self, texts: object) -> list[list[float]]:
        self.calls += 1
        return [[1.0, 0.0] if "sheep" in text else [0.0, 1.0] for text in texts]  # type: ignore[attr-defined]


async def test_embedding_similarity_is_recorded_and_replayed_without_the_encoder() -> None:
    scores: list[float] = []

    async def body(session: Session) -> None:
        scores.append(await session.similarity("embedding", "a sheep", "two sheep"))
        scores.append(await session.similarity("embedding", "a sheep", "a cow"))

    encoder = TwoVectorEncoder()
    report, store = await play(body, encoder=encoder)
    assert scores == [1.0, 0.0]
    await runner.replay(report.session, store=store)
    assert (scores, encoder.calls) == ([1.0, 0.0, 1.0, 0.0], 2)


async def test_reply_is_durable_before_the_next_call_is_sent(tmp_path: Path) -> None:
    """When the second call is sent, another reader of the file finds the first one's reply."""
    path = tmp_path / "j.db"
    seen: list[list[str]] = []

    def reply(request: ModelRequest) -> str:
        other = SqliteStore(path)
        seen.append([e.key for e in other.read("s") if e.type == "call_completed"])
        other.close()
        return "t"

    async def body(session: Session) -> None:
        await session.ask("A1", Prompt("x"), key="one")
        await session.ask("A1", Prompt("x"), key="two")

    await play(body, ScriptedModel(reply), store=SqliteStore(path), session="s")
    assert seen == [[], ["one"]]


async def test_cancelled_run_releases_its_lease_and_resumes(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "j.db")
    model = ScriptedModel(lambda r: "t", latency=lambda r: 60 if r.key == "say/A2" and len(model.requests) <= 3 else 0)
    ended: list[str] = []
    two_ended = asyncio.Event()

    def watch(event: Event) -> None:
        if isinstance(event, CallCompleted):
            ended.append(event.key)
            if len(ended) == 2:
                two_ended.set()

    options = Options(observer=watch)
    run = asyncio.ensure_future(
        runner.start("Why?", OutsideAgent(), models=model, store=store, session="s", options=options)
    )
    await asyncio.wait_for(two_ended.wait(), 10)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert store.holder("s") is None
    report = await runner.resume("s", store=store, models=model)
    assert report.replied == 3
    assert report.ledger.actual.lost >= 1
    asked = [r.key for r in model.requests]
    assert sorted(asked) == ["close", "say/A1", "say/A2", "say/A2", "say/A3"]
    store.close()


async def test_started_calls_reserve_no_retries_that_later_calls_need() -> None:
    async def body(session: Session) -> None:
        started = [session.start(session.ask("A1", Prompt("x"), key=f"k{n}")) for n in range(99)]
        got = [await pending for pending in started]
        assert all(isinstance(reply, Reply) for reply in got)

    await play(body, limits=Limits(calls=100))


async def test_limit_on_calls_only_does_not_limit_tokens() -> None:
    async def body(session: Session) -> object:
        got = await session.gather([session.subtask(long_ask(session), calls=1)])
        assert isinstance(got[0], Reply)
        return await session.ask("A1", Prompt("y" * 300_000), key="close", closing=True)

    async def long_ask(session: Session) -> object:
        return await session.ask("A1", Prompt("x" * 300_000), key="long")

    report, _ = await play(body, limits=Limits(calls=2))
    assert report.answer == "said close"


async def test_lone_surrogate_in_a_reply_is_recorded() -> None:
    async def body(session: Session) -> object:
        return await session.ask("A1", Prompt("x"), key="k")

    report, store = await play(body, ScriptedModel(["cut \ud83d here"]))
    assert report.answer == "cut ? here"
    await runner.replay(report.session, store=store)


@pytest.mark.parametrize("reply", ["", " ", "\n"])
async def test_empty_reply_is_malformed_and_replays(reply: str) -> None:
    async def body(session: Session) -> object:
        got = await session.ask("A1", Prompt("x"), key="k")
        assert isinstance(got, Failure)
        assert got.kind is FailureKind.MALFORMED
        return None

    report, store = await play(body, ScriptedModel(lambda r: reply))
    assert report.ledger.actual.requests == 2
    await runner.replay(report.session, store=store)


async def test_failed_closing_call_spends_the_reserve_and_replays() -> None:
    async def body(session: Session) -> object:
        first = await session.ask("A1", Prompt("x"), key="first", closing=True)
        second = await session.ask("A1", Prompt("x"), key="second", closing=True)
        assert isinstance(first, Failure)
        assert isinstance(second, Failure)
        assert second.kind is FailureKind.BUDGET
        return None

    model = ScriptedModel(lambda r: RateLimited("no"))
    report, store = await play(body, model, limits=Limits(calls=1))
    assert len(model.requests) == 1
    await runner.replay(report.session, store=store)


async def test_resume_with_another_model_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "j.db")
    seats = {"A1": ScriptedModel(lambda r: "t"), "A2": Outside(), "A3": ScriptedModel(lambda r: "t")}
    with pytest.raises(SessionWaiting) as parked:
        await runner.start("Why?", OutsideAgent(), models=seats, store=store, options=Options(patience=0))
    other = {**seats, "A3": ScriptedModel(lambda r: "t", name="another")}
    with pytest.raises(SettingsError, match="A3: scripted, now another"):
        await runner.resume(parked.value.session, store=store, models=other)
    store.close()


async def test_replay_with_fewer_calls_than_recorded_is_refused() -> None:
    async def two(session: Session) -> object:
        await session.ask("A1", Prompt("x"), key="one")
        return await session.ask("A1", Prompt("x"), key="two")

    async def fewer(session: Session) -> object:
        return await session.ask("A1", Prompt("x"), key="one")

    report, store = await play(two)
    Made.body = staticmethod(fewer)  # type: ignore[assignment]
    with pytest.raises(RequestMismatch, match="two"):
        await runner.replay(report.session, store=store)


async def test_replay_accepts_a_reworded_warning_and_no_additional_one() -> None:
    warnings = ["the price is unknown"]

    async def body(session: Session) -> object:
        for warning in warnings:
            session.warn(warning)
        return await session.ask("A1", Prompt("x"), key="one")

    report, store = await play(body)
    warnings[:] = ["no price is known"]
    assert (await runner.replay(report.session, store=store)).warnings == ("the price is unknown",), "as recorded"
    warnings.append("another one")
    with pytest.raises(RequestMismatch, match=r"another report: .*warnings"):
        await runner.replay(report.session, store=store)


async def test_outside_answer_costs_the_same_budget_parked_or_not(tmp_path: Path) -> None:
    digests = []
    for how in ("in time", "parked"):
        store = SqliteStore(tmp_path / f"{how}.db")
        outside, model = Outside(), ScriptedModel(lambda r: f"said {r.key}")
        seats = {"A1": model, "A2": outside, "A3": model}
        options = Options(patience=None if how == "in time" else 0)
        run = asyncio.ensure_future(
            runner.start(
                "Why?", OutsideAgent(), models=seats, store=store, session="s", options=options, limits=Limits(calls=4)
            )
        )
        if how == "in time":
            await asyncio.wait_for(outside.asked.wait(), 10)
            outside.answer("say/A2", "here")
            report = await run
        else:
            with pytest.raises(SessionWaiting):
                await run
            store.post("s", "answer", "say/A2", "here")
            report = await runner.resume("s", store=store, models=seats)
        digests.append((report.digest(), canonical_digest(store.read("s"))))
        store.close()
    assert digests[0] == digests[1]


async def test_failed_outside_seat_is_a_failure_without_parking() -> None:
    outside, model = Outside(), ScriptedModel(lambda r: f"said {r.key}", latency=0.01)
    run = asyncio.ensure_future(
        runner.start(
            "Why?",
            OutsideAgent(),
            models={"A1": model, "A2": outside, "A3": model},
            store=SqliteStore(":memory:"),
            options=Options(patience=0.2),
        )
    )
    await asyncio.wait_for(outside.asked.wait(), 10)
    outside.fail("say/A2", RateLimited("gone"))
    report = await run
    assert report.replied == 2
