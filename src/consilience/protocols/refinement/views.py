"""The views of a text that was written in passes: the passes, what flowed between the roles, how far these are apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from consilience.domain.events import Noted, load_note
from consilience.domain.hierarchies import Hierarchy, distance
from consilience.domain.report import UnfinishedSession
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
from consilience.protocols._common.presenting import plural, share, two_places
from consilience.protocols.refinement import report as reports
from consilience.protocols.refinement.presenting import (
    MEASURED,
    count_issues,
    is_judged,
    overall_score,
    pass_name,
    quality_kind,
    quality_needed,
)
from consilience.protocols.refinement.report import Contribution, HandedDownText, JudgedPass, Pass, RefinementReport

_KINDS: Mapping[str, str] = {
    "critic": "the mean of the critic's overall scores",
    "length": "the mean of what each part has of a full length",
    "self": "the mean of what the authors declare",
}
SCORES = ("overall", "coherence", "accuracy", "depth")
MAX_MATRIX_ROLES = 14
DISTANCES = "How far the roles are from each other"
PASSES, FLOW = "How the text became better, pass by pass", "What went down and what came up"


def views(report: RefinementReport) -> tuple[View, ...]:
    return (
        _passes_view(report),
        _flow_view(report),
        distances_view(report.settings, report.distances, report.topology.parents),
    )


def views_so_far(progress: UnfinishedSession) -> tuple[View, ...]:
    """Of a session without a report: only the distances of roles with vectors are known."""
    settings = progress.started.settings
    hierarchy = settings.get("hierarchy")
    rows: dict[str, dict[str, float]] = {}
    if isinstance(hierarchy, dict):
        roles = Hierarchy.model_validate(hierarchy)
        if roles.has_vectors:
            rows = {a.name: {b.name: distance(a.vector, b.vector) for b in roles.roles} for a in roles.roles}
    return (
        _passes_so_far(progress),
        _empty("flow", FLOW, "What was handed down stands in the report, and this session has none yet."),
        distances_view(settings, rows, progress.started.topology.parents, finished=False),
    )


def _passes_so_far(progress: UnfinishedSession) -> View:
    """The passes that were judged, from the notes."""
    notes = [load_note(JudgedPass, event, progress.text) for event in progress.events if isinstance(event, Noted)]
    if not notes:
        return _empty("passes", PASSES, "No pass has been judged yet.")
    parts = list(dict.fromkeys(part for note in notes for part in note.scores))
    heads = ("pass", "quality", *parts, "issues", "threshold")
    rows = tuple(
        (
            pass_name(note.index),
            two_places(note.quality),
            *(two_places(note.scores.get(part)) for part in parts),
            str(sum(map(len, note.issues.values()))),
            "met" if note.met else "not met" if note.index else "–",
        )
        for note in notes
    )
    last = notes[-1]
    items = [Item(lead=f"{part}:", text=issue) for part, issues in last.issues.items() for issue in issues]
    blocks: list[Block] = [Table(heads=heads, rows=rows)]
    if items:
        blocks += [Subheading(text=f"issues with {pass_name(last.index)}"), Bullets(items=tuple(items))]
    return View(name="passes", heading=PASSES, blocks=tuple(blocks))


def _empty(name: str, heading: str, why: str) -> View:
    return View(name=name, heading=heading, blocks=(Paragraph(text=why),))


def _passes_view(report: RefinementReport) -> View:
    if not report.passes:
        return _empty("passes", PASSES, "It came to no pass: nothing was written.")
    kind = quality_kind(report)
    blocks: list[Block] = [
        Paragraph(
            text=f"Quality is from 0 to 1: {_KINDS.get(kind, 'the mean of all parts')}; whole: the critic's mark of the whole text."
        ),
        Table(
            heads=("pass", "", "quality", "whole", "threshold", "issues", "parts written", "changed"),
            rows=tuple(_overview(one, report) for one in report.passes),
            left=2,
        ),
    ]
    for one in report.passes:
        answer = " (the answer)" if one.index == report.best_pass else ""
        blocks += [
            Subheading(text=f"{pass_name(one.index)}{answer}: {_verdict(one, report)}"),
            _part_table(one, report),
        ]
        if one.whole_issues:
            blocks.append(Bullets(items=tuple(Item(lead="whole:", text=issue) for issue in one.whole_issues)))
        if one.diff:
            blocks.append(Diff(heading="what changed in the whole text, − gone, + new:", text=one.diff))
    return View(name="passes", heading=PASSES, blocks=tuple(blocks), picture=_passes_picture(report))


def _overview(one: Pass, report: RefinementReport) -> tuple[str, ...]:
    parts = one.sections.values()
    return (
        pass_name(one.index),
        "the answer" if one.index == report.best_pass else "",
        two_places(one.quality),
        two_places(one.whole.overall if one.whole else None),
        "–" if one.quality is None else "met" if one.met else "not met",
        str(count_issues(one)) if is_judged(one) else "–",
        str(sum(part.written for part in parts)),
        "–" if one.change is None else share(one.change),
    )


def _verdict(one: Pass, report: RefinementReport) -> str:
    if one.unchanged:
        return "no part changed, so it was not judged again"
    if not one.index:
        return two_places(one.whole.overall if one.whole else None)
    if one.quality is None:
        return "some parts were not judged" if is_judged(one) else "not judged"
    needed = quality_needed(report)
    of = f", needed {needed:.2f}" if needed is not None else ""
    return f"{one.quality:.2f}{of}, {'met' if one.met else 'not met'}"


def _is_rated(part: reports.Section, one: Pass) -> bool:
    """Whether a critic went over it; a length alone is no judgement."""
    return bool(part.scores or part.issues) or (is_judged(one) and part.confidence is not None)


def _result(part: reports.Section) -> str:
    """The outcome of a part in its pass."""
    if not part.written:
        return "kept"
    return "written" if part.change is None else f"written, {share(part.change)} new"


def _part_table(one: Pass, report: RefinementReport) -> Block:
    """A line for each part: what quality is made of, the critic's scores, its issues, its outcome."""
    if not one.sections:
        return Paragraph(text="no part was written" if one.index else "judged as a whole")
    measured = [MEASURED[quality_kind(report)]] if quality_kind(report) in MEASURED else []
    scored = any(part.scores for each in report.passes for part in each.sections.values())
    names = SCORES if scored or not measured else ()
    rows = [
        (
            name,
            *(two_places(part.confidence) for _ in measured),
            *(two_places(_score(part, score)) for score in names),
            str(len(part.issues)) if _is_rated(part, one) else "–",
            _result(part),
        )
        for name, part in one.sections.items()
    ]
    return Table(heads=("part", *measured, *names, "issues", "text"), rows=tuple(rows))


