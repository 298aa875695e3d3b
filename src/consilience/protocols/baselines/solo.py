"""One model alone: one call, or one call and reviews of its own answer. The baseline of every deliberation."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field

from consilience.domain.detail import capped
from consilience.domain.messages import ClaimReply, FreeText, is_no_finding
from consilience.domain.outcome import Estimate, StopReason
from consilience.domain.positions import LEVELS, ConfidenceLevel
from consilience.domain.report import ConfidenceScore
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply
from consilience.protocols._common.conclusion import (
    MAX_AGAINST,
    AgainstReply,
    Conclusion,
    conclusion_fields,
    stated_position,
)
from consilience.protocols._common.revisions import loses_draft
from consilience.protocols.baselines.report import (
    ReviewedIssue,
    ReviewOutcome,
    SelfReportedAnalysis,
    SelfReview,
    SoloReport,
)
from consilience.protocols.baselines.seats import BaselineProtocol

SEAT = "S1"
MAX_REVIEWS = 20

UpToFour = Annotated[list[str], Field(json_schema_extra={"maxItems": 4})]


class StructuredReply(BaseModel):
    """An answer with its options, the case against it and what would change it; a `Conclusion` without references to others."""

    options: UpToFour = Field(default_factory=list)
    cruxes: UpToFour = Field(default_factory=list)
    confidence: ConfidenceLevel = "unsure"
    claims: Annotated[list[str], Field(json_schema_extra=capped("claims"))] = Field(default_factory=list)
    against: Annotated[list[str], Field(json_schema_extra={"maxItems": MAX_AGAINST})] = Field(default_factory=list)
    would_change: UpToFour = Field(default_factory=list)
    unknown: UpToFour = Field(default_factory=list)
    text: FreeText

    @property
    def conclusion(self) -> Conclusion:
        return Conclusion(
            claims=[ClaimReply(text=text) for text in self.claims],
            against=[AgainstReply(text=text) for text in self.against],
            would_change=self.would_change,
            unknown=self.unknown,
            text=self.text,
        )


class CritiqueReply(BaseModel):
    """The faults of an answer, most consequential first. The list is a decision: it has to be given, and may be empty."""

    max_issues: ClassVar[int]

    issues: Annotated[list[str], Field(json_schema_extra=capped("issues"))]

    @property
    def text(self) -> str:
        """The issues as the author of the answer reads them, numbered from 1."""
        return "\n".join(f"{n}. {issue}" for n, issue in enumerate(self.stated, 1))

    @property
    def stated(self) -> list[str]:
        """The issues that say something, up to the cap."""
        return [issue.strip() for issue in self.issues if not is_no_finding(issue)][: self.max_issues]


@lru_cache
def critique_of(max_issues: int) -> type[CritiqueReply]:
    """Return the type of a critique with that cap."""
    return type("CritiqueReply", (CritiqueReply,), {"max_issues": max_issues})


class IssueResponse(BaseModel):
    """The response of a new version to one issue."""

    issue: int
    """Its number, from 1."""
    fate: Literal["yielded", "refuted"]
    how: str = ""


class Responses(BaseModel):
    """The responses of a new version to the issues with the one before."""

    responses: Annotated[list[IssueResponse], Field(json_schema_extra=capped("issues"))] = Field(default_factory=list)


class RewriteReply(Responses):
    """A revised answer."""

    text: FreeText


class StructuredRewrite(StructuredReply, Responses):
    """A revised structured answer."""


@dataclass
class SoloRun:
    """The answer so far and how it was made."""

    answer: Reply[Any] | None = None
    reviews: list[SelfReview] = field(default_factory=list)
    cut_reviews: int = 0
    """The first reviews, whose answers were cut."""
    out_of_steps: bool = False


class Solo(BaselineProtocol):
    """One agent, which answers and may review its own answer."""

    name: ClassVar[str] = "solo"
    summary: ClassVar[str] = "one model alone: one call, or one call and reviews of its own answer"
    # 1 took a default for a declared confidence; 2 did not name failed calls, and stated a confidence of a cut answer;
    # 3 took the first match of the answer pattern; 4 counted sentences in every prompt;
    # 5 let a rewrite of a few words replace a draft, and took "none found" for an issue;
    # 6 took the last choice that an answer named for its position
    version: ClassVar[int] = 7
    report: ClassVar[type[SoloReport]] = SoloReport
    phase_names: ClassVar[tuple[str, ...]] = ("answer", "critique", "rewrite")
    closing: ClassVar[bool] = True

    structured: Annotated[
        bool, Field(description="ask also for options, cruxes, the case against the answer and what would change it")
    ] = False
    reviews: Annotated[
        int,
        Field(
            ge=0, le=MAX_REVIEWS, description="max self-reviews, in which the model criticises and rewrites its answer"
        ),
    ] = 0

    @property
    def ids(self) -> tuple[str, ...]:
        return (SEAT,)

    @property
    def max_quoted_replies(self) -> int:
        """The answer and its critique."""
        return 2 if self.reviews else 0

    def estimate(self) -> Estimate:
        """Return the range of calls. A critique that finds nothing ends the reviews."""
        return Estimate(min=2 if self.reviews else 1, max=1 + 2 * self.reviews)

    def resized_for_calls(self, calls: int) -> Self:
        """Return a copy with as many reviews as fit in `calls` calls: none in one or two, one in three or four."""
        return self.model_copy(update={"reviews": min(max(calls - 1, 0) // 2, MAX_REVIEWS)})

    def seat(self, n: int) -> str | None:
        """Return the only seat. Surplus sources do not wrap to it."""
        return SEAT if n == 1 else None

    async def run(self, session: Session) -> SoloReport:
        if session.limits.steps == 0:
            return await session.report(SoloReport, first=(), stop_reason=StopReason.EXHAUSTED_STEPS)
        first = await self._ask_for_answer(session)
        run = SoloRun(answer=first if isinstance(first, Reply) else None)
        for n in range(1, self.reviews + 1):
            if not await self._review(session, run, n):
                break
        return await self._conclude(session, first, run)

    async def _ask_for_answer(self, session: Session) -> Reply[Any] | Failure:
        template = "structured" if self.structured else "answer"
        async with session.phase("answer", 1):
            return await session.ask(
                SEAT,
                self.prompt(session, template, SEAT),
                key=f"answer/{SEAT}",
                returns=StructuredReply if self.structured else str,
                closing=True,
            )

    async def _review(self, session: Session, run: SoloRun, n: int) -> bool:
        """Criticise the answer and rewrite it. Return whether another review may follow."""
        answer = run.answer
        if answer is None:
            return False
        run.out_of_steps = session.limits.steps is not None and n >= session.limits.steps
        if run.out_of_steps:
            return False
        issues: tuple[ReviewedIssue, ...] = ()
        critique = await self._critique(session, answer, n)
        outcome: ReviewOutcome = "critique_failed"
        discarded: str | None = None
        if isinstance(critique, Reply) and not (stated_issues := critique.value.stated):
            outcome = "nothing_found"
        elif isinstance(critique, Reply):
            rewrite = await self._rewrite(session, answer, critique, n, len(stated_issues))
            outcome = "rewritten"
            if isinstance(rewrite, Failure):
                outcome = "rewrite_failed"
            elif rewrite.cut and not answer.cut:
                outcome = "rewrite_cut"
            elif self._loses_draft(session, run, rewrite):
                outcome, discarded = "rewrite_lost_text", rewrite.text
            else:
                run.answer = rewrite
            kept = rewrite if isinstance(rewrite, Reply) and rewrite is run.answer else None
            issues = _answered(stated_issues, kept, same=kept is not None and kept.text.split() == answer.text.split())
        after = run.answer.text if run.answer is not None and outcome == "rewritten" else None
        versions = {"before": answer.text, "after": after, "discarded": discarded}
        run.reviews.append(SelfReview(index=n, outcome=outcome, issues=issues, **versions))
        if problem := _PROBLEMS.get(outcome):
            session.warn(f"review {n}: {problem}; the answer is the version before it, and no further review was made")
        return outcome == "rewritten"

    def _loses_draft(self, session: Session, run: SoloRun, rewrite: Reply[Any]) -> bool:
        """Return whether a new version loses the text. An extracted answer may be short, and a cut answer be cut down."""
        assert run.answer is not None
        if run.answer.cut:
            run.cut_reviews = len(run.reviews) + 1
        versions = [*(review.before for review in run.reviews[run.cut_reviews :]), run.answer.text]
        return not (self.answer_pattern or run.answer.cut) and loses_draft(session.task, versions, rewrite.text)

    async def _critique(self, session: Session, answer: Reply[Any], n: int) -> Reply[CritiqueReply] | Failure:
        async with session.phase("critique", n):
            return await session.ask(
                SEAT,
                self._prompt_on(session, "critique", (session.quote(answer, "you"),)),
                key=f"review-{n}/critique/{SEAT}",
                returns=critique_of(session.caps.issues),
                kind="critique",
            )

    async def _rewrite(
        self, session: Session, answer: Reply[Any], critique: Reply[CritiqueReply], n: int, issues: int
    ) -> Reply[Any] | Failure:
        quotes = (session.quote(answer, "you"), session.quote(critique, "critique"))
        async with session.phase("rewrite", n):
            return await session.ask(
                SEAT,
                self._prompt_on(session, "rewrite", quotes, issues=issues, structured=self.structured),
                key=f"review-{n}/rewrite/{SEAT}",
                returns=StructuredRewrite if self.structured else RewriteReply,
                accept=_has_text,
                closing=n == self.reviews,
            )

    def _prompt_on(self, session: Session, template: str, quotes: tuple[Quote, ...], **values: Hashable) -> Prompt:
        documents, issues = bool(session.sources), session.caps.issues
        words = self.words(session, template, SEAT, **{"documents": documents, "issues": issues, **values})
        return Prompt(words, quotes)

    async def _conclude(self, session: Session, first: Reply[Any] | Failure, run: SoloRun) -> SoloReport:
        reply = run.answer
        value = reply.value if reply is not None and isinstance(reply.value, StructuredReply) else None
        if value and value.model_fields_set <= {"text", "responses"}:
            session.warn("the answer is prose only: it states no alternatives and no confidence")
        position = await stated_position(session, self.answer_pattern, reply)
        return await session.close(
            SoloReport,
            reply,
            first=[first],
            stop_reason=StopReason.EXHAUSTED_STEPS if run.out_of_steps else StopReason.SETTLED,
            confidence=_confidence(value),
            steps=1 + len(run.reviews),
            position=position,
            weighed=_weighed(value) if value else None,
            reviews=tuple(run.reviews),
            **conclusion_fields(session, reply.holding(value.conclusion) if reply and value else None),
        )


_PROBLEMS = {
    "critique_failed": "there is no critique",
    "rewrite_failed": "there is no new version",
    "rewrite_cut": "the new version was cut at the token limit",
    "rewrite_lost_text": "the new version kept less than a third of the answer",
}
"""Outcomes of a review after which the answer is the version before it."""


def _has_text(reply: RewriteReply | StructuredRewrite) -> None:
    """Raise `ValueError` if there is no new version."""
    if not reply.text.strip():
        raise ValueError("text: the complete answer is needed, also if nothing in it changes")


def _answered(stated: list[str], rewrite: Reply[Any] | None, *, same: bool) -> tuple[ReviewedIssue, ...]:
    """Return the issues, each with the first response; a dropped version answers none. A version with the `same` text yields to
    none, whatever it declares."""
    responses: list[IssueResponse] = rewrite.value.responses if rewrite is not None else []
    by_number = {response.issue: response for response in reversed(responses) if response.fate != "yielded" or not same}
    return tuple(
        ReviewedIssue(text=issue, fate=by_number[n].fate, how=by_number[n].how.strip())
        if n in by_number
        else ReviewedIssue(text=issue)
        for n, issue in enumerate(stated, 1)
    )


def _confidence(value: StructuredReply | None) -> ConfidenceScore:
    """Return the declared confidence. The default of an omitted field is no declaration."""
    if value is None or "confidence" not in value.model_fields_set:
        return ConfidenceScore()
    return ConfidenceScore(level=LEVELS[value.confidence], kind="declared")


def _weighed(value: StructuredReply) -> SelfReportedAnalysis:
    def stated(texts: list[str]) -> tuple[str, ...]:
        return tuple(text.strip() for text in texts[:4] if text.strip())

    return SelfReportedAnalysis(options=stated(value.options), cruxes=stated(value.cruxes))
