"""The settings of `refinement`, and the state of a run under them: the texts of the roles, judgements, passes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, model_validator

from consilience.domain.agents import Agent
from consilience.domain.detail import Detail
from consilience.domain.hierarchies import CRITIC, Hierarchy, HierarchySetting
from consilience.domain.messages import FILE, ClaimReplies, FreeText, Message
from consilience.domain.outcome import Check, Estimate
from consilience.domain.positions import ConfidenceLevel
from consilience.domain.tokens import estimate_tokens
from consilience.domain.topology import Topology
from consilience.domain.validation import Unfit
from consilience.engine.prompt import Quote
from consilience.engine.protocol import Protocol
from consilience.engine.session import Session
from consilience.engine.work import Failure, Reply
from consilience.protocols._common.protected import ProtectedDraft, extract_protected
from consilience.protocols.refinement.report_data import WHOLE, HandedDownText, Scores

# The names of the types of replies are part of the schema in every recorded request.


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


Protectable = Literal["code", "front_matter"]


BRIEF_MAX_PASSES = 2
"""Passes of models that are asked briefly."""


class RefinementSettings(Protocol):
    """The settings of `refinement`."""

    name: ClassVar[str] = "refinement"
    summary: ClassVar[str] = (
        "a hierarchy writes a text: authors draft, specialists help, a critic judges, and further passes revise"
    )
    must_be_read: ClassVar[frozenset[str]] = frozenset({"critique"})
    without_encoder: ClassVar[str] = "give every role of the hierarchy a vector, or set filter to auto or never"

    hierarchy: Annotated[
        HierarchySetting,
        Field(
            validate_default=True,
            description="hierarchy of roles: a shipped name (consilience hierarchies) or a TOML file",
        ),
    ] = "document"  # type: ignore[assignment]
    max_passes: Annotated[int, Field(ge=1, le=100, description="max passes")] = 3
    threshold: Annotated[float, Field(ge=0, le=1, description="stop when the text has this quality")] = 0.8
    confidence: Annotated[
        Literal["critic", "length", "self"],
        Field(description="measure of quality: the critic's scores, the length of a part, or its author's declaration"),
    ] = "critic"
    critic: Annotated[
        Literal["model", "heuristic"],
        Field(description="judge of quality: a model, or two heuristics on length and confidence without a call"),
    ] = "model"
    filter: Annotated[
        Literal["auto", "always", "never"],
        Field(
            description="when to shorten texts by the distance between roles; auto: only for a specialist whose "
            "prompt would exceed half of its model's context window"
        ),
    ] = "auto"
    draft: Annotated[str, Field(max_length=1_000_000, description="text to start from"), FILE] = ""
    protect: Annotated[
        tuple[Protectable, ...],
        Field(description="parts of the draft that must not change: code, front_matter"),
    ] = ("code", "front_matter")
    length: Annotated[
        int,
        Field(
            ge=0, le=100_000, description="target length in words; 0 for the draft's length, or none without a draft"
        ),
    ] = 0
    tone: Annotated[str, Field(max_length=500, description="target tone, in a few words")] = ""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.critic == "heuristic" and self.confidence == "critic":
            what = "the heuristic critic gives no scores; choose confidence 'length' or 'self' with it"
            raise Unfit(what, "critic", "confidence")
        return self

    @property
    def drafted_words(self) -> int:
        """Number of words in the draft, without its protected parts."""
        return _count_words(self.draft, self.protect)

    @property
    def target_words(self) -> int:
        """Target number of words: the setting, else the length of the draft; 0 for no target."""
        return self.length or self.drafted_words

    def target(self, other: str = "the task or the intent") -> str:
        """Return the target as prompts name it. The draft's length is a target only if `other` calls for no other length."""
        if self.length or not self.drafted_words:
            return f"about {self.length} words" if self.length else ""
        return f"about as long as the draft ({self.drafted_words} words), unless {other} calls for another length"

    @property
    def judge(self) -> str:
        """The sender of critiques."""
        return CRITIC if self.critic == "model" else self.hierarchy.coordinator

    def critique_id(self, index: int, part: str) -> str:
        """Return the id of the message with a part's critique of a pass. It begins with the key of the critic's reply."""
        return f"pass-{index}/critique/{self.judge}/{part}"

    @property
    def needs_encoder(self) -> bool:
        return self.filter == "always" and not self.hierarchy.has_vectors

    @property
    def first_speakers(self) -> tuple[str, ...]:
        """The authors, who write before they see another text."""
        return self.hierarchy.inner or self.hierarchy.sections

    @property
    def share_holders(self) -> tuple[str, ...]:
        """The authors, without those that are not to read documents if some are marked as reading them."""
        readers = self.readers
        return tuple(name for name in self.first_speakers if readers is None or name in readers)

    @property
    def readers(self) -> tuple[str, ...] | None:
        """The roles marked as reading documents, and the critic; None (every role) if no role is marked."""
        marked = tuple(role.name for role in self.hierarchy.roles if role.documents)
        return (*marked, CRITIC) if marked else None

    @property
    def longest_reply(self) -> int:
        """Max tokens of the whole text, which may be as long as all parts together."""
        return self.max_reply_tokens * max(1, len(self.hierarchy.sections))

    @property
    def critique_tokens(self) -> int:
        """Max tokens of the critic's reply, which grows with the number of parts."""
        return self.max_reply_tokens * self._critique_replies

    @property
    def _critique_replies(self) -> int:
        return ceil(len(self.hierarchy.sections) / 3)

    @property
    def max_quoted_replies(self) -> int:
        """All parts twice (the last whole text and the new parts), two critiques, and a text of each parent and child."""
        parts = len(self.hierarchy.sections)
        neighbours = max(len(role.children) + len(self.hierarchy.parents(role.name)) for role in self.hierarchy.roles)
        drafted = estimate_tokens(self.draft) // self.max_reply_tokens + 1 if self.draft else 0
        return 2 * parts + 4 * self._critique_replies + neighbours + 4 + drafted

    def topology(self) -> Topology:
        shape = self.hierarchy.shape
        if self.critic != "model":
            return shape
        parents = {**shape.parents, CRITIC: (self.hierarchy.coordinator,)}
        return shape.model_copy(update={"agents": (*shape.agents, CRITIC), "parents": parents})

    def agents_without_panel(self) -> list[Agent]:
        """Return the roles, parents first, then the critic."""
        authors = dict.fromkeys(self.first_speakers, "author")
        kinds = {self.hierarchy.coordinator: "coordinator", CRITIC: "critic", **authors}
        return [Agent(id=name, role=kinds.get(name, "specialist")) for name in self.topology().agents]

    def with_detail(self, detail: Detail) -> Self:
        """Small models are slow and gain nothing from many passes: two at most, unless the settings name a number."""
        bounded = detail == "brief" and "max_passes" not in self.model_fields_set
        changes = {"max_passes": min(self.max_passes, BRIEF_MAX_PASSES)} if bounded else {}
        return super().with_detail(detail).model_copy(update=changes)

    def calls(self, passes: int) -> int:
        """Return the number of calls if every part has issues in every pass and every call has a reply (protocols §5)."""
        judged = self.critic == "model"
        per_pass = 2 * len(self.hierarchy.inner) + len(self.hierarchy.edges_to_leaves) + 1 + judged
        return 1 + passes * per_pass + (judged and bool(self.draft))

    def estimate(self) -> Estimate:
        return Estimate(min=self.calls(1), max=self.calls(self.max_passes))


