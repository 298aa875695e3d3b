"""What agents return, what they did in a round, and how a text is quoted with the objections to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from consilience.domain.detail import capped
from consilience.domain.messages import ClaimReply, FreeText, Label, LeafReply, ObjectionLabel, bare_label
from consilience.domain.outcome import Check
from consilience.domain.positions import Ballot, BallotReply, Spellings, last_of
from consilience.engine.work import Failure, Reply
from consilience.protocols._common.conclusion import Conclusion, TextReply, TreeRun
from consilience.protocols._common.remarks import (
    LeftOut,
    ObjectionBook,
    ObjectionMet,
    ObjectionRaised,
    RecordedLeftOut,
)

# Replies: typed decisions and lists first, one free text last, which alone is required.

MAX_ITEMS = 12
"""Entries of a list in a reply's schema, so that a grammar ends. The session's caps, applied by code, are lower."""

MAX_CHANGES = 5

Stance = Literal["kept", "changed"]


class ObjectionReply(BaseModel):
    """What is wrong in the text of `to`."""

    to: Label
    words: str = ""
    """The words it is against, copied from that text."""
    text: str


class AnswerReply(BaseModel):
    """How a reply meets an objection it was shown: it yields to it or refutes it."""

    objection: ObjectionLabel
    fate: Literal["yielded", "refuted"]
    how: str = ""


class AnswersObjections(BaseModel):
    """A reply that meets objections it was shown."""

    answers: Annotated[list[AnswerReply], Field(json_schema_extra={"maxItems": MAX_ITEMS})] = Field(
        default_factory=list
    )


class DeclaresStance(AnswersObjections):
    """A reply that replaces an earlier text of its author and declares whether the answer is still the same."""

    stance: Stance = "changed"


def declared_stance(value: object) -> Stance | None:
    """Return the stance that a reply declares; None for a reply without one. The default is what a stop test assumes then."""
    return value.stance if isinstance(value, DeclaresStance) and "stance" in value.model_fields_set else None


class RevisitReply(LeafReply, DeclaresStance):
    """A leaf's text of a later round."""


class ObservationReply(AnswersObjections):
    """A coordinator's first observation."""

    objections: Annotated[list[ObjectionReply], Field(json_schema_extra=capped("objections"))] = Field(
        default_factory=list
    )
    text: FreeText


class PeerReply(ObservationReply, DeclaresStance):
    """A revision after reading peers, or a later observation of children."""


class RootReply(Conclusion, AnswersObjections):
    """The root's first observation, which may be the answer."""


class _ListsChanges(DeclaresStance):
    changes: Annotated[list[ClaimReply], Field(json_schema_extra={"maxItems": MAX_CHANGES})] = Field(
        default_factory=list
    )


class RootRevision(Conclusion, _ListsChanges):
    """A later text of the root, which may be the answer. `changes` are what is new in it, with the texts that caused that."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one agent did in one round."""

    agent: str
    response: TextReply | None = None
    """Its first text of the round: a leaf's own, or the observation of a parent."""
    lateral: Reply[PeerReply] | None = None
    nudge: Reply[str] | None = None
    """What its parent sent it before the round."""
    text: TextReply | None = None
    """The text it leaves the round with: its latest, of an earlier round if need be."""
    before: TextReply | None = None
    """The text with which it went into lateral talk."""
    points: tuple[str, ...] = ()
    """Points of its first text of the round. They belong to that text: one revised in lateral talk contains them."""
    objections: tuple[ObjectionRaised, ...] = ()
    met: tuple[ObjectionMet, ...] = ()
    left_out: RecordedLeftOut = field(default_factory=Counter)
    failures: tuple[Failure, ...] = ()
    stances: tuple[Stance | None, ...] = ()
    """What its replies of the round declare, in order; None for one without a declaration."""

    def altered(self, **fields: object) -> Turn:
        """Return a copy with these fields. With `dataclasses.replace` copies of turns took a tenth of a run's CPU."""
        turn = object.__new__(Turn)
        for name in Turn.__slots__:
            object.__setattr__(turn, name, fields[name] if name in fields else getattr(self, name))
        return turn

    def responded(self, reply: TextReply | Failure, points: tuple[str, ...] = ()) -> Turn:
        """After its first call of the round. Without a reply the earlier text stands."""
        if isinstance(reply, Failure):
            return self.altered(failures=(reply,))
        return self.altered(response=reply, text=reply, points=points, stances=(declared_stance(reply.value),))

    def revised_by(self, reply: Reply[PeerReply] | Failure) -> Turn:
        """After lateral talk."""
        if isinstance(reply, Failure):
            return self.altered(failures=(*self.failures, reply))
        stances = (*self.stances, declared_stance(reply.value))
        return self.altered(lateral=reply, before=self.text, text=reply, stances=stances)

    @property
    def replied(self) -> bool:
        return self.response is not None or self.lateral is not None

    @property
    def spoke(self) -> bool:
        """Whether it replied, or its earlier text was reused without a call."""
        return self.replied or (self.text is not None and not self.failures)

    @property
    def stance(self) -> Stance | None:
        """What its last reply of the round declares; None without a declaration."""
        return self.stances[-1] if self.stances else None

    @property
    def declared(self) -> Stance | None:
        """What it declares of the round: changed if any reply says so, else what the last one says."""
        return "changed" if "changed" in self.stances else self.stance

    @property
    def kept(self) -> bool:
        """Whether it declared its answer unchanged, or its text was reused. A missing declaration counts as a change."""
        return self.stance == "kept" if self.replied else self.spoke

    @property
    def revised(self) -> bool:
        """Whether lateral talk changed the words of its text."""
        if self.lateral is None:
            return False
        return self.before is None or self.lateral.text.split() != self.before.text.split()


