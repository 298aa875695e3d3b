"""Blocks, pictures and presentations that could not be shown are refused where they are built."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from pydantic import ValidationError

from consilience.domain.sections import (
    COMMON_VIEWS,
    Bar,
    Bars,
    Grid,
    GridCell,
    GridColumn,
    Matrix,
    Presentation,
    Section,
    Table,
    View,
)
from consilience.reporting.views import COMMON


def views(*names: str) -> Presentation:
    return Presentation(views=tuple(View(name=name, heading=name) for name in names))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (partial(Table, heads=("a", "b"), rows=(("1", "2"), ("1",))), "row 2 of the table has 1 cells, .* 2 heads"),
        (partial(Table, heads=("a",), rows=(("1",), ("2",)), refs=(("r",),)), "refs for 1 of 2 rows"),
        (partial(Bars, rows=(Bar(name="a", value=1.01),), max=1), "the bar 'a' has the value 1.01, but max is 1"),
        (partial(Bars, rows=(Bar(name="a", dots=(43,)),), max=42), "has the value 43, but max is 42"),
        (partial(Bar, name="a", value=float("nan")), "finite number"),
        (partial(Bar, name="a", dots=(float("inf"),)), "finite number"),
        (partial(Bar, name="a", valeu=0.2), "valeu"),
        (partial(Bar, name="a", dots=(0.5, -0.1)), "greater than or equal to 0"),
        (partial(Bars, rows=(), max=1, threshold=2), "the threshold is 2, but max is 1"),
        (partial(Matrix, rows=(), columns=("a",), cells=()), "at least 1 item"),
        (
            partial(Grid, rows=("a",), columns=(GridColumn(name="1"),), cells=(GridCell(row="a", column="2"),)),
            "no place for the cell at row 'a', column '2'",
        ),
        *((partial(views, name), f"every session has a view '{name}'") for name in COMMON_VIEWS),
        (partial(views, "mine", "mine"), "two views are named 'mine'"),
        (partial(views, "a/b"), "only letters, digits and hyphens"),
        (
            partial(Presentation, sections=(Section(name="tree", part="basis", heading="T", folded=True),)),
            "every session has a view 'tree'",
        ),
    ],
)
def test_presentation_that_could_not_be_shown_is_refused(build: Callable[[], object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        build()


def test_presentation_may_replace_the_folded_figures() -> None:
    assert Presentation(sections=(Section(name="figures", part="figures", heading="Figures", folded=True),))


def test_common_views_are_those_of_every_session() -> None:
    assert set(COMMON_VIEWS) == {*COMMON, "figures", "glossary"}
