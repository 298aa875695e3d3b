"""Findings and what else agents return, as they type them and as the report has them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import BaseModel, Field, WithJsonSchema, create_model, model_validator
from pydantic.json_schema import SkipJsonSchema

from consilience.coordination.convergence import ConvergenceCheck
from consilience.domain.messages import ClaimReplies, FreeText
from consilience.domain.outcome import Severity, StopReason
from consilience.domain.report import Frozen, Report

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

Probability = Annotated[float, Field(ge=0, le=1)]
VoteField = Annotated[ReviewVote | None, WithJsonSchema({"type": "string", "enum": list(get_args(ReviewVote))})]


# --- as reviewers type them


class CheckReply(BaseModel):
    """How a reader can check a finding."""

    kind: CheckKind = "read"
    """`run` a command or test, `read` these lines, or `discuss` a question that only people can answer."""
    text: str = ""
    """To run: the command alone."""
    expect: str = ""
    """What the command shows if the finding is right."""


class FindingReply(BaseModel):
    """A defect."""

    severity: Severity
    category: Annotated[str, WithJsonSchema({"type": "string", "enum": list(CATEGORIES)})]
    """One of `CATEGORIES`; other words become the title."""
    title: str = ""
    """The defect in a few words."""
    document: str
    """Id of the document that is quoted (`S2`)."""
    line: int
    """Where the quotation begins."""
    quotation: str
    """The exact words at fault."""
    cause: SkipJsonSchema[str] = ""
    """The exact words of the changed line that causes the defect, if the quotation is of an unchanged one."""
    claim: str
    """What is wrong, in a sentence that makes sense on its own."""
    consequence: str = ""
    """What follows for a user of the reviewed work."""
    check: CheckReply = Field(default_factory=CheckReply)
    recommendation: str = ""
    replacement: str | None = None
    """The text that takes the place of the quoted lines, whole; None where the fix is not small."""


class ChangeFindingReply(FindingReply):
    """The same where a diff is reviewed, whose reviewers are asked for the cause."""

    cause: str = ""


class ReadReply(BaseModel):
    """A document that was read, or why it was not reviewed."""

    document: str
    remark: str
    """What was checked in it, or why it needs no review."""


class ReviewReply(BaseModel):
    """One reviewer's reply on one part of the target."""

    read: list[ReadReply] = Field(default_factory=list)
    findings: list[FindingReply] = Field(default_factory=list)
    vote: VoteField = None
    """The sealed ballot. Other reviewers never see it. None in a reply that was cut before it."""
    confidence: Probability = 0.5
    reason: str = ""

    @model_validator(mode="before")
    @classmethod
    def _drop_half_a_finding(cls, data: object) -> object:
        """A reply that ends among its findings was cut at the token limit: half of the last one may be missing."""
        if not isinstance(data, dict) or "vote" in data:
            return data
        findings = data.get("findings")
        if not isinstance(findings, list) or len(findings) < 2 or {"confidence", "reason", "text"} & data.keys():
            raise ValueError("the vote is missing")
        return {**data, "findings": findings[:-1]}


class WrittenReviewReply(ReviewReply):
    """The same, with a written review, where gates judge texts."""

    text: FreeText = ""


@lru_cache
def review_reply(room: int, *, written: bool, of_diff: bool = False) -> type[ReviewReply]:
    """Return the type of a review of at most `room` findings."""
    entry = ChangeFindingReply if of_diff else FindingReply
    findings = Annotated[list[entry], Field(json_schema_extra={"maxItems": room})]  # type: ignore[valid-type]
    base = WrittenReviewReply if written else ReviewReply
    return create_model(base.__name__, __base__=base, findings=(findings, Field(default_factory=list)))


FINDING = "finding"
"""The kind of the messages that findings are published as."""
FindingLabel = Annotated[str, WithJsonSchema({"type": "string", "x-labels": FINDING})]
"""The label of a quoted finding (`F3`)."""


