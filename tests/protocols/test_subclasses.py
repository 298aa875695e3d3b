"""A subclass of a protocol reports as the class that it declares."""

from __future__ import annotations

from contextlib import closing

import pytest

from consilience.domain.report import Report
from consilience.engine.session import Session
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from consilience.protocols.baselines import Vote
from kit import runner
from kit.cases import CASES, Case

SHIPPED = {type(case.protocol): case for case in CASES if type(case.protocol).__module__.startswith("consilience.")}


@pytest.mark.parametrize("case", SHIPPED.values(), ids=lambda case: case.name)
async def test_subclass_with_a_report_of_its_own_returns_it(case: Case) -> None:
    protocol = type(case.protocol)

    class Mine(protocol.report):  # type: ignore[misc, name-defined]
        pass

    class Subclass(protocol):  # type: ignore[misc, valid-type]
        report = Mine

    settings = {name: getattr(case.protocol, name) for name in protocol.model_fields}
    model = ScriptedModel(case.script)
    with closing(SqliteStore(":memory:")) as store:
        report = await runner.start("So?", Subclass(**settings), sources=case.sources, models=model, store=store)
    assert (type(report), report.protocol) == (Mine, "subclass")
    assert not [warning for warning in report.defects if "another type" in warning]


async def test_report_of_another_type_than_declared_is_a_warning() -> None:
    class Mine(Report):
        pass

    class Mistyped(Vote):
        report = Mine

        async def run(self, session: Session) -> Report:
            return await super().run(session)

    with closing(SqliteStore(":memory:")) as store:
        report = await runner.start("So?", Mistyped(votes=1), models=ScriptedModel(str), store=store, session="s")
        again = await runner.replay("s", store=store)
    (warning,) = [warning for warning in report.defects if "another type" in warning]
    assert "run of Mistyped returned VoteReport, but the class declares `report = Mine`" in warning
    assert again.digest() == report.digest()
