"""The arrivals kit, on every protocol there is."""

from __future__ import annotations

import asyncio
import gc
import itertools
from pathlib import Path

import pytest

from consilience.domain.outcome import StopReason
from consilience.engine.faults import POINTS, Crash, Fault
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from kit import runner
from kit.cases import CASES, Case
from kit.runs import TASK, Shuffled, arrivals, seated

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
EXHAUSTED = (StopReason.EXHAUSTED_BUDGET, StopReason.EXHAUSTED_TIME)


@every_case
async def test_run_with_replies_in_any_order_gives_the_same_journal_and_report(case: Case, whole: bool) -> None:
    arrived = await arrivals(case).check_orders(range(200 if whole else 10))
    assert arrived > 1 or case.need == 1, "no order of arrival differed: the kit shakes nothing"


@every_case
async def test_run_with_any_call_budget_ends_in_a_report_without_false_convergence(
    case: Case, whole: bool, sample
) -> None:  # type: ignore[no-untyped-def]
    budgets = sample(range(case.need + 1), 7, whole=60)
    await arrivals(case).check_budgets(budgets, range(5 if whole else 2))
    for calls in budgets[:3]:  # the smallest: what answers with few calls answers with more
        assert ((await arrivals(case).run(calls=calls)).report.answer is None) == (calls == 0)


@every_case
async def test_run_with_a_budget_of_the_estimated_max_differs_only_in_the_recorded_limit(case: Case) -> None:
    await arrivals(case).check_full_budget()


@every_case
async def test_run_killed_at_any_fault_point_resumes_to_the_same_result_without_repeated_calls(
    case: Case, tmp_path: Path, sample
) -> None:  # type: ignore[no-untyped-def]
    """Every point that a run passes, each time that it passes it; of a debate, which passes a thousand, 200."""
    points = sample(await arrivals(case).fault_points(), 10, whole=200)
    crashed = await arrivals(case).check_kills(points, tmp_path)
    assert crashed["after_commit"] or crashed["before_call"] or crashed["after_reply"]


@every_case
async def test_run_killed_under_any_call_budget_resumes_to_the_same_result(case: Case, tmp_path: Path, sample) -> None:  # type: ignore[no-untyped-def]
    product = itertools.product(range(1, case.need + 1), POINTS[:3], range(1, case.need + 1))
    for calls, point, nth in sample(product, 5, whole=60):
        await arrivals(case).check_kills([(point, nth)], tmp_path, calls=calls)


@every_case
async def test_finished_session_replayed_or_resumed_returns_its_report_without_calls(
    case: Case, tmp_path: Path
) -> None:
    await arrivals(case).check_replay(tmp_path)


@every_case
async def test_run_with_a_panel_has_its_personas_in_the_prompts(case: Case) -> None:
    await arrivals(case).check_panel()


@every_case
async def test_simulated_kill_leaves_no_task_and_no_unhandled_exception(case: Case, tmp_path: Path) -> None:
    """What an earlier test leaves behind would be told in the middle of a later one."""
    heard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(str(context)))
    store = SqliteStore(tmp_path / "journal.db")
    fault = Fault("before_call", nth=min(2, case.need))
    seats, options = seated(case, Shuffled(case.script, 1)), Options(faults=fault.hit, patience=0)
    begun = runner.start(TASK, case.protocol, sources=case.sources, models=seats, store=store, options=options)
    with pytest.raises(Crash):
        await begun
    del begun
    assert asyncio.all_tasks() == {asyncio.current_task()}
    gc.collect()
    assert not heard
