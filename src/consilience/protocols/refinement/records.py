"""What a run consists of: the texts of the roles, judgements, passes, the whole run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from consilience.domain.hierarchies import Hierarchy
from consilience.domain.messages import Message
from consilience.domain.outcome import Check, StopReason
from consilience.domain.positions import ConfidenceLevel
from consilience.engine.prompt import Quote
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply, exhaustion
from consilience.protocols.refinement.report_data import WHOLE, HandedDownText, Scores
from consilience.protocols.refinement.settings import MAX_POINTS, DraftReply, IntegratedReply, RefinementSettings
from consilience.protocols.refinement.texts import ProtectedDraft

MAX_MARK = 1000
"""Marks are integers, in hundredths of a point of ten, to compare exactly."""

CONTRADICTION = 300
"""Min distance of an overall mark that contradicts the mean of the other marks."""

CRITIQUE_OF_WHOLE, CRITIQUE_OF_DRAFT = "critique of the whole", "critique of the draft"
"""Labels of critiques of a whole text."""


@dataclass(frozen=True, slots=True)
class RoleOutput:
    """What a role wrote in a pass; a specialist, for one parent."""

    role: str
    draft: Reply[DraftReply] | None = None
    """Its first reply in this pass."""
    text: Reply[DraftReply] | None = None
    """Its latest text, which may be from an earlier pass."""
    written: bool = False
    """The text differs from the one before the pass."""
    given: tuple[Quote, ...] = ()
    """What its draft was written from, without critiques."""
    handed: tuple[HandedDownText, ...] = ()
    """What was handed down to it."""
    failures: tuple[Failure, ...] = ()

    @property
    def declared(self) -> ConfidenceLevel | None:
        """The confidence that its author declares."""
        return self.text.value.confidence if self.text is not None else None

    @property
    def replied(self) -> bool:
        """Whether it replied in this pass, with a new text or the same."""
        return self.written or self.draft is not None


RevisionRequests = Mapping[str, Mapping[str, Message]]
"""Critiques that a pass must meet: by criticised part, or `WHOLE`, and by the label under which prompts quote them. Labels that
begin with `later` belong to a worse pass that started from the same text."""

IssuesByPart = Mapping[str, tuple[str, ...]]
"""Issues by part, and of the whole under `WHOLE`."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """The marks and issues of each part and, under `WHOLE`, of the whole text."""

    marks: Mapping[str, int | None] = field(default_factory=dict)
    """From 0 to `MAX_MARK`, of the kind in the settings. Of every part of the hierarchy, also missing ones, and of the whole if
    the critic gives them. None: no mark. Empty if nothing was judged."""
    scores: Mapping[str, Scores] = field(default_factory=dict)
    """Given by the critic."""
    issues: IssuesByPart = field(default_factory=dict)
    """Including those in `standing`."""
    standing: IssuesByPart | None = None
    """Issues with the version before that still hold; None if the critic was not asked for them."""
    surplus: int = 0
    """Issues beyond the cap, left out."""
    echoes: int = 0
    """Issues that repeat the criticised text itself."""
    failure: Failure | None = None
    """Of a critic without a usable reply."""
    cut: bool = False
    """The critic's reply ended at the token limit."""

    @property
    def quality(self) -> Fraction | None:
        """The mean mark of the parts, from 0 to 1; None if one is missing."""
        marks = [mark for part, mark in self.marks.items() if part != WHOLE]
        total = total_of(marks)
        return None if total is None else Fraction(total, MAX_MARK * len(marks))

    @property
    def confidences(self) -> dict[str, float | None]:
        """The marks from 0 to 1."""
        return {part: None if mark is None else mark / MAX_MARK for part, mark in self.marks.items()}

    def critique(self, part: str) -> str:
        """Return the critique of a part as its author reads it."""
        lines = [f"{n}. {issue}" for n, issue in enumerate(self.issues[part], 1)]
        if part in self.scores:
            lines.append(" · ".join(f"{name} {value * MAX_POINTS:g} of 10" for name, value in self.scores[part]))
        return "\n".join(lines)

    @property
    def useless(self) -> str:
        """Names the parts with an overall score of 0."""
        useless = [part for part, scores in self.scores.items() if scores.overall == 0]
        return f"marked useless: {', '.join(useless)}" if useless else ""

    @property
    def contradictory(self) -> tuple[str, ...]:
        """The parts whose overall score is far from the mean of the other scores."""

        def gap(scores: Scores) -> int:
            others = mark_from(scores.coherence) + mark_from(scores.accuracy) + mark_from(scores.depth)
            return abs(3 * mark_from(scores.overall) - others)

        return tuple(part for part, scores in self.scores.items() if gap(scores) >= 3 * CONTRADICTION)


