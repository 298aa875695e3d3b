"""The calls that a review will make, with the tokens of their prompts: counted before it begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from consilience.domain.tokens import estimate_tokens
from consilience.engine.drafts import Drafts, PlannedCall, PlannedCalls
from consilience.engine.sources import parse_reference
from consilience.protocols.review.findings import ClosingReply, CrossReply, FinalBallotReply
from consilience.protocols.review.fold import OpenParts
from consilience.protocols.review.requests import VERDICT_TOKENS, ReviewPrompts
from consilience.protocols.review.rules import ruled_files
from consilience.protocols.review.settings import FINDING_TOKENS, QUOTED_REPLIES, ReviewSettings
from consilience.protocols.review.strategies import LEAD
from consilience.targets.diffs import parse_changes

BALLOT_TOKENS = 80
REMARK_TOKENS = 60
"""What a reviewer says of a document that it read."""
SUMMARY_TOKENS = 400
TOKENS_OF_A_FINDING = 2_000
"""Tokens under review for each defect that a reviewer reports after the first. An assumption, not a measurement."""


def planned_calls(settings: ReviewSettings, drafts: Drafts) -> PlannedCalls:
    """Return the calls of a review that finds nothing, and of one in which every reviewer finds something in each of its parts."""
    changes = parse_changes(drafts.sources)
    return _Forecast(
        settings, drafts, ReviewPrompts(drafts, settings, changes, OpenParts(settings, drafts.sources))
    ).calls()


@dataclass(frozen=True)
class _Forecast:
    settings: ReviewSettings
    drafts: Drafts
    prompts: ReviewPrompts

    def calls(self) -> PlannedCalls:
        parts = range(1, len(self.settings.parts) + 1)
        plan = self.settings.plan
        ruled = ruled_files(self.drafts.sources, self.prompts.changes)
        least = [
            self._reading(agent, part, findings=0)
            for part in parts
            for n, agent in enumerate(plan.readers_of(part, len(parts)))
            if n == 0 or not plan.spares_readers or not ruled.isdisjoint(self.prompts.open.files(agent, part))
        ]
        usual = [
            self._reading(agent, part, findings=self._findings(part), again=again)
            for part in parts
            for agent in plan.readers_of(part, len(parts))
            for again in range(min(self.settings.iterations, 2))
        ]
        usual += self._judgings()
        if self.settings.closing and usual:
            usual.append(self._closing())
        return PlannedCalls(tuple(least), tuple(usual))

    def _findings(self, part: int) -> int:
        """Return how many defects a reviewer usually reports on a part: of a diff, by the size of the diff."""
        changes = self.prompts.changes
        documents = [parse_reference(reference, self.drafts.sources) for reference in self.settings.parts[part - 1]]
        diffs = [document for document in documents if changes and document.id == changes.document]
        tokens = sum(estimate_tokens(document.numbered) for document in diffs or documents)
        return min(1 + tokens // TOKENS_OF_A_FINDING, self.prompts.room)

    def _finding_tokens(self, findings: int) -> int:
        return findings * FINDING_TOKENS[self.drafts.detail]

    def _reading(self, agent: str, part: int, findings: int, again: int = 0) -> PlannedCall:
        prompt, returns = self.prompts.review_prompt(agent, part), self.prompts.review_reply(agent, part)
        remarks = REMARK_TOKENS * len(self.settings.parts[part - 1])
        reply = min(BALLOT_TOKENS + remarks + self._finding_tokens(findings), self.settings.max_reply_tokens)
        return self.drafts.call(agent, prompt, returns, tokens_out=reply, quoted=again * reply)

    def _judgings(self) -> Iterator[PlannedCall]:
        plan, parts = self.settings.plan, len(self.settings.parts)
        for judge, authors in plan.judges.items():
            for part in range(1, parts + 1):
                writers = [author for author in authors if part in plan.parts_of(author, parts)]
                findings = len(writers) * self._findings(part)
                if findings:
                    votes = judge in plan.readers_of(part, parts)
                    prompt = self.prompts.judge_prompt(judge, part, (), (), votes=votes, voted=votes)
                    yield self.drafts.call(
                        judge,
                        prompt,
                        FinalBallotReply if votes else CrossReply,
                        tokens_out=findings * VERDICT_TOKENS + votes * BALLOT_TOKENS,
                        quoted=self._finding_tokens(findings),
                    )

    def _closing(self) -> PlannedCall:
        plan, parts = self.settings.plan, len(self.settings.parts)
        found = sum(self._findings(part) * len(plan.readers_of(part, parts)) for part in range(1, parts + 1))
        judged = found * VERDICT_TOKENS if plan.judges else 0
        quoted = min(self._finding_tokens(found) + judged, QUOTED_REPLIES * self.settings.max_reply_tokens)
        prompt = self.prompts.closing_prompt((), (), missing=(), ballots=(), judged=bool(judged), untold=0)
        reply = min(SUMMARY_TOKENS, self.settings.closing_tokens)
        return self.drafts.call(LEAD, prompt, ClosingReply, tokens_out=reply, quoted=quoted)
