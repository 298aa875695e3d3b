"""Where each agent of a debate stood over time, and which message moved it."""

from __future__ import annotations

import consilience
from consilience import Debate, DebateReport
from consilience.domain.sections import Grid, Table, View
from consilience.journal.sqlite import SqliteStore
from consilience.protocols.debate.progress import state_so_far
from consilience.protocols.debate.stance import stance_view
from consilience.protocols.debate.state import virtual_time
from consilience.reporting.views.charts import draw
from consilience.testing import ScriptedModel
from debate.test_progress import shifting, unfinished
from kit.debating import Debaters


async def test_stance_names_each_position_with_its_time_and_the_message_that_moved_it() -> None:
    store = SqliteStore(":memory:")
    model = ScriptedModel(Debaters({"turn": shifting}))
    report = await consilience.deliberate("Move?", Debate(debaters=3), model=model, store=store)
    assert isinstance(report, DebateReport)
    view = next(view for view in report.presentation().views if view.name == "stance")
    (table,) = view.blocks
    assert isinstance(table, Table)
    rows = dict(zip(table.rows, table.refs, strict=True))
    moves = [m for m in report.messages if m.prior_side and m.new_side and m.prior_side != m.new_side]
    assert moves
    for message in moves:
        ((row, refs),) = ((row, refs) for row, refs in rows.items() if f"[{message.label}]" in row[2])
        assert row[:2] == (report.names[message.agent], virtual_time(message.at))
        assert " → " in row[2]
        assert refs[-1] == message.id
        if message.reply_to:
            assert f"[{report.by_id[message.reply_to].label}]" in row[3]
            assert refs[0] == message.reply_to, "the cause comes first"
    picture = view.picture
    assert isinstance(picture, Grid)
    assert [column.name for column in picture.columns][:: len(picture.columns) - 1] == [
        "opening ballot",
        "final ballot",
    ]
    name = report.names[moves[0].agent]
    moved = next(cell.refs for cell in picture.cells if cell.tone == "frame" and cell.row == name)
    assert f'<a href="#{moved[0]}"' in draw(view, lambda refs: f"#{refs[0]}").svg()

    running = stance_view(state_so_far(unfinished(store.read(report.session), store)))
    assert isinstance(running, View)
    assert isinstance(running.picture, Grid)
    columns = {column.name for column in running.picture.columns}
    assert not columns & {"opening ballot", "final ballot"}, "ballots are secret until the end"
    assert columns
    store.close()
