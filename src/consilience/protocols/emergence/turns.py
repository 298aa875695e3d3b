"""What agents return, what they did in a round, and the objections they raised and met."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from consilience.domain.detail import capped
from consilience.domain.messages import ClaimReply, FreeText, Label, LeafReply, ObjectionLabel
from consilience.domain.notes import LongText
from consilience.domain.outcome import Check
from consilience.domain.positions import Ballot, Spellings, last_of
from consilience.domain.report import Objection, ObjectionFate
from consilience.engine.analysis import MIN_RESTATED_OVERLAP
from consilience.engine.similarity import jaccard
from consilience.engine.sources import same_form
from consilience.engine.work import Failure, Reply
from consilience.protocols._common.conclusion import Conclusion, TextReply, TreeRun

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


# Objections. Their records are also the protocol's notes, so that a running session shows the same fates as its report.


class ObjectionRaised(BaseModel):
    """An objection of `agent` to a text of `to`."""

    model_config = ConfigDict(frozen=True)

    id: str
    label: str
    """Its address in prompts: `A2.1`."""
    agent: str
    to: str
    against: str
    """Id of the message it is against."""
    text: LongText
    words: LongText = ""
    """The words it is against; empty unless they occur in that message."""
    repeats: str | None = None
    """An earlier objection of the same agent to the same target in nearly the same words, which this one replaces."""


class ObjectionMet(BaseModel):
    """What a reader of an objection declared about it. A declaration by an agent other than the target is a ruling."""

    model_config = ConfigDict(frozen=True)

    objection: str
    agent: str
    fate: Literal["yielded", "refuted"] | None
    """None for a target that was shown the objection and passed it over."""
    how: LongText = ""


NOTES: dict[str, type[BaseModel]] = {"objection_raised": ObjectionRaised, "objection_met": ObjectionMet}


@dataclass(frozen=True)
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
    void: int = 0
    """Objections to their own author, to no text of the family, or without content."""
    surplus: int = 0
    """Valid objections beyond the cap of a reply."""
    failures: tuple[Failure, ...] = ()

    def altered(self, **fields: object) -> Turn:
        """Return a copy with these fields. With `dataclasses.replace` copies of turns took a tenth of a run's CPU."""
        turn = object.__new__(Turn)
        turn.__dict__.update(self.__dict__, **fields)
        return turn

    def responded(self, reply: TextReply | Failure, points: tuple[str, ...] = ()) -> Turn:
        """After its first call of the round. Without a reply the earlier text stands."""
        if isinstance(reply, Failure):
            return self.altered(failures=(reply,))
        return self.altered(response=reply, text=reply, points=points)

    def revised_by(self, reply: Reply[PeerReply] | Failure) -> Turn:
        """After lateral talk."""
        if isinstance(reply, Failure):
            return self.altered(failures=(*self.failures, reply))
        return self.altered(lateral=reply, before=self.text, text=reply)

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
        last = self.lateral or self.response
        return declared_stance(last.value) if last is not None else None

    @property
    def declared(self) -> Stance | None:
        """What it declares of the round: changed if any reply says so, else what the last one says."""
        stances = [declared_stance(reply.value) for reply in (self.response, self.lateral) if reply is not None]
        return "changed" if "changed" in stances else stances[-1] if stances else None

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


@dataclass
class ObjectionBook:
    """All objections of a run in order. While a round runs, those up to the round before."""

    raised: list[ObjectionRaised] = field(default_factory=list)
    met: list[ObjectionMet] = field(default_factory=list)
    void: int = 0
    surplus: int = 0
    refuted: set[str] = field(default_factory=set)
    """Agents that raised an objection which its target refuted."""
    _by: dict[str, list[ObjectionRaised]] = field(default_factory=dict)
    _pending: dict[str, dict[str, ObjectionRaised]] = field(default_factory=dict)
    _fates: dict[str, ObjectionFate] = field(default_factory=dict)
    """Kept up to date, since they are counted in every round."""

    def add(self, turns: Sequence[Turn]) -> None:
        """Add a round: first what was met, then what was raised, since no objection is met in the round it was raised in."""
        self.refuted |= self.refuted_by(turns)
        for met in (met for turn in turns for met in turn.met):
            self.met.append(met)
            answered = self._pending.get(met.agent, {}).pop(met.objection, None)
            if answered is not None:
                self._fates[answered.id] = _fate(met, self._fates[answered.id])
        for objection in (objection for turn in turns for objection in turn.objections):
            self.raised.append(objection)
            self._by.setdefault(objection.agent, []).append(objection)
            pending = self._pending.setdefault(objection.to, {})
            pending.pop(objection.repeats or "", None)
            pending[objection.id] = objection
            self._fates[objection.id] = _fate(
                None, self._fates.pop(objection.repeats, None) if objection.repeats else None
            )
        self.void += sum(turn.void for turn in turns)
        self.surplus += sum(turn.surplus for turn in turns)

    def refuted_by(self, turns: Iterable[Turn]) -> set[str]:
        """Return the authors of the pending objections that these turns of their targets refute."""
        refuted = [answer for turn in turns for answer in turn.met if answer.fate == "refuted"]
        objections = [self._pending.get(answer.agent, {}).get(answer.objection) for answer in refuted]
        return {objection.agent for objection in objections if objection is not None}

    def by(self, agent: str) -> Sequence[ObjectionRaised]:
        """Return all objections that this agent raised."""
        return self._by.get(agent, ())

    def pending(self, agent: str) -> Sequence[ObjectionRaised]:
        """Return the objections to this agent's texts that it has not been shown in a call it answered."""
        return tuple(self._pending.get(agent, {}).values())

    def count(self, fate: ObjectionFate) -> int:
        """Return the number of objections with this fate. `unanswered` ones wait for their target."""
        return sum(recorded == fate for recorded in self._fates.values())


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
    silences: tuple[str, ...] = ()
    """Why no stop test can be met in the last round."""

    @property
    def all_ballots(self) -> tuple[Ballot, ...]:
        return tuple(ballot for by_agent in self.ballots for ballot in by_agent.values())

    @property
    def held(self) -> dict[str, Ballot]:
        """The last ballot of each leaf."""
        return last_of(self.all_ballots)


