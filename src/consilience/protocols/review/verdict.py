"""What stands above the findings of a review: the verdict from the sealed ballots, the counts, and what no findings mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from consilience.domain.sections import Block, Paragraph
from consilience.protocols._common.presenting import plural
from consilience.protocols.review.findings import SEVERITIES, BallotCast, DroppedFinding, DroppedReason, Status, Vote
from consilience.protocols.review.report_data import ReviewData

VOTES: tuple[Vote, ...] = ("reject", "changes", "approve")
"""Worst first."""
STATUSES: Mapping[Status, str] = {
    "confirmed": "confirmed",
    "unjudged": "decided by no agent but the author",
    "disputed": "disputed",
}
DROPPED: Mapping[DroppedReason, tuple[str, str]] = {
    "false quotation": ("false quotation rejected", "false quotations rejected"),
    "ignored": ("ignored by a comment in the text", "ignored by comments in the text"),
    "baseline": ("known from the baseline", "known from the baseline"),
    "unchanged lines": ("on unchanged lines", "on unchanged lines"),
    "over the limit": ("over the limit of findings", "over the limit of findings"),
}
MAX_NAMED = 8


def above_answer(report: ReviewData) -> tuple[Block, ...]:
    """Return the verdict, the number of findings and of those dropped, and what limits the review; nothing without a target."""
    if report.is_without_target:
        return ()
    blocks = [Paragraph(lead="Verdict:", text=verdict(report)), _counts(report)]
    if report.dropped:
        blocks.append(Paragraph(lead="Not listed:", text=f"{dropped_line(report)}."))
    if gaps := list(reading_gaps(report)):
        blocks.append(Paragraph(lead="Incomplete:", text="; ".join(gaps) + "."))
    return tuple(blocks)


def verdict(report: ReviewData) -> str:
    """Return the worst vote and who cast it. Votes that differ on one part are a split; those on parts of their own are not."""
    votes = votes_by_agent(report.ballots)
    if not votes:
        return "none, since no reviewer cast a ballot."
    absent = [agent for agent in reviewers(report) if agent not in votes]
    worst = min(votes.values(), key=VOTES.index)
    each = [f"{agent} {vote}{_extent(report, agent, vote)}" for agent, vote in votes.items()]
    head = worst.upper()
    if split := split_parts(report.ballots):
        where = f" on {name_parts(split)}" if len(report.parts) > 1 else ""
        text = f"{head}: {', '.join(each)}. The reviewers are split{where}."
    elif len(set(votes.values())) > 1:
        text = f"{head}: {', '.join(each)}. They voted on different parts."
    else:
        text = f"{head}: {join_names(votes)}{' alone' if len(votes) == 1 and absent else ''}."
    if absent:
        text += f" No ballot from {join_names(absent)}."
    unsupported = [agent for agent, vote in votes.items() if vote != "approve"] if not report.findings else []
    if unsupported:
        text += f" No finding is listed that supports the vote of {join_names(unsupported)}."
    return text


def votes_by_agent(ballots: Sequence[BallotCast]) -> dict[str, Vote]:
    """Return the worst vote of each agent."""
    votes: dict[str, Vote] = {}
    for ballot in ballots:
        votes[ballot.agent] = min(votes.get(ballot.agent, ballot.vote), ballot.vote, key=VOTES.index)
    return votes


def split_parts(ballots: Sequence[BallotCast]) -> list[int]:
    """Return the parts on which agents voted differently."""
    votes: dict[int, set[Vote]] = {}
    for ballot in ballots:
        votes.setdefault(ballot.part, set()).add(ballot.vote)
    return sorted(part for part, cast in votes.items() if len(cast) > 1)


def reviewers(report: ReviewData) -> list[str]:
    """Return the agents that were to review a part, or did."""
    named = [agent for part in report.parts for agent in (*part.assigned, *part.readers)]
    return list(dict.fromkeys([*named, *(ballot.agent for ballot in report.ballots)]))


def dropped_line(report: ReviewData) -> str:
    counts = count_dropped(report.dropped)
    return ", ".join(
        f"{counts[reason]} {words[counts[reason] > 1]}" for reason, words in DROPPED.items() if counts[reason]
    )


def count_dropped(dropped: Iterable[DroppedFinding]) -> Counter[DroppedReason]:
    """Return the number of findings dropped for each reason. What several agents say of the same words of a file is one finding."""
    distinct = {(one.reason, one.line, one.fingerprint or n): one.reason for n, one in enumerate(dropped)}
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


def join_names(names: Sequence[str] | Mapping[str, object]) -> str:
    """Return `red and blue`, or `R1, R2 and R3`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _counts(report: ReviewData) -> Paragraph:
    if not report.findings:
        if report.complete and report.parts:
            return Paragraph(lead="No findings:", text=f"{_who_read(report)}.")
        return Paragraph(
            lead="No finding is listed,", text="but the review is incomplete, so this is no sign of quality."
        )
    severities = Counter(finding.severity for finding in report.findings)
    statuses = Counter(finding.status for finding in report.findings)
    by_severity = ", ".join(f"{severities[name]} {name}" for name in SEVERITIES if severities[name])
    by_status = ", ".join(f"{statuses[status]} {words}" for status, words in STATUSES.items() if statuses[status])
    return Paragraph(lead=f"{plural(len(report.findings), 'finding')}:", text=f"{by_severity} · {by_status}.")


def _who_read(report: ReviewData) -> str:
    """Return who read what, of a complete review."""
    files = (
        f"{plural(len(report.files), 'file')} in {plural(len(report.parts), 'part')}" if report.files else "all parts"
    )
    readers = {part.readers for part in report.parts}
    if len(readers) == 1:
        return f"{files}, read by {join_names(next(iter(readers)))}"
    return f"{files}, each part read by {join_names(reviewers(report))} as assigned"


def _extent(report: ReviewData, agent: str, vote: Vote) -> str:
    """Return in how many of its parts an agent voted so, if not in all, or which parts these are, if it has not all."""
    cast = {ballot.part: ballot.vote for ballot in report.ballots if ballot.agent == agent}
    same = [part for part, its in cast.items() if its == vote]
    if len(same) < len(cast):
        return f" (in {len(same)} of {plural(len(cast), 'part')})"
    return f" ({name_parts(sorted(cast))})" if len(cast) < len(report.parts) else ""


def name_parts(numbers: Sequence[int]) -> str:
    """Return `part 2`, or `parts 2 and 3`."""
    if len(numbers) > MAX_NAMED:
        return f"{len(numbers)} parts"
    return f"part{'s' if len(numbers) > 1 else ''} {join_names([str(number) for number in numbers])}"
