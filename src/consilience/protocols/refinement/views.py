"""The views of a refinement: the passes, the texts that went down and up, the distances of the roles."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from consilience.domain.sections import (
    Block,
    Bullets,
    Diff,
    Edge,
    Graph,
    GraphPanel,
    Grid,
    GridCell,
    GridColumn,
    Item,
    Matrix,
    MatrixCell,
    Node,
    Paragraph,
    Subheading,
    Table,
    View,
)
from consilience.domain.wording import count, percent
from consilience.protocols._common.presenting import empty_view, format_score
from consilience.protocols.refinement.report_data import (
    Contribution,
    HandedDownText,
    PartReport,
    PassReport,
    RefinementData,
    RefinementState,
)

SCORES = ("overall", "coherence", "accuracy", "depth")
MAX_MATRIX_ROLES = 14
PASSES, FLOW, DISTANCES = "Passes", "Texts handed down and up", "Distances between roles"


def views(report: RefinementData) -> tuple[View, ...]:
    return (
        passes_view(report),
        flow_view(report),
        distances_view(report.settings, report.distances, report.topology.parents),
    )


def passes_view(report: RefinementState) -> View:
    if not report.passes:
        return empty_view("passes", PASSES, "No pass was made: nothing was written.")
    intro = f"Quality is from 0 to 1: the mean of {report.measure.mean}; whole: the critic's mark of the whole text."
    blocks: list[Block] = [
        Paragraph(text=intro),
        Table(
            heads=("pass", "", "quality", "whole", "threshold", "issues", "parts written", "changed"),
            rows=tuple(_overview(entry, report) for entry in report.passes),
            left=2,
        ),
    ]
    for entry in report.passes:
        answer = " (the answer)" if entry.index == report.best_pass else ""
        blocks += [
            Subheading(text=f"{entry.name}{answer}: {describe_verdict(entry, report)}"),
            _part_table(entry, report),
        ]
        if entry.whole_issues:
            blocks.append(Bullets(items=tuple(Item(lead="whole:", text=issue) for issue in entry.whole_issues)))
        if entry.diff:
            blocks.append(Diff(heading="changes in the whole text (− removed, + added):", text=entry.diff))
    return View(name="passes", heading=PASSES, blocks=tuple(blocks), picture=_passes_picture(report))


def _overview(entry: PassReport, report: RefinementState) -> tuple[str, ...]:
    parts = entry.sections.values()
    return (
        entry.name,
        "the answer" if entry.index == report.best_pass else "",
        format_score(entry.quality),
        format_score(entry.whole_mark),
        "–" if entry.quality is None else "met" if entry.met else "not met",
        str(entry.issue_count) if entry.is_judged else "–",
        str(sum(part.written for part in parts)),
        "–" if entry.change is None else percent(entry.change),
    )


def describe_verdict(entry: PassReport, report: RefinementState) -> str:
    """Return the quality of a pass and whether it is enough: `0.77, needed 0.80, not met`."""
    if entry.unchanged:
        return "no part changed, so it was not judged again"
    if not entry.index:
        return format_score(entry.whole_mark)
    if entry.quality is None:
        return "some parts were not judged" if entry.is_judged else "not judged"
    return f"{entry.quality:.2f}{report.needed_text}, {'met' if entry.met else 'not met'}"


def _is_rated(part: PartReport, entry: PassReport) -> bool:
    """Return whether a critic judged a part; a length alone is no judgement."""
    return bool(part.scores or part.issues) or (entry.is_judged and part.confidence is not None)


def _result(part: PartReport) -> str:
    if not part.written:
        return "kept"
    return "written" if part.change is None else f"written, {percent(part.change)} new"


def _part_table(entry: PassReport, report: RefinementState) -> Block:
    """A row for each part: its confidence, the critic's scores, the number of issues, its outcome."""
    if not entry.sections:
        return Paragraph(text="no part was written" if entry.index else "judged as a whole")
    measured = [report.measure.unit] if report.measure.unit else []
    scored = any(part.scores for each in report.passes for part in each.sections.values())
    names = SCORES if scored or not measured else ()
    rows = [
        (
            name,
            *(format_score(part.confidence) for _ in measured),
            *(format_score(_score(part, score)) for score in names),
            str(len(part.issues)) if _is_rated(part, entry) else "–",
            _result(part),
        )
        for name, part in entry.sections.items()
    ]
    return Table(heads=("part", *measured, *names, "issues", "text"), rows=tuple(rows))


