"""What agents of a review return, and the data of its report."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, ClassVar, get_args

from pydantic import BaseModel, Field, WithJsonSchema, create_model, model_validator
from pydantic.json_schema import SkipJsonSchema

from consilience.coordination.convergence import ConvergenceCheck
from consilience.domain.document_shares import Purpose
from consilience.domain.findings import CATEGORIES, SEVERITIES, CheckKind, FindingsReport, ReviewVote, VerdictKind
from consilience.domain.messages import ClaimReplies, FreeText
from consilience.domain.outcome import Severity

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
    """The exact words of the changed line that causes the defect, if the quotation is of an unchanged one; where nothing changed,
    those of what is under review, if the quotation is not of it."""
    rule: SkipJsonSchema[str] = ""
    """The exact words of a rule of the project that it breaks."""
    claim: str
    """What is wrong, in a sentence that makes sense on its own."""
    consequence: str = ""
    """What follows for a user of the reviewed work."""
    check: CheckReply = Field(default_factory=CheckReply)
    recommendation: str = ""
    replacement: str | None = None
    """The text that takes the place of the quoted lines, whole; None where the fix is not small."""


class ChangeFindingReply(FindingReply):
    """The same where reviewers are asked for the cause: of a diff, or beside what is not under review."""

    cause: str = ""


class RuledFindingReply(FindingReply):
    """The same where a project has rules."""

    rule: str = ""


class RuledChangeFindingReply(ChangeFindingReply):
    """The same with both."""

    rule: str = ""


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
def review_reply(room: int, *, written: bool, caused: bool = False, ruled: bool = False) -> type[ReviewReply]:
    """Return the type of a review of at most `room` findings, asked for with their causes and rules or without."""
    entry = {
        (False, False): FindingReply,
        (True, False): ChangeFindingReply,
        (False, True): RuledFindingReply,
        (True, True): RuledChangeFindingReply,
    }[caused, ruled]
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


class ReviewData(FindingsReport):
    """The header, and what a review adds to it."""

    formats: ClassVar[Mapping[str, str]] = {
        "sarif": "review.sarif",
        "github": "comments.json",
        "gitlab": "gl-code-quality-report.json",
    }

    protocol: str = "review"
    shown_beside: Mapping[Purpose, tuple[str, ...]] = Field(default_factory=dict)
    """What stood beside the parts and was not under review: the names of documents, by purpose."""
    not_shown: tuple[str, ...] = ()
    """What had no room beside a part, and what of the repository was not searched."""
    evaluations: tuple[ConvergenceCheck, ...] = ()
    """Of each iteration of red and blue: which gates were met, by whom, and what followed."""

    def failing(self, what: str) -> str:
        """Return why a command with --fail-on WHAT fails, in a sentence; "" if it does not.

        It names the findings of at least this severity that no agent refuted, listed, over the limit, or of an earlier review
        and as they were; else who votes reject, for which any WHAT fails; or the parts that no agent reviewed.
        """
        if what != "reject" and (failing := self._findings_of(what)):
            return f"at least {what}: {', '.join(failing)}."
        if self.verdict is not None and self.verdict.vote == "reject":
            return f"the verdict is reject, by {', '.join(self.verdict.by)}."
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
        if standing := sum(known.severity in worst and not known.disputed for known in self.standing):
            named.append(f"{standing} of earlier reviews that still stand")
        return named
