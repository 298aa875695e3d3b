"""Sections of a report and views of a session as plain data.

Protocols build them, and `reporting` renders them to the terminal, Markdown, HTML and SVG. All strings are plain text; only
`AgentText` is an agent's own Markdown. Building a block, picture or presentation that could not be shown is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

ReportPart = Literal["answer", "basis", "differences", "unknown", "trust", "figures"]
"""The places of a report, in their order: the answer with what stopped the run; what it rests on; where the agents differed and
the outcome; what would overturn it and what is unknown; how far to trust it; figures."""

Length = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A value on a scale from 0."""

FIGURES, WORDS = "figures", "glossary"
"""Names of the folded sections with all figures, which a protocol may replace, and with the meanings of words."""
COMMON_VIEWS = ("tree", "evolution", "convergence", "reads", FIGURES, WORDS)
"""Names of the views that every session has. A protocol's views have other names."""

Tone = Literal["plain", "quiet", "bad", "wait", "frame"]
"""How a node or cell is drawn: ordinary, without activity, failed, waiting, singled out."""


class _Data(BaseModel):
    """Stored without defaults; `kind` and `form` tell parts apart. `stored_presentation` alone ignores unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        fields, row = type(self).model_fields, dict[str, object](handler(self))
        return {k: v for k, v in row.items() if k in ("kind", "form") or getattr(self, k) != fields[k].default}


Refs = tuple[str, ...]
"""Ids of the messages and keys of the calls on which a line rests. The page of a session links them to its transcript."""


class Paragraph(_Data):
    """A paragraph of plain text."""

    kind: Literal["paragraph"] = "paragraph"
    text: str
    lead: str = ""
    """Shown in bold before the text."""
    tone: Literal["plain", "strong", "remark"] = "plain"
    refs: Refs = ()
    shows: str = ""
    """Id of the message that the paragraph shows; lines that rest on it link there where the page has no transcript of its own."""


class Subheading(_Data):
    """A heading inside a section."""

    kind: Literal["subheading"] = "subheading"
    text: str


class AgentText(_Data):
    """An agent's own Markdown. Renderers lower its headings and escape its HTML."""

    kind: Literal["agent_text"] = "agent_text"
    text: str


class QuoteBlock(_Data):
    """Words of an agent or a document, on one line."""

    kind: Literal["quote"] = "quote"
    text: str
    by: str = ""
    refs: Refs = ()


class Item(_Data):
    """An item of a list: lead, text, author, note, in this order, and a line below."""

    text: str = ""
    lead: str = ""
    """Shown in bold before the text."""
    by: str = ""
    """Shown in italics after the text, behind a dash."""
    note: str = ""
    """Shown after the author, behind a dash if there is none."""
    below: str = ""
    """Shown on a line of its own."""
    depth: int = 0
    """How many items it stands below."""
    refs: Refs = ()


class Bullets(_Data):
    """A list."""

    kind: Literal["list"] = "list"
    items: tuple[Item, ...]


class Table(_Data):
    """A table. Every row has as many cells as there are heads. A renderer may cut long tables and reports what it left out."""

    kind: Literal["table"] = "table"
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    """How many columns, from the first, hold words; the others hold figures."""
    refs: tuple[Refs, ...] = ()
    """Of each row; empty if no row has any."""

    @model_validator(mode="after")
    def _same_lengths(self) -> Self:
        for n, row in enumerate(self.rows, 1):
            if len(row) != len(self.heads):
                raise ValueError(f"row {n} of the table has {len(row)} cells, but there are {len(self.heads)} heads")
        if self.refs and len(self.refs) != len(self.rows):
            raise ValueError(f"the table has refs for {len(self.refs)} of {len(self.rows)} rows")
        return self


class KeyFigure(_Data):
    """A named figure, formatted for a reader."""

    name: str
    value: str


