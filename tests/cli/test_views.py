"""Views and sections on the command line, as the author of a protocol meets them."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import consilience
from cli.town import MODEL, Cli, Town
from consilience.domain import presenting
from consilience.domain.errors import SettingsError
from consilience.domain.paths import journal_path
from consilience.domain.sections import stored_presentation
from consilience.engine import protocol as registry
from consilience.journal.sqlite import SqliteStore
from consilience.protocol import (
    Bar,
    Bars,
    Paragraph,
    Presentation,
    Report,
    Table,
    UnfinishedSession,
    View,
    extend_presentation,
)
from consilience.reporting.markdown import blocks_markdown
from consilience.reporting.record import read_record
from consilience.reporting.terminal import block_lines
from consilience.reporting.views import view_text
from consilience.reporting.views.charts import draw
from consilience.testing import ScriptedModel


def view(name: str) -> View:
    return View(name=name, heading="Lengths", blocks=(Paragraph(text="These are lengths."),))


def run(report: type[Report], session: str = "s") -> None:
    """Record a session of a vote with this type of report, whose class stays defined."""

    class Viewed(consilience.Vote):
        pass

    Viewed.report = report
    with closing(SqliteStore(journal_path())) as store:
        consilience.run_sync("So?", Viewed(votes=2), model=ScriptedModel(str, name=MODEL), store=store, session=session)


def forget() -> None:
    """Uninstall the protocol."""
    del registry._defined["viewed"]


class Plain(consilience.VoteReport):
    pass


class Lengths(consilience.VoteReport):
    def presentation(self) -> Presentation:
        return extend_presentation(super().presentation(), views=(view("lengths"),))


class Copied(consilience.VoteReport):
    """Adds a view that no session can have, without validation."""

    def presentation(self) -> Presentation:
        return super().presentation().model_copy(update={"views": (view("tree"),)})


def test_resume_shows_a_finished_session_as_show_does(cli: Cli, tmp_path: Path) -> None:
    run(Plain)
    registry.find_protocol("viewed").report = Lengths
    out = tmp_path / "out"
    shown, resumed = cli("show", "s"), cli("resume", "s", "--out", str(out))
    assert "lengths" not in shown.stdout + resumed.stdout + (out / "report.md").read_text()
    run(Lengths, "t")
    assert "other views: lengths" in cli("show", "t").stdout
    assert "other views: lengths" in cli("resume", "t").stdout


@pytest.mark.parametrize("name", ["tree", "my words!"])
def test_view_that_cannot_be_shown_is_reported_by_the_run(cli: Cli, town: Town, name: str) -> None:
    class Mine(consilience.VoteReport):
        def presentation(self) -> Presentation:
            return super().presentation().model_copy(update={"views": (view(name),)})

    run(Plain)
    registry.find_protocol("viewed").report = Mine
    forked = cli("fork", "s", "--at", "end", "--yes")
    assert forked.exit_code == 0
    assert "presentation() failed" in forked.stdout
    assert "Warning: the protocol's sections and views are missing: presentation() failed" in forked.stderr
    assert repr(name) in forked.stderr


def test_stored_sections_that_cannot_be_read_are_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(presenting, "checked_presentation", lambda shown: shown)  # as earlier versions stored it
        run(Copied)
    forget()
    for command in (("show", "s"), ("show", "s", "--view", "tree"), ("export", "s")):
        shown = cli(*command)
        assert shown.exit_code == 0
        assert (
            "Session s: the stored sections and views cannot be read: every session has a view 'tree'" in shown.stderr
        )


def test_fork_at_the_end_has_a_new_view_without_a_call(cli: Cli, town: Town) -> None:
    run(Plain)
    registry.find_protocol("viewed").report = Lengths
    assert "other views: lengths" in cli("fork", "s", "--at", "end", "--yes").stdout
    assert not town.requests


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lengths", "## Lengths\n\nThese are lengths.\n"),
        ("figures", "## All figures\n\n| what | how much |\n"),
        ("tree", "## Who took part\n\n2 agents, independent, all on "),
    ],
)
def test_view_is_exported_as_markdown(cli: Cli, name: str, expected: str) -> None:
    run(Lengths)
    assert cli("export", "s", "--view", name, "--format", "markdown").stdout.startswith(expected)


def test_view_of_an_unfinished_session_may_come_at_its_end(cli: Cli) -> None:
    run(Lengths)
    with closing(SqliteStore(journal_path())) as store:
        record = read_record(store, "s")
    unfinished = replace(record, events=record.events[:-1])
    with pytest.raises(SettingsError, match="add others when the session has ended"):
        view_text("lengths", unfinished)


def test_table_without_rows_prints_its_heads_on_every_face() -> None:
    empty = Table(heads=("agent", "words"), rows=())
    assert block_lines([empty], 80)[0].split() == ["agent", "words"]
    assert block_lines([empty], 8)
    assert blocks_markdown([empty]).startswith("| agent | words |")


def test_unknown_fields_of_a_stored_presentation_are_ignored() -> None:
    bars = {"form": "bars", "rows": [{"name": "x", "value": 0.2, "colour": "red"}]}
    stored = stored_presentation(
        json.dumps({"views": [{"name": "v", "heading": "V", "picture": bars}], "sound": "loud"})
    )
    assert stored.views[0].picture == Bars(rows=(Bar(name="x", value=0.2),))


@pytest.mark.parametrize(
    ("bars", "axis"),
    [
        (Bars(rows=(Bar(name="x", value=21),), max=42, threshold=30), ["0", "21", "42"]),
        (Bars(rows=(Bar(name="x", value=21, dots=(14,)),), threshold=30), ["0", "15", "30"]),
        (Bars(rows=(Bar(name="x", value=3),)), ["0", "1.5", "3"]),
        (Bars(rows=(Bar(name="x", value=0.3), Bar(name="y"))), ["0", "0.5", "1"]),
    ],
)
def test_axis_of_bars_ends_at_their_max_or_the_largest_value(bars: Bars, axis: list[str]) -> None:
    drawn = draw(View(name="v", heading="V", picture=bars)).svg()
    assert re.findall(r'text-anchor="middle">([\d.]+)</text>', drawn) == axis


def test_failing_progress_of_an_unfinished_session_is_named() -> None:
    class Failing(consilience.VoteReport):
        @classmethod
        def progress(cls, progress: UnfinishedSession) -> Presentation:
            return View(name="v", heading="V")  # type: ignore[return-value]

    run(Failing)
    with closing(SqliteStore(journal_path())) as store:
        record = read_record(store, "s")
        assert not record.unpresented
        unfinished = replace(record, events=record.events[:-1])
        assert "progress() failed: TypeError: it returned View(" in unfinished.unpresented
