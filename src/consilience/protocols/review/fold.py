"""Reviews and judgements so far, and the findings that follow from them: of a run, and of a session that is watched."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from consilience.domain.findings import DroppedFinding, Finding, JudgedBy, place_of
from consilience.engine.sources import Document, select_documents
from consilience.protocols.review.findings import ReviewReply, VerdictReply
from consilience.protocols.review.parts import files_of_part
from consilience.protocols.review.settings import ReviewSettings
from consilience.protocols.review.vetting import Submitted, judged, vet
from consilience.targets.diffs import parse_changes

_LABEL = re.compile(r"\bF\d+\b")
Assignment = tuple[str, int]
"""A reviewer, and a part from 1."""


@dataclass(frozen=True)
class OpenParts:
    """What of each part, from 1, is open to an agent."""

    settings: ReviewSettings
    documents: Sequence[Document]

    def references(self, agent: str, part: int) -> tuple[str, ...]:
        return self._open_to(agent, self.settings.parts[part - 1])

    def related(self, agent: str, part: int) -> tuple[str, ...]:
        """Return what an agent is shown beside a part: material, lines of the repository, and lines of other parts."""
        lines = (self.settings.shown_beside, self.settings.related_lines)
        return self._open_to(agent, [reference for of in lines if of for reference in of[part - 1]])

    def shown(self, agent: str, part: int) -> tuple[Document, ...]:
        return select_documents(self.references(agent, part), self.documents, agent)

    def files(self, agent: str, part: int) -> frozenset[str]:
        """Return the files of which a part shows an agent anything."""
        return files_of_part(self.shown(agent, part), parse_changes(self.documents))

    def shown_beside(self, agent: str, part: int) -> tuple[Document, ...]:
        return select_documents(self.related(agent, part), self.documents, agent)

    def _open_to(self, agent: str, references: Sequence[str]) -> tuple[str, ...]:
        closed = {d.id for d in self.documents if d.agents is not None and agent not in d.agents}
        return tuple(r for r in references if r.partition(":")[0] not in closed)


@dataclass
class ReviewFold:
    """The latest review of each assignment, the findings in them, and what other agents said of these."""

    open: OpenParts
    submitted: dict[Assignment, Submitted] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    """Vetted, with the judgements so far. F1, F2, … in the order of place."""
    dropped: tuple[DroppedFinding, ...] = ()
    _places: dict[str, str] = field(default_factory=dict)
    """Of findings, by the label under which agents read them: those of the report are numbered otherwise."""
    _judgements: dict[str, dict[str, JudgedBy]] = field(default_factory=lambda: defaultdict(dict))

    def submit(self, assignment: Assignment, iteration: int, key: str, reply: ReviewReply) -> None:
        """Add a review. A later one of the same assignment takes its place."""
        agent, part = assignment
        shown, related = self.open.shown(agent, part), self.open.shown_beside(agent, part)
        self.submitted[assignment] = Submitted(agent, part, iteration, key, reply, shown, related)

    def vet(self) -> tuple[str, ...]:
        """Find what of the reviews stands; return warnings."""
        settings = self.open.settings
        vetted = vet(
            list(self.submitted.values()),
            self.open.documents,
            baseline=settings.known_before,
            changed_lines_only=settings.changed_lines_only,
        )
        self.findings, self.dropped = vetted.findings, vetted.dropped
        own = {word for document in self.open.documents for word in _LABEL.findall(document.text)}
        self._places = {finding.id: place_of(finding) for finding in self.findings if finding.id not in own}
        return vetted.warnings

    def judge(self, agent: str, id: str, reply: VerdictReply) -> bool:
        """Add what an agent says of a finding; return whether it is the first that it says of it, which alone counts."""
        if agent in self._judgements[id]:
            return False
        reason = self.with_places(reply.reason)
        self._judgements[id][agent] = JudgedBy(agent=agent, verdict=reply.verdict, reason=reason)
        return True

    def apply_judgements(self) -> None:
        """Decide on the findings by what was said of them."""
        self.findings = judged(self.findings, {id: tuple(of.values()) for id, of in self._judgements.items()})

    def with_places(self, text: str) -> str:
        """Return an agent's words with places for labels of findings. A word that the documents have too is no label."""
        return _LABEL.sub(lambda match: self._places.get(match[0], match[0]), text)
