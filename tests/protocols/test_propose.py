"""`propose`: a panel for a task, and `--panel auto`, which uses it."""

from __future__ import annotations

import json

import pytest

from consilience.domain.errors import RateLimited
from consilience.domain.outcome import Limits, StopReason
from consilience.journal.sqlite import SqliteStore
from consilience.protocols.propose import Propose, ProposeReport
from consilience.testing import ScriptedModel
from kit import runner


def roles(*names: str) -> str:
    proposed = [{"name": n, "asks": f"Who pays the {n}?", "trusts": "ledgers", "distrusts": "promises."} for n in names]
    return json.dumps({"personas": proposed})


async def propose(protocol: Propose, *replies: object, **more: object) -> ProposeReport:
    store = SqliteStore(":memory:")
    report = await runner.start("Open on Sundays?", protocol, models=ScriptedModel(list(replies)), store=store, **more)  # type: ignore[arg-type]
    assert isinstance(report, ProposeReport)
    assert (await runner.replay(report.session, store=store)).digest() == report.digest()
    return report


async def test_proposed_roles_become_personas_in_the_second_person() -> None:
    report = await propose(Propose(personas=2), roles("Shop owner", "Clerk", "Neighbour"))
    assert report.panel is not None
    assert report.panel.names == ("Shop owner", "Clerk")
    assert (
        report.panel.personas[0].description
        == "You always ask: Who pays the Shop owner? You trust: ledgers. You distrust: promises."
    )
    assert report.answer is not None
    assert "**Clerk**" in report.answer


async def test_proposed_role_description_is_kept_complete() -> None:
    long = {"name": "Auditor", "asks": "Who signs? " * 40, "trusts": "ledgers", "distrusts": "the last word"}
    other = {"name": "Clerk", "asks": "Who types?", "trusts": "", "distrusts": ""}
    report = await propose(Propose(personas=2), json.dumps({"personas": [long, other]}))
    assert report.panel is not None
    assert report.panel.personas[0].description.endswith("You distrust: the last word.")


async def test_persona_names_are_cleaned_and_unique() -> None:
    report = await propose(Propose(personas=3), roles("Baker\n\x1b[2J", "  baker\x1b[2J ", "x" * 200))
    assert report.panel is not None
    assert len(report.panel.personas) == 2
    assert all(len(name) <= 80 for name in report.panel.names)
    assert "only 2 of 3 personas are usable" in report.warnings


async def test_proposal_of_fewer_than_two_personas_is_repaired_once_then_fails() -> None:
    report = await propose(Propose(), roles("Baker", "baker"), roles("Baker", "Mayor", "Nurse", "Priest"))
    assert report.panel is not None
    report = await propose(Propose(), roles("Baker"), "no idea")
    assert (report.stop_reason, report.panel, report.answer) == (StopReason.FAILED, None, None)


async def test_proposal_of_one_description_under_several_names_fails() -> None:
    """What the smallest local model answers: three names, one description."""
    alike = json.dumps({"personas": [{"name": name, "asks": "Is it open?"} for name in ("Alice", "Bob", "Charlie")]})
    report = await propose(Propose(), alike, roles("Baker", "Mayor", "Nurse", "Priest"))
    assert report.panel is not None
    assert report.panel.names == ("Baker", "Mayor", "Nurse", "Priest")
    report = await propose(Propose(), alike, alike)
    assert (report.stop_reason, report.panel) == (StopReason.FAILED, None)


@pytest.mark.parametrize(
    ("reply", "limits", "reason"),
    [
        (RateLimited("busy"), Limits(), StopReason.FAILED),
        (roles("A", "B"), Limits(calls=0), StopReason.EXHAUSTED_BUDGET),
        (roles("A", "B"), Limits(steps=0), StopReason.EXHAUSTED_STEPS),
    ],
)
async def test_proposal_without_a_reply_gives_no_panel(reply: object, limits: Limits, reason: StopReason) -> None:
    report = await propose(Propose(), reply, limits=limits)
    assert (report.stop_reason, report.panel) == (reason, None)
