"""A debate as the fold of its events: the running debate, `show` of an unfinished one and the report read what `apply` built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from consilience.protocols.debate import notes
from consilience.protocols.debate.moves import MOVES
from consilience.protocols.debate.records import (
    Coalition,
    Commitment,
    CommonGround,
    Concession,
    CruxChallenge,
    DebateMessage,
    Dependency,
    Evidence,
    Framing,
    LockAttempt,
    Recheck,
    SteelmanAttempt,
    TurnData,
)
from consilience.protocols.debate.scoring import crux_of, revalidated
from consilience.protocols.debate.state import letters_for
from consilience.protocols.debate.threads import Budgets, Thread, convergence_signal


class Published(NamedTuple):
    """What the event of a message has of it."""

    agent: str
    move: Any
    words: str
    reply_to: str | None


class DebateFold:
    """What was said, by thread, and what was declared in each. `texts` are the task and the documents of the first session."""

    def __init__(self, debaters: Sequence[str], texts: Iterable[str], budgets: Budgets | None = None) -> None:
        self._debaters, self._texts, self._budgets = debaters, tuple(texts), budgets or Budgets(0, 0)
        self.framing: Framing | None = None
        self.letters = letters_for(debaters, self._texts)
        self.messages: list[DebateMessage] = []
        self.said: list[DebateMessage] = []
        """Those of debaters."""
        self.by_id: dict[str, DebateMessage] = {}
        self.threads: dict[str, Thread] = {}
        self.dependencies: tuple[Dependency, ...] = ()
        self.duplicates: tuple[tuple[str, str], ...] = ()
        self.coalitions: tuple[Coalition, ...] = ()
        """Who stood with whom when that last changed."""
        self.candidates: tuple[CommonGround, ...] = ()
        """Statements on which the final ballots vote."""
        self.next_questions: tuple[str, ...] = ()
        self.rechecks: tuple[Recheck, ...] = ()
        self.ended_by = ""
        self._published: dict[str, Published] = {}

    @property
    def repeated(self) -> set[str]:
        """Threads whose crux asks the same as that of an earlier one."""
        return {second for _, second in self.duplicates}

    def record(self) -> dict[str, Any]:
        """Return what it came to as the fields of a `DebateState`."""
        own = (
            "framing",
            "letters",
            "messages",
            "dependencies",
            "duplicates",
            "next_questions",
            "rechecks",
            "ended_by",
        )
        threads = tuple(thread.record() for thread in self.threads.values())
        return {"threads": threads, **{name: getattr(self, name) for name in own}}

    def publish(self, id: str, agent: str, kind: str, words: str, reply_to: str | None) -> None:
        """Take in the event of a message; it counts once the note `turn` adds what the event lacks."""
        self._published[id] = Published(agent, kind.upper(), words, reply_to)

    def apply(self, note: BaseModel) -> None:
        """Take in a note. One of a thread or message that is not known changes nothing."""
        said = self.by_id.get(getattr(note, "message", None) or "")
        thread = self.threads.get(getattr(note, "thread", None) or (said.thread if said else ""))
        match note:
            case Framing():
                self.framing = note
                self.letters = letters_for(self._debaters, (*self._texts, *note.propositions))
            case notes.RelationsNote():
                self.dependencies += note.dependencies
                self.duplicates += note.duplicates
            case notes.CoalitionDetected():
                self.coalitions = note.coalitions
            case notes.CandidatesNote():
                self.candidates, self.next_questions = note.candidates, note.next_questions
            case notes.BallotsRechecked():
                self.rechecks = note.rechecks
            case notes.ThreadCreated():
                self.threads[note.thread] = Thread(
                    id=note.thread,
                    topic=note.topic,
                    created_at=note.at,
                    budgets=self._budgets,
                    members=list(note.members),
                    parent=note.parent,
                    question=note.question,
                )
            case notes.Said():
                if thread is not None and note.message in self._published:
                    self._say(note, thread, self._published.pop(note.message))
            case notes.GlobalConvergence():
                self.ended_by = note.reason
                for thread in self.threads.values():
                    if thread.active:
                        thread.end_stage(note.at)
            case _ if thread is not None:
                self._change(thread, note)

    def _say(self, note: notes.Said, thread: Thread, published: Published) -> None:
        number, end = len(self.messages) + 1, len(published.words)
        parts: list[str] = []
        for length in reversed(note.parts):
            parts.insert(0, published.words[end - length : end])
            end -= length + 1
        message = DebateMessage(
            id=note.message,
            number=number,
            label=f"{self.letters.get(published.agent, 'M')}{number}",
            agent=published.agent,
            move=published.move,
            reply_to=published.reply_to,
            targets=(thread.id,) if thread.question and published.agent in self.letters else (),
            text=published.words[note.lead : end],
            parts=tuple(parts),
            **{name: getattr(note, name) for name in TurnData.model_fields},
        )
        self.messages.append(message)
        self.by_id[message.id] = message
        thread.add(message)
        if message.by_moderator:
            return
        self.said.append(message)
        if note.question and message.move == "PROPOSE_CRUX" and thread.stage == "DISCOVERY":
            thread.propose(message, note.question)
        for id in message.refs:
            thread.support(id, message.agent)
        self._give(note, thread, message)
        if thread.extraction is None:  # an objection to what was written down is no turn
            thread.signal = convergence_signal(thread)

    def _give(self, note: notes.Said, thread: Thread, message: DebateMessage) -> None:
        """Keep the evidence or the concession in a message."""
        gives = MOVES[message.move].gives
        if gives == "evidence":
            evidence = Evidence(
                agent=message.agent,
                text=message.text,
                message=message.id,
                at=message.at,
                bears_on=message.bears_on,
                verified=sum(quotation.verified for quotation in message.quotations),
            )
            thread.evidence.append(evidence)
        elif gives == "concession":
            concession = Concession(
                agent=message.agent,
                proposition=note.conceded,
                message=message.id,
                top_claim=message.top_claim,
                before=note.before,
            )
            thread.concessions.append(concession)

    def _change(self, thread: Thread, note: BaseModel) -> None:
        match note:
            case Commitment():
                statement = {"statement": self.by_id[note.message].text}
                thread.commitments[note.agent] = note.model_copy(update=statement)
            case SteelmanAttempt():
                thread.steelmen.append(note)
            case notes.SteelmanGraded():
                grade = {"grade": note.grade, "corrections": note.corrections}
                thread.steelmen = [
                    s.model_copy(update=grade) if s.message == note.message else s for s in thread.steelmen
                ]
            case notes.QuestionFramed() if note.replaces:
                thread.replace_question(note.question, note.silent)
            case notes.QuestionFramed():
                thread.question = note.question
            case notes.StageTransition():
                thread.question = note.question
                thread.enter(note.after, note.at, note.budget)
            case notes.CruxLocked():
                thread.locked_question, thread.locked_at = thread.question, note.at
                thread.attempts.append(LockAttempt(at=note.at))
            case notes.CruxLockFailed():
                thread.locked_question = thread.question
                thread.attempts.append(LockAttempt(at=note.at, failures=note.failures))
            case notes.CrystallizedNote():
                thread.crystallized = note.outcome
                if note.outcome == "crux" or thread.commitments:
                    thread.extraction, thread.question = note.extraction, note.extraction.question
            case notes.FlipsDeclared():
                thread.flips |= {flip.agent: flip for flip in note.flips}
            case notes.CruxChallenged():
                challenge = {name: getattr(note, name) for name in CruxChallenge.model_fields}
                thread.challenges.append(CruxChallenge(**challenge))
            case notes.CruxExtracted():
                thread.crux = crux_of(thread, len(self._debaters), written=note.written)
                if not thread.is_disputed:
                    thread.crystallized = "null"
                elif thread.crystallized != "NEEDS_CLARIFICATION":
                    thread.crystallized = "crux"
            case notes.CruxTested() if thread.crux is not None:
                tested = thread.crux.model_copy(update={"observed_score": note.score})
                thread.crux = revalidated(tested, note.hanging)
            case notes.ThreadConverged():
                thread.close("CONVERGED", note.at, note.reason)
            case notes.ThreadClosed():
                thread.close(note.status, note.at, note.reason, note.into)
