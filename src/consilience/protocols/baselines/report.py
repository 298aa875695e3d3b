"""Reports of the baselines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from textwrap import shorten
from typing import ClassVar, Literal

from consilience.domain.agents import seat_names
from consilience.domain.outcome import StopReason
from consilience.domain.report import Frozen, Report
from consilience.domain.sections import (
    AgentText,
    Block,
    Details,
    Item,
    Paragraph,
    Presentation,
    QuoteBlock,
    Section,
    extend_presentation,
)
from consilience.domain.wording import count
from consilience.protocols._common.presenting import bullets, key_figures, position_blocks


class SelfReportedAnalysis(Frozen):
    """One model's own account of its analysis, which no other agent reviewed."""

    options: tuple[str, ...] = ()
    cruxes: tuple[str, ...] = ()


IssueFate = Literal["yielded", "refuted", "unanswered"]


class ReviewedIssue(Frozen):
    """A fault that the model found in its own answer."""

    text: str
    fate: IssueFate = "unanswered"
    """Declared by the next version: changed because of it, or refuted. `unanswered`: nothing declared."""
    how: str = ""
    """What was changed, or why not, in the model's words."""


ReviewOutcome = Literal[
    "rewritten", "nothing_found", "critique_failed", "rewrite_failed", "rewrite_cut", "rewrite_lost_text"
]


class SelfReview(Frozen):
    """One round of self-criticism."""

    index: int
    """From 1."""
    outcome: ReviewOutcome
    """`rewritten`: there is a new version. After any other outcome the answer stayed and the reviews ended."""
    issues: tuple[ReviewedIssue, ...] = ()
    before: str
    """The version that was reviewed."""
    after: str | None = None
    """The version that took its place, if one did."""
    discarded: str | None = None
    """A version that kept less than a third of the answer and did not take its place."""


class SoloReport(Report):
    """The report of `solo`."""

    labels: ClassVar[Mapping[str, str]] = {
        "critique": "review of the draft",
        "rewrite": "revised draft",
        "review": "review",
    }
    for_people: ClassVar[Mapping[str, str]] = {
        "": 'Answer in your own words. "critique" is about your last text, "you".',
    }

    protocol: str = "solo"
    position: str | None = None
    """The extracted answer, if there is an `answer_pattern`."""
    weighed: SelfReportedAnalysis | None = None
    """Of a structured call."""
    reviews: tuple[SelfReview, ...] = ()

    def presentation(self) -> Presentation:
        reviews = (_self_review(self.reviews),) if self.reviews else ()
        return _presented(self, (*reviews, *((_analysis(self.weighed),) if self.weighed else ())))


MAX_SHRUNK_SHARE = 0.5
"""The version before a review is printed if less than this share of its length is left."""

_FATES: Mapping[IssueFate, str] = {"yielded": "Changed", "refuted": "Refuted", "unanswered": "Not answered"}
_WITHOUT_REWRITE = {
    "nothing_found": "it found nothing to correct",
    "critique_failed": "there is no critique; the answer stayed as it was",
    "rewrite_failed": "there is no new version; the answer stayed as it was",
    "rewrite_cut": "the new version was cut at the token limit and dropped; the answer stayed as it was",
    "rewrite_lost_text": "the new version kept less than a third of the answer and was dropped; the answer stayed as it was",
}


def _self_review(reviews: Sequence[SelfReview]) -> Section:
    blocks: list[Block] = []
    if all(review.outcome == "critique_failed" for review in reviews):
        blocks.append(Paragraph(text="The answer was not reviewed.", tone="remark"))
    for review in reviews:
        blocks.append(Paragraph(lead=f"Review {review.index}:", text=f"{_summary(review)}."))
        blocks += bullets(
            Item(lead=f"{_FATES[issue.fate]}.", text=issue.text, note=issue.how) for issue in review.issues
        )
        if review.discarded:
            dropped = QuoteBlock(text=review.discarded)
            blocks.append(Details(summary="The version that was dropped", blocks=(dropped,)))
        elif review.after is not None and len(review.after) < MAX_SHRUNK_SHARE * len(review.before):
            blocks.append(Details(summary="The version before", blocks=(AgentText(text=review.before),)))
    return Section(name="reviews", part="basis", heading="The model's review of its own answer", blocks=tuple(blocks))


