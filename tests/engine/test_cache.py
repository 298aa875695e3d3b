"""The opt-in cache: the very same request is answered by what is recorded, and counted apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from consilience.domain.errors import ServerError
from consilience.domain.events import CallCompleted, canonical_digest
from consilience.domain.outcome import Limits, SpendingLimits, StopReason
from consilience.domain.report import Report
from consilience.engine.faults import Crash, Fault
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.fallback import Fallback
from consilience.models.port import ModelRequest
from consilience.models.scripted import Scripted, ScriptedModel
from consilience.protocols.baselines.solo import Solo
from consilience.protocols.emergence import Emergence
from kit import runner
from kit.cases import CALLING, Case, emergent, well_formed
from kit.runner import fork
from kit.runs import TASK, seated, to_the_end

TREE = Emergence(children=2, max_rounds=2)
CACHE = Options(cache=True, patience=0)
agreeable = well_formed(emergent)


def dear(request: ModelRequest) -> Scripted:
    return Scripted(agreeable(request), tokens_in=100, tokens_out=10, cost=0.25)


async def play(store: SqliteStore, model: ScriptedModel, **more: object) -> Report:
    return await runner.start(TASK, TREE, models=model, store=store, options=CACHE, **more)  # type: ignore[arg-type]


async def test_cache_answers_an_identical_run_without_cost() -> None:
    store = SqliteStore(":memory:")
    first = await play(store, ScriptedModel(dear))
    second = await play(store, ScriptedModel([]))
    assert second.answer == first.answer
    spent = second.ledger.actual
    assert spent.cached == first.ledger.actual.calls > 0
    assert (spent.calls, spent.requests, spent.tokens_in, spent.cost) == (0, 0, 0, 0.0)
    assert first.ledger.actual.cached == 0
    assert (await runner.replay(second.session, store=store)).digest() == second.digest()


async def test_cache_is_not_used_without_the_option() -> None:
    store = SqliteStore(":memory:")
    await play(store, ScriptedModel(dear))
    model = ScriptedModel(dear)
    report = await runner.start(TASK, TREE, models=model, store=store)
    assert report.ledger.actual.cached == 0
    assert model.requests


@pytest.mark.parametrize("changed", ["seed", "model", "task", "perspective", "reply_tokens"])
async def test_cache_misses_on_any_changed_input(changed: str) -> None:
    store = SqliteStore(":memory:")
    await play(store, ScriptedModel(dear))
    model = ScriptedModel(dear, name="other" if changed == "model" else "scripted")
    protocol = TREE
    if changed == "perspective":
        protocol = TREE.model_copy(update={"perspectives": ("a baker", "a mayor")})
    if changed == "reply_tokens":
        protocol = TREE.model_copy(update={"reply_tokens": 77})
    await runner.start(
        "Is it not?" if changed == "task" else TASK,
        protocol,
        models=model,
        store=store,
        seed=1 if changed == "seed" else 0,
        options=CACHE,
    )
    assert {r.key for r in model.requests} >= {"round-1/leaf_respond/L2N1", "round-1/leaf_respond/L2N2"}


async def test_cached_replies_need_no_budget() -> None:
    store = SqliteStore(":memory:")
    first = await play(store, ScriptedModel(dear))
    second = await play(store, ScriptedModel([]), limits=Limits(calls=0))
    assert second.answer == first.answer
    assert second.stop_reason is first.stop_reason is not StopReason.EXHAUSTED_BUDGET


async def test_limit_on_cached_calls_only_gives_no_unused_limit_warning() -> None:
    store = SqliteStore(":memory:")
    limits = Limits(agents={"L2N1": SpendingLimits(calls=50)}, phases={"leaf_respond": SpendingLimits(calls=50)})
    await play(store, ScriptedModel(dear), limits=limits)
    report = await play(store, ScriptedModel([]), limits=limits)
    assert not [warning for warning in report.warnings if "limit" in warning]
    assert (await runner.replay(report.session, store=store)).digest() == report.digest()


async def test_cached_reply_keeps_its_model_and_cut_mark() -> None:
    store = SqliteStore(":memory:")

    def chain(second: list[Scripted]) -> Fallback:
        broken = ScriptedModel(lambda request: ServerError("down"), name="first")
        return Fallback([broken, ScriptedModel(second, name="second")])

    cut = [Scripted(text, finish_reason="length") for text in ("Much too lo", "Much too long, and cut ag")]
    for arguments in (cut, []):
        report = await runner.start(
            TASK, Solo(), models=chain(arguments), store=store, options=CACHE, session=f"s{len(arguments)}"
        )
        expected = [event for event in store.read(report.session) if isinstance(event, CallCompleted)]
        who = [(event.attempt, event.finish, event.volatile["model"], event.volatile["fallback"]) for event in expected]
        assert who == [(1, "length", "second", 1), (2, "length", "second", 1)], "a cut answer is asked for once more"
        assert report.answer == "Much too long, and cut ag"
        fallback = "answered by a fallback model, second, after another had failed: S1 ×2"
        assert report.cut_replies == ("answer/S1",)
        assert report.incidents == (fallback,)
        assert report.ledger.actual.fallbacks == len(arguments), "the cached one was not paid for"


async def test_partly_cached_run_makes_only_the_calls_without_a_cached_reply() -> None:
    store = SqliteStore(":memory:")
    await play(store, ScriptedModel(dear), limits=Limits(calls=4))
    known = {e.key for s in store.sessions() for e in store.read(s) if isinstance(e, CallCompleted)}
    model = ScriptedModel(dear)
    report = await play(store, model)
    asked = {r.key for r in model.requests}
    leaves = {key for key in known if "leaf_respond" in key}
    assert leaves
    assert not asked & leaves
    assert report.ledger.actual.cached + report.ledger.actual.calls == len(
        {e.key for e in store.read(report.session) if isinstance(e, CallCompleted)}
    )


@pytest.mark.parametrize("case", CALLING, ids=lambda case: case.name)
async def test_cached_run_can_be_killed_resumed_and_replayed(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "j.db"
    store = SqliteStore(path)

    async def play_case(session: str, options: Options) -> Report:
        seats = seated(case, ScriptedModel(case.script))
        begun = runner.start(
            TASK, case.protocol, sources=case.sources, models=seats, store=store, session=session, options=options
        )
        return await to_the_end(store, seats, begun)

    await play_case("a", CACHE)
    whole = await play_case("b", CACHE)
    assert whole.ledger.actual.cached > 0
    try:
        report = await play_case("c", Options(cache=True, patience=0, faults=Fault("after_commit", nth=2).hit))
    except Crash:
        store = SqliteStore(path)
        seats = seated(case, ScriptedModel(case.script))
        report = await to_the_end(
            store, seats, runner.resume("c", store=store, models=seats, options=Options(patience=0))
        )
    assert report.digest() == whole.digest()
    assert canonical_digest(store.read("c")) == canonical_digest(store.read("b"))
    assert (await runner.replay("c", store=store)).digest() == whole.digest()
    store.close()


async def test_inherited_cached_and_made_calls_are_counted_separately() -> None:
    store = SqliteStore(":memory:")
    first = await play(store, ScriptedModel(dear), session="p")
    total = first.ledger.actual.calls
    report = await fork("p", store=store, at="leaf_respond/1", models=ScriptedModel([]), options=CACHE)
    spent = report.ledger.actual
    assert (spent.inherited, spent.cached, spent.calls) == (2, total - 2, 0)
    model = ScriptedModel(dear)
    changed = await fork("p", store=store, at="leaf_respond/1", settings={"max_rounds": 3}, models=model, options=CACHE)
    spent = changed.ledger.actual
    assert spent.inherited == 2
    assert spent.cached > 0
    assert spent.calls == len(model.requests)
