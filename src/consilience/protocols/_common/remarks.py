"""Objections of agents to one another's texts: which entries of a reply stand, who met them, and their fates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, PlainSerializer, PlainValidator

from consilience.domain.messages import bare_label, is_no_finding
from consilience.domain.notes import LongText
from consilience.domain.report import Objection, ObjectionFate
from consilience.domain.wording import count
from consilience.engine.analysis import MIN_RESTATED_OVERLAP
from consilience.engine.session import Session
from consilience.engine.similarity import jaccard
from consilience.engine.sources import same_form
from consilience.engine.work import Reply

MAX_COMPARED = 6
"""Latest objections of an author with which a new one is compared: two rounds at the highest cap."""


class ObjectionRaised(BaseModel):
    """An objection of `agent` to a text of `to`. It is also a note, so that a running session shows the fates of its report."""

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


NOTES: Mapping[str, type[BaseModel]] = {"objection_raised": ObjectionRaised, "objection_met": ObjectionMet}

_RULED: Mapping[str, Literal["upheld", "rejected"]] = {"yielded": "upheld", "refuted": "rejected"}


@dataclass
class ObjectionBook:
    """All objections of a run in order, what was declared about them, and the fates that follow: the only place of that rule."""

    refuted: set[str] = field(default_factory=set)
    """Agents that raised an objection which its target refuted."""
    _raised: dict[str, ObjectionRaised] = field(default_factory=dict)
    _by: dict[str, list[ObjectionRaised]] = field(default_factory=dict)
    _pending: dict[str, dict[str, ObjectionRaised]] = field(default_factory=dict)
    _answers: dict[str, ObjectionMet] = field(default_factory=dict)
    _rulings: dict[str, ObjectionMet] = field(default_factory=dict)

    def raised(self, objections: Iterable[ObjectionRaised]) -> None:
        """Add objections."""
        for objection in objections:
            self._raised[objection.id] = objection
            self._by.setdefault(objection.agent, []).append(objection)
            pending = self._pending.setdefault(objection.to, {})
            pending.pop(objection.repeats or "", None)
            pending[objection.id] = objection

    def met(self, declarations: Sequence[ObjectionMet]) -> None:
        """Add what was declared about objections that were added before. A later ruling replaces an earlier one."""
        self.refuted |= self.refuted_by(declarations)
        for declared in declarations:
            is_answer = declared.agent == self._raised[declared.objection].to
            (self._answers if is_answer else self._rulings)[declared.objection] = declared
            if is_answer:
                self._pending[declared.agent].pop(declared.objection, None)

    def refuted_by(self, declarations: Iterable[ObjectionMet]) -> set[str]:
        """Return the authors of the objections of this book that these declarations of their targets refute."""
        refuted = ((self._raised.get(met.objection), met) for met in declarations if met.fate == "refuted")
        return {objection.agent for objection, met in refuted if objection and objection.to == met.agent}

    def by(self, agent: str) -> Sequence[ObjectionRaised]:
        """Return all objections that this agent raised."""
        return self._by.get(agent, ())

    def pending(self, agent: str) -> Sequence[ObjectionRaised]:
        """Return the objections to this agent's texts that it has not been shown in a call it answered."""
        return tuple(self._pending.get(agent, {}).values())

    def count(self, fate: ObjectionFate) -> int:
        """Return the number of objections with this fate. `unanswered` ones wait for their target."""
        return sum(reached == fate for reached, _ in self._fates().values())

    def objections(self, read: Collection[str] = ()) -> tuple[Objection, ...]:
        """Return every objection that no later one replaces, with its fate, how its target met it, and its last ruling.

        `read` are ids of messages that any call was shown.
        """
        objections = []
        for id, (fate, how) in self._fates().items():
            raised, ruling = self._raised[id], self._rulings.get(id)
            objections.append(
                Objection(
                    id=id,
                    agent=raised.agent,
                    to=raised.to,
                    text=quote_objection(raised.words, raised.text),
                    read=id in read,
                    fate=fate,
                    how=how,
                    ruled=_RULED[ruling.fate] if ruling and ruling.fate else None,
                    ruling=ruling.how if ruling else "",
                )
            )
        return tuple(objections)

    def _fates(self) -> dict[str, tuple[ObjectionFate, str]]:
        """Return the fate of every objection that no later one replaces, and the words of its target. One raised again after its
        target refuted it or passed it over stands, unless the target now yields."""
        fates: dict[str, tuple[ObjectionFate, str]] = {}
        for id, objection in self._raised.items():
            former, former_how = fates.pop(objection.repeats or "", (None, ""))
            again, answer = former in ("refuted", "stands"), self._answers.get(id)
            if answer is None:
                fates[id] = ("stands", former_how) if again else ("unanswered", "")
            elif answer.fate == "refuted" and not again:
                fates[id] = ("refuted", answer.how)
            else:
                fates[id] = ("yielded" if answer.fate == "yielded" else "stands", answer.how)
        return fates


