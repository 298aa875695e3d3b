"""The arrivals kit, on every protocol there is."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from consilience.domain.outcome import StopReason
from consilience.engine import runner
from consilience.engine.faults import POINTS, Crash, Fault
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from kit.cases import CASES, Case, well_formed
from kit.runs import TASK, Shuffled, run, run_killed, seated

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
EXHAUSTED = (StopReason.EXHAUSTED_BUDGET, StopReason.EXHAUSTED_TIME)


@every_case
async def test_one_journal_and_one_report_in_any_order_of_arrival(case: Case, whole: bool) -> None:
    reference = await run(case)
    orders = set()
    for order in range(1000 if whole else 40):
        outcome = await run(case, order=order)
        assert outcome.same == reference.same, f"order {order}"
        orders.add(outcome.arrived)
    assert len(orders) > 1 or case.need == 1, "no order of arrival differed: the kit shakes nothing"


@every_case
async def test_any_budget_ends_in_a_report_and_never_in_pretended_convergence(case: Case, whole: bool, sample) -> None:  # type: ignore[no-untyped-def]
    unlimited = await run(case)
    for calls in sample(range(case.need + 1), 12):
        outcome = await run(case, calls=calls)
        report = outcome.report
        assert len(outcome.asked) <= calls
        assert (report.answer is None) == (calls == 0)
        if len(outcome.asked) < len(unlimited.asked):
            assert report.stop_reason in EXHAUSTED, f"{calls} calls of {case.need} ended {report.stop_reason}"
        for order in range(20 if whole else 3):
            assert (await run(case, order=order, calls=calls)).same == outcome.same, f"budget {calls}, order {order}"


@every_case
async def test_a_budget_of_the_greatest_need_changes_nothing_but_the_limit_on_record(case: Case) -> None:
    case = replace(case, script=well_formed(case.script))
    free = await run(case)
    bound = await run(case, calls=case.need)
    assert free.report.digest() == bound.report.digest()
    assert sorted(free.asked) == sorted(bound.asked)


@every_case
async def test_killed_at_every_fault_point_it_ends_the_same_and_asks_nothing_twice(
    case: Case, tmp_path: Path, sample
) -> None:  # type: ignore[no-untyped-def]
    reference = await run(case)
    most = 2 * case.need
    crashed = Counter[str]()
    for n, (point, nth) in enumerate(sample(itertools.product(POINTS, range(1, most + 1)), 30)):
        outcome = await run_killed(case, tmp_path / f"{n}.db", Fault(point, nth=nth), order=n)
        crashed[point] += outcome.crashes
        assert outcome.same == reference.same, f"{point} #{nth}"
        assert not outcome.asked_again
    assert crashed["after_commit"] or crashed["before_call"] or crashed["after_reply"]


@every_case
async def test_budgets_orders_and_kills_together(case: Case, tmp_path: Path, sample) -> None:  # type: ignore[no-untyped-def]
    product = itertools.product(range(1, case.need + 1), POINTS[:3], range(1, case.need + 1))
    whole_product = list(product)
    for n, (calls, point, nth) in enumerate(sample(whole_product[:: max(1, len(whole_product) // 200)], 8)):
        reference = await run(case, calls=calls)
        outcome = await run_killed(case, tmp_path / f"{n}.db", Fault(point, nth=nth), order=n, calls=calls)
        assert outcome.same == reference.same, f"budget {calls}, {point} #{nth}"
        assert not outcome.asked_again


@every_case
async def test_replay_makes_no_call_and_gives_the_same(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    outcome = await run(case, path=path)
    store = SqliteStore(path)
    before = len(store.read(outcome.report.session))
    report = await runner.replay(outcome.report.session, store=store)
    assert report.digest() == outcome.report.digest()
    assert len(store.read(outcome.report.session)) == before
    store.close()


@every_case
async def test_resume_of_a_finished_session_gives_its_report(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    outcome = await run(case, path=path)
    store = SqliteStore(path)
    report = await runner.resume(outcome.report.session, store=store, models="no model is needed")
    assert report == outcome.report
    store.close()


@every_case
async def test_a_simulated_kill_leaves_nothing_running_and_nothing_unheard(case: Case, tmp_path: Path) -> None:
    """What an earlier test leaves behind would be told in the middle of a later one."""
    heard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(str(context)))
    store = SqliteStore(tmp_path / "journal.db")
    fault = Fault("before_call", nth=min(2, case.need))
    seats, options = seated(case, Shuffled(case, 1)), Options(faults=fault.hit, patience=0)
    begun = runner.start(TASK, case.protocol, models=seats, store=store, options=options)
    with pytest.raises(Crash):
        await begun
    del begun
    assert asyncio.all_tasks() == {asyncio.current_task()}
    gc.collect()
    assert not heard