def _passes_picture(report: RefinementReport) -> Grid:
    """A column for each pass, a row for each part."""
    needed, measured = quality_needed(report), MEASURED.get(quality_kind(report), "")
    columns, cells = [], []
    for one in report.passes:
        best = one.index == report.best_pass
        columns.append(
            GridColumn(
                name=str(one.index),
                label=f"{pass_name(one.index)}{', the answer' if best else ''}",
                value=one.quality if one.index else one.whole.overall if one.whole else None,
                value_text=two_places(one.quality if one.index else one.whole.overall if one.whole else None),
                note=_verdict(one, report).rpartition(", ")[2]
                + (f", {share(one.change)} changed" if one.change is not None else ""),
                framed=best,
            )
        )
        for name, part in one.sections.items():
            value = part.confidence if measured else overall_score(part)
            issues = plural(len(part.issues), "issue") if _is_rated(part, one) else "not judged"
            scores = " · ".join(
                f"{short} {getattr(part.scores, score):.2f}"
                for short, score in (("coh.", "coherence"), ("acc.", "accuracy"), ("depth", "depth"))
                if part.scores
            )
            critic = f"critic: overall {two_places(overall_score(part))}" if measured and part.scores else ""
            cells.append(
                GridCell(
                    row=name,
                    column=str(one.index),
                    value=value,
                    value_text=two_places(value),
                    lines=tuple(filter(None, (critic, scores, f"{issues} · {_result(part)}"))),
                    tone="plain" if part.written else "quiet",
                    tip=f"{name}: {'; '.join(part.issues) or 'no issues'}",
                )
            )
    bars = f"bars from 0 to 1{f': {measured}' if measured else ''}"
    legend = f"{bars}{' · dashed: what is needed' if needed is not None else ''} · grey: kept as it was"
    rows = tuple(dict.fromkeys(name for one in report.passes for name in one.sections))
    return Grid(
        rows=rows, columns=tuple(columns), cells=tuple(cells), head="the whole", threshold=needed, legend=(legend,)
    )


# --- what went down and what came up

_Edge = tuple[str, str]


def _flow_view(report: RefinementReport) -> View:
    down: dict[int, dict[_Edge, list[HandedDownText]]] = {}
    for one in report.handed_down:
        down.setdefault(one.step, {}).setdefault((one.parent, one.child), []).append(one)
    up: dict[int, dict[_Edge, Contribution]] = {}
    for came in report.contributions:
        up.setdefault(came.step, {})[came.parent, came.child] = came
    steps = sorted(down.keys() | up.keys())
    if not steps:
        return _empty("flow", FLOW, "Nothing was handed down: nobody wrote anything.")
    blocks: list[Block] = [
        Paragraph(
            text="Down: what was handed to whom, and how many of its sentences were shown, by the distance of the two roles."
        ),
        Paragraph(
            text="Up: how sure the author says the text is, and its weight among all that came to the same reader; "
            "(in brackets): of an earlier pass."
        ),
    ]
    shape = report.topology
    order = [(parent, child) for child in shape.agents for parent in shape.parents.get(child, ())]
    panels = []
    for step in steps:
        edges = [
            e for e in dict.fromkeys((*order, *down.get(step, {}))) if e in down.get(step, {}) or e in up.get(step, {})
        ]
        title = f"pass {step}{' (the answer)' if step == report.best_pass else ''}"
        rows = [row for edge in edges for row in flow_rows(edge, down.get(step, {}), up.get(step, {}))]
        heads = ("from → to", "down", "shown", "distance", "strength", "up", "weight")
        blocks += [Subheading(text=title), Table(heads=heads, rows=tuple(rows), left=2)]
        panels.append(_flow_panel(report, title, edges, down.get(step, {}), up.get(step, {})))
    legend = (
        "↓ share of what was handed down that was shown; dashed: not all of it, faint: nothing was",
        "↑ weight of what came up, among all that came to the same reader",
        "grey frame: wrote nothing in this pass",
    )
    return View(name="flow", heading=FLOW, blocks=tuple(blocks), picture=Graph(panels=tuple(panels), legend=legend))


