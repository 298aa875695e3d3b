"""A review that is not finished, folded from its replies and notes: the sections and views of its report, so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from consilience.coordination.convergence import ConvergenceCheck
from consilience.domain.events import CallCompleted, MessagePublished, Noted
from consilience.domain.findings import Finding
from consilience.domain.messages import bare_label
from consilience.domain.notes import load_note
from consilience.domain.report import UnfinishedSession
from consilience.domain.sections import (
    Block,
    Paragraph,
    Presentation,
    ProgressColumn,
    Section,
    Subheading,
    extend_presentation,
)
from consilience.domain.wording import count
from consilience.engine.protocol import find_protocol
from consilience.engine.sources import document_from_ref
from consilience.models.parsing import parse_reply
from consilience.protocols._common.presenting import bullets
from consilience.protocols.review.findings import FINDING, CrossReply, review_reply
from consilience.protocols.review.fold import OpenParts, ReviewFold
from consilience.protocols.review.presenting import (
    count_dropped,
    describe_dropped,
    finding_blocks,
    findings_view,
    gates_view,
    left_out_items,
)
from consilience.protocols.review.settings import ReviewSettings

MAX_PARTS = 12
"""Parts that have a column, the first ones."""
GATES_NOTE = "gates"


@dataclass
class _Progress:
    """What the events of a session say. Sealed ballots are not shown before it ends."""

    session: UnfinishedSession
    settings: ReviewSettings
    fold: ReviewFold
    evaluations: list[ConvergenceCheck] = field(default_factory=list)
    judging: bool = False
    """Whether the findings were handed to their judges."""

    def take_events(self) -> None:
        settings, verdicts, readers = self.settings, list[CallCompleted](), dict[str, tuple[str, ...]]()
        returns = review_reply(1, written=settings.are_reviews_written, caused=True, ruled=True)
        for event in self.session.events:
            match event:
                case CallCompleted(kind="review", phase=(_, iteration)):
                    reply = parse_reply(self.session.text(event.text), returns)
                    self.fold.submit((event.agent, _part_of(event.key)), iteration, event.key, reply)
                case CallCompleted(kind="verdicts"):
                    verdicts.append(event)
                case MessagePublished(kind=kind) if kind == FINDING:
                    readers[f"F{event.id.rpartition('-')[2]}"] = event.audience
                case Noted(name=name) if name == GATES_NOTE:
                    self.evaluations.append(load_note(ConvergenceCheck, event, self.session.text))
        self.fold.vet()
        self.judging = bool(readers)
        for event in sorted(verdicts, key=lambda event: (event.agent, _part_of(event.key))):
            for verdict in parse_reply(self.session.text(event.text), CrossReply).verdicts:
                id = bare_label(verdict.finding)
                if event.agent in readers.get(id, ()):
                    self.fold.judge(event.agent, id, verdict)
        self.fold.apply_judgements()

    def sections(self) -> Iterator[Section]:
        if self.fold.submitted:
            blocks = (Paragraph(text=self._words()), *_by_file(self.fold.findings))
            yield Section(name="findings", part="answer", heading="Findings so far", blocks=blocks)
        if left_out := bullets(left_out_items(self.settings.left_out)):
            yield Section(name="reading", part="trust", heading="Not read", blocks=left_out)

    def _words(self) -> str:
        """Return how many findings there are, and whether others have judged them."""
        words = count(len(self.fold.findings), "finding")
        if dropped := count_dropped(self.fold.dropped):
            words += f"; not listed: {describe_dropped(dropped)}"
        if self.fold.findings and not self.judging and self.settings.plan.judges:
            words += "; other reviewers judge them when the reviews are in"
        return f"{words}."

    def columns(self) -> Iterator[ProgressColumn]:
        """Yield the parts of the target: who has reviewed each."""
        parts, plan = self.settings.parts, self.settings.plan
        not_yet = dict.fromkeys(plan.reviewers, "not yet")
        if plan.spares_readers:
            first, *others = plan.reviewers
            not_yet |= dict.fromkeys(others, f"only if {first} reports something")
        names = {document.id: document.name or document.id for document in self.fold.open.documents}
        for part in range(1, min(len(parts), MAX_PARTS) + 1):
            documents = dict.fromkeys(reference.partition(":")[0] for reference in parts[part - 1])
            readers = plan.readers_of(part, len(parts))
            reviews = {agent: self.fold.submitted.get((agent, part)) for agent in readers}
            done = sum(review is not None for review in reviews.values())
            yield ProgressColumn(
                heading=f"{f'Part {part}: ' if len(parts) > 1 else ''}{', '.join(names.get(d, d) for d in documents)}",
                badge="being judged" if self.judging else f"{done} of {count(len(readers), 'review')}",
                lines=tuple(
                    f"{agent}: {count(len(review.reply.findings), 'finding') if review else not_yet[agent]}"
                    for agent, review in reviews.items()
                ),
                part=f"part-{part}",
            )


def _part_of(key: str) -> int:
    """Return the part in the key of a call, `review-1/part-2/red`."""
    return next(int(name.removeprefix("part-")) for name in key.split("/") if name.startswith("part-"))


def _by_file(findings: Sequence[Finding]) -> Iterator[Block]:
    """Yield the findings under the names of their files, each with its quotation and what other agents said of it."""
    for file in dict.fromkeys(finding.file for finding in findings):
        yield Subheading(text=file)
        yield from finding_blocks(finding for finding in findings if finding.file == file)


def extend_progress(common: Presentation, session: UnfinishedSession) -> Presentation:
    """Add to a presentation what shows an unfinished review: who reads which part, the findings by file, the gates."""
    settings = find_protocol(session.started.protocol).model_validate(session.started.settings)
    assert isinstance(settings, ReviewSettings)
    documents = [document_from_ref(ref, session.text(ref.text)) for ref in session.started.sources]
    progress = _Progress(session, settings, ReviewFold(OpenParts(settings, documents)))
    progress.take_events()
    return extend_presentation(
        common,
        sections=progress.sections(),
        views=(findings_view(progress.fold.findings), gates_view(progress.evaluations)),
        columns=tuple(progress.columns()),
    )
