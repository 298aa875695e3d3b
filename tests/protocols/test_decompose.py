"""`decompose`: who gets which part, who sees what, how many calls, and how runs end."""

from __future__ import annotations

import itertools
import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.domain.detail import Detail
from consilience.domain.errors import RateLimited, Rejected, SettingsError
from consilience.domain.events import MessagePublished
from consilience.domain.messages import Source
from consilience.domain.outcome import Limits, StopReason
from consilience.domain.panels import load_panel
from consilience.engine.runner import Options
from consilience.journal.sqlite import SqliteStore
from consilience.models.port import ModelRequest
from consilience.models.scripted import ScriptedModel
from consilience.protocols.decompose import Decompose, DecomposeReport
from consilience.reporting.record import SessionRecord, read_record
from kit import runner
from kit.golden import Golden
from protocols.test_emergence_calls import Ticks


def splitting(parts: int = 4, **more: object) -> Any:
    """Leads find so many parts; every text begins with its own key."""

    def reply(request: ModelRequest) -> str:
        parts_given = [{"title": f"{request.agent}'s {n}", "instructions": f"do {n}"} for n in range(1, parts + 1)]
        return json.dumps({"parts": parts_given, **more, "text": f"{request.key} says {request.agent}"})

    return reply


async def go(
    protocol: Decompose, model: ScriptedModel | None = None, **options: Any
) -> tuple[DecomposeReport, ScriptedModel, SessionRecord]:
    model = model or ScriptedModel(splitting(protocol.children))
    store = SqliteStore(":memory:")
    try:
        report = await runner.start("Is it so?", protocol, models=model, store=store, **options)
        assert isinstance(report, DecomposeReport)
        assert (await runner.replay(report.session, store=store)).digest() == report.digest()
        record = read_record(store, report.session)
        assert record.readings is not None
        return report, model, record
    finally:
        store.close()


def shown(record: SessionRecord, key: str) -> list[str]:
    return [quoted.message for quoted in record.readings[key].quoted]


@pytest.mark.matrix(keep=20)
@pytest.mark.parametrize(("c", "d", "loops"), list(itertools.product((1, 2, 3, 4), (2, 3, 4), (0, 2))))
async def test_calls_made_equal_the_formula(c: int, d: int, loops: int) -> None:
    inner, leaves = sum(c**level for level in range(d - 1)), c ** (d - 1)
    protocol = Decompose(children=c, depth=d, strange_loops=loops)
    report, model, _ = await go(protocol)
    assert len(model.requests) == report.ledger.actual.calls == protocol.estimate().max == 2 * inner + leaves + loops
    assert (report.stop_reason, report.steps) == (StopReason.SETTLED, 1)


def test_calls_of_the_documented_examples_match() -> None:
    max_calls = [Decompose(children=c, depth=d).estimate().max for c, d in ((2, 2), (3, 2), (2, 3))]
    assert max_calls == [4, 5, 10]


@pytest.mark.parametrize("detail", ["full", "brief"])
async def test_lead_is_told_which_child_can_read_which_documents(detail: Detail) -> None:
    """A part goes to a child by its place in the list. The lead can give it to the one that has the documents for it."""
    sources = [
        Source("1", name="open.md"),
        Source("2", name="lease.md", agents=("L3N4",)),
        Source("3", name="books.md", agents=("L3N1",)),
        Source("4", name="notes.md", agents=("L3N1", "L3N3")),
        Source("5", name="own.md", agents=("L1N1",)),
    ]
    _, model, _ = await go(Decompose(children=2, depth=3), sources=sources, options=Options(detail=detail))
    asked = {request.key: " ".join(request.text.split()) for request in model.requests}
    separator = "; worker " if detail == "brief" else " "
    dot = ":" if detail == "brief" else "."
    assert f"1{dot} S3 books.md{separator}2{dot} S2 lease.md" in asked["split/L1N1"]
    assert f"1{dot} S3 books.md, S4 notes.md{separator}2{dot} none" in asked["split/L2N1"]
    assert f"1{dot} S4 notes.md{separator}2{dot} S2 lease.md" in asked["split/L2N2"]
    _, model, _ = await go(Decompose(children=2), sources=sources[:1], options=Options(detail=detail))
    assert "can read" not in next(request.text for request in model.requests if request.key == "split/L1N1")


async def test_prompt_of_a_child_quotes_only_its_own_part() -> None:
    _, model, record = await go(Decompose(children=2, depth=3))
    assert shown(record, "split/L1N1") == []
    assert shown(record, "split/L2N2") == ["split/L1N1/part-2"]
    assert shown(record, "execute/L3N3") == ["split/L2N2/part-1"]
    assert shown(record, "synthesize/L2N2") == ["execute/L3N3", "execute/L3N4", "split/L1N1/part-2"]
    assert shown(record, "synthesize/L1N1") == ["synthesize/L2N1", "synthesize/L2N2"]
    matching_events = [event for event in record.events if isinstance(event, MessagePublished)]
    assert [(event.id, event.audience) for event in matching_events if event.sender == "L1N1"] == [
        ("split/L1N1/part-1", ("L2N1",)),
        ("split/L1N1/part-2", ("L2N2",)),
    ]
    asked = {request.key: request.text for request in model.requests}
    assert "L2N2's 1: do 1" in asked["execute/L3N3"]
    assert "L2N2's 2" not in asked["execute/L3N3"]


