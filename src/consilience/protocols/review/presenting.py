"""The sections and views of a review's report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import get_args

from consilience.coordination.convergence import Evaluation
from consilience.domain.sections import (
    AgentText,
    Block,
    Diff,
    Grid,
    GridCell,
    GridColumn,
    Item,
    Matrix,
    MatrixCell,
    Paragraph,
    QuoteBlock,
    Section,
    Table,
    View,
)
from consilience.protocols._common.presenting import bullets, format_score, plural
from consilience.protocols.review.findings import SEVERITIES, Finding, PartRead, VerdictKind
from consilience.protocols.review.report_data import ReviewData
from consilience.protocols.review.verdict import MAX_NAMED, join_names, reviewers, split_parts

PROSE = (".md", ".markdown", ".rst", ".txt", ".adoc", ".tex", ".html")
"""Endings of files whose quotations are set as sentences; others are code."""
VERBS: Mapping[VerdictKind, str] = {
    "confirm": "confirms",
    "amend": "confirms with another consequence",
    "refute": "refutes",
    "unsure": "is unsure",
}
OBJECTIONS: Mapping[VerdictKind, str] = {"refute": "Disputed by", "amend": "Another consequence according to"}
GATES = "Gates by iteration"


def sections(report: ReviewData) -> tuple[Section, ...]:
    disputed = [finding for finding in report.findings if finding.status == "disputed"]
    others = [finding for finding in report.findings if finding.status != "disputed"]
    return (
        Section(name="findings", part="answer", heading="Findings", blocks=tuple(_findings(others))),
        Section(name="dissent", part="differences", heading="Disputed findings", blocks=tuple(_findings(disputed))),
        _ballots(report),
        Section(name="gates", part="trust", heading=GATES, blocks=tuple(_gates(report.evaluations))),
        Section(name="reading", part="trust", heading="What was read", blocks=tuple(_reading(report))),
        Section(name="dropped", part="trust", heading="Findings not listed", blocks=_dropped(report), folded=True),
        Section(name="files", part="trust", heading="Files and remarks", blocks=_files(report), folded=True),
    )


def views(report: ReviewData) -> tuple[View, ...]:
    return _findings_view(report.findings), _gates_view(report.evaluations)


# --- findings


def place_of(finding: Finding) -> str:
    """Return `src/x.py:41-43`."""
    last = f"-{finding.last_line}" if finding.last_line > finding.first_line else ""
    old = " of the old file" if finding.side == "old" else ""
    return f"{finding.file}:{finding.first_line}{last}{old}"


def decided_by(finding: Finding) -> str:
    """Return who found it and what the other agents said: `found by red, confirmed by blue`."""
    by = join_names(finding.by)
    found = f"found by {by}"
    if len(finding.by) > 1:
        found = (
            f"found by {by} apart" if finding.found_apart else f"the same words quoted by {by}, not as the same defect"
        )
    verdicts = {
        verdict: [j.agent for j in finding.judgements if j.verdict == verdict] for verdict in get_args(VerdictKind)
    }
    said = [found]
    said += [f"confirmed by {join_names(verdicts['confirm'])}"] if verdicts["confirm"] else []
    said += [f"confirmed with another consequence by {join_names(verdicts['amend'])}"] if verdicts["amend"] else []
    said += [f"refuted by {join_names(verdicts['refute'])}"] if verdicts["refute"] else []
    said += [f"{join_names(verdicts['unsure'])} unsure"] if verdicts["unsure"] else []
    if len(said) == 1 and finding.status == "unjudged":
        said.append("not judged")
    return ", ".join(said)


def _findings(findings: Iterable[Finding]) -> Iterator[Block]:
    for finding in findings:
        head = filter(None, (finding.id, finding.severity, finding.category, place_of(finding)))
        yield Paragraph(lead=" · ".join(head), text=f"· {decided_by(finding)}")
        yield Paragraph(text=finding.claim, refs=finding.refs)
        yield _quoted(finding)
        yield from _details(finding)


def _details(finding: Finding) -> Iterator[Block]:
    check = f"To check ({finding.check.kind}):"
    labelled = (
        ("Why it matters:", finding.consequence),
        (check, finding.check.text),
        ("Recommendation:", finding.recommendation),
    )
    for lead, text in labelled:
        if text.strip():
            yield Paragraph(lead=lead, text=text)
    if finding.fix:
        yield Diff(heading="Proposed fix, not applied:", text="\n".join(finding.fix.split("\n")[2:]).rstrip("\n"))
    items = [
        Item(lead=f"{j.agent} {VERBS[j.verdict]}:", text=j.reason or "no reason given") for j in finding.judgements
    ]
    others = [claim for claim in dict.fromkeys(finding.duplicates) if claim != finding.claim]
    yield from bullets([*items, *(Item(lead="Also claimed:", text=claim) for claim in others)])


def _quoted(finding: Finding) -> Block:
    """Return the quotation: code as it is written, prose as a quotation."""
    if finding.file.lower().endswith(PROSE) and "\n" not in finding.quotation.strip():
        return QuoteBlock(text=finding.quotation.strip())
    lines = finding.quotation.strip("\n").split("\n")
    ticks = max((len(run) for line in lines for run in _runs(line)), default=0)
    fence = "`" * max(ticks + 1, 3)
    return AgentText(text="\n".join([fence, *lines, fence]))


def _runs(line: str) -> list[str]:
    """Return the runs of backticks in a line."""
    return [run for run in "".join(char if char == "`" else " " for char in line).split() if run]


def _findings_view(findings: Sequence[Finding]) -> View:
    if not findings:
        return View(name="findings", heading="Findings by file", blocks=(Paragraph(text="No finding is listed."),))
    heads = ("finding", "severity", "category", "place", "status")
    rows = tuple((f.id, f.severity, f.category, place_of(f), decided_by(f)) for f in findings)
    counts = Counter((finding.file, finding.severity) for finding in findings)
    cells = tuple(
        MatrixCell(row=file, column=severity, value=float(n), text=str(n)) for (file, severity), n in counts.items()
    )
    matrix = Matrix(
        title="findings by file and severity",
        rows=tuple(dict.fromkeys(finding.file for finding in findings)),
        columns=SEVERITIES,
        cells=cells,
    )
    table = Table(heads=heads, rows=rows, left=len(heads))
    return View(name="findings", heading="Findings by file", blocks=(table,), picture=matrix)


# --- ballots and gates


def _ballots(report: ReviewData) -> Section:
    rows = tuple(
        (ballot.agent, str(ballot.part), ballot.vote, f"{ballot.confidence:.2f}", ballot.reason)
        for ballot in sorted(report.ballots, key=lambda ballot: ballot.part)
    )
    heads = ("reviewer", "part", "vote", "confidence", "reason")
    note = Paragraph(text="Cast in private with each review; no other agent saw them.")
    blocks = (note, Table(heads=heads, rows=rows, left=len(heads))) if rows else ()
    part = "differences" if split_parts(report.ballots) else "trust"
    return Section(name="ballots", part=part, heading="Sealed ballots", blocks=blocks)


def _gates(evaluations: Sequence[Evaluation]) -> Iterator[Block]:
    """Yield a table with a column for each iteration, and what each iteration led to."""
    gates = dict.fromkeys(verdict.id for evaluation in evaluations for verdict in evaluation.verdicts)
    if not gates:
        return
    by_iteration = [{verdict.id: verdict for verdict in evaluation.verdicts} for evaluation in evaluations]
    rows = [
        (gate, *(_met(verdicts[gate].missed_by) if gate in verdicts else "–" for verdicts in by_iteration))
        for gate in gates
    ]
    rows.append(("share of gates met", *(format_score(evaluation.quality) for evaluation in evaluations)))
    rows.append(("needed", *(format_score(evaluation.threshold) for evaluation in evaluations)))
    heads = ("gate", *(f"iteration {evaluation.iteration}" for evaluation in evaluations))
    yield Table(heads=heads, rows=tuple(rows), left=len(heads))
    absent = [
        Item(text=f"Iteration {evaluation.iteration}: nothing from {agent}", note=reason)
        for evaluation in evaluations
        for agent, reason in evaluation.missing.items()
    ]
    yield from bullets(absent)


def _met(missed_by: Sequence[str]) -> str:
    return f"missed by {join_names(missed_by)}" if missed_by else "met"


def _gates_view(evaluations: Sequence[Evaluation]) -> View:
    blocks = tuple(_gates(evaluations))
    if not blocks:
        text = "This review has no gates: its reviewers read once." if not evaluations else "No gate was judged."
        return View(name="gates", heading=GATES, blocks=(Paragraph(text=text),))
    columns = tuple(
        GridColumn(
            name=str(evaluation.iteration),
            label=f"iteration {evaluation.iteration}",
            value=evaluation.quality,
            value_text=format_score(evaluation.quality),
            note=f"needed {evaluation.threshold:.2f}",
            framed=evaluation.converged,
        )
        for evaluation in evaluations
    )
    cells = tuple(
        GridCell(
            row=verdict.id,
            column=str(evaluation.iteration),
            lines=(_met(verdict.missed_by),),
            tone="plain" if verdict.met else "bad",
            tip=verdict.description,
        )
        for evaluation in evaluations
        for verdict in evaluation.verdicts
    )
    rows = tuple(dict.fromkeys(verdict.id for evaluation in evaluations for verdict in evaluation.verdicts))
    thresholds = {evaluation.threshold for evaluation in evaluations}
    grid = Grid(
        rows=rows,
        columns=columns,
        cells=cells,
        head="share of gates met",
        threshold=thresholds.pop() if len(thresholds) == 1 else None,
        legend=("a gate is met if every reviewer meets it",),
    )
    return View(name="gates", heading=GATES, blocks=blocks, picture=grid)


# --- what was read and what was dropped


def _reading(report: ReviewData) -> Iterator[Block]:
    """Yield what each reviewer read, the parts that a reviewer should have read and did not, and what was left out."""
    if report.parts:
        files = f"{plural(len(report.files), 'file')}, " if report.files else ""
        read = ", ".join(f"{agent} {_share(report.parts, agent)}" for agent in reviewers(report))
        yield Paragraph(text=f"{files}{plural(len(report.parts), 'part')}. Read by: {read}.")
    items = [
        Item(lead=f"Part {part.index}:", text=", ".join(part.names or part.documents), note=_not_read(part))
        for part in report.parts
        if part.unread_by or not part.readers
    ]
    silent = [file.file for file in report.files if not file.remarks]
    if silent:
        more = f" and {len(silent) - MAX_NAMED} more" if len(silent) > MAX_NAMED else ""
        items.append(Item(lead="No reviewer says what it checked in:", text=", ".join(silent[:MAX_NAMED]) + more))
    items += [Item(lead="Left out:", text=text) for text in report.left_out]
    yield from bullets(items)


def _share(parts: Sequence[PartRead], agent: str) -> str:
    due = [part for part in parts if agent in part.assigned or agent in part.readers]
    done = sum(agent in part.readers for part in due)
    return f"{done} of {plural(len(due), 'part')}"


def _not_read(part: PartRead) -> str:
    return f"not read by {join_names(part.unread_by)}" if part.readers and part.unread_by else "read by no agent"


def _dropped(report: ReviewData) -> tuple[Block, ...]:
    heads = ("reason", "severity", "place", "by", "claim", "quotation", "detail")
    rows = tuple(
        (f.reason, f.severity, f"{f.file}:{f.line}", f.by, f.claim, " ".join(f.quotation.split()), f.detail)
        for f in report.dropped
    )
    return (Table(heads=heads, rows=rows, left=len(heads)),) if rows else ()


def _files(report: ReviewData) -> tuple[Block, ...]:
    rows = tuple((file.file, agent, remark) for file in report.files for agent, remark in file.remarks or (("–", "–"),))
    return (Table(heads=("file", "reviewer", "remark"), rows=rows, left=3),) if rows else ()