_RULED: Mapping[str, Literal["upheld", "rejected"]] = {"yielded": "upheld", "refuted": "rejected"}


def objection_fates(
    raised: Sequence[ObjectionRaised], answered: Iterable[ObjectionMet], read: Collection[str] = ()
) -> tuple[Objection, ...]:
    """Return every objection that no later one replaces, with its fate, how its target met it, and its last ruling.

    `read` are ids of messages that any call was shown.
    """
    targets = {objection.id: objection.to for objection in raised}
    answers: dict[str, ObjectionMet] = {}
    rulings: dict[str, ObjectionMet] = {}
    for declared in answered:
        (answers if declared.agent == targets.get(declared.objection) else rulings)[declared.objection] = declared
    objections: dict[str, Objection] = {}
    for objection in raised:
        earlier = objections.pop(objection.repeats, None) if objection.repeats else None
        fate = _fate(None, earlier.fate if earlier else None)
        how = earlier.how if earlier is not None and fate == "stands" else ""
        if answer := answers.get(objection.id):
            fate, how = _fate(answer, fate), answer.how
        ruling = rulings.get(objection.id)
        objections[objection.id] = Objection(
            id=objection.id,
            agent=objection.agent,
            to=objection.to,
            text=quote_objection(objection.words, objection.text),
            read=objection.id in read,
            fate=fate,
            how=how,
            ruled=_RULED[ruling.fate] if ruling and ruling.fate else None,
            ruling=ruling.how if ruling else "",
        )
    return tuple(objections.values())


def _fate(answer: ObjectionMet | None, former_fate: ObjectionFate | None) -> ObjectionFate:
    """Return the fate after an answer, `former_fate` being the fate until then; without an answer, the fate of a new objection,
    `former_fate` being that of the objection it repeats. An objection raised again after its target refuted it or passed it over
    stands, unless the target now yields."""
    if answer is None:
        return "stands" if former_fate in ("refuted", "stands") else "unanswered"
    if answer.fate == "yielded":
        return "yielded"
    return "stands" if former_fate == "stands" or answer.fate is None else "refuted"


MAX_ITEM_CHARS = 300
"""Characters of a point or answer as others read it: two long sentences."""

MAX_COMPARED = 6
"""Latest objections of an author with which a new one is compared: two rounds at the highest cap."""


def find_repeated(text: str, target: str, own_objections: Sequence[ObjectionRaised]) -> str | None:
    """Return the id of a recent objection to the same target that this text repeats. `own_objections`: those of its author."""
    recent = reversed(own_objections[-MAX_COMPARED:])
    return next((earlier.id for earlier in recent if earlier.to == target and is_restated(text, [earlier.text])), None)


def quote_objection(words: str, text: str) -> str:
    """Return an objection as others read it: the words it is against, then its text."""
    return f"“{words}”: {text}" if words else text


def bare_label(label: str) -> str:
    """Return the label without the brackets that some models put around it."""
    return label.strip().strip("[]")


def find_words(words: str, text: str) -> str:
    """Return `words` on one line if they occur in `text`, compared as quotations are; else nothing."""
    normal_words = " ".join(words.split()).strip("“”\"'«»„ ")
    return normal_words if normal_words and same_form(normal_words) in same_form(text) else ""


def is_restated(text: str, earlier_texts: Iterable[str]) -> bool:
    """Return whether one of the other texts is in nearly the same words."""
    return any(jaccard(text, earlier) >= MIN_RESTATED_OVERLAP for earlier in earlier_texts)


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