async def test_siblings_work_concurrently() -> None:
    ticks = Ticks(splitting(3))
    await go(Decompose(children=3, depth=3, strange_loops=1), ticks)
    assert ticks.longest == 2 + 1 + 2 + 1


async def test_split_into_fewer_parts_than_children_leaves_the_others_idle(golden: Golden) -> None:
    report, model, _ = await go(Decompose(children=3), ScriptedModel(splitting(2)))
    assert {r.agent for r in model.requests} == {"L1N1", "L2N1", "L2N2"}
    assert report.idle == ("L2N3",)
    golden(report.warnings)
    assert (report.replied, report.quorum_met, report.degraded) == (2, True, None)
    assert len((await go(Decompose(children=3, depth=3), ScriptedModel(splitting(1))))[1].requests) == 5
    assert Decompose(children=3, depth=3).estimate().min == 5


async def test_split_into_more_parts_than_children_drops_and_counts_the_rest(golden: Golden) -> None:
    report, _, _ = await go(Decompose(children=2), ScriptedModel(splitting(9)))
    assert [part.title for part in report.parts] == ["L1N1's 1", "L1N1's 2"]
    golden(report.warnings)


@pytest.mark.parametrize("nothing", ["no idea", '{"parts": []}', '{"parts": [{"title": " "}]}', "{}"])
async def test_split_that_fails_gives_each_child_the_whole_task(nothing: str, golden: Golden) -> None:
    model = ScriptedModel(lambda r: nothing if r.key == "split/L1N1" else splitting()(r))
    report, model, _ = await go(Decompose(children=2), model)
    assert [(part.agent, part.given, part.text) for part in report.parts] == [
        ("L2N1", False, "execute/L2N1 says L2N1"),
        ("L2N2", False, "execute/L2N2 says L2N2"),
    ]
    golden(report.warnings)
    shown = {request.key: request.text for request in model.requests}
    assert "from part>" not in shown["execute/L2N1"]
    assert "each does the whole task" in shown["synthesize/L1N1"]


async def test_synthesis_prompt_of_a_divided_task_speaks_of_parts_not_alternatives() -> None:
    _, model, _ = await go(Decompose(children=2), ScriptedModel(splitting()))
    (shown,) = [request.text for request in model.requests if request.key == "synthesize/L1N1"]
    assert "close the gaps between them" in shown
    assert "each does the whole task" not in shown


async def test_strange_loops_start_from_the_last_result_with_domain_instructions_in_the_last() -> None:
    protocol = Decompose(children=2, strange_loops=2, domain_instructions="Speak to farmers.")
    report, model, _ = await go(protocol)
    loops = [request for request in model.requests if request.key.startswith("strange_loop-")]
    assert ["Speak to farmers." in request.text for request in loops] == [False, True]
    assert "synthesize/L1N1 says" in loops[0].text
    assert "strange_loop-1/L1N1 says" in loops[1].text
    assert report.answer == report.strange_loops[-1].after == "strange_loop-2/L1N1 says L1N1"


async def test_claims_name_results_and_an_answer_declares_its_position(golden: Golden) -> None:
    model = ScriptedModel(splitting(2, position="yes", claims=[{"text": "It is so.", "ids": ["part B", "part Z"]}]))
    report, _, _ = await go(Decompose(children=2, answer_pattern="yes|no"), model)
    assert [claim.ids for claim in report.claims] == [("execute/L2N2",)]
    assert report.metrics["dropped_labels"] == 1
    golden(report.warnings)
    assert report.position == "yes"


async def test_declared_position_of_a_named_pattern_is_a_number_without_a_label() -> None:
    model = ScriptedModel(splitting(2, position=42))
    report, _, _ = await go(Decompose(children=2, answer_pattern="number"), model)
    assert report.position == "42"
    assert 'position: the answer that "text" gives, in the form: NUMBER\n' in model.requests[-1].text


async def test_report_has_against_would_change_and_unknown() -> None:
    body = {
        "against": [{"text": "Part B is cheaper.", "ids": ["part B"]}],
        "would_change": ["A flood"],
        "unknown": ["none", "The rain"],
    }
    report, _, _ = await go(Decompose(children=2), ScriptedModel(splitting(2, **body)))
    assert [(against.text, against.ids) for against in report.against] == [("Part B is cheaper.", ("execute/L2N2",))]
    assert (report.would_change, report.unknown) == (("A flood",), ("The rain",))


async def test_parts_have_path_labels_and_missing_ones_are_named() -> None:
    _, model, _ = await go(Decompose(children=2, depth=3), dead("L3N4"))
    asked = {request.key: request.text for request in model.requests}
    assert "from part A1>" in asked["synthesize/L2N1"]
    assert "from part B1>" in asked["synthesize/L2N2"]
    assert "part B2 did not come" in asked["synthesize/L2N2"]
    assert "did not come" not in asked["synthesize/L2N1"]
    assert "from part A>" in asked["synthesize/L1N1"]


