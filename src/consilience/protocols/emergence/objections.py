"""Objections: who raised them, how their targets met them, and the fate that follows from both.

The records of this module are also the protocol's notes, so that a running session shows the same fates as its report.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict

from consilience.domain.events import LongText
from consilience.domain.report import Objection, ObjectionFate
from consilience.engine.analysis import MIN_RESTATED_OVERLAP
from consilience.engine.similarity import jaccard


class ObjectionRaised(BaseModel):
    """An objection. `label` is its address (`A2.1`), `against` the message it is against, which `to` wrote."""

    model_config = ConfigDict(frozen=True)

    id: str
    label: str
    agent: str
    to: str
    against: str
    text: LongText
    words: LongText = ""
    """The words it is against; empty unless they stand in that message."""
    repeats: str | None = None
    """An earlier objection of the same agent to the same target in nearly the same words, which this one replaces."""


class ObjectionMet(BaseModel):
    """What a reader of an objection declared about it. `fate` is None for a target that was shown it and passed it over.

    A declaration by an agent other than the target is a ruling.
    """

    model_config = ConfigDict(frozen=True)

    objection: str
    agent: str
    fate: Literal["yielded", "refuted"] | None
    how: LongText = ""


class ObjectingTurn(Protocol):
    """What the book takes in of a turn."""

    @property
    def objections(self) -> Sequence[ObjectionRaised]: ...

    @property
    def met(self) -> Sequence[ObjectionMet]: ...

    @property
    def void(self) -> int: ...

    @property
    def surplus(self) -> int: ...


NOTES: dict[str, type[BaseModel]] = {"objection_raised": ObjectionRaised, "objection_met": ObjectionMet}


@dataclass
class ObjectionBook:
    """All objections of a run in order, up to the round before the current one while a round runs."""

    raised: list[ObjectionRaised] = field(default_factory=list)
    met: list[ObjectionMet] = field(default_factory=list)
    void: int = 0
    """Objections to their own author, to no text of the family, or without content."""
    surplus: int = 0
    """Valid objections beyond the cap of a reply."""
    refuted: set[str] = field(default_factory=set)
    """Agents that raised an objection which its target refuted."""
    _by: dict[str, list[ObjectionRaised]] = field(default_factory=dict)
    _pending: dict[str, dict[str, ObjectionRaised]] = field(default_factory=dict)
    _fates: dict[str, ObjectionFate] = field(default_factory=dict)

    def add(self, turns: Sequence[ObjectingTurn]) -> None:
        """Take in a round. What it raised comes after what it met: no objection is met in the round it was raised in."""
        self.refuted |= self.refuted_by(turns)
        for met in (met for turn in turns for met in turn.met):
            self.met.append(met)
            one = self._pending.get(met.agent, {}).pop(met.objection, None)
            if one is not None:
                self._fates[one.id] = _fate(met, self._fates[one.id])
        for one in (one for turn in turns for one in turn.objections):
            self.raised.append(one)
            self._by.setdefault(one.agent, []).append(one)
            waiting = self._pending.setdefault(one.to, {})
            waiting.pop(one.repeats or "", None)
            waiting[one.id] = one
            self._fates[one.id] = _fate(None, self._fates.pop(one.repeats, None) if one.repeats else None)
        self.void += sum(turn.void for turn in turns)
        self.surplus += sum(turn.surplus for turn in turns)

    def refuted_by(self, turns: Iterable[ObjectingTurn]) -> set[str]:
        """Agents whose objections wait for an answer and are refuted in these turns of their targets."""
        refuted = [met for turn in turns for met in turn.met if met.fate == "refuted"]
        found = [self._pending.get(met.agent, {}).get(met.objection) for met in refuted]
        return {one.agent for one in found if one is not None}

    def by(self, agent: str) -> Sequence[ObjectionRaised]:
        """All that this agent raised."""
        return self._by.get(agent, ())

    def pending(self, agent: str) -> Sequence[ObjectionRaised]:
        """Objections to this agent's texts that it has not been shown in a call it answered."""
        return tuple(self._pending.get(agent, {}).values())

    @property
    def waiting(self) -> int:
        """How many wait for their target. One that already stands does not, though its target will be shown it."""
        return sum(fate == "unanswered" for fate in self._fates.values())

    @property
    def standing(self) -> int:
        return sum(fate == "stands" for fate in self._fates.values())

    def outcomes(self, read: Collection[str] = ()) -> tuple[Objection, ...]:
        """Every objection that no later one replaces, with its fate. `read` are ids of messages that any call was shown."""
        return outcomes(self.raised, self.met, read)


_RULED: Mapping[str, Literal["upheld", "rejected"]] = {"yielded": "upheld", "refuted": "rejected"}


def outcomes(
    raised: Sequence[ObjectionRaised], met: Iterable[ObjectionMet], read: Collection[str] = ()
) -> tuple[Objection, ...]:
    """Every objection that no later one replaces, with its fate, how its target met it, and its last ruling."""
    targets = {one.id: one.to for one in raised}
    own: dict[str, ObjectionMet] = {}
    rulings: dict[str, ObjectionMet] = {}
    for declared in met:
        (own if declared.agent == targets.get(declared.objection) else rulings)[declared.objection] = declared
    found: dict[str, Objection] = {}
    for one in raised:
        earlier = found.pop(one.repeats, None) if one.repeats else None
        fate = _fate(None, earlier.fate if earlier else None)
        how = earlier.how if earlier is not None and fate == "stands" else ""
        if answer := own.get(one.id):
            fate, how = _fate(answer, fate), answer.how
        ruling = rulings.get(one.id)
        found[one.id] = Objection(
            id=one.id,
            agent=one.agent,
            to=one.to,
            text=in_words(one.words, one.text),
            read=one.id in read,
            fate=fate,
            how=how,
            ruled=_RULED[ruling.fate] if ruling and ruling.fate else None,
            ruling=ruling.how if ruling else "",
        )
    return tuple(found.values())


def _fate(answer: ObjectionMet | None, before: ObjectionFate | None) -> ObjectionFate:
    """The fate after an answer, `before` being that until then; without an answer that of a new objection, `before` being that of
    the one it repeats. One raised again after its target refuted it or passed it over stands, unless the target now yields."""
    if answer is None:
        return "stands" if before in ("refuted", "stands") else "unanswered"
    if answer.fate == "yielded":
        return "yielded"
    return "stands" if before == "stands" or answer.fate is None else "refuted"


def in_words(words: str, text: str) -> str:
    """An objection as others read it: the words it is against, then the objection."""
    return f"“{words}”: {text}" if words else text


MAX_COMPARED = 6
"""Objections of one agent, the latest, with which a new one is compared: two rounds at the widest cap."""


def repeated(text: str, to: str, own: Sequence[ObjectionRaised]) -> str | None:
    """Return the id of a recent objection of the author (`own` are all of its) that this text repeats against the same target."""
    recent = reversed(own[-MAX_COMPARED:])
    return next((one.id for one in recent if one.to == to and restated(text, [one.text])), None)


def bare_label(label: str) -> str:
    """The label without the brackets that some models put around it."""
    return label.strip().strip("[]")


def words_found(words: str, text: str) -> str:
    """`words` on one line if they stand in `text`, without regard to case and white space; else nothing."""
    quoted = " ".join(words.split()).strip("“”\"'«»„ ")
    return quoted if quoted and quoted.casefold() in " ".join(text.split()).casefold() else ""


def restated(text: str, others: Iterable[str]) -> bool:
    """Whether it says in nearly the same words what one of the others says."""
    return any(jaccard(text, other) >= MIN_RESTATED_OVERLAP for other in others)