@lru_cache(maxsize=16)
def _count_words(draft: str, protect: tuple[Protectable, ...]) -> int:
    return len(extract_protected(draft, protect).text.split())


# --- the state of a run

MAX_POINTS = 10.0
MAX_MARK = 1000
"""Marks are integers, in hundredths of a point of ten, to compare exactly."""

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


def mark_from(share: float) -> int:
    """Return the mark of a score in [0, 1]."""
    return round(share * MAX_MARK)


def total_of(marks: Collection[int | None]) -> int | None:
    """Return the sum; None if a mark is missing, or all are."""
    known_marks = [mark for mark in marks if mark is not None]
    return sum(known_marks) if known_marks and len(known_marks) == len(marks) else None


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
        outputs_below = self.below(self.tree.coordinator)
        return {name: output for name, output in outputs_below.items() if name in self.tree.sections}

    @property
    def part_texts(self) -> dict[str, Reply[DraftReply]]:
        """The texts of the parts."""
        return {name: output.text for name, output in self.parts.items() if output.text is not None}

    def opening(self, speakers: Sequence[str]) -> list[Reply[DraftReply] | Failure]:
        """Return the text or the first failure of each of `first_speakers`, who may be specialists of the coordinator."""
        outputs = [self.authors.get(name) or self.served[self.tree.coordinator, name] for name in speakers]
        return [output.text or output.failures[0] for output in outputs]

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
        is_met = self.check is not None and self.check.met
        return (is_met, -1, 0, self.index) if total is None else (is_met, total, -issues, -self.index)


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
