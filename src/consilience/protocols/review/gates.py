"""Gates of a review: about typed findings, or about the written review as in `consilience.coordination.gates`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from consilience.coordination.convergence import GateVerdict
from consilience.coordination.gates import BUILT_IN_GATES, Gate, gate_misses, load_gate
from consilience.domain.messages import is_empty_remark
from consilience.engine.sources import Document
from consilience.protocols.review.findings import FindingReply, ReviewReply, WrittenReviewReply
from consilience.protocols.review.strategies import ReviewType
from consilience.protocols.review.vetting import Submitted, misses, unfounded_causes
from consilience.targets.diffs import parse_changes
from consilience.targets.locating import locator_of

Shortcomings = Callable[[Submitted, Sequence[Document]], list[str]]


@dataclass(frozen=True)
class FindingsGate:
    """A condition on the typed findings of one call."""

    description: str
    add: str
    """What an agent that missed the gate is asked to do, as a sentence."""
    shortcomings: Shortcomings
    """Returns what is missing, each in a clause."""


def _not_covered(submitted: Submitted, documents: Sequence[Document]) -> list[str]:
    """Every document of the part, except the diff if the new texts are shown beside it."""
    changes = parse_changes(documents)
    diff = changes.document if changes else None
    required = [shown for shown in submitted.shown if shown.id != diff] or submitted.shown
    remarks = {read.document.strip(" []`") for read in submitted.reply.read if not is_empty_remark(read.remark)}
    return [
        f"{shown.reference} ({shown.name or 'without a name'}) is not in `read`"
        for shown in required
        if not remarks & {shown.id, shown.reference, shown.name}
    ]


def _not_quoted(submitted: Submitted, documents: Sequence[Document]) -> list[str]:
    locator = locator_of(tuple(documents))
    quoted = [
        f"{locator.locate(finding, submitted.citable)}: {' '.join(finding.quotation.split())[:200]!r}"
        for finding in misses(submitted, documents)
    ]
    causes = [
        f"no changed line shown has these words, which {finding.document}:{finding.line} names as its cause: "
        f"{' '.join(finding.cause.split())[:200]!r}"
        for finding in unfounded_causes(submitted, documents)
    ]
    return quoted + causes


def _not_actionable(submitted: Submitted, documents: Sequence[Document]) -> list[str]:
    return [
        f"{finding.document}:{finding.line} has no {' and no '.join(lacking)}"
        for finding in submitted.reply.findings
        if (lacking := _lacking(finding))
    ]


def _lacking(finding: FindingReply) -> list[str]:
    fields = {"recommendation": finding.recommendation, "check": finding.check.text}
    return [name for name, text in fields.items() if is_empty_remark(text)]


FINDINGS_GATES: Mapping[str, FindingsGate] = {
    "files_covered": FindingsGate(
        "an entry in `read`, with a remark, for every document",
        "Read each document, and say what you checked in it or why it needs no review.",
        _not_covered,
    ),
    "findings_quoted": FindingsGate(
        "a quotation that is in the document, for every finding",
        "Copy the exact words and give their line, or leave the finding out.",
        _not_quoted,
    ),
    "findings_actionable": FindingsGate(
        "a recommendation and a check for every finding",
        "Say for each finding what is to be done, and how a reader can check it.",
        _not_actionable,
    ),
}


@dataclass(frozen=True)
class ReviewGates:
    """The gates of a run, by id."""

    of_findings: Mapping[str, FindingsGate]
    of_texts: Mapping[str, Gate]

    @property
    def are_written(self) -> bool:
        """Whether reviewers write a review in addition to their findings."""
        return bool(self.of_texts)

    def shortcomings(self, submitted: Submitted, documents: Sequence[Document]) -> Mapping[str, list[str]]:
        """Return what one reply lacks, by gate about findings; nothing for those that it meets."""
        by_gate = {id: gate.shortcomings(submitted, documents) for id, gate in self.of_findings.items()}
        return {id: missed for id, missed in by_gate.items() if missed}

    def judge(
        self, submitted: Sequence[Submitted], documents: Sequence[Document], absent: Sequence[str] = ()
    ) -> tuple[GateVerdict, ...]:
        """Return the verdict on each gate: met if every agent meets it in all its parts. `absent` agents miss every gate."""
        agents = dict.fromkeys(reply.agent for reply in submitted)
        shortcomings = {reply.key: self.shortcomings(reply, documents) for reply in submitted}
        missed = {id: [reply.agent for reply in submitted if id in shortcomings[reply.key]] for id in self.of_findings}
        for id, gate in self.of_texts.items():
            text_of = written_text if id in BUILT_IN_GATES else artifact
            texts = {
                agent: "\n\n".join(text_of(reply.reply) for reply in submitted if reply.agent == agent)
                for agent in agents
            }
            missed[id] = gate_misses(id, gate, texts)
        gates: dict[str, FindingsGate | Gate] = {**self.of_findings, **self.of_texts}
        return tuple(
            GateVerdict(
                id=id,
                description=gate.description,
                add=gate.add,
                missed_by=tuple(dict.fromkeys((*missed[id], *absent))),
            )
            for id, gate in gates.items()
        )


def load_gates(names: Sequence[str], review_type: ReviewType = "code") -> ReviewGates:
    """Return the gates of these names; without any, those of the type of review. Raises `UnknownName`."""
    names = names or (tuple(BUILT_IN_GATES) if review_type == "skill" else tuple(FINDINGS_GATES))
    return ReviewGates(
        {name: FINDINGS_GATES[name] for name in names if name in FINDINGS_GATES},
        {name: load_gate(name) for name in names if name not in FINDINGS_GATES},
    )


def written_text(reply: ReviewReply) -> str:
    """Return the written review; "" without one."""
    return reply.text if isinstance(reply, WrittenReviewReply) else ""


def artifact(reply: ReviewReply) -> str:
    """Return a reply as Markdown, as gates judge it and as its author is shown it again: its text, then its findings."""
    findings = [_as_item(finding) for finding in reply.findings] or ["No findings."]
    remarks = [f"- {entry.document}: {entry.remark}" for entry in reply.read]
    return "\n".join(filter(None, [written_text(reply), "Read:", *remarks, "Findings:", *findings]))


def _as_item(finding: FindingReply) -> str:
    quoted = " ".join(finding.quotation.split())
    cause = f", caused by “{' '.join(finding.cause.split())}”" if finding.cause.strip() else ""
    return (
        f"- {finding.severity}, {finding.category}, {finding.document}:{finding.line} “{quoted}”{cause}: {finding.claim} "
        f"{finding.consequence} Check ({finding.check.kind}): {finding.check.text} {finding.recommendation}".rstrip()
    )