class KeyFigures(_Data):
    """Named figures."""

    kind: Literal["figures"] = "figures"
    figures: tuple[KeyFigure, ...]

    @property
    def table(self) -> Table:
        return Table(heads=("what", "how much"), rows=tuple((figure.name, figure.value) for figure in self.figures))


class Diff(_Data):
    """A unified diff of a text, a sentence a line, without file names."""

    kind: Literal["diff"] = "diff"
    text: str
    heading: str = ""


class Details(_Data):
    """Blocks behind a summary: collapsed in HTML, shown in full elsewhere."""

    kind: Literal["details"] = "details"
    summary: str
    blocks: tuple[Block, ...]


Block = Annotated[
    Paragraph | Subheading | AgentText | QuoteBlock | Bullets | Table | KeyFigures | Diff | Details,
    Field(discriminator="kind"),
]


class Section(_Data):
    """A section of a report. One with the name of a section that every report has (`answer`, `claims`, `across`, `dissent`,
    `changes`, `conditions`, `missing`, `failed`, `trust`, `documents`, `figures`) replaces it; those of its part that are listed
    before it come before it. All others come last in their part, in the order listed. Each part has a heading of its own."""

    name: str
    part: ReportPart
    heading: str = ""
    """Without a heading the blocks stand directly below what precedes them in the part. A folded section has one."""
    blocks: tuple[Block, ...] = ()
    folded: bool = False
    """Collapsed under its heading at the end of the HTML report; elsewhere left out and shown by `show --view NAME`."""


class Node(_Data):
    """A box of a graph."""

    id: str
    label: str = ""
    """Default: the id."""
    note: str = ""
    """Below the label, at most two lines."""
    level: int = 0
    """Edges lead from lower to higher levels."""
    tone: Tone = "plain"
    shade: float | None = None
    """From 0 to 1, how strongly the box is coloured."""
    tip: str = ""
    group: str = ""
    """Letter of its group, drawn in its corner; each group has a border of its own."""
    refs: Refs = ()
    """On a page the box leads to the first of them that is there."""


class Edge(_Data):
    """A line from `source` to `target`, labelled near either end."""

    source: str
    target: str
    near_source: str = ""
    near_target: str = ""
    tone: Literal["plain", "dashed", "faint"] = "plain"
    tip: str = ""


class GraphPanel(_Data):
    """One state of a graph."""

    title: str = ""
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    circles: tuple[tuple[str, ...], ...] = ()
    """Groups of nodes that are all joined with each other: side by side on a level with others, or not drawn if too many."""


class Graph(_Data):
    """A graph in layers, drawn once for each panel; each node has the same place in all of them."""

    form: Literal["graph"] = "graph"
    panels: tuple[GraphPanel, ...]
    legend: tuple[str, ...] = ()


class MatrixCell(_Data):
    row: str
    column: str
    value: float | None = None
    """Decides the shade, relative to the max value."""
    text: str = ""
    framed: bool = False
    tip: str = ""


class Matrix(_Data):
    """Values by row and column. Cells that are not named stay empty."""

    form: Literal["matrix"] = "matrix"
    title: str = ""
    rows: Annotated[tuple[str, ...], Field(min_length=1)]
    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    cells: tuple[MatrixCell, ...]
    legend: tuple[str, ...] = ()


class Bar(_Data):
    """A row of a bar chart."""

    name: str
    value: Length | None = None
    dots: tuple[Length, ...] = ()
    """Single values on the same scale."""
    note: str = ""
    lines: tuple[str, ...] = ()
    """Below the note."""


