"""What the agents of a debate reply. Every decision is a typed field; what follows from it is computed, never read out of prose.

A reply type holds only the moves that are open to its agent. `text` is last: it is what others read.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

from pydantic import BaseModel, Field, create_model

from consilience.domain.messages import FreeText, Label, is_empty_remark, is_no_finding
from consilience.domain.positions import ConfidenceLevel
from consilience.protocols._common.conclusion import Conclusion
from consilience.protocols.debate.moves import (
    FIELDS,
    MAX_AGENTS,
    MOVES,
    PEER,
    ClosingSide,
    CommonKind,
    CruxKind,
    GivesUpIf,
    Horizon,
    Move,
    QuestionForm,
    Side,
    is_question,
    would_flip,
)
from consilience.protocols.debate.records import Falsifier

MAX_TOPICS, MAX_MENTIONS, MAX_INTERESTS, MAX_PROPOSITIONS = 3, 2, 5, 3
MAX_CRITERIA, MAX_SUPPORTING, MAX_RELATIONS, MAX_COMMON, MAX_NEXT_QUESTIONS = 4, 8, 8, 4, 3
"""Entries of lists."""


M = TypeVar("M", bound=BaseModel)


def at_most(entries: int) -> Any:
    """Return an optional list field with that bound. Without one, a small model fills a list until its reply is cut."""
    return Field(default_factory=list, json_schema_extra={"maxItems": entries})


class SidesReply(BaseModel):
    """A reply with a side on each proposition in fields `p1` …, on questions of threads in `q1` …, and on candidates for common
    ground in `c1` …. They are fields of a subclass that `ballot_type` makes."""

    title: ClassVar[str]
    last: ClassVar[tuple[str, ...]]
    """Fields after the sides: a model decides before it writes."""
    side: ClassVar[Any] = Side


B = TypeVar("B", bound=SidesReply)


class FramingReply(BaseModel):
    """How a task is disputed: up to three yes/no questions, or none with the reason."""

    form: QuestionForm
    propositions: list[str] = at_most(MAX_PROPOSITIONS)
    reason: str = ""


class QuestionReply(BaseModel):
    """A yes/no question for a thread, and a second one where two disputes are mixed."""

    question: str
    second: str = ""


class SameReply(BaseModel):
    """Which of the numbered questions asks the same as the new one; 0 for none."""

    same_as: int = 0


class DerivedFalsifier(BaseModel):
    """What would change the mind of the participant with that letter, by what it said."""

    metric: str
    threshold: str
    deadline: str
    reasoning: str = ""
    participant: str


class DerivedReply(BaseModel):
    falsifiers: Annotated[list[DerivedFalsifier], Field(json_schema_extra={"maxItems": MAX_AGENTS})]


class OpeningReply(SidesReply):
    """A sealed position before any exchange. The positions on the propositions are fields `p1`, `p2`, `p3` of a subclass."""

    title = "Opening"
    last = ("reason", "claim")
    horizon: Horizon
    confidence: ConfidenceLevel = "unsure"
    interests: list[str] = at_most(MAX_INTERESTS)
    metric: str = ""
    threshold: str = ""
    deadline: str = ""
    reason: str = ""
    claim: str = ""

    @property
    def points(self) -> list[str]:
        """What the agent wrote, without field names and choices."""
        return [text for text in (self.claim, self.reason, self.metric, self.threshold) if text]


class FinalReply(SidesReply):
    """A sealed position at the end. Positions are fields `p1` … on propositions, `q1` … on the questions of threads and `c1` … on
    candidates for common ground."""

    title = "Final"
    last = ("cause", "reason", "claim")
    confidence: ConfidenceLevel = "unsure"
    cause: Label | None = None
    reason: str = ""
    claim: str = ""


class StipulatedReply(SidesReply):
    """A sealed position under something stipulated. Positions are fields `p1` … on propositions, `q1` … on questions of threads."""

    title = "Stipulated"
    last: ClassVar[tuple[str, ...]] = ("reason",)
    confidence: ConfidenceLevel = "unsure"
    reason: str = ""


class RecheckReply(BaseModel):
    """Answers of a final ballot given again. They are fields `p1` …, `q1` … of a subclass."""

    reason: str = ""


class ToldReply(StipulatedReply):
    """A sealed position that replaces the final one, after a new fact."""

    last = ("reason", "claim")
    claim: str = ""


class ClosingReply(Conclusion, SidesReply):
    """The answer of the closing call. Its own positions on the propositions are fields `p1`, `p2`, `p3` of a subclass."""

    title = "Closing"
    last = ("claims", "against", "would_change", "unknown", "text")
    side = ClosingSide
    first_step: str = ""


class SingleReply(SidesReply):
    """The answer of one call that takes no part in the debate; positions are fields `p1`, `p2`, `p3` of a subclass."""

    title = "Single"
    last = ("against", "would_change", "unknown", "text")
    side = ClosingSide
    confidence: ConfidenceLevel = "unsure"
    cruxes: list[str] = at_most(4)
    against: list[str] = at_most(4)
    would_change: list[str] = at_most(4)
    unknown: list[str] = at_most(4)
    text: FreeText


class FlipReply(BaseModel):
    """Whether the top claim of an agent hangs on a question, after its evidence."""

    side: Side
    gives_up_if: GivesUpIf
    confidence: ConfidenceLevel = "unsure"
    why: str = ""
    objects: bool = False
    """Whether the crux, as it was published back, misrepresents what divides the thread."""
    objection: str = ""

    @property
    def would_flip(self) -> bool:
        return would_flip(self.side, self.gives_up_if)

    @property
    def challenge(self) -> str:
        """The objection to the crux as it was published back; empty without one."""
        return "" if not self.objects or is_no_finding(self.objection) else self.objection.strip()


class CrystalReply(BaseModel):
    """A thread written down as a crux: question, criteria and supporting messages. What agents declared is not asked here."""

    outcome: Literal["crux", "no disagreement", "NEEDS_CLARIFICATION"]
    kind: CruxKind
    question: str = ""
    criteria: list[str] = at_most(MAX_CRITERIA)
    supporting: list[Label] = at_most(MAX_SUPPORTING)
    confidence: ConfidenceLevel = "unsure"
    unclear: str = ""
    control: str = ""
    """A question on the same subject on which nobody's answer hangs."""