def _passes_picture(report: RefinementState) -> Grid:
    """A column for each pass, a row for each part."""
    threshold, measured = report.needed_quality, report.measure.unit
    columns, cells = [], []
    for entry in report.passes:
        best = entry.index == report.best_pass
        columns.append(
            GridColumn(
                name=str(entry.index),
                label=f"{entry.name}{', the answer' if best else ''}",
                value=entry.quality if entry.index else entry.whole_mark,
                value_text=format_score(entry.quality if entry.index else entry.whole_mark),
                note=describe_verdict(entry, report).rpartition(", ")[2]
                + (f", {percent(entry.change)} changed" if entry.change is not None else ""),
                framed=best,
            )
        )
        for name, part in entry.sections.items():
            value = part.confidence if measured else part.overall
            issues = count(len(part.issues), "issue") if _is_rated(part, entry) else "not judged"
            scores = " · ".join(
                f"{short} {getattr(part.scores, score):.2f}"
                for short, score in (("coh.", "coherence"), ("acc.", "accuracy"), ("depth", "depth"))
                if part.scores
            )
            critic = f"critic: overall {format_score(part.overall)}" if measured and part.scores else ""
            cells.append(
                GridCell(
                    row=name,
                    column=str(entry.index),
                    value=value,
                    value_text=format_score(value),
                    lines=tuple(filter(None, (critic, scores, f"{issues} · {_result(part)}"))),
                    tone="plain" if part.written else "quiet",
                    tip=f"{name}: {'; '.join(part.issues) or 'no issues'}",
                )
            )
    bars = f"bars from 0 to 1{f': {measured}' if measured else ''}"
    legend = f"{bars}{' · dashed: what is needed' if threshold is not None else ''} · grey: kept as it was"
    rows = tuple(dict.fromkeys(name for entry in report.passes for name in entry.sections))
    return Grid(
        rows=rows, columns=tuple(columns), cells=tuple(cells), head="the whole", threshold=threshold, legend=(legend,)
    )


# --- texts that went down and up

_Edge = tuple[str, str]


@dataclass
class _Carried:
    """What went down and up an edge in a pass."""

    down: list[HandedDownText] = field(default_factory=list)
    up: Contribution | None = None


def flow_view(report: RefinementState) -> View:
    passes: dict[int, defaultdict[_Edge, _Carried]] = {}
    for text in report.handed_down:
        passes.setdefault(text.step, defaultdict(_Carried))[text.parent, text.child].down.append(text)
    for reply in report.contributions:
        passes.setdefault(reply.step, defaultdict(_Carried))[reply.parent, reply.child].up = reply
    if not passes:
        return empty_view("flow", FLOW, "Nothing was handed down: nobody wrote anything.")
    blocks: list[Block] = [
        Paragraph(
            text="Down: what was handed to whom, and how many of its sentences were shown, by the distance of the two roles."
        ),
        Paragraph(
            text="Up: how sure the author says the text is, and its weight among all that contribution to the same reader; "
            "(in brackets): of an earlier pass."
        ),
    ]
    shape = report.topology
    order = [(parent, child) for child in shape.agents for parent in shape.parents.get(child, ())]
    panels = []
    for step, carried in sorted(passes.items()):
        edges = {edge: carried[edge] for edge in dict.fromkeys((*order, *carried)) if edge in carried}
        title = f"pass {step}{' (the answer)' if step == report.best_pass else ''}"
        rows = [row for edge, texts in edges.items() for row in flow_rows(edge, texts.down, texts.up)]
        heads = ("from → to", "down", "shown", "distance", "strength", "up", "weight")
        blocks += [Subheading(text=title), Table(heads=heads, rows=tuple(rows), left=2)]
        drawn = tuple(_flow_edge(edge, texts.down, texts.up) for edge, texts in edges.items())
        panels.append(GraphPanel(title=title, nodes=tuple(_flow_nodes(report, step)), edges=drawn))
    legend = (
        "↓ share of what was handed down that was shown; dashed: not all of it, faint: nothing was",
        "↑ weight of what came up, among all that came to the same reader",
        "grey frame: wrote nothing in this pass",
    )
    return View(name="flow", heading=FLOW, blocks=tuple(blocks), picture=Graph(panels=tuple(panels), legend=legend))


def flow_rows(edge: _Edge, down: Sequence[HandedDownText], up: Contribution | None) -> Iterator[tuple[str, ...]]:
    """Yield a row for each text that went down; the first also names the edge and what came up."""
    first = (f"{edge[0]} → {edge[1]}", _up_figures(up))
    for cells in map(_down_figures, down) if down else [("–", "", "", "")]:
        name, agent = first
        yield (name, *cells, *agent)
        first = ("", ("", ""))