def mark_from(share: float) -> int:
    """Return the mark of a score in [0, 1]."""
    return round(share * MAX_MARK)


def total_of(marks: Collection[int | None]) -> int | None:
    """Return the sum; None if a mark is missing, or all are."""
    known = [mark for mark in marks if mark is not None]
    return sum(known) if known and len(known) == len(marks) else None


@dataclass
class PassState:
    """One pass of a run, or the draft given with the task as pass 0. None stands for steps that were not reached."""

    index: int
    tree: Hierarchy
    base: PassState | None = None
    """The pass that it started from: the draft, or the best so far."""
    draft: Message | None = None
    """The draft, if it is one."""
    requests: RevisionRequests = field(default_factory=dict)
    authors: Mapping[str, RoleOutput] = field(default_factory=dict)
    served: Mapping[tuple[str, str], RoleOutput] = field(default_factory=dict)
    """Of the specialists, by parent and specialist."""
    whole: Reply[IntegratedReply] | None = None
    assessment: Assessment = field(default_factory=Assessment)
    check: Check | None = None
    reached: bool = False
    """Its quality is good enough, whatever `silences` says."""
    silences: tuple[str, ...] = ()
    """Why its `check` is not met although its quality is good enough."""
    unchanged: bool = False
    """Every part kept its text."""
    critiques: dict[str, Message] = field(default_factory=dict)
    """Critiques handed back for a later pass, by part."""

    @property
    def outputs(self) -> tuple[RoleOutput, ...]:
        return (*self.authors.values(), *self.served.values())

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Of authors and specialists."""
        return tuple(failure for output in self.outputs for failure in output.failures)

    @property
    def handed(self) -> tuple[HandedDownText, ...]:
        return tuple(handed for output in self.outputs for handed in output.handed)

    def below(self, parent: str) -> dict[str, RoleOutput]:
        """Return what a role gets from each of its children that has a text."""
        outputs = {c: self.served.get((parent, c), self.authors.get(c)) for c in self.tree.children(parent)}
        return {child: output for child, output in outputs.items() if output is not None and output.text is not None}

    @property
    def parts(self) -> dict[str, RoleOutput]:
        """The existing parts of the text, in order."""
        below = self.below(self.tree.coordinator)
        return {name: output for name, output in below.items() if name in self.tree.sections}

    @property
    def part_texts(self) -> dict[str, Reply[DraftReply]]:
        """The texts of the parts."""
        return {name: output.text for name, output in self.parts.items() if output.text is not None}

    def opening(self, speakers: Sequence[str]) -> list[tuple[Reply[DraftReply] | None, Sequence[Failure]]]:
        """Return the text and the failures of each of `first_speakers`, who may be specialists of the coordinator."""
        outputs = [self.authors.get(name) or self.served[self.tree.coordinator, name] for name in speakers]
        return [(output.text, output.failures) for output in outputs]

    @property
    def is_judged(self) -> bool:
        """Whether a judgement was tried."""
        return bool(self.assessment.marks)

    @property
    def is_begun(self) -> bool:
        """Whether the pass produced any text. A pass whose first call hit a limit did not."""
        refused = all(failure.kind.is_limit for failure in self.failures)
        return self.whole is not None or any(output.replied for output in self.outputs) or not refused

    @property
    def document(self) -> str | None:
        """The text with markers: the coordinator's or, if the coordinator failed, the parts in order; None if the pass was cut off
        before. Of the draft, the draft."""
        if self.draft is not None:
            return self.draft.text
        if self.whole is not None:
            return self.whole.value.document
        if self.index > 1 and not self.is_judged:
            return None
        return "\n\n".join(text.text for text in self.part_texts.values()) or None

    @property
    def is_cut(self) -> bool:
        """Whether the text, or one of the parts that it consists of, ended at the token limit."""
        return any(text.cut for text in ([self.whole] if self.whole else self.part_texts.values()))

    @property
    def lineage(self) -> list[PassState]:
        """The passes that it is based on, itself first, the draft last."""
        return [self, *(self.base.lineage if self.base is not None else ())]

    @property
    def concerns_only_whole(self) -> bool:
        """Whether only the whole was criticised before it."""
        return self.requests.keys() == {WHOLE}

    @property
    def whole_label(self) -> str:
        """How prompts name the critique of its whole text."""
        return CRITIQUE_OF_WHOLE if self.index else CRITIQUE_OF_DRAFT

    def text_of(self, part: str) -> Reply[Any] | Message | None:
        """Return the text of a part, or the whole text."""
        return self.part_texts[part] if part != WHOLE else self.draft or self.whole

    @property
    def speakers(self) -> frozenset[str]:
        """The authors and specialists who replied."""
        return frozenset(output.role for output in self.outputs if output.replied)

    @property
    def rank(self) -> tuple[bool, int, int, int]:
        """Orders passes: good enough, then the sum of the marks, then fewer issues, then the earlier pass.

        A pass without marks ranks below those with marks, and then the later is better.
        """
        total = total_of(self.assessment.marks.values()) if self.check is not None else None
        issues = sum(map(len, self.assessment.issues.values()))
        met = self.check is not None and self.check.met
        return (met, -1, 0, self.index) if total is None else (met, total, -issues, -self.index)


@dataclass
class RefinementRun:
    """The state of a run: the draft, the intent and the passes so far."""

    session: Session
    settings: RefinementSettings
    draft: ProtectedDraft
    distances: dict[str, dict[str, float]]
    """Between roles."""
    passes: list[PassState]
    """The draft as pass 0, whether or not there is one, then the passes."""
    intent: Reply[str] | None = None
    failures: list[Failure] = field(default_factory=list)

    @property
    def everyone(self) -> tuple[str, ...]:
        return tuple(agent.id for agent in self.session.agents)

    @property
    def origin(self) -> PassState:
        """The draft."""
        return self.passes[0]

    @property
    def begun(self) -> list[PassState]:
        """The passes that produced any text. The last one may not have."""
        return [state for state in self.passes[1:] if state.is_begun]

    @property
    def base(self) -> PassState:
        """The best pass that was judged, from which the next one starts; the draft if no pass was."""
        return max((p for p in self.passes[1:] if p.is_judged), key=lambda p: p.rank, default=self.origin)

    def silences(self) -> Iterator[str]:
        """Yield which replies are missing in the last pass: of a seat that spoke in this pass or the one before, of all
        specialists, of the coordinator."""
        before, state = self.passes[-2:]
        spoke = state.speakers | before.speakers
        failed = dict.fromkeys(failure.agent for failure in state.failures if failure.agent in spoke)
        if silent := [agent for agent in failed if agent not in state.speakers]:
            yield f"silent in pass {state.index}: {', '.join(silent)}"
        if partial := [agent for agent in failed if agent in state.speakers]:
            yield f"not every reply came in pass {state.index}: {', '.join(partial)}"
        asked = [output for output in state.served.values() if output.replied or output.failures]
        if asked and not any(output.replied for output in asked):
            yield f"no specialist replied in pass {state.index}"
        if self.intent is None and state.index == 1:
            yield "the coordinator gave no intent"
        if state.whole is None:
            yield "the coordinator put no whole together"

    @property
    def exhausted(self) -> StopReason | None:
        """What ran out, if a limit refused a call."""
        return exhaustion(self.failures)