class Relation(BaseModel):
    """How a numbered crux bears on another."""

    source: int
    target: int
    kind: Literal["SAME", "ENTAILS", "CONTRADICTS", "SUPPORTS"]
    sketch: str
    confidence: ConfidenceLevel = "unsure"


class RelationsReply(BaseModel):
    """Relations among the cruxes of a debate."""

    relations: list[Relation] = at_most(MAX_RELATIONS)


class VerdictsReply(BaseModel):
    """The second opinion on numbered relations: those that hold."""

    hold: list[int] = at_most(MAX_RELATIONS)


class CommonStatement(BaseModel):
    """A candidate for common ground."""

    statement: str
    question: str = ""
    """The same as a yes/no question."""
    kind: CommonKind
    sources: list[Label] = at_most(MAX_SUPPORTING)


class SynthesisReply(BaseModel):
    """What a debate might agree on, to be voted on in the final ballots, and what to ask next."""

    common: list[CommonStatement] = at_most(MAX_COMMON)
    next_questions: list[str] = at_most(MAX_NEXT_QUESTIONS)


class TurnReply(BaseModel):
    """A free turn. Subclasses narrow `move` and hold what their stage needs."""

    move: Move
    reply_to: Label | None = None
    mentions: list[str] = Field(default_factory=list)
    topics: list[str] = at_most(MAX_TOPICS)
    text: FreeText


class CommitReply(BaseModel):
    """A commitment on the question of a thread."""

    horizon: Horizon
    side: Side
    confidence: ConfidenceLevel = "unsure"
    metric: str = ""
    threshold: str = ""
    deadline: str = ""
    gives_up_if: GivesUpIf
    flip_confidence: ConfidenceLevel = "unsure"
    why: str = ""
    text: FreeText

    @property
    def would_flip(self) -> bool:
        return would_flip(self.side, self.gives_up_if)


class FalsifierTurn(BaseModel):
    """A falsifier that its author had not declared with the commitment."""

    metric: str
    threshold: str
    deadline: str = ""
    text: FreeText


class SteelmanTurn(BaseModel):
    """The position of an opponent, as strong as it can be put."""

    claim_represented: str
    strongest_reason: str
    falsifier_represented: str

    @property
    def text(self) -> str:
        return f"{self.claim_represented.strip()} {self.strongest_reason.strip()}"


class GradeTurn(BaseModel):
    """What the represented agent makes of a steelman: first what is wrong with it, then the grade."""

    corrections: str = ""
    grade: Literal["ACCURATE", "INCOMPLETE", "WRONG"]
    text: str = ""


SpokenReply = TurnReply | CommitReply | FalsifierTurn | SteelmanTurn | GradeTurn


