"""What agents return, and what a run consists of: the texts of the roles, judgements, passes, the whole run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, create_model

from consilience.domain.detail import capped
from consilience.domain.hierarchies import Hierarchy
from consilience.domain.messages import ClaimReplies, FreeText, Message
from consilience.domain.outcome import Check, StopReason
from consilience.domain.positions import ConfidenceLevel
from consilience.engine.prompt import Quote
from consilience.engine.work import Failure, Reply, exhaustion
from consilience.protocols.refinement.report_data import WHOLE, HandedDownText, Scores
from consilience.protocols.refinement.texts import ProtectedDraft

MAX_MEAN_WORD_CHARS = 15
"""A text with longer words on average does not separate words by spaces."""

MAX_MARK = 1000
"""Marks are integers, in hundredths of a point of ten, to compare exactly."""

CONTRADICTION = 300
"""Min distance of an overall mark that contradicts the mean of the other marks."""


CRITIQUE_OF_WHOLE, CRITIQUE_OF_DRAFT = "critique of the whole", "critique of the draft"
"""Labels of critiques of a whole text."""


class DraftReply(BaseModel):
    """A piece of text, and its author's confidence in it."""

    confidence: ConfidenceLevel = "unsure"
    text: FreeText


class IntegratedReply(BaseModel):
    """The whole text, and its main claims with the parts they rest on.

    The claims come last: a token limit may cut them off, but not the text.
    """

    text: FreeText
    claims: ClaimReplies = Field(default_factory=list)

    @property
    def document(self) -> str:
        """The text as the reader gets it."""
        return self.text


class TitledReply(IntegratedReply):
    """A whole text with a separate title: small models write a title in the text and stop."""

    title: str = ""

    @property
    def document(self) -> str:
        """The title above the text, unless the text has one."""
        title = " ".join(self.title.split()).lstrip("# ")
        return f"# {title}\n\n{self.text}" if title and not self.text.startswith("# ") else self.text


def words_in(*texts: Reply[Any] | None) -> int:
    """Return the number of words in texts; 0 (unknown) in scripts that do not separate words by spaces."""
    words = [word for text in texts if text is not None for word in text.text.split()]
    return len(words) if sum(map(len, words)) < MAX_MEAN_WORD_CHARS * len(words) else 0


MAX_POINTS = 10.0

NAMED_POINTS: Mapping[str, float] = {"useless": 0.0, "weak": 3.0, "passable": 5.0, "good": 8.0, "excellent": 10.0}
"""Words for points: small models do not choose numbers with care (docs/design/refinement.md). The values are this project's."""


def _points_from_name(value: object) -> object:
    return NAMED_POINTS.get(value.strip().casefold(), value) if isinstance(value, str) else value


_ACCEPTED = (BeforeValidator(_points_from_name), Field(ge=0, le=MAX_POINTS, allow_inf_nan=False))
_NUMBER = WithJsonSchema({"type": "number", "minimum": 0, "maximum": MAX_POINTS})

Points = Annotated[float, *_ACCEPTED, _NUMBER]
"""0 to 10. Asks for a number; a name is accepted."""
NamedPoints = Annotated[float, *_ACCEPTED, WithJsonSchema({"type": "string", "enum": list(NAMED_POINTS)})]
"""0 to 10. Asks for a name; a number is accepted."""
CriticIssues = Annotated[list[str], Field(json_schema_extra=capped("issues"))]


# The names of the following classes are part of the schema in every recorded request.


class Judgement(BaseModel):
    """What the critic says of one part or of the whole. Issues come first: marks that follow from them are better."""

    issues: CriticIssues = Field(default_factory=list)
    coherence: Points
    accuracy: Points
    depth: Points
    overall: Points


class StandingIssues(BaseModel):
    """The issues with the version before that still hold."""

    standing: list[int] = Field(default_factory=list)
    """Their numbers."""