def _summary(review: SelfReview) -> str:
    if review.outcome == "nothing_found":
        return _WITHOUT_REWRITE[review.outcome]
    fates = Counter(issue.fate for issue in review.issues)
    counts = [f"{fates[fate]} {word.lower()}" for fate, word in _FATES.items() if fates[fate]]
    if review.after is None:
        issues = [count(len(review.issues), "issue")] if review.issues else []
        return "; ".join([*issues, _WITHOUT_REWRITE[review.outcome]])
    words = f"{len(review.before.split()):,} words became {len(review.after.split()):,}"
    change = "the text stayed the same" if review.before.split() == review.after.split() else words
    return f"{count(len(review.issues), 'issue')} ({', '.join(counts)}); {change}"


def _analysis(weighed: SelfReportedAnalysis) -> Section:
    blocks: list[Block] = []
    for title, texts in (("Options:", weighed.options), ("What decides between them:", weighed.cruxes)):
        if texts:
            blocks += (Paragraph(lead=title, text=""), *bullets(Item(text=text) for text in texts))
    return Section(name="analysis", part="basis", heading="The model's own analysis", blocks=tuple(blocks))


MAX_EXCERPT_CHARS = 300


class VoteCast(Frozen):
    """One answer of a vote."""

    agent: str
    text: str
    position: str | None = None
    similarity: float | None = None
    """Mean Jaccard similarity to the other answers; None without others."""
    cut: bool = False
    """It ended at the token limit."""


class VoteReport(Report):
    """The report of `vote`."""

    for_people: ClassVar[Mapping[str, str]] = {
        "": "Answer in your own words. The others answer at the same time.",
    }

    protocol: str = "vote"
    votes: tuple[VoteCast, ...] = ()
    tally: dict[str, int] = {}
    """Number of votes by position, the most frequent first."""
    position: str | None = None
    decided_by: Literal["majority", "medoid"] | None = None
    """`medoid`: without positions, the text most similar to all others."""
    tie: bool = False
    """The medoid decided among the tied positions."""

    def presentation(self) -> Presentation:
        blocks: list[Block] = []
        without = sum(vote.position is None for vote in self.votes) if self.settings.get("answer_pattern") else 0
        if votes := [f"{n} for {position}" for position, n in self.tally.items()]:
            votes += [f"{without} without a position"] if without else []
            blocks.append(Paragraph(lead="Votes:", text=" · ".join(votes)))
        if self.decided_by == "medoid" and len(self.votes) > 1:
            basis = f"of {len(self.votes)} independent answers, the one whose wording is most like that of the others."
            blocks.append(Paragraph(lead="Chosen:", text=basis))
        tally = Section(name="tally", part="answer", blocks=tuple(blocks))
        sections = (tally, self._answers_without_a_position()) if without else (tally,)
        ending = "no position was found" if self.stop_reason is StopReason.INCONCLUSIVE else ""
        return _presented(self, sections, ending, tuple(self._reservations(without)))

    def _reservations(self, without: int) -> Iterator[str]:
        """Yield what a finished vote lacks: a position that no majority of the votes asked for holds is named as such."""
        if self.stop_reason is not StopReason.SETTLED:
            return
        votes, asked = self.tally.get(self.position or "", 0), len(self.agents)
        if votes and not self.tie and 2 * votes <= asked:
            yield f"without a majority: {votes} of {count(asked, 'vote')} for {self.position}"
        if without:
            yield f"{without} of {count(len(self.votes), 'answer')} took no position"

    def _answers_without_a_position(self) -> Section:
        """Show the first and the last line of each answer that was not counted, except the one printed as the answer."""
        names = seat_names(self.agents)
        items = []
        for vote in self.votes:
            lines = [line for line in vote.text.splitlines() if line.strip()]
            if vote.position is None and vote.text != self.answer and lines:
                ends = f"Its last line: “{_excerpt(lines[-1])}”" if len(lines) > 1 else ""
                items.append(Item(text=f"“{_excerpt(lines[0])}”", by=names.get(vote.agent, vote.agent), note=ends))
        return Section(
            name="unmatched", part="differences", heading="Answers without a position", blocks=bullets(items)
        )


def _excerpt(line: str) -> str:
    return shorten(line, MAX_EXCERPT_CHARS, placeholder=" …")


def _presented(
    report: SoloReport | VoteReport, sections: tuple[Section, ...], ending: str = "", reservations: tuple[str, ...] = ()
) -> Presentation:
    return extend_presentation(
        Report.presentation(report),
        ending=ending,
        reservations=reservations,
        above_answer=position_blocks(report.position),
        sections=sections,
        figures=tuple(key_figures(report.metrics)),
    )
