"""What a reader sees of a review: the vote and the counts above the answer, the sections and the views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from consilience.coordination.convergence import ConvergenceCheck
from consilience.domain.document_shares import Purpose
from consilience.domain.findings import (
    SEVERITIES,
    DroppedFinding,
    DroppedReason,
    Finding,
    FindingStatus,
    KnownFinding,
    KnownStatus,
    PartRead,
    ReviewVote,
    VerdictKind,
    Verification,
    command_of,
    decided_by,
    place_of,
    topic_of,
)
from consilience.domain.markdown import code_span, fenced
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
from consilience.domain.wording import count, join_names
from consilience.protocols._common.presenting import bullets, empty_view, format_score
from consilience.protocols.review.ballots import VOTES, split_parts, votes_by_agent
from consilience.protocols.review.findings import ReviewData

PROSE = (".md", ".markdown", ".rst", ".txt", ".adoc", ".tex", ".html")
"""Endings of files whose quotations are set as sentences; others are code."""
VERBS: Mapping[VerdictKind, str] = {
    "confirm": "confirms",
    "amend": "confirms with another consequence",
    "refute": "refutes",
    "unsure": "is unsure",
}
GATES = "Gates by iteration"
BESIDE: Mapping[Purpose, str] = {
    "rules": "Rules of the project",
    "intent": "What the author says",
    "context": "Context, not under review",
    "repository": "Lines of the repository, not under review, in",
}
EARLIER = "Findings of earlier reviews"
OLDER = "On unchanged lines, not judged"
EARLIER_STATUSES: Mapping[KnownStatus, str] = {
    "stands": "stands",
    "dismissed": "dismissed",
    "older": "on unchanged lines",
    "gone": "gone",
}


def sections(report: ReviewData) -> tuple[Section, ...]:
    disputed = [finding for finding in report.findings if finding.status == "disputed"]
    open_findings = [finding for finding in report.findings if finding.status != "disputed"]
    return (
        Section(name="findings", part="answer", heading="Findings", blocks=tuple(finding_blocks(open_findings))),
        Section(
            name="dissent", part="differences", heading="Disputed findings", blocks=tuple(finding_blocks(disputed))
        ),
        Section(name="earlier", part="answer", heading=EARLIER, blocks=_earlier(report.known_findings)),
        _ballots(report),
        Section(name="gates", part="trust", heading=GATES, blocks=tuple(_gates(report.evaluations))),
        Section(name="reading", part="trust", heading="What was read", blocks=tuple(_reading(report))),
        Section(name="older", part="trust", heading=OLDER, blocks=_older(report.older)),
        Section(name="dropped", part="trust", heading="Findings not listed", blocks=_dropped(report), folded=True),
        Section(name="files", part="trust", heading="Files and remarks", blocks=_files(report), folded=True),
    )


def views(report: ReviewData) -> tuple[View, ...]:
    return findings_view(report.findings), gates_view(report.evaluations)


# --- findings


def finding_blocks(findings: Iterable[Finding]) -> Iterator[Block]:
    """Yield each finding with the words that it quotes, and what other agents said of it."""
    for finding in findings:
        heading = filter(None, (finding.id, finding.severity, topic_of(finding), place_of(finding)))
        yield Paragraph(lead=" · ".join(heading), text=f"· {decided_by(finding)}")
        yield Paragraph(text=finding.claim, refs=finding.refs)
        yield _quoted(finding.file, finding.quotation)
        yield from _details(finding)


def _details(finding: Finding) -> Iterator[Block]:
    if finding.cause:
        yield Paragraph(lead="Caused by the changed line", text=place_of(finding.cause))
        yield _quoted(finding.cause.file, finding.cause.quotation)
    if finding.rule:
        yield Paragraph(lead=f"Breaks a rule ({finding.rule.file}:{finding.rule.line}):", text=finding.rule.quotation)
    if finding.consequence.strip():
        yield Paragraph(lead="Why it matters:", text=finding.consequence)
    yield from _check(finding.check)
    if finding.recommendation.strip():
        yield Paragraph(lead="Recommendation:", text=finding.recommendation)
    if finding.fix:
        yield Diff(heading="Proposed fix, not applied:", text="\n".join(finding.fix.split("\n")[2:]).rstrip("\n"))
    items = [
        Item(lead=f"{j.agent} {VERBS[j.verdict]}:", text=j.reason or "no reason given") for j in finding.judgements
    ]
    others = [claim for claim in dict.fromkeys(finding.duplicates) if claim != finding.claim]
    yield from bullets([*items, *(Item(lead="Also claimed:", text=claim) for claim in others)])


def _check(check: Verification) -> Iterator[Block]:
    """Yield how to check it: a command as code that can be copied, and apart from it what it shows."""
    lead, command = f"To check ({check.kind}):", command_of(check)
    if command is not None:
        yield AgentText(
            text=f"**{lead}**\n\n{fenced(command)}" if "\n" in command else f"**{lead}** {code_span(command)}"
        )
    elif check.text.strip():
        yield Paragraph(lead=lead, text=check.text)
    if check.expect.strip():
        yield Paragraph(lead="Expected:", text=check.expect)


def _quoted(file: str, quotation: str) -> Block:
    """Return words of a file: code as it is written, prose as a quotation."""
    if file.lower().endswith(PROSE) and "\n" not in quotation.strip():
        return QuoteBlock(text=quotation.strip())
    return AgentText(text=fenced(quotation.strip("\n")))


def findings_view(findings: Sequence[Finding]) -> View:
    if not findings:
        return empty_view("findings", "Findings by file", "No finding is listed.")
    heads = ("finding", "severity", "category", "place", "status")
    rows = tuple((f.id, f.severity, topic_of(f), place_of(f), decided_by(f)) for f in findings)
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
    cast = sorted((*report.first_ballots, *report.ballots), key=lambda ballot: ballot.part)
    rows: list[tuple[str, ...]] = [(b.agent, str(b.part), b.vote, f"{b.confidence:.2f}", b.reason) for b in cast]
    heads: tuple[str, ...] = ("reviewer", "part", "vote", "confidence", "reason")
    note = Paragraph(text="Cast in private with each review; no other reviewer saw them.")
    if report.first_ballots:
        when = ["after judging" if ballot.is_final else "with its review" for ballot in cast]
        rows = [(*row, moment) for row, moment in zip(rows, when, strict=True)]
        heads = (*heads, "cast")
        note = Paragraph(text="Cast in private; no other reviewer saw them. The last one of each reviewer counts.")
    blocks = (note, Table(heads=heads, rows=tuple(rows), left=len(heads))) if rows else ()
    part = "differences" if split_parts(report.ballots) else "trust"
    return Section(name="ballots", part=part, heading="Ballots", blocks=blocks)


def _gates(evaluations: Sequence[ConvergenceCheck]) -> Iterator[Block]:
    """Yield a table with a column for each iteration, and what each iteration led to."""
    gates = dict.fromkeys(verdict.id for evaluation in evaluations for verdict in evaluation.verdicts)
    if not gates:
        return
    by_iteration = [{verdict.id: verdict for verdict in evaluation.verdicts} for evaluation in evaluations]
    rows = [
        (gate, *(_gate_result(verdicts[gate].missed_by) if gate in verdicts else "–" for verdicts in by_iteration))
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


def _gate_result(missed_by: Sequence[str]) -> str:
    return f"missed by {join_names(missed_by)}" if missed_by else "met"


def gates_view(evaluations: Sequence[ConvergenceCheck]) -> View:
    blocks = tuple(_gates(evaluations))
    if not blocks:
        text = "This review has no gates: its reviewers read once." if not evaluations else "No gate was judged."
        return empty_view("gates", GATES, text)
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
            lines=(_gate_result(verdict.missed_by),),
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
    """Yield what each reviewer read, what was not read or left out, and, without findings, what was checked."""
    if report.parts:
        files = f"{count(len(report.files), 'file')}, " if report.files else ""
        read = ", ".join(f"{agent} {_share(report.parts, agent)}" for agent in reviewers(report))
        yield Paragraph(text=f"{files}{count(len(report.parts), 'part')}. Read by: {read}.")
    items = [Item(lead=f"Question of {agent}:", text=question) for agent, question in report.questions.items()]
    items += [
        Item(lead=f"Part {part.index}:", text=", ".join(part.names or part.documents), note=_not_read(part))
        for part in report.parts
        if part.unread_by or not part.readers
    ]
    silent = [file.file for file in report.files if not file.remarks]
    if silent:
        more = f" and {len(silent) - MAX_NAMED} more" if len(silent) > MAX_NAMED else ""
        items.append(Item(lead="No reviewer says what it checked in:", text=", ".join(silent[:MAX_NAMED]) + more))
    items += [
        Item(lead=f"{words}:", text=", ".join(names[:MAX_NAMED]), note=_more(len(names)))
        for purpose, words in BESIDE.items()
        if (names := report.shown_beside.get(purpose, ()))
    ]
    items += [Item(lead="Not shown:", text=text) for text in report.not_shown]
    items += left_out_items(report.left_out)
    if not report.findings:
        named = [(file.file, agent, remark) for file in report.files for agent, remark in file.remarks]
        items += [Item(lead=f"Checked in {file} by {agent}:", text=remark) for file, agent, remark in named[:MAX_NAMED]]
    yield from bullets(items)


def _more(names: int) -> str:
    return f"and {names - MAX_NAMED} more" if names > MAX_NAMED else ""


def left_out_items(left_out: Iterable[str]) -> list[Item]:
    return [Item(lead="Left out:", text=text) for text in left_out]


def _share(parts: Sequence[PartRead], agent: str) -> str:
    due = [part for part in parts if agent in part.assigned or agent in part.readers]
    done = sum(agent in part.readers for part in due)
    return f"{done} of {count(len(due), 'part')}"


def _not_read(part: PartRead) -> str:
    return f"not read by {join_names(part.unread_by)}" if part.readers and part.unread_by else "read by no agent"


def _earlier(known: Sequence[KnownFinding]) -> tuple[Block, ...]:
    """Return what became of the findings of earlier reviews of the same change; those that stand come first."""
    items = [
        Item(
            lead=f"{words}{' · disputed' if f.disputed else ''} · {f.severity} · {topic_of(f)} · {f.file}:{f.first_line}",
            text=f.claim,
            note=f"{f.by}: {f.reason}" if f.reason else "",
        )
        for status, words in EARLIER_STATUSES.items()
        for f in known
        if f.status == status
    ]
    return bullets(items)


def _older(older: Sequence[DroppedFinding]) -> tuple[Block, ...]:
    return bullets(
        [Item(lead=f"{f.file}:{f.line} · {f.severity} · {topic_of(f)}:", text=f.claim, note=f.detail) for f in older]
    )


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


STATUSES: Mapping[FindingStatus | None, str] = {
    "confirmed": "confirmed or found independently",
    "unjudged": "not confirmed",
    None: "not judged",
    "disputed": "disputed",
}
"""None: no agent was asked to judge it, or none that was replied."""
DROPPED: Mapping[DroppedReason, tuple[str, str]] = {
    "false quotation": ("false quotation rejected", "false quotations rejected"),
    "ignored": ("ignored by a comment in the text", "ignored by comments in the text"),
    "baseline": ("known from the baseline", "known from the baseline"),
    "known": ("known from an earlier review", "known from an earlier review"),
    "unchanged lines": ("on unchanged lines", "on unchanged lines"),
    "not under review": ("about what is not under review", "about what is not under review"),
    "over the limit": ("over the limit of findings", "over the limit of findings"),
}
MAX_NAMED = 8


def above_answer(report: ReviewData) -> tuple[Block, ...]:
    """Return the verdict, the number of findings and of those dropped, and what limits the review; nothing without a target."""
    if report.is_without_target:
        return ()
    blocks = [Paragraph(lead="Verdict:", text=overall_vote(report)), _counts(report)]
    if report.dropped:
        blocks.append(Paragraph(lead="Not listed:", text=f"{dropped_line(report)}."))
    if gaps := list(reading_gaps(report)):
        blocks.append(Paragraph(lead="Incomplete:", text="; ".join(gaps) + "."))
    return tuple(blocks)


def overall_vote(report: ReviewData) -> str:
    """Return the worst vote and who cast it. Votes that differ on one part are a split; those on parts of their own are not."""
    votes = votes_by_agent(report.ballots)
    if not votes:
        return "none, since no reviewer cast a ballot."
    absent = [agent for agent in reviewers(report) if agent not in votes]
    worst = min(votes.values(), key=VOTES.index)
    each = [f"{agent} {vote}{_vote_parts(report, agent, vote)}" for agent, vote in votes.items()]
    head = worst.upper()
    if split := split_parts(report.ballots):
        where = f" on {name_parts(split)}" if len(report.parts) > 1 else ""
        text = f"{head}: {', '.join(each)}. The reviewers are split{where}; the strictest vote counts."
    elif len(set(votes.values())) > 1:
        text = f"{head}: {', '.join(each)}. They voted on different parts."
    else:
        alone = ", the only reviewer" if len(reviewers(report)) == 1 else " alone" if len(votes) == 1 else ""
        text = f"{head}: {join_names(votes)}{alone}."
    if len(votes) > 1 and (single := [part.index for part in report.parts if len(part.readers) == 1]):
        text += f" {_one_reviewer(single, len(report.parts))}"
    if absent:
        text += f" No ballot from {join_names(absent)}."
    if changed := list(_changed_votes(report)):
        text += f" Changed after judging the findings of others: {', '.join(changed)}."
    unsupported = [agent for agent, vote in votes.items() if vote != "approve"] if not report.findings else []
    if unsupported:
        names = join_names(unsupported)
        whose = "their" if len(unsupported) > 1 else "its"
        text += f" {names[:1].upper()}{names[1:]} voted for changes, but none of {whose} findings is listed."
    return text


def _one_reviewer(single: Sequence[int], parts: int) -> str:
    """Return which parts had one reviewer, of whose votes nothing is an agreement."""
    if len(single) == parts:
        return "Each part had one reviewer."
    names = name_parts(single)
    return f"{names[:1].upper()}{names[1:]} had one reviewer."


def _changed_votes(report: ReviewData) -> Iterator[str]:
    """Yield `blue from approve to reject on parts 2 and 3`."""
    last = {(ballot.agent, ballot.part): ballot.vote for ballot in report.ballots}
    parts: dict[tuple[str, str, str], list[int]] = {}
    for first in report.first_ballots:
        if (vote := last[first.agent, first.part]) != first.vote:
            parts.setdefault((first.agent, first.vote, vote), []).append(first.part)
    for (agent, before, after), changed in parts.items():
        where = f" on {name_parts(sorted(changed))}" if len(report.parts) > 1 else ""
        yield f"{agent} from {before} to {after}{where}"


def reviewers(report: ReviewData) -> list[str]:
    """Return the agents that were to review a part, or did."""
    named = [agent for part in report.parts for agent in (*part.assigned, *part.readers)]
    return list(dict.fromkeys([*named, *(ballot.agent for ballot in report.ballots)]))


def dropped_line(report: ReviewData) -> str:
    return describe_dropped(count_dropped(report.dropped))


def describe_dropped(counts: Mapping[DroppedReason, int]) -> str:
    """Return `2 false quotations rejected, 1 on unchanged lines`."""
    return ", ".join(
        f"{counts[reason]} {words[counts[reason] > 1]}" for reason, words in DROPPED.items() if counts.get(reason)
    )


def count_dropped(dropped: Iterable[DroppedFinding]) -> Counter[DroppedReason]:
    """Return the number of findings dropped for each reason. What several agents say of the same words of a file is one finding."""
    distinct = {
        (finding.reason, finding.line, finding.fingerprint or n): finding.reason for n, finding in enumerate(dropped)
    }
    return Counter(distinct.values())


def reading_gaps(report: ReviewData) -> Iterator[str]:
    """Yield what was to be read and was not, in clauses."""
    unread = [part.index for part in report.unread]
    if len(unread) == len(report.parts):
        yield "no part of the target was reviewed"
        return
    if unread:
        yield f"no agent reviewed {name_parts(unread)}"
    absent: dict[str, list[int]] = {}
    for part in report.parts:
        for agent in part.unread_by if part.readers else ():
            absent.setdefault(agent, []).append(part.index)
    for agent, parts in absent.items():
        due = sum(agent in part.assigned for part in report.parts)
        yield f"{agent} did not review {name_parts(parts) if len(parts) < due else 'anything'}"


def _counts(report: ReviewData) -> Paragraph:
    if not report.findings:
        if report.complete and report.parts:
            return Paragraph(lead="Read in full:", text=f"{_who_read(report)}.")
        return Paragraph(
            lead="No finding is listed,", text="but the review is incomplete, so this is no sign of quality."
        )
    severities = Counter(finding.severity for finding in report.findings)
    statuses = Counter(None if f.status == "unjudged" and not f.judgements else f.status for f in report.findings)
    by_severity = ", ".join(f"{severities[name]} {name}" for name in SEVERITIES if severities[name])
    by_status = ", ".join(f"{statuses[status]} {words}" for status, words in STATUSES.items() if statuses[status])
    return Paragraph(lead=f"{count(len(report.findings), 'finding')}:", text=f"{by_severity} · {by_status}.")


def _who_read(report: ReviewData) -> str:
    """Return who read what, of a complete review."""
    files = f"{count(len(report.files), 'file')} in {count(len(report.parts), 'part')}" if report.files else "all parts"
    readers = {part.readers for part in report.parts}
    if len(readers) == 1:
        return f"{files}, by {join_names(next(iter(readers)))}"
    return f"{files}, each part by {join_names(reviewers(report))} as assigned"


def _vote_parts(report: ReviewData, agent: str, vote: ReviewVote) -> str:
    """Return in how many of its parts an agent voted so, if not in all, or which parts these are, if it has not all."""
    cast = {ballot.part: ballot.vote for ballot in report.ballots if ballot.agent == agent}
    same = [part for part, its in cast.items() if its == vote]
    if len(same) < len(cast):
        return f" (in {len(same)} of {count(len(cast), 'part')})"
    return f" ({name_parts(sorted(cast))})" if len(cast) < len(report.parts) else ""


def name_parts(numbers: Sequence[int]) -> str:
    """Return `part 2`, or `parts 2 and 3`."""
    if len(numbers) > MAX_NAMED:
        return f"{len(numbers)} parts"
    return f"part{'s' if len(numbers) > 1 else ''} {join_names([str(number) for number in numbers])}"
