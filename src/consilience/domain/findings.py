"""Findings of a review, as its report and its exports have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import Field

from consilience.domain.outcome import Severity, StopReason
from consilience.domain.report import Frozen, Report
from consilience.domain.wording import join_names

SEVERITIES: tuple[Severity, ...] = ("critical", "major", "minor")
"""Worst first."""
CheckKind = Literal["run", "read", "discuss"]
ReviewVote = Literal["approve", "changes", "reject"]
VerdictKind = Literal["confirm", "amend", "refute", "unsure"]
"""`amend`: the defect is real, and what the finding says follows from it is wrong."""
FindingStatus = Literal["confirmed", "disputed", "unjudged"]
"""`confirmed`: found by two agents apart, or confirmed by every agent that decided on it. `disputed`: an agent refuted it.
`unjudged`: no agent but its author decided."""

CATEGORIES: Mapping[str, str] = {
    "logic": "a wrong result, condition or order",
    "bounds": "a limit, an index, an empty or extreme input",
    "data": "types, units, formats; data lost or corrupted",
    "errors": "a failure that is swallowed, misreported or not cleaned up",
    "concurrency": "races, repetition, order of events",
    "resources": "leaks, time, memory, cost",
    "security": "injection, permissions, secrets, personal data",
    "interface": "a caller, a signature or a contract that no longer fits",
    "tests": "a test that is missing or cannot fail",
    "statement": "a fact, figure or claim that is wrong, contradicted or unsupported",
    "instruction": "a step that is missing, contradictory or cannot be carried out",
    "design": "a boundary or dependency that will not hold, something that cannot be verified or operated",
}
"""What a finding is about. Fixed, so that two reviewers and two runs use the same words."""
OTHER = "other"
"""The category of a finding whose author named none of them."""
_WRAPPED = re.compile(r"```\w*\n(?P<block>[^`]+)```|`(?P<span>[^`]+)`")
"""A command in a block or span of code."""
OBJECTIONS: Mapping[VerdictKind, str] = {"refute": "Disputed by", "amend": "Another consequence according to"}


class Verification(Frozen):
    """How to check a finding."""

    kind: CheckKind
    text: str
    """To run: the command."""
    expect: str = ""
    """What the command shows if the finding is right."""


class JudgedBy(Frozen):
    """What an agent other than its author said of a finding."""

    agent: str
    verdict: VerdictKind
    reason: str


class Identity(Frozen):
    """What tells a finding again after later changes: file, category and the whole quoted lines, neither their numbers nor the
    words of the finding."""

    file: str
    category: str = ""
    side: Literal["new", "old"] = "new"
    line: int
    """Where the lines were. Of equal lines with equal lines around them the nearest counts."""
    lines: int
    digest: str
    """Of the lines in normal form."""
    before: str = ""
    """Digest of the line above."""
    after: str = ""
    """Digest of the line below."""
    kept: int = 0
    """Of removed lines: how often the new file has such lines all the same. They are back if it has them more often."""


class Cause(Frozen):
    """The changed line that causes a defect, verified as a quotation is."""

    file: str
    first_line: int
    last_line: int
    side: Literal["new", "old"] = "new"
    quotation: str
    identity: Identity | None = None


class RuleCited(Frozen):
    """A rule of the project that a finding rests on, verified as a quotation is."""

    file: str
    line: int
    quotation: str


class Finding(Frozen):
    """A defect with a verified quotation."""

    id: str
    """`F1`, `F2`, … in the order of the report; also where agents judge it."""
    by: tuple[str, ...]
    """The agents that found it, each apart from the others."""
    severity: Severity
    """The worst that an author gave it."""
    category: str
    """One of `CATEGORIES`, or `other`."""
    title: str = ""
    """The defect in a few words of its author."""
    file: str
    first_line: int
    last_line: int
    side: Literal["new", "old"] = "new"
    """`old`: the lines were removed by the diff under review and are counted in the old file."""
    source: str
    """The document that the words are quoted from (`S2`)."""
    source_line: int
    """Where they begin in it, which for a diff is not the line of the file."""
    quotation: str
    claim: str
    consequence: str = ""
    check: Verification
    recommendation: str = ""
    fix: str = ""
    """A unified diff of the file; "" without a small fix, or if the fix does not apply."""
    changed: bool = True
    """Whether it touches changed lines; True where the target is no diff."""
    cause: Cause | None = None
    """What its author named as the cause, if that is a changed line; without a diff, if it is under review."""
    rule: RuleCited | None = None
    """The rule of the project that its author says it breaks, if that is one."""
    judgements: tuple[JudgedBy, ...] = ()
    found_apart: bool = False
    """Whether two agents found it, each apart from the other: on one line under the same category, in the same words, with the
    same fix, or merged as the same defect."""
    status: FindingStatus = "unjudged"
    duplicates: tuple[str, ...] = ()
    """The claims that were merged into it."""
    also_quoted: tuple[str, ...] = ()
    """Other quotations of the findings that were merged into it."""
    fingerprint: str = ""
    """An id for alerts: of the file and the first quoted line, whole and in normal form."""
    identities: tuple[Identity, ...] = ()
    """By which a later review knows it: its own, and those of the findings that were merged into it."""
    refs: tuple[str, ...] = ()
    """Keys of the calls that it rests on."""


def topic_of(finding: Finding | DroppedFinding | KnownFinding) -> str:
    """Return category and title: `bounds: the last page is empty`."""
    if finding.category == OTHER and finding.title:
        return finding.title
    return f"{finding.category}: {finding.title}" if finding.title else finding.category


KnownStatus = Literal["accepted", "stands", "dismissed", "older", "gone"]
"""`accepted`: by a baseline. `stands`: reported by an earlier review of the same change, and its lines are as they were.
`dismissed`: a person said why it is none. `older`: on lines that the change left as they were, with no changed line as its cause.
`gone`: its lines, or those that cause it, are no longer as they were."""


class KnownFinding(Frozen):
    """A finding of an earlier review."""

    identities: Annotated[tuple[Identity, ...], Field(min_length=1)]
    """The first is that of its quotation."""
    cause: Identity | None = None
    """Of the changed line that causes it, if that is another one."""
    status: KnownStatus = "accepted"
    severity: Severity = "minor"
    disputed: bool = False
    """Whether an agent refuted it."""
    title: str = ""
    quotation: str = ""
    claim: str = ""
    fingerprint: str = ""
    """As of a finding."""
    commit: str = ""
    """The commit in which its files are called so; "" if it was in none."""
    by: str = ""
    """Who dismissed it."""
    reason: str = ""
    """What that person said."""
    thread: str = ""
    """Id of the thread in which it is discussed."""
    url: str = ""

    @property
    def file(self) -> str:
        return self.identities[0].file

    @property
    def category(self) -> str:
        return self.identities[0].category

    @property
    def side(self) -> Literal["new", "old"]:
        return self.identities[0].side

    @property
    def first_line(self) -> int:
        return self.identities[0].line

    @property
    def last_line(self) -> int:
        return self.first_line + self.identities[0].lines - 1


class EarlierReviews(Frozen):
    """Earlier reviews of a change, as a file between two programs."""

    commit: str = ""
    """The commit up to which all was read; "" if there is none."""
    base: str = ""
    """What it was compared with."""
    known: tuple[KnownFinding, ...] = ()

    @property
    def places(self) -> list[tuple[str, str]]:
        """The files that say what became of the findings, each with the commit at which it is called so."""
        return [
            (place.file, entry.commit)
            for entry in self.known
            for place in (entry.identities[0], entry.cause)
            if place is not None
        ]


DroppedReason = Literal[
    "false quotation", "baseline", "known", "ignored", "unchanged lines", "not under review", "over the limit"
]


class DroppedFinding(Frozen):
    """A finding that the report does not list, and the reason."""

    reason: DroppedReason
    by: str
    severity: Severity
    file: str
    """As the agent named it, if there is no such document."""
    line: int
    quotation: str
    claim: str
    category: str = ""
    title: str = ""
    detail: str = ""
    """The reason of an inline comment or of who dismissed it, why the quotation is false, or what is wrong with the cause."""
    fingerprint: str = ""
    """As of a finding; "" where the quotation is false."""
    identities: tuple[Identity, ...] = ()
    """The same."""
    also_quoted: tuple[str, ...] = ()
    """As of a finding."""
    disputed: bool = False
    """Whether an agent refuted it."""


class BallotCast(Frozen):
    """A sealed ballot of a reviewer on a part: with its last reading or, as the final one, after it judged findings of others."""

    agent: str
    part: int
    iteration: int
    vote: ReviewVote
    confidence: float
    reason: str = ""
    cause: str | None = None
    """Of a final ballot: id of the message with the finding that changed the vote."""
    is_final: bool = False
    """Whether it was cast after judging."""


class ReviewVerdict(Frozen):
    """What the sealed ballots come to."""

    vote: ReviewVote
    """The strictest."""
    by: tuple[str, ...]
    """Who cast it."""
    split: tuple[int, ...] = ()
    """The parts on which the votes differ."""


class PartRead(Frozen):
    """A part of the target, and who read it."""

    index: int
    """From 1."""
    documents: tuple[str, ...]
    """As asked for: `S3`, or `S4:120-380` for lines of it."""
    tokens: int
    """Estimated tokens of the text."""
    readers: tuple[str, ...] = ()
    """Agents that reviewed it in at least one iteration."""
    assigned: tuple[str, ...] = ()
    """Agents that were to review it."""
    names: tuple[str, ...] = ()
    """Names of its documents, with lines if it holds only these: `src/x.py:120-380`."""

    @property
    def unread_by(self) -> tuple[str, ...]:
        """The agents that were to review it and did not."""
        return tuple(agent for agent in self.assigned if agent not in self.readers)


class FileRead(Frozen):
    """What reviewers said about a file: what they checked in it, or why it needs no review."""

    file: str
    remarks: tuple[tuple[str, str], ...] = ()
    """Pairs of agent and remark."""


class DiffHunk(Frozen):
    """The lines of a file that a hunk of the diff under review shows, changed or not. A range is first and last line, from 1; an
    empty range ends before it begins."""

    file: str
    """As findings name it."""
    old: tuple[int, int]
    new: tuple[int, int]


class FindingsReport(Report):
    """The header, and what every export of findings is made of."""

    findings: tuple[Finding, ...] = ()
    """The listed findings, ranked."""
    dropped: tuple[DroppedFinding, ...] = ()
    ballots: tuple[BallotCast, ...] = ()
    """The last ballot of each agent on each part."""
    first_ballots: tuple[BallotCast, ...] = ()
    """Those that a final ballot replaced: cast before their agents read findings of others."""
    verdict: ReviewVerdict | None = None
    """None if nobody cast a ballot."""
    parts: tuple[PartRead, ...] = ()
    questions: dict[str, str] = {}
    """What each reviewer was asked to look for in particular. One without an entry was asked for everything that is wrong."""
    files: tuple[FileRead, ...] = ()
    left_out: tuple[str, ...] = ()
    """What the target holds and no agent was shown, each with the reason."""
    unread_files: tuple[str, ...] = ()
    """Of that, the files that should have been reviewed: not UTF-8, missing, not readable, in a conflict, over a limit."""
    hunks: tuple[DiffHunk, ...] = ()
    """Of the diff under review; empty where the target is no diff."""
    known_findings: tuple[KnownFinding, ...] = ()
    """What earlier reviews of the same change reported, and what became of it."""
    reviewed_commit: str = ""
    """The reviewed commit, if the target is one."""
    reviewed_base: str = ""
    """What it was compared with."""

    @property
    def is_without_target(self) -> bool:
        """Whether there was nothing to review, so that no session was begun."""
        return not (self.session or self.parts or self.agents)

    @property
    def unread(self) -> tuple[PartRead, ...]:
        """The parts that no agent reviewed."""
        return tuple(part for part in self.parts if not part.readers)

    @property
    def complete(self) -> bool:
        """Whether each agent reviewed its parts, no file stayed unread, and the run neither failed nor was cancelled.
        Otherwise no findings mean nothing."""
        is_read = not self.unread_files and all(part.readers and not part.unread_by for part in self.parts)
        return is_read and self.stop_reason not in (StopReason.FAILED, StopReason.CANCELLED)

    @property
    def standing(self) -> tuple[KnownFinding, ...]:
        """The findings of earlier reviews whose lines are as they were, and that nobody dismissed."""
        return tuple(known for known in self.known_findings if known.status == "stands")

    @property
    def older(self) -> tuple[DroppedFinding, ...]:
        """What reviewers reported on lines that the change left as they were, without a changed line as its cause: the worst first,
        and once, however many agents did."""
        found = sorted(
            (finding for finding in self.dropped if finding.reason == "unchanged lines"),
            key=lambda finding: SEVERITIES.index(finding.severity),
        )
        distinct: dict[tuple[str, int, str | int], DroppedFinding] = {}
        for n, finding in enumerate(found):
            distinct.setdefault((finding.file, finding.line, finding.fingerprint or n), finding)
        return tuple(distinct.values())

    @property
    def read_to(self) -> EarlierReviews | None:
        """Up to where a later review need not read again; None if this one is not complete, or found more than it lists."""
        is_all = self.complete and not any(finding.reason == "over the limit" for finding in self.dropped)
        return EarlierReviews(commit=self.reviewed_commit, base=self.reviewed_base) if is_all else None

    @property
    def earlier(self) -> EarlierReviews:
        """What a later review of the same change needs to know."""
        standing = [known for known in self.known_findings if known.status != "gone"]
        new: tuple[Finding | DroppedFinding, ...] = (*self.findings, *self.older)
        found = [as_known(finding, self.reviewed_commit) for finding in new if finding.identities]
        return (self.read_to or EarlierReviews()).model_copy(update={"known": (*standing, *found)})


def as_known(finding: Finding | DroppedFinding, commit: str = "") -> KnownFinding:
    """Return a finding about a commit as a later review of the same change knows it."""
    is_older = isinstance(finding, DroppedFinding) and finding.reason == "unchanged lines"
    return KnownFinding(
        identities=finding.identities,
        cause=finding.cause.identity if isinstance(finding, Finding) and finding.cause else None,
        status="older" if is_older else "stands",
        severity=finding.severity,
        disputed=finding.disputed if isinstance(finding, DroppedFinding) else finding.status == "disputed",
        fingerprint=finding.fingerprint,
        commit=commit,
        title=finding.title,
        quotation=finding.quotation,
        claim=finding.claim,
    )


# --- in words


def place_of(place: Finding | Cause) -> str:
    """Return `src/x.py:41-43`."""
    last = f"-{place.last_line}" if place.last_line > place.first_line else ""
    old = " of the old file" if place.side == "old" else ""
    return f"{place.file}:{place.first_line}{last}{old}"


def decided_by(finding: Finding) -> str:
    """Return who found it and what the other agents said: `found by red, confirmed by blue`."""
    by = join_names(finding.by)
    origin = f"found by {by}"
    if len(finding.by) > 1:
        origin = (
            f"found independently by {by}"
            if finding.found_apart
            else f"the same words quoted by {by}, not as the same defect"
        )
    verdicts = {
        verdict: [
            j.agent
            for j in finding.judgements
            if j.verdict == verdict and (verdict != "amend" or j.agent not in finding.by)
        ]
        for verdict in get_args(VerdictKind)
    }
    clauses = [origin]
    clauses += [f"confirmed by {join_names(verdicts['confirm'])}"] if verdicts["confirm"] else []
    clauses += [f"confirmed with another consequence by {join_names(verdicts['amend'])}"] if verdicts["amend"] else []
    clauses += [f"refuted by {join_names(verdicts['refute'])}"] if verdicts["refute"] else []
    clauses += [f"{join_names(verdicts['unsure'])} unsure"] if verdicts["unsure"] else []
    if len(clauses) == 1 and finding.status == "unjudged":
        clauses.append("not judged")
    return ", ".join(clauses)


def command_of(check: Verification) -> str | None:
    """Return the command of a check, without the marks of code around it; None if there is none, or words around it."""
    if check.kind != "run" or not check.text.strip():
        return None
    wrapped = _WRAPPED.fullmatch(check.text.strip())
    text = (wrapped["block"] or wrapped["span"]).strip("\n") if wrapped else check.text.strip()
    return text if wrapped or "`" not in text else None