def flow_rows(
    edge: _Edge, down: Mapping[_Edge, Sequence[HandedDownText]], up: Mapping[_Edge, Contribution]
) -> Iterator[tuple[str, ...]]:
    first = True
    for figures in [_down_figures(one) for one in down.get(edge, ())] or [("–", "", "", "")]:
        yield (f"{edge[0]} → {edge[1]}" if first else "", *figures, *(_up_figures(up.get(edge)) if first else ("", "")))
        first = False


def _down_figures(one: HandedDownText) -> tuple[str, str, str, str]:
    return (
        one.what,
        f"{one.kept} of {one.sentences}" + (f", {share(one.kept / one.sentences)}" if one.sentences else ""),
        "–" if one.distance is None else "<0.01" if 0 < one.distance < 0.005 else f"{one.distance:.2f}",
        _strength(one.strength),
    )


def _strength(strength: float) -> str:
    """Rounded, but never to all of it: of 99.8 % of four sentences three are shown."""
    rounded = share(strength)
    return f"{math.floor(strength * 1000) / 10:g} %" if strength < 1 and rounded == share(1) else rounded


def _up_figures(came: Contribution | None) -> tuple[str, str]:
    if came is None:
        return "–", "–"
    declared = came.declared or "undeclared"
    return declared if came.new else f"({declared})", two_places(came.weight)


def _flow_panel(
    report: RefinementReport,
    title: str,
    edges: Sequence[_Edge],
    down: Mapping[_Edge, Sequence[HandedDownText]],
    up: Mapping[_Edge, Contribution],
) -> GraphPanel:
    drawn = [_flow_edge(edge, down.get(edge, ()), up.get(edge)) for edge in edges]
    judges = {agent.id for agent in report.agents if agent.role == "critic"}
    levels = {id: level for id, level in report.topology.levels.items() if id not in judges}
    top = min(levels.values(), default=0)
    nodes = []
    for id, level in levels.items():
        came = [one for (_, child), one in up.items() if child == id]
        works = level == top or any(one.new for one in came)
        note = ", ".join(dict.fromkeys(one.declared or "undeclared" for one in came))
        nodes.append(Node(id=id, note=note, level=level, tone="plain" if works else "quiet"))
    return GraphPanel(title=title, nodes=tuple(nodes), edges=tuple(drawn))


def _flow_edge(edge: _Edge, down: Sequence[HandedDownText], came: Contribution | None) -> Edge:
    sentences, kept = sum(one.sentences for one in down), sum(one.kept for one in down)
    shown = kept / sentences if sentences else None
    tip = [f"{edge[0]} to {edge[1]}"]
    tip += [f"{what}: {of} sentences shown, distance {far}" for what, of, far, _ in map(_down_figures, down)]
    if came is not None:
        tip.append("came up: {}, weight {}".format(*_up_figures(came)))
    return Edge(
        source=edge[0],
        target=edge[1],
        near_source="" if shown is None else f"↓ {share(shown)}",
        near_target="" if came is None or came.weight is None else f"↑ {came.weight:.2f}",
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
        why = "No distances were measured, so everything that was handed down was shown whole."
        if settings.get("filter") in (False, "never", "auto"):
            why = "The roles have no vectors, and the filter was not set to always, so no distances were measured."
        elif not finished:
            why = "The roles have no vectors; their distances stand in the report, and this session has none yet."
        return _empty("distances", DISTANCES, why)

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
    most = max((cell.value for cell in cells if cell.value is not None), default=0.0)
    picture = Matrix(
        title="distance, from 0 (the same) to 1 (opposed)",
        rows=names,
        columns=names,
        cells=tuple(cells),
        legend=(
            f"the more colour, the farther; {most:.2f} is the farthest here",
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
        pairs = [(a, b) for b, above in parents.items() for a in above if b in rows.get(a, {})]
        listing = Bullets(items=tuple(Item(text=f"{a} → {b}: {rows[a][b]:.2f}") for a, b in pairs))
    return View(name="distances", heading=DISTANCES, blocks=(head, listing), picture=picture)


def _score(part: reports.Section, name: str) -> float | None:
    return getattr(part.scores, name) if part.scores else None
