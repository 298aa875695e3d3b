"""The calls of a review: what each agent is shown and asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from consilience.domain.findings import CATEGORIES, BallotCast, Finding, place_of, topic_of
from consilience.domain.messages import Message, bare_label
from consilience.domain.tokens import estimate_tokens
from consilience.engine.drafts import PromptContext
from consilience.engine.prompt import Prompt, Quote
from consilience.engine.session import Session
from consilience.engine.sources import Document
from consilience.engine.work import Ask, Reply
from consilience.protocols.review.ballots import verdict_of, votes_by_agent
from consilience.protocols.review.findings import (
    FINDING,
    BriefClosingReply,
    ClosingReply,
    CrossReply,
    FinalBallotReply,
    ReviewReply,
    review_reply,
)
from consilience.protocols.review.fold import OpenParts
from consilience.protocols.review.gates import artifact
from consilience.protocols.review.settings import QUOTED_REPLIES, ReviewSettings
from consilience.protocols.review.strategies import LEAD
from consilience.targets.diffs import Changes, FileChange

MAX_OTHERS = 40
"""Documents of other parts that a prompt names."""
MAX_RANGES = 12
"""Ranges of changed lines of a file that a prompt names."""
QUOTE_TOKENS = 32
"""Tokens around a quotation in a prompt."""
VERDICT_TOKENS = 80
"""Tokens of a judge's reply for each finding that it may judge, and for its ballot."""
QUOTED_SHARE = 0.75
"""Max share of a context window that a prompt with quoted findings takes; the rest is for the reply."""


RELATED_NOTE = (
    "The related lines are from other parts, which others review. They stand here because they may contradict this part: report "
    "where they do, at the place on this side. Their own defects are not yours to find."
)


BESIDE_WORDS = ("rules", "intent", "context", "repository")
"""What may stand beside a part, as templates call it."""


@dataclass(frozen=True)
class ReviewPrompts:
    """Writes the prompts of a run, or those that a plan counts."""

    session: PromptContext
    settings: ReviewSettings
    changes: Changes | None
    open: OpenParts

    def review_prompt(self, agent: str, part: int, prior: tuple[Quote, ...] = (), refinement: str = "") -> Prompt:
        """A review of one part; with `refinement`, again, beside the agent's own review of it so far."""
        settings, parts = self.settings, len(self.settings.parts)
        shown, related = self.open.shown(agent, part), self.open.related(agent, part)
        beside = self._beside(agent, part)
        words = self.session.render_template(
            "review",
            seat=self.session.agent(agent).introduction(),
            side=settings.plan.side(agent),
            lens=settings.plan.lens(agent, parts, settings.review_type),
            kind=settings.review_type,
            part=part,
            parts=parts,
            documents=tuple(self._describe(document) for document in shown),
            others=self._others(shown),
            diff=next((d.id for d in shown if self.changes and d.id == self.changes.document), ""),
            change=self.changes is not None,
            changed_only=settings.changed_lines_only,
            moved=self.changes is not None and any(file.moved for file in self.changes.files),
            room=self.room,
            written=self.settings.are_reviews_written,
            categories=tuple(CATEGORIES.items()),
            **beside,
            cut=cut_words(self.settings.without_room[part - 1] if self.settings.without_room else ()),
            again=refinement,
            prior=bool(prior),
        )
        return Prompt(
            words,
            prior,
            documents=self.open.references(agent, part),
            related=related,
            preface=(RELATED_NOTE,) if related else (),
            asks_for_quotations=False,
        )

    def _beside(self, agent: str, part: int) -> dict[str, tuple[str, ...]]:
        """Return what stands beside a part by purpose: the references to it, with names; of the repository, the files."""
        words: dict[str, dict[str, None]] = {purpose: {} for purpose in BESIDE_WORDS}
        for document in self.open.shown_beside(agent, part):
            if document.purpose:
                reference = document.id if document.purpose == "repository" else document.reference
                words[document.purpose][f"{reference} {' '.join(document.name.split())}".rstrip()] = None
        return {purpose: tuple(names) for purpose, names in words.items()}

    def review_reply(self, agent: str, part: int) -> type[ReviewReply]:
        beside = self._beside(agent, part)
        return review_reply(
            self.room,
            written=self.settings.are_reviews_written,
            caused=self.changes is not None or any(beside[name] for name in ("context", "intent")),
            ruled=bool(beside["rules"]),
        )

    def judge_prompt(
        self, judge: str, part: int, labels: tuple[str, ...], quotes: tuple[Quote, ...], *, votes: bool, voted: bool
    ) -> Prompt:
        words = self.session.render_template(
            "judge", seat=self.session.agent(judge).introduction(), labels=labels, votes=votes, voted=voted
        )
        return Prompt(
            words,
            quotes,
            documents=self.open.references(judge, part),
            related=self.open.related(judge, part),
            asks_for_quotations=False,
        )

    def closing_prompt(
        self,
        labels: tuple[str, ...],
        quotes: tuple[Quote, ...],
        *,
        missing: Sequence[str],
        ballots: Sequence[BallotCast],
        judged: bool,
        untold: int,
    ) -> Prompt:
        verdict = verdict_of(ballots)
        words = self.session.render_template(
            "closing",
            seat=self.session.agent(LEAD).introduction(),
            labels=labels,
            missing=tuple(missing),
            judged=judged,
            verdict=verdict.vote if verdict else "",
            split=bool(verdict and verdict.split),
            votes=tuple(f"{agent} {vote}" for agent, vote in votes_by_agent(ballots).items()),
            untold=untold,
        )
        return Prompt(words, quotes, documents=(), asks_for_quotations=False)

    @property
    def room(self) -> int:
        """Max findings of one reply."""
        return self.settings.room(self.session.detail)

    @property
    def has_parts(self) -> bool:
        return len(self.settings.parts) > 1

    def _others(self, shown: Sequence[Document]) -> tuple[str, ...]:
        """Return the names of the documents of the other parts."""
        here = {document.id for document in shown} | ({self.changes.document} if self.changes else set())
        names = [d.name or d.id for d in self.session.sources if d.id not in here and not d.purpose]
        more = [f"and {len(names) - MAX_OTHERS} more"] if len(names) > MAX_OTHERS else []
        return (*names[:MAX_OTHERS], *more)

    def _describe(self, document: Document) -> str:
        """Return the line about a document in a request: its reference, name and lines, and which of them changed."""
        name = f" {' '.join(document.name.split())}" if document.name else ""
        lines = f", lines {document.lines[0]}-{document.lines[1]} of {document.line_count}" if document.lines else ""
        if self.changes is None:
            return f"{document.reference}{name}{lines}"
        if document.id == self.changes.document:
            return f"{document.reference}{name}{lines}, the diff"
        file = next((file for file in self.changes.files if file.document == document.id), None)
        return f"{document.reference}{name}{lines}{_changed_words(file, document)}"