@pytest.mark.parametrize("detail", ["full", "brief"])
async def test_schema_of_a_worker_asks_only_for_text(detail: str) -> None:
    _, model, _ = await go(Decompose(children=2), detail=detail)
    worker = next(request for request in model.requests if request.key == "execute/L2N1")
    assert list(worker.schema["properties"]) == ["text"]  # type: ignore[index,call-overload]


async def test_panel_gives_workers_their_personas() -> None:
    panel = load_panel("markets")
    report, model, _ = await go(Decompose(children=2), panel=panel)
    assert [a.persona for a in report.agents] == ["", panel.personas[0].name, panel.personas[1].name]
    assert panel.personas[1].description in next(r.text for r in model.requests if r.agent == "L2N2")


def dead(*who: str) -> ScriptedModel:
    return ScriptedModel(lambda r: Rejected("gone") if r.agent in who else splitting(3)(r))  # type: ignore[arg-type,return-value]


async def test_run_with_a_dead_worker_continues_and_with_a_dead_root_fails() -> None:
    report, model, _ = await go(Decompose(children=3), dead("L2N2"))
    assert (report.stop_reason, report.degraded) == (
        StopReason.SETTLED,
        "2 of 3 agents; no reply: execute 2 L2N2 (rejected)",
    )
    closing = next(r.text for r in model.requests if r.key == "synthesize/L1N1")
    assert "from part C>" in closing
    assert "from part B>" not in closing
    report, _, _ = await go(Decompose(children=3), dead("L1N1"))
    assert (report.stop_reason, report.answer, report.quorum_met) == (StopReason.FAILED, None, True)
    report, model, _ = await go(Decompose(children=3), dead("L2N1", "L2N2"))
    assert (report.stop_reason, report.answer, report.quorum_met) == (StopReason.FAILED, None, False)
    assert "synthesize/L1N1" not in {r.key for r in model.requests}


async def test_run_limited_to_one_call_answers_and_to_zero_steps_does_not() -> None:
    report, model, _ = await go(Decompose(children=3), limits=Limits(calls=1))
    assert [r.key for r in model.requests] == ["synthesize/L1N1"]
    assert (report.stop_reason, report.closing) == (StopReason.EXHAUSTED_BUDGET, "reserve")
    report, model, _ = await go(Decompose(children=3), limits=Limits(steps=0))
    assert (report.stop_reason, report.answer, model.requests) == (StopReason.EXHAUSTED_STEPS, None, [])


REPLIES = st.one_of(
    st.text(max_size=40),
    st.sampled_from([RateLimited("slow"), Rejected("no"), '{"text": "ok"}', '{"parts": [{"title": "x"}]}', "{}"]),
    st.builds(
        lambda n, text: json.dumps({"parts": [{"title": text, "instructions": text}] * n, "text": text}),
        st.integers(0, 5),
        st.text(max_size=9),
    ),
)


@settings(max_examples=60)
@given(st.lists(REPLIES, min_size=1, max_size=12), st.data())
async def test_run_with_any_replies_ends_within_max_calls(replies: list[object], data: st.DataObject) -> None:
    def reply(request: ModelRequest) -> object:
        return replies[zlib.crc32(f"{request.key} {request.attempt}".encode()) % len(replies)]

    protocol = Decompose(
        children=data.draw(st.integers(1, 3)),
        depth=data.draw(st.integers(2, 4)),
        strange_loops=data.draw(st.integers(0, 1)),
    )
    calls = data.draw(st.none() | st.integers(0, 40))
    report, model, _ = await go(protocol, ScriptedModel(reply), limits=Limits(calls=calls))  # type: ignore[arg-type]
    assert report.ledger.actual.calls <= protocol.estimate().max
    assert calls is None or len(model.requests) <= calls
    assert report.stop_reason in (StopReason.SETTLED, StopReason.FAILED, StopReason.EXHAUSTED_BUDGET)


async def test_final_state_has_no_mca_metadata() -> None:
    report, _, _ = await go(Decompose(children=2, depth=3))
    state = report.final_state()
    assert not {"mca_metadata", "mca_mode", "goal", "signals"} & state.keys()
    assert state["child_responses"] == {
        "L2N1": "synthesize/L2N1 says L2N1",
        "L2N2": "synthesize/L2N2 says L2N2",
    }
    json.dumps(state)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"depth": 1}, "depth"),
        ({"children": 0}, "children"),
        ({"children": 60, "depth": 8}, "agents"),
        ({"answer_pattern": "("}, "regular expression"),
        ({"domain_instructions": "Be kind."}, "strange_loops"),
    ],
)
def test_invalid_settings_are_refused_with_a_reason(wrong: dict[str, object], word: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        Decompose(**wrong)
    assert word in str(refusal.value)
    assert "settings of decompose" in str(refusal.value)