def _down_figures(text: HandedDownText) -> tuple[str, str, str, str]:
    return (
        text.what,
        text.shown,
        "–" if text.distance is None else "<0.01" if 0 < text.distance < 0.005 else f"{text.distance:.2f}",
        _strength(text.strength),
    )


def _strength(strength: float) -> str:
    """Round, but not up to 100 %: at 99.8 %, three of four sentences are shown."""
    rounded = percent(strength)
    return f"{math.floor(strength * 1000) / 10:g} %" if strength < 1 and rounded == percent(1) else rounded


def _up_figures(contribution: Contribution | None) -> tuple[str, str]:
    if contribution is None:
        return "–", "–"
    declared = contribution.declared or "undeclared"
    return declared if contribution.new else f"({declared})", format_score(contribution.weight)


def _flow_nodes(report: RefinementState, step: int) -> Iterator[Node]:
    judges = {agent.id for agent in report.agents if agent.role == "critic"}
    levels = {id: level for id, level in report.topology.levels.items() if id not in judges}
    for id, level in levels.items():
        replies = [reply for reply in report.contributions if reply.step == step and reply.child == id]
        works = level == min(levels.values()) or any(reply.new for reply in replies)
        note = ", ".join(dict.fromkeys(reply.declared or "undeclared" for reply in replies))
        yield Node(id=id, note=note, level=level, tone="plain" if works else "quiet")


def _flow_edge(edge: _Edge, down: Sequence[HandedDownText], contribution: Contribution | None) -> Edge:
    sentences, kept = sum(text.sentences for text in down), sum(text.kept for text in down)
    shown = kept / sentences if sentences else None
    tip = [f"{edge[0]} to {edge[1]}"]
    tip += [f"{what}: {of} sentences shown, distance {far}" for what, of, far, _ in map(_down_figures, down)]
    if contribution is not None:
        tip.append("came up: {}, weight {}".format(*_up_figures(contribution)))
    return Edge(
        source=edge[0],
        target=edge[1],
        near_source="" if shown is None else f"↓ {percent(shown)}",
        near_target="" if contribution is None or contribution.weight is None else f"↑ {contribution.weight:.2f}",
        tone="faint" if shown is None else "dashed" if shown < 1 else "plain",
        tip="; ".join(tip),
    )


# --- distances


def distances_view(
    settings: Mapping[str, object],
    rows: Mapping[str, Mapping[str, float]],
    parents: Mapping[str, Sequence[str]],
    *,
    finished: bool = True,
) -> View:
    if not rows:
        reason = "No distances were measured, so everything that was handed down was shown whole."
        if settings.get("filter") in (False, "never", "auto"):
            reason = "The roles have no vectors, and the filter was not set to always, so no distances were measured."
        elif not finished:
            reason = "The roles have no vectors; their distances stand in the report, and this session has none yet."
        return empty_view("distances", DISTANCES, reason)

    def handed(a: str, b: str) -> bool:
        return a in parents.get(b, ()) or b in parents.get(a, ())

    names = tuple(rows)
    cells = []
    for a in names:
        for b in names:
            value = rows[a].get(b) if a != b else None
            if value is None:
                cells.append(MatrixCell(row=a, column=b, text="·" if a == b else "–"))
                continue
            tip = f"{a} and {b}: {value:.3f}"
            cells.append(MatrixCell(row=a, column=b, value=value, text=f"{value:.2f}", framed=handed(a, b), tip=tip))
    max_distance = max((cell.value for cell in cells if cell.value is not None), default=0.0)
    picture = Matrix(
        title="distance, from 0 (the same) to 1 (opposed)",
        rows=names,
        columns=names,
        cells=tuple(cells),
        legend=(
            f"the more colour, the farther; {max_distance:.2f} is the farthest here",
            "framed: texts go down from one to the other",
        ),
    )
    head = Paragraph(
        text="0 is the same direction, 0.5 nothing in common, 1 opposed; * where texts go down from one to the other."
    )
    listing: Block
    if len(names) <= MAX_MATRIX_ROLES:
        table = [(a, *(c.text + ("*" if c.framed else "") for c in cells if c.row == a)) for a in names]
        listing = Table(heads=("", *names), rows=tuple(table))
    else:
        pairs = [(a, b) for b, parent_names in parents.items() for a in parent_names if b in rows.get(a, {})]
        listing = Bullets(items=tuple(Item(text=f"{a} → {b}: {rows[a][b]:.2f}") for a, b in pairs))
    return View(name="distances", heading=DISTANCES, blocks=(head, listing), picture=picture)


def _score(part: PartReport, name: str) -> float | None:
    return getattr(part.scores, name) if part.scores else None