@dataclass(frozen=True)
class RoundResult:
    """What a round gave."""

    turns: tuple[Turn, ...]
    nudges: dict[str, Reply[str] | Failure]
    """Those it began with, by parent."""
    ballots: dict[int, dict[str, Reply[BallotReply]]]
    """Those cast in it, by step and leaf."""


@dataclass
class EmergenceRun(TreeRun):
    """What a run has produced so far, round by round."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the agents in prompts."""
    rounds: list[dict[str, Turn]] = field(default_factory=list)
    nudges: list[dict[str, Reply[str]]] = field(default_factory=list)
    """Nudges that each round began with, by parent."""
    checks: list[Check | None] = field(default_factory=list)
    ballots: list[dict[str, Ballot]] = field(default_factory=list)
    """By step, the opening ballots first."""
    spellings: Spellings = field(default_factory=Spellings)
    """Of the positions in the ballots."""
    texts: list[TextReply] = field(default_factory=list)
    """The root's texts."""
    book: ObjectionBook = field(default_factory=ObjectionBook)
    left_out: LeftOut = field(default_factory=Counter)
    silences: tuple[str, ...] = ()
    """Why no stop test can be met in the last round."""

    @property
    def all_ballots(self) -> tuple[Ballot, ...]:
        return tuple(ballot for by_agent in self.ballots for ballot in by_agent.values())

    @property
    def held(self) -> dict[str, Ballot]:
        """The last ballot of each leaf."""
        return last_of(self.all_ballots)


MAX_ITEM_CHARS = 300
"""Characters of a point or answer as others read it: two long sentences."""


def addressed(text: TextReply | None, pending: Sequence[ObjectionRaised]) -> dict[str, Hashable]:
    """Values of a template for objections to the reader's own text: their labels, and whether an earlier text is shown."""
    return {
        "to_you": tuple(objection.label for objection in pending),
        "before": text is not None and bool(replaced_texts(text, pending)),
    }


def replaced_texts(text: TextReply, pending: Sequence[ObjectionRaised]) -> tuple[str, ...]:
    """Return the ids of earlier texts of the agent that objections are against and do not quote."""
    return tuple(dict.fromkeys(o.against for o in pending if not o.words and o.against != text.key))


def with_answers(text: str, answers: Sequence[AnswerReply], objections: Sequence[ObjectionRaised]) -> str:
    """Return `text` with its author's answers to these objections below."""
    labels = {objection.label for objection in objections}
    lines = [
        f"{bare_label(answer.objection)} {answer.fate}: {answer.how}".rstrip(": ")
        for answer in answers
        if bare_label(answer.objection) in labels
    ]
    return with_list(text, "answers to objections:", lines)


def with_list(text: str, heading: str, items: Sequence[str]) -> str:
    """Return `text` as others read it, with a list below it; unchanged without items."""
    lines = [" ".join(item.split()) for item in items]
    shortened = [line if len(line) <= MAX_ITEM_CHARS else line[: MAX_ITEM_CHARS - 1] + "…" for line in lines]
    return "\n".join([text, "", heading, *(f"- {line}" for line in shortened)]) if items else text