class LaterJudgement(Judgement, StandingIssues):
    """A judgement of what the critic has judged before."""


class BriefJudgement(BaseModel):
    """A judgement by a small model, which finds the same issues in every part unless it gives marks first."""

    coherence: NamedPoints
    accuracy: NamedPoints
    depth: NamedPoints
    overall: NamedPoints
    issues: CriticIssues = Field(default_factory=list)


class Critique(BaseModel):
    """A judgement of every part and of the whole, each under its own name."""

    def judgements(self) -> Mapping[str, Judgement | BriefJudgement]:
        """Return them by part, and for the whole."""
        fields = type(self).model_fields
        return {str(field.alias): getattr(self, name) for name, field in fields.items()}


@lru_cache(maxsize=256)
def critique_of(
    names: tuple[str, ...], earlier: frozenset[str] = frozenset(), *, brief: bool = False
) -> type[Critique]:
    """Return the type of a critique of these parts, all required. `earlier`: the parts that had issues before."""
    kinds = {name: BriefJudgement if brief else LaterJudgement if name in earlier else Judgement for name in names}
    fields = {f"part_{n}": (kinds[name], Field(alias=name)) for n, name in enumerate(names, 1)}
    return create_model("Critique", __base__=Critique, **fields)  # type: ignore[call-overload,no-any-return]


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


@dataclass(frozen=True, slots=True)
class PassResult:
    """What all roles wrote in a pass."""

    tree: Hierarchy
    authors: Mapping[str, RoleOutput] = field(default_factory=dict)
    served: Mapping[tuple[str, str], RoleOutput] = field(default_factory=dict)
    """Of the specialists, by parent and specialist."""

    @property
    def all(self) -> tuple[RoleOutput, ...]:
        return (*self.authors.values(), *self.served.values())

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(failure for output in self.all for failure in output.failures)

    @property
    def handed(self) -> tuple[HandedDownText, ...]:
        return tuple(handed for output in self.all for handed in output.handed)

    def below(self, parent: str) -> dict[str, RoleOutput]:
        """Return what a role gets from each of its children that has a text."""
        children = self.tree.children(parent)
        outputs = {child: self.served.get((parent, child), self.authors.get(child)) for child in children}
        return {child: output for child, output in outputs.items() if output is not None and output.text is not None}

    @property
    def parts(self) -> dict[str, RoleOutput]:
        """The existing parts of the text, in order."""
        return {
            name: output for name, output in self.below(self.tree.coordinator).items() if name in self.tree.sections
        }

    @property
    def part_texts(self) -> dict[str, Reply[DraftReply]]:
        """The texts of the parts."""
        return {name: output.text for name, output in self.parts.items() if output.text is not None}

    def opening(self, speakers: Sequence[str]) -> list[tuple[Reply[DraftReply] | None, Sequence[Failure]]]:
        """Return the text and the failures of each of `first_speakers`, who may be specialists of the coordinator."""
        outputs = [self.authors.get(name) or self.served[self.tree.coordinator, name] for name in speakers]
        return [(output.text, output.failures) for output in outputs]


LabelledMessages = Mapping[str, Message]
"""Messages by the label under which prompts quote them."""