@dataclass(frozen=True)
class Requests(ReviewPrompts):
    """Makes the calls of a run."""

    session: Session

    def review(
        self,
        agent: str,
        part: int,
        *,
        key: str,
        prior: Reply[ReviewReply] | None = None,
        refinement: str = "",
        closing: bool = False,
    ) -> Ask[ReviewReply]:
        """A review of one part; with `refinement`, again, beside the agent's own review of it so far."""
        quotes = (self.session.quote(prior, "you"),) if prior is not None else ()
        return self.session.ask(
            agent,
            self.review_prompt(agent, part, quotes, refinement),
            key=key,
            returns=self.review_reply(agent, part),
            kind="review",
            closing=closing,
            quoted=artifact,
        )

    def judging(
        self, judge: str, part: int, findings: Mapping[str, Message], *, votes: bool, vote: Message | None
    ) -> tuple[Ask[CrossReply], int]:
        """A call that judges findings of others, by label, on the documents of one part; and how many of them fit into it.

        A judge that reviewed the part itself `votes` again, beside its `vote` so far.
        """
        groups = [(Quote(message.id, label),) for label, message in findings.items()]
        before = (Quote(vote.id, "you"),) if vote else ()
        entries = max(self.session.reply_tokens // VERDICT_TOKENS - votes, 1)

        def prompt_of(labels: tuple[str, ...], quotes: tuple[Quote, ...], untold: int) -> Prompt:
            return self.judge_prompt(judge, part, labels, (*before, *quotes), votes=votes, voted=vote is not None)

        prompt, n = self._fitting(judge, groups[:entries], prompt_of)
        key = f"judge/part-{part}/{judge}"
        accept = partial(_require_verdict, frozenset(group[0].label for group in groups[:n]))
        returns = FinalBallotReply if votes else CrossReply
        return self.session.ask(judge, prompt, key=key, returns=returns, kind="verdicts", accept=accept), n

    def closing(
        self,
        findings: Mapping[str, Sequence[Message]],
        missing: Sequence[str],
        ballots: Sequence[BallotCast],
        votes: Mapping[BallotCast, Message],
    ) -> tuple[Ask[ClosingReply], int]:
        """The call that writes the review for its reader, and how many of the findings fit into it.

        `findings` by label, in order of weight: each with the judgements on it. `votes` are the ballots to quote, as messages:
        their verdict stands above the text.
        """
        groups = [
            (
                Quote(finding.id, label),
                *(Quote(judgement.id, f"{judgement.sender} on {label}") for judgement in judgements),
            )
            for label, (finding, *judgements) in findings.items()
        ]
        before = tuple(
            Quote(message.id, f"vote of {ballot.agent}" + (f" on part {ballot.part}" if self.has_parts else ""))
            for ballot, message in votes.items()
        )
        judged = any(len(group) > 1 for group in groups)

        def prompt_of(labels: tuple[str, ...], quotes: tuple[Quote, ...], untold: int) -> Prompt:
            quotes = (*before, *quotes)
            return self.closing_prompt(labels, quotes, missing=missing, ballots=ballots, judged=judged, untold=untold)

        prompt, n = self._fitting(LEAD, groups, prompt_of)
        returns = BriefClosingReply if self.session.detail == "brief" else ClosingReply
        return self.session.ask(
            LEAD,
            prompt,
            key="closing",
            returns=returns,
            kind="closing",
            closing=True,
            max_tokens=self.settings.closing_tokens,
        ), n

    def _fitting(
        self,
        agent: str,
        groups: Sequence[tuple[Quote, ...]],
        write: Callable[[tuple[str, ...], tuple[Quote, ...], int], Prompt],
    ) -> tuple[Prompt, int]:
        """Return a prompt that quotes findings, and how many: at least one, by their size and by the window of the model.

        `write` is given labels, quotations and the number of findings left out; until it is known, all count as left out.
        """

        def prompt_of(n: int, untold: int) -> Prompt:
            labels = tuple(group[0].label for group in groups[:n])
            return write(labels, tuple(quote for group in groups[:n] for quote in group), untold)

        room, n = QUOTED_REPLIES * self.session.reply_tokens, 0
        for group in groups:
            room -= sum(estimate_tokens(self.session.message(quote.id).text) + QUOTE_TOKENS for quote in group)
            if room < 0 and n:
                break
            n += 1
        while n > 1 and self.session.window_share(agent, prompt_of(n, len(groups))) > QUOTED_SHARE:
            n -= 1
        return prompt_of(n, len(groups) - n), n

    def publish(self, finding: Finding, sender: str, audience: Iterable[str]) -> Message:
        """Publish a finding of a reply, for those who judge it and for the lead."""
        message = Message(
            id=f"{finding.refs[0]}/{FINDING}-{finding.id[1:]}",
            sender=sender,
            kind=FINDING,
            text=finding_text(finding),
            audience=(*audience, LEAD),
            reply_to=finding.refs[0],
        )
        self.session.publish(message)
        return message


def _require_verdict(labels: frozenset[str], reply: CrossReply) -> None:
    if not any(bare_label(verdict.finding) in labels for verdict in reply.verdicts):
        raise ValueError(f"there is no verdict on any of {', '.join(sorted(labels))}")


def finding_text(finding: Finding) -> str:
    """Return a finding as other agents read it."""
    cause, rule = finding.cause, finding.rule
    fields = {
        place_of(finding): f"{finding.severity}, {topic_of(finding)}",
        f"Quoted from {finding.source}:{finding.source_line}": f"\n{finding.quotation}",
        "Caused by the changed line": f"{place_of(cause)}\n{cause.quotation}" if cause else "",
        "Breaks the rule of the project": f"{rule.file}:{rule.line}\n{rule.quotation}" if rule else "",
        "Found apart by": f"{', '.join(finding.by)}, which confirms it" if finding.found_apart else "",
        "Claim": finding.claim,
        "Consequence": finding.consequence,
        f"Check ({finding.check.kind})": finding.check.text,
        "Expected": finding.check.expect,
        "Recommendation": finding.recommendation,
    }
    return "\n".join(f"{name}: {text}" for name, text in fields.items() if text.strip())


_CUT_WORDS: Mapping[str, tuple[str, str]] = {
    "rules": ("line of the rules", "lines of the rules"),
    "intent": ("line of what the author says", "lines of what the author says"),
    "context": ("line of the context", "lines of the context"),
    "enclosing": ("definition around changed lines", "definitions around changed lines"),
    "imports": ("import", "imports"),
    "called": ("definition of what changed lines name", "definitions of what changed lines name"),
    "tests": ("place in a test that names what changed", "places in tests that name what changed"),
    "mentions": ("place elsewhere that names what changed", "places elsewhere that name what changed"),
}


def cut_words(cut: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Return what had no room, in words: `12 places elsewhere that name what changed`."""
    return tuple(f"{n:,} {_CUT_WORDS[what][n != 1]}" for what, n in cut)


def _changed_words(file: FileChange | None, document: Document) -> str:
    if file is None:
        return ""
    if file.is_new:
        moved = ", ".join(f"{a}-{b}" for a, b in file.moved[:MAX_RANGES])
        return f", a new file{f', lines moved here as they were: {moved}' if moved else ''}"
    first, last = document.lines or (1, document.line_count)
    ranges = [(a, b) for a, b in file.added if a <= last and b >= first]
    words = ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in ranges[:MAX_RANGES])
    more = f" and {len(ranges) - MAX_RANGES} more" if len(ranges) > MAX_RANGES else ""
    moved = ", ".join(f"{a}-{b}" for a, b in file.moved[:MAX_RANGES] if a <= last and b >= first)
    moved = f", of these moved here as they were: {moved}" if moved else ""
    return f", changed lines: {words}{more}{moved}" if words else ""