class VerdictReply(BaseModel):
    """A judgement on one finding of another agent."""

    finding: FindingLabel
    reason: str = ""
    """It precedes the verdict, which is to follow from it."""
    verdict: VerdictKind


class CrossReply(BaseModel):
    """An agent's judgements on the findings of others."""

    verdicts: list[VerdictReply] = Field(default_factory=list)


class FinalBallotReply(CrossReply):
    """The same, with the final ballot of a judge that reviewed the documents itself."""

    vote: VoteField = None
    """Sealed as the first one, which stands if there is none."""
    cause: FindingLabel | None = None
    """The finding that changed the vote."""
    confidence: Probability = 0.5
    reason: str = ""


Duplicates = list[list[FindingLabel]]


class ClosingReply(BaseModel):
    """The review as its reader gets it, above the list of findings."""

    duplicates: Annotated[Duplicates, Field(json_schema_extra={"maxItems": 60})] = Field(default_factory=list)
    """Groups of findings that are one defect, the one to keep first."""
    claims: ClaimReplies = Field(default_factory=list)
    text: FreeText


class BriefClosingReply(ClosingReply):
    """That of a small model, which fills every list to its end."""

    duplicates: Annotated[Duplicates, Field(json_schema_extra={"maxItems": 8})] = Field(default_factory=list)


# --- as the report has them


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


class Cause(Frozen):
    """The changed line that causes a defect, verified as a quotation is."""

    file: str
    first_line: int
    last_line: int
    side: Literal["new", "old"] = "new"
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
    """What its author named as the cause, if that is a changed line."""
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
    """Tells the finding again after lines have moved: of the file and the first quoted line, whole and in normal form."""
    refs: tuple[str, ...] = ()
    """Keys of the calls that it rests on."""


def topic_of(finding: Finding | DroppedFinding) -> str:
    """Return category and title: `bounds: the last page is empty`."""
    if finding.category == OTHER and finding.title:
        return finding.title
    return f"{finding.category}: {finding.title}" if finding.title else finding.category


DroppedReason = Literal["false quotation", "baseline", "ignored", "unchanged lines", "over the limit"]


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
    """The reason of an inline comment, why the quotation is false, or what is wrong with the cause."""
    fingerprint: str = ""
    """As of a finding; "" where the quotation is false."""
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


class ReviewData(Report):
    """The header, and what a review adds to it."""

    formats: ClassVar[Mapping[str, str]] = {
        "sarif": "review.sarif",
        "github": "comments.json",
        "baseline": "baseline.json",
    }

    protocol: str = "review"
    findings: tuple[Finding, ...] = ()
    """The listed findings, ranked."""
    dropped: tuple[DroppedFinding, ...] = ()
    evaluations: tuple[ConvergenceCheck, ...] = ()
    """Of each iteration of red and blue: which gates were met, by whom, and what followed."""
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

    def failing(self, what: str) -> str:
        """Name the findings of at least this severity that no agent refuted, listed or over the limit, or, with `reject`, who votes
        so; or the parts that no agent reviewed."""
        if what == "reject":
            if self.verdict is not None and self.verdict.vote == "reject":
                return f"the verdict is reject, by {', '.join(self.verdict.by)}."
        elif failing := self._findings_of(what):
            return f"at least {what}: {', '.join(failing)}."
        if self.unread:
            return f"{len(self.unread)} of {len(self.parts)} parts had no review."
        if self.unread_files:
            return f"Not reviewed: {', '.join(self.unread_files)}."
        return "" if self.complete else "The review is not complete."

    def _findings_of(self, severity: str) -> list[str]:
        worst = SEVERITIES[: SEVERITIES.index(severity) + 1] if severity in SEVERITIES else SEVERITIES
        named = [finding.id for finding in self.findings if finding.severity in worst and finding.status != "disputed"]
        over = [finding for finding in self.dropped if finding.reason == "over the limit" and not finding.disputed]
        if unlisted := sum(finding.severity in worst for finding in over):
            named.append(f"{unlisted} over the limit of findings")
        return named