@lru_cache(maxsize=256)
def turn_type(moves: tuple[Move, ...], letters: tuple[str, ...], proposals: tuple[str, ...] = ()) -> type[TurnReply]:
    """Return the reply type of a free turn in which exactly `moves` are open, `letters` name the other participants and
    `proposals` the messages whose question may be supported."""
    peer: Any = Literal[("nobody", *letters)]
    fields: dict[str, Any] = {
        "move": (Literal[moves], ...),
        "reply_to": (Label | None, None),
        "mentions": (list.__class_getitem__(Literal[letters]), at_most(MAX_MENTIONS)),
    }
    declared = {name for move in moves for name in MOVES[move].fields}
    if proposals and "question" in declared:
        fields["supports"] = (Literal[proposals] | None, None)
    for name, (kind, default) in FIELDS.items():
        if name in declared:
            fields[name] = (peer if kind is PEER else kind, default)
    return _extended("Turn", TurnReply, fields, last=("topics", "text"))


def ballot_type(base: type[B], propositions: int, questions: int = 0, common: int = 0) -> type[B]:
    """Return the ballot with a side on that many propositions, questions of threads and candidates for common ground."""
    return cast(type[B], _ballot_type(base, propositions, questions, common))


@lru_cache(maxsize=256)
def _ballot_type(base: type[SidesReply], *counts: int) -> type[SidesReply]:
    names = (f"{kind}{n}" for kind, count in zip("pqc", counts, strict=True) for n in range(1, count + 1))
    return _extended(base.title, base, dict.fromkeys(names, (base.side, ...)), last=base.last)


@lru_cache(maxsize=256)
def recheck_type(names: tuple[str, ...]) -> type[RecheckReply]:
    """Return the reply that answers the named questions of a final ballot again."""
    return _extended("Recheck", RecheckReply, dict.fromkeys(names, (Side, ...)), last=("reason",))


@lru_cache(maxsize=64)
def named_type(cruxes: int, questions: int) -> type[BaseModel]:
    """Return the reply that names for each crux the question, from 1 to `questions`, that comes nearest to it, 0 for none, and
    whether it asks the same or has only the subject in common."""
    fields: dict[str, Any] = {}
    for n in range(1, cruxes + 1):
        fields |= {f"q{n}": (Literal[tuple(range(questions + 1))], ...), f"same{n}": (bool, False)}
    return create_model("Named", **fields)


def _extended(name: str, base: type[M], fields: dict[str, Any], last: tuple[str, ...]) -> type[M]:
    """Return a subclass with `fields` before those named last: a model decides before it writes."""
    made: type[M] = create_model(name, __base__=base, **fields)
    model_fields = made.__pydantic_fields__
    order = [field for field in model_fields if field not in last]
    made.__pydantic_fields__ = {field: model_fields[field] for field in (*order, *last)}
    made.model_rebuild(force=True)
    return made


def refuse_incomplete(turn: TurnReply) -> None:
    """Raise `ValueError` for a turn whose move lacks what makes it this move."""
    if not turn.text.strip():
        raise ValueError("the text is empty")
    for name, is_missing, what in MOVES[turn.move].needs:
        if is_missing(getattr(turn, name)):
            raise ValueError(f"{turn.move} needs `{name}`: {what}")


def refuse_empty_steelman(turn: SteelmanTurn) -> None:
    """Raise `ValueError` for a steelman that leaves one of its three parts out."""
    for name in ("claim_represented", "strongest_reason", "falsifier_represented"):
        if is_empty_remark(getattr(turn, name)):
            raise ValueError(f"`{name}` is empty")


def refuse_bare_grade(turn: GradeTurn) -> None:
    """Raise `ValueError` for a grade below ACCURATE that says not what to correct."""
    if turn.grade != "ACCURATE" and is_no_finding(turn.corrections):
        raise ValueError("a grade below ACCURATE needs `corrections`: what is wrong or missing")


def refuse_bad_framing(reply: FramingReply) -> None:
    """Raise `ValueError` for a disputable task without a question."""
    if reply.form != "not disputable" and not any(map(is_question, reply.propositions)):
        raise ValueError(
            "give at least one yes/no question in `propositions`, or the form `not disputable` with the reason"
        )


def refuse_no_crux(reply: CrystalReply) -> None:
    """Raise `ValueError` for a crux without a question."""
    if reply.outcome == "crux" and not is_question(reply.question):
        raise ValueError("`question` must be the yes/no question that divides the participants")


def refuse_no_question(reply: QuestionReply) -> None:
    if not is_question(reply.question):
        raise ValueError("`question` must be one yes/no question")


def falsifier_of(reply: Any, *, kept: Falsifier | None = None) -> Falsifier | None:
    """Return the falsifier in the fields `metric`, `threshold` and `deadline` of a reply, which change those of the one that is
    `kept`; None where there is no metric or threshold."""
    names = ("metric", "threshold", "deadline", "reasoning")
    named = {name: " ".join(getattr(reply, name, "").split()) for name in names}
    parts = {name: getattr(kept, name, "") if is_empty_remark(part) else part for name, part in named.items()}
    return None if is_empty_remark(parts["metric"]) or is_empty_remark(parts["threshold"]) else Falsifier(**parts)
