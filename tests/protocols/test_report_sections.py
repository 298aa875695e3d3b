"""Sections of reports: when one call may be the better buy, and what the author of an answer finds missing in it."""

from __future__ import annotations

from typing import Any

import pytest

import consilience
from consilience import Limits, Report, Source
from consilience.engine.protocol import Protocol
from consilience.journal.sqlite import SqliteStore
from consilience.protocols.broadcast import Broadcast, BroadcastReport
from consilience.protocols.emergence import Emergence
from consilience.protocols.refinement import Refinement
from consilience.reporting.markdown import markdown
from consilience.testing import ScriptedModel
from kit.cases import broadcasting, emergent, refining

ADVICE = "Copies of one model with the same material often add little to one careful call."
RUNS = [
    (Emergence(children=3, max_rounds=2), emergent),
    (Broadcast(children=3, max_iterations=1), broadcasting),
    (Refinement(max_passes=1), refining),
]


async def run(protocol: Protocol, reply: Any, **fields: Any) -> Report:
    fields.setdefault("model", ScriptedModel(reply))
    return await consilience.deliberate("Should we move?", protocol, **fields)


@pytest.mark.parametrize(("protocol", "reply"), RUNS, ids=lambda value: getattr(value, "name", ""))
async def test_report_of_one_model_in_all_seats_advises_cheaper_calls_in_every_format(
    protocol: Protocol, reply: Any
) -> None:
    store = SqliteStore(":memory:")
    report = await run(protocol, reply, store=store)
    spent = report.ledger.actual
    figures = f"This run: {spent.calls} calls and {spent.tokens_in + spent.tokens_out:,} tokens;"
    for face in (report.markdown(), report.html()):
        assert ADVICE in face
        assert figures in face
        assert "solo with 2 reviews: 5 calls" in face
    again = await consilience.replay(report.session, store=store)
    assert again.digest() == report.digest()
    assert ADVICE in markdown(again)
    store.close()


async def test_report_of_different_agents_or_private_documents_has_no_advice() -> None:
    protocol, reply = RUNS[0]
    report = await run(protocol, reply)
    own = await run(protocol, reply, sources=[Source(text="A fact.", agents=("L2N1",))])
    no_answer = await run(protocol, reply, limits=Limits(calls=1))
    *most, last = report.agents
    mixed = [
        report.model_copy(update={"agents": (*most, last.model_copy(update={"model": model}))})
        for model in ("another", "human:Ada", "")
    ]
    programs = report.model_copy(
        update={"agents": tuple(agent.model_copy(update={"model": "exec:./ask"}) for agent in report.agents)}
    )
    for other in (own, no_answer, programs, *mixed):
        assert "Copies of one model" not in other.markdown()


async def test_report_of_one_model_with_shared_documents_has_the_advice() -> None:
    report = await run(*RUNS[0], sources=[Source(text="A fact.")])
    assert ADVICE in report.markdown()


def test_report_recorded_without_same_material_defaults_to_false() -> None:
    assert not Report.model_fields["same_material"].default


async def test_missing_text_with_list_items_is_printed_as_a_list() -> None:
    report = await run(*RUNS[1])
    assert isinstance(report, BroadcastReport)
    root = report.states["L1N1"].model_copy(update={"missing": "1. A price.\n2. A date."})
    shown = report.model_copy(update={"states": {**report.states, "L1N1": root}})
    assert "\n1. A price.\n2. A date.\n" in shown.markdown()
