"""The report of an uninstalled protocol is shown from its stored presentation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from consilience.domain.events import SessionFinished
from consilience.domain.report import Report, register_report_finder
from consilience.engine.protocol import report_type
from consilience.journal.sqlite import SqliteStore
from consilience.models.scripted import ScriptedModel
from consilience.reporting.export import as_events, as_html, as_json, as_markdown
from consilience.reporting.markdown import markdown
from consilience.reporting.record import SessionRecord, read_record
from consilience.reporting.views import COMMON, view_svg, view_text, views_of
from kit import runner
from kit.cases import CASES

SHOWN = [case for case in CASES if case.outside is None and case.tools is None]


@pytest.fixture(autouse=True)
def _installed_again() -> object:
    yield
    register_report_finder(report_type)


def everything(record: SessionRecord) -> dict[str, object]:
    assert record.report is not None
    return {
        "markdown": markdown(record.report, record.presentation),
        "export": as_markdown(record),
        "html": as_html(record),
        "json": as_json(record),
        "events": as_events(record),
        **{f"view {name}": view_text(name, record) for name in views_of(record)},
        **{f"picture {name}": view_svg(name, record) for name in views_of(record)},
    }


@pytest.mark.parametrize("case", SHOWN, ids=lambda case: case.name)
async def test_stored_presentation_is_shown_without_the_protocol(case: object, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "journal.db")
    await runner.start(
        "Is it so?", case.protocol, sources=case.sources, models=ScriptedModel(case.script), store=store, session="s"
    )  # type: ignore[attr-defined]
    before = everything(read_record(store, "s"))
    register_report_finder(lambda name: None)
    assert everything(read_record(store, "s")) == before
    store.close()


async def test_session_with_unreadable_sections_is_shown_anew_and_without_its_protocol_by_the_common_ones(
    tmp_path: Path,
) -> None:
    case = next(case for case in CASES if case.name == "refinement")
    store = SqliteStore(tmp_path / "journal.db")
    await runner.start(
        "Is it so?", case.protocol, sources=case.sources, models=ScriptedModel(case.script), store=store, session="s"
    )
    record = read_record(store, "s")
    events = [e.model_copy(update={"presentation": ""}) if isinstance(e, SessionFinished) else e for e in record.events]

    def again() -> SessionRecord:
        return SessionRecord("s", events, lambda id: record.text(id) if id else "unreadable", record.prompt)

    assert everything(again())["markdown"] == everything(record)["markdown"]
    register_report_finder(lambda name: None)
    bare = again()
    assert list(views_of(bare)) == [*COMMON, "figures", "glossary"]
    assert bare.report is not None
    assert "## Answer" in markdown(bare.report, bare.presentation)
    assert "## Scores" not in markdown(bare.report, bare.presentation)
    store.close()


async def test_failing_presentation_keeps_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in CASES if case.name == "emergence")

    def broken(self: Report) -> object:
        raise KeyError("no such field")

    monkeypatch.setattr(case.protocol.report, "presentation", broken)
    store = SqliteStore(tmp_path / "journal.db")
    report = await runner.start(
        "Is it so?", case.protocol, sources=case.sources, models=ScriptedModel(case.script), store=store, session="s"
    )
    assert report.answer
    assert "## Answer" in markdown(report)
    assert '<h2 id="part-answer">Answer</h2>' in as_html(read_record(store, "s"))
    store.close()


async def test_stored_presentation_that_cannot_be_shown_is_made_again(tmp_path: Path) -> None:
    """Earlier versions stored tables whose rows have another length than their heads."""
    case = next(case for case in CASES if case.name == "emergence")
    store = SqliteStore(tmp_path / "journal.db")
    await runner.start(
        "Is it so?", case.protocol, sources=case.sources, models=ScriptedModel(case.script), store=store, session="s"
    )
    record = read_record(store, "s")
    assert record.state.finished is not None
    stored = {record.state.finished.presentation: '{"above_answer": [{"kind": "table", "heads": ["a"], "rows": [[]]}]}'}
    damaged = replace(record, text=lambda id: stored.get(id) or store.text(id))
    assert damaged.presentation == record.presentation
    store.close()