class Entry(Protocol):
    """What is wrong in the text with the label `to`, as a reply says it."""

    to: str
    text: str


E = TypeVar("E", bound=Entry)

LeftOut = Counter[tuple[str, Literal["surplus", "void"]]]
"""Entries of replies that were left out, by what they would be: beyond the cap of a reply, or none at all."""

RecordedLeftOut = Annotated[
    LeftOut,
    PlainSerializer(lambda left_out: [[*entry, n] for entry, n in sorted(left_out.items())]),
    PlainValidator(lambda rows: LeftOut({(what, why): n for what, why, n in rows})),
]
"""The same in the result of a round: a key of JSON is no pair."""


def take(
    reply: Reply[Any], what: str, entries: Sequence[E], targets: Mapping[str, str], cap: int, texts: Sequence[str] = ()
) -> tuple[list[tuple[E, str]], LeftOut]:
    """Return the entries to texts of `targets`, the agents by label, each with that agent, up to the cap. Void ones are dropped
    before: to no text that the reply was shown, empty, or a copy of what one of `texts` says."""
    valid = [
        (entry, targets[label])
        for entry in entries
        if (label := bare_label(entry.to)) in targets
        and label in reply.labels
        and not is_no_finding(entry.text)
        and not is_restated(entry.text, texts)
        and not any(find_words(entry.text, text) for text in texts)
    ]
    return valid[:cap], +LeftOut({(what, "surplus"): len(valid[cap:]), (what, "void"): len(entries) - len(valid)})


def warn_left_out(session: Session, left_out: LeftOut) -> None:
    for (what, why), n in sorted(left_out.items()):
        void = f"that {'was' if n == 1 else 'were'} empty or addressed no other agent's text"
        session.warn(f"left out: {count(n, what)} {'beyond the maximum of a reply' if why == 'surplus' else void}")


def find_repeated(text: str, target: str, own_objections: Sequence[ObjectionRaised]) -> str | None:
    """Return the id of a recent objection to the same target that this text repeats. `own_objections`: those of its author."""
    recent = reversed(own_objections[-MAX_COMPARED:])
    return next((earlier.id for earlier in recent if earlier.to == target and is_restated(text, [earlier.text])), None)


def quote_objection(words: str, text: str) -> str:
    """Return an objection as others read it: the words it is against, then its text."""
    return f"“{words}”: {text}" if words else text


def find_words(words: str, text: str) -> str:
    """Return `words` on one line if they occur in `text`, compared as quotations are; else nothing."""
    normal_words = " ".join(words.split()).strip("“”\"'«»„ ")
    return normal_words if normal_words and same_form(normal_words) in same_form(text) else ""


def is_restated(text: str, earlier_texts: Iterable[str]) -> bool:
    """Return whether one of the other texts is in nearly the same words."""
    return any(jaccard(text, earlier) >= MIN_RESTATED_OVERLAP for earlier in earlier_texts)