class Bars(_Data):
    """A bar chart from 0 to `max`, by default the largest value but at least 1, with a dashed line at `threshold`."""

    form: Literal["bars"] = "bars"
    title: str = ""
    rows: tuple[Bar, ...]
    max: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    threshold: Length | None = None
    legend: tuple[str, ...] = ()

    @property
    def length(self) -> float:
        """Where the axis ends."""
        values = [self.threshold, *(value for row in self.rows for value in (row.value, *row.dots))]
        return self.max or max(1.0, *(value or 0.0 for value in values))

    @model_validator(mode="after")
    def _within_max(self) -> Self:
        end = self.length
        for row in self.rows:
            if longer := [value for value in (row.value, *row.dots) if value is not None and value > end]:
                raise ValueError(f"the bar {row.name!r:.60} has the value {longer[0]:g}, but max is {end:g}")
        if self.threshold is not None and self.threshold > end:
            raise ValueError(f"the threshold is {self.threshold:g}, but max is {end:g}")
        return self


class Point(_Data):
    """A value of a curve at a step."""

    index: int
    value: float | None
    threshold: float | None = None
    met: bool = False
    """Whether the threshold was reached."""
    detail: str = ""


class Curve(_Data):
    name: str
    points: tuple[Point, ...]


class Series(_Data):
    """Curves over the steps of a run. Each has a scale of its own, since scores of different kinds cannot be compared."""

    form: Literal["series"] = "series"
    step: str = "round"
    curves: tuple[Curve, ...]


class GridColumn(_Data):
    """A step of a timeline."""

    name: str
    label: str = ""
    """Default: the name."""
    value: float | None = None
    """From 0 to 1, drawn as a bar."""
    value_text: str = ""
    note: str = ""
    framed: bool = False


class GridCell(_Data):
    """The content of a row at a step. Its refs lead as those of a node do."""

    row: str
    column: str
    value: float | None = None
    """From 0 to 1, drawn as a bar before `value_text`."""
    value_text: str = ""
    lines: tuple[str, ...] = ()
    tone: Tone = "plain"
    tip: str = ""
    refs: Refs = ()


class Grid(_Data):
    """A timeline: a column for each step, a row for each agent or part."""

    form: Literal["grid"] = "grid"
    rows: tuple[str, ...]
    columns: tuple[GridColumn, ...]
    cells: tuple[GridCell, ...]
    head: str = ""
    """What the values of the columns measure."""
    threshold: float | None = None
    legend: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _known_places(self) -> Self:
        rows, columns = set(self.rows), {column.name for column in self.columns}
        for cell in self.cells:
            if cell.row not in rows or cell.column not in columns:
                raise ValueError(f"the grid has no place for the cell at row {cell.row!r}, column {cell.column!r}")
        return self


Picture = Annotated[Graph | Matrix | Bars | Series | Grid, Field(discriminator="form")]


class View(_Data):
    """A view of a session: text for a terminal, and optionally a picture."""

    name: str
    """For `show --view NAME` and file names: letters, digits, hyphens."""
    heading: str
    blocks: tuple[Block, ...] = ()
    picture: Picture | None = None
    is_empty: bool = False
    """Whether it only says why there is nothing to show: `show --view NAME` prints it, no list names it and no page has it."""


class SeatNote(_Data):
    """What a protocol adds to a seat in the view of who took part."""

    text: str
    short: str = ""
    """A shorter form for small boxes. Default: the text."""
    shade: float | None = None
    """From 0 to 1, how strongly the seat is coloured."""
    alert: str = ""
    """Shown in place of the seat's state."""


class HeldPosition(_Data):
    """The position that an agent declared in a step (`round 2`)."""

    agent: str
    step: str
    text: str


class ProgressColumn(_Data):
    """What goes on at one place of a running session, such as a thread. A terminal shows columns side by side."""

    heading: str
    badge: str = ""
    """Its state, such as the stage of a thread."""
    lines: tuple[str, ...] = ()
    """What happened there, the newest last."""
    part: str = ""
    """Part of the keys of its calls, such as `thread-1`: the agents of those in flight are composing there."""
    bar: Bar | None = None
    """How far it has come, from 0 to 1."""

    def has(self, key: str) -> bool:
        """Whether a call belongs to it."""
        return bool(self.part) and self.part in key.split("/")