@dataclass(frozen=True)
class RevisionRequests:
    """Critiques that a pass must meet. Labels that begin with `later` belong to a worse pass that started from the same text."""

    parts: Mapping[str, LabelledMessages] = field(default_factory=dict)
    """Of each criticised part."""
    whole: LabelledMessages = field(default_factory=dict)

    @property
    def concern_only_whole(self) -> bool:
        return bool(self.whole) and not self.parts


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
    def total(self) -> int | None:
        """The sum of all marks; None if one is missing."""
        return total_of(self.marks.values())

    @property
    def part_marks(self) -> list[int | None]:
        return [mark for part, mark in self.marks.items() if part != WHOLE]

    @property
    def quality(self) -> float | None:
        """The mean mark of the parts, from 0 to 1; None if one is missing."""
        total = total_of(self.part_marks)
        return None if total is None else total / (MAX_MARK * len(self.part_marks))

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
    result: PassResult
    base: PassState | None = None
    """The pass that it started from: the draft, or the best so far."""
    draft: Message | None = None
    """The draft, if it is one."""
    requests: RevisionRequests = field(default_factory=RevisionRequests)
    """The critiques that it must meet."""
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
    def is_judged(self) -> bool:
        """Whether a judgement was tried."""
        return bool(self.assessment.marks)

    @property
    def is_begun(self) -> bool:
        """Whether the pass produced any text. A pass whose first call hit a limit did not."""
        refused = all(failure.kind.is_limit for failure in self.result.failures)
        return self.whole is not None or any(output.replied for output in self.result.all) or not refused

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
        return "\n\n".join(text.text for text in self.result.part_texts.values()) or None

    @property
    def is_cut(self) -> bool:
        """Whether the text, or one of the parts that it consists of, ended at the token limit."""
        return any(text.cut for text in ([self.whole] if self.whole else self.result.part_texts.values()))

    @property
    def lineage(self) -> list[PassState]:
        """The passes that it is based on, itself first, the draft last."""
        return [self, *(self.base.lineage if self.base is not None else ())]

    @property
    def whole_label(self) -> str:
        """How prompts name the critique of its whole text."""
        return CRITIQUE_OF_WHOLE if self.index else CRITIQUE_OF_DRAFT

    def text_of(self, part: str) -> Reply[Any] | Message | None:
        """Return the text of a part, or the whole text."""
        return self.result.part_texts[part] if part != WHOLE else self.draft or self.whole

    def rewrote(self, part: str) -> bool:
        """Return whether a part got another text."""
        return any(output.role == part and output.written for output in self.result.all)

    @property
    def speakers(self) -> frozenset[str]:
        """The authors and specialists who replied."""
        return frozenset(output.role for output in self.result.all if output.replied)

    @property
    def rank(self) -> tuple[bool, int, int, int]:
        """Orders passes: good enough, then the sum of the marks, then fewer issues, then the earlier pass.

        A pass without marks ranks below those with marks, and then the later is better.
        """
        total = self.assessment.total if self.check is not None else None
        issues = sum(map(len, self.assessment.issues.values()))
        met = self.check is not None and self.check.met
        return (met, -1, 0, self.index) if total is None else (met, total, -issues, -self.index)


@dataclass
class RefinementRun:
    """The state of a run: the draft, the intent and the passes so far."""

    draft: ProtectedDraft
    passes: list[PassState]
    """The draft as pass 0, whether or not there is one, then the passes."""
    distances: dict[str, dict[str, float]] = field(default_factory=dict)
    """Between roles."""
    intent: Reply[str] | None = None
    failures: list[Failure] = field(default_factory=list)

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

    def is_draft_better(self, best: PassState | None) -> bool:
        """Return whether the draft is the answer: it has a mark, and no pass has a better one for the whole."""
        drafted = self.origin.assessment.scores.get(WHOLE)
        written = best.assessment.scores.get(WHOLE) if best is not None else None
        return drafted is not None and (written is None or written.overall <= drafted.overall)

    def silences(self) -> Iterator[str]:
        """Yield which replies are missing in the last pass: of a seat that spoke in this pass or the one before, of all
        specialists, of the coordinator."""
        before, state = self.passes[-2:]
        speakers = state.speakers | before.speakers
        failed = [failure.agent for failure in state.result.failures if failure.agent in speakers]
        if silent := dict.fromkeys(agent for agent in failed if agent not in state.speakers):
            yield f"silent in pass {state.index}: {', '.join(silent)}"
        if partial := dict.fromkeys(agent for agent in failed if agent in state.speakers):
            yield f"not every reply came in pass {state.index}: {', '.join(partial)}"
        asked = [output for output in state.result.served.values() if output.replied or output.failures]
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