class SettingLimit(_Data):
    """A limit of the settings that ended a run."""

    setting: str
    words: str
    """How much it allowed, `300 s of virtual time`."""


class Presentation(_Data):
    """How a protocol shows its sessions, by their report or else their events so far. No part of the report's digest."""

    step: str = "round"
    """What a step of this protocol is called."""
    max_steps: int | None = None
    """Max steps that the settings allow."""
    step_setting: str = ""
    """Name of the setting that limits the steps; empty without one."""
    ending: str = ""
    """How the run stopped, in words; default by the stop reason."""
    reservations: tuple[str, ...] = ()
    """What a finished run lacks although it met its stop test: the headline reads `Finished, but …`."""
    ended_by: SettingLimit | None = None
    """The limit that ended the run where it is another one than that on steps."""
    above_answer: tuple[Block, ...] = ()
    """Between the heading of the answer and the answer: a verdict, and what takes the answer's basis away."""
    below_answer: tuple[Block, ...] = ()
    """Below the answer: what else a reader should know before relying on it."""
    sections: tuple[Section, ...] = ()
    figures: tuple[KeyFigure, ...] | None = None
    """Figures of this protocol; None: the report's metrics as they are."""
    views: tuple[View, ...] = ()
    names: dict[str, str] = {}
    """Names of agents by id where the protocol's own text names them otherwise than by role and id."""
    labels: dict[str, str] = {}
    """Words for readers by the names of phases and of parts of keys."""
    glossary: dict[str, str] = {}
    """What the protocol's own words mean."""
    calls: str = ""
    """What the calls were made for, `debate 36, tests 9`; shown beside their number."""
    can_tell: bool = False
    """Whether `consilience tell` adds a fact to a finished session."""
    seats: dict[str, SeatNote] = {}
    seats_legend: str = ""
    positions: tuple[HeldPosition, ...] = ()
    asks_for_dissent: bool = False
    """Whether agents are asked to object. Only then a report without dissent says that none was declared."""
    unheard: str = ""
    """Agents without a reply in which an objection could stand: `2 of 2 specialists`; empty if each has one."""
    stance: str = ""
    """The field of typed replies that declares a position; read where `positions` has none."""
    asides: tuple[str, ...] = ()
    """Kinds of replies that do not contribute to the answer, such as a sealed position; left out of the evolution view."""
    columns: tuple[ProgressColumn, ...] = ()
    """What goes on at present, of a session that is not finished."""

    @model_validator(mode="after")
    def _distinct_views(self) -> Self:
        """`show --view` finds views and folded sections by name."""
        folded = [section.name for section in self.sections if section.folded and section.name not in (FIGURES, WORDS)]
        names = [*folded, *(view.name for view in self.views)]
        for name in names:
            if not re.fullmatch("[A-Za-z0-9-]+", name):
                raise ValueError(f"the view name {name!r:.60} may have only letters, digits and hyphens")
            if name in COMMON_VIEWS:
                raise ValueError(f"every session has a view {name!r}; name the protocol's view otherwise")
            if names.count(name) > 1:
                raise ValueError(f"two views are named {name!r}")
        return self


def extend_presentation(
    shown: Presentation, *, sections: Iterable[Section] = (), views: Iterable[View] = (), **fields: object
) -> Presentation:
    """Return a presentation with further sections and views, and with other fields replaced. Raises `ValidationError`."""
    further = {"sections": (*shown.sections, *sections), "views": (*shown.views, *views)}
    return Presentation.model_validate({**dict(shown), **fields, **further})


def checked_presentation(shown: Presentation) -> Presentation:
    """Return a presentation with all its parts validated, which `model_copy` does not do. Raises `ValidationError`."""
    return Presentation.model_validate({**dict(shown), **shown.model_dump(warnings=False)})


def stored_presentation(text: str) -> Presentation:
    """Return a presentation from its JSON, which a later version may have written. Raises `ValidationError`."""
    return Presentation.model_validate_json(text, extra="ignore")
