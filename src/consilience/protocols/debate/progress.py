"""A debate that is not finished, folded from its messages and notes: the same views as those of its report."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import BaseModel, ValidationError

from consilience.domain.agents import voices
from consilience.domain.events import MessagePublished, Noted
from consilience.domain.notes import load_note
from consilience.domain.report import UnfinishedSession
from consilience.domain.sections import Presentation, ProgressColumn, Section, View, extend_presentation
from consilience.protocols.debate import notes
from consilience.protocols.debate.moves import ACTIVE, ENDINGS, LEADS, MOVES, STAGES, STATUSES
from consilience.protocols.debate.records import (
    Crux,
    CruxPosition,
    CruxScore,
    DebateMessage,
    Framing,
    LockAttempt,
    StageRecord,
    SteelmanAttempt,
    ThreadRecord,
    TurnData,
)
from consilience.protocols.debate.state import DebateState, excerpt, letters_for, thread_name, validation_failure
from consilience.protocols.debate.views import badge, brief_words, transcript_blocks, views

LAST_LINES = 8
"""Messages of a thread that its column shows."""
PHASES = ("discovery", "crux_lock", "evidence", "falsifiers", "flips", "crystallization")
"""Phases of calls about a thread; the index is its number."""

_PARTS = re.compile(rf"\n(?=(?:{'|'.join(LEADS.values())}): )")
"""Where the parts of a quoted message begin."""


@dataclass
class _Fold:
    """What the events so far amount to."""

    text: Callable[[str], str]
    framing: Framing | None = None
    texts: dict[str, MessagePublished] = field(default_factory=dict)
    messages: list[DebateMessage] = field(default_factory=list)
    threads: dict[str, ThreadRecord] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    """When the current stage of a thread began."""
    scores: dict[str, CruxScore] = field(default_factory=dict)
    at: int = 0

    def take(self, event: Noted) -> None:
        """Take in a note; those that change nothing a view shows are left out."""
        note = _load_note(event, self.text)
        match note:
            case notes.FramedNote():
                self.framing = note.framing
            case notes.TurnNote():
                self._add_turn(note)
            case notes.ThreadCreated():
                self.since[note.thread] = note.at
                self.threads[note.thread] = ThreadRecord(
                    id=note.thread,
                    topic=note.topic,
                    question=note.question,
                    status="DISCOVERY",
                    stage="DISCOVERY",
                    parent=note.parent,
                    created_at=note.at,
                )
            case notes.StageTransition():
                self._stage(note)
            case notes.SteelmanNote():
                fields = note.model_dump(include={"agent", "of", "message", "required"})
                attempt = SteelmanAttempt(claim="", reason="", falsifier="", **fields)
                self._change(note.thread, steelmen=(*self.threads[note.thread].steelmen, attempt))
            case notes.SteelmanGraded():
                self._grade(note)
            case notes.CruxLocked():
                self._change(note.thread, question=note.question)
                self._attempt(note.thread, LockAttempt(at=note.at, success=True))
            case notes.CruxLockFailed():
                self._attempt(note.thread, LockAttempt(at=note.at, success=False, failures=note.failures))
            case notes.DcgCalculated():
                self.scores[note.thread] = note.score
                if crux := self.threads[note.thread].crux:
                    self._change(note.thread, crux=crux.model_copy(update={"score": note.score}))
            case notes.CruxExtracted():
                self._crux(note)
            case notes.ThreadConverged():
                self._end(note.thread, note.at, status="CONVERGED", closed_by=note.reason)
            case notes.ThreadClosed():
                self._end(note.thread, note.at, status=note.status, closed_by=note.reason, merged_into=note.into)

    def _change(self, thread: str, **fields: object) -> None:
        if thread in self.threads:
            self.threads[thread] = self.threads[thread].model_copy(update=fields)

    def _add_turn(self, turn: notes.TurnNote) -> None:
        self.at = max(self.at, turn.at)
        message = self.texts.get(turn.message)
        text, *parts = _PARTS.split(_strip_move(self.text(message.text))) if message else ("",)
        shared = turn.model_dump(include=set(TurnData.model_fields))
        number = len(self.messages) + 1
        self.messages.append(
            DebateMessage(id=turn.message, number=number, text=text, parts=tuple(parts), new_side=turn.side, **shared)
        )

    def _ended_stage(self, thread: ThreadRecord, at: int) -> StageRecord:
        since = self.since.get(thread.id, thread.created_at)
        messages = [m for m in self.messages if m.thread == thread.id and not m.by_moderator]
        number = len(messages) - sum(stage.messages for stage in thread.stages)
        return StageRecord(stage=thread.stage, messages=number, duration=at - since)

    def _stage(self, note: notes.StageTransition) -> None:
        thread = self.threads.get(note.thread)
        if thread is None:
            return
        stages = (*thread.stages, self._ended_stage(thread, note.at))
        status = {"CRUX_LOCK": "LOCKING", "EVIDENCE": "LOCKED"}.get(note.after, "DISCOVERY")
        question = note.question or thread.question
        self.since[note.thread] = note.at
        self._change(note.thread, stage=note.after, status=status, stages=stages, question=question)

    def _end(self, thread: str, at: int, **fields: object) -> None:
        if record := self.threads.get(thread):
            self._change(thread, closed_at=at, stages=(*record.stages, self._ended_stage(record, at)), **fields)

    def _grade(self, note: notes.SteelmanGraded) -> None:
        """Grade the last steelman of a pair."""
        steelmen = list(self.threads[note.thread].steelmen)
        pairs = [(steelman.agent, steelman.of) for steelman in steelmen]
        if (pair := (note.agent, note.of)) in pairs:
            last = len(pairs) - 1 - pairs[::-1].index(pair)
            grade = {"grade": note.grade, "corrections": note.corrections}
            steelmen[last] = steelmen[last].model_copy(update=grade)
        self._change(note.thread, steelmen=tuple(steelmen))

    def _attempt(self, thread: str, attempt: LockAttempt) -> None:
        self._change(thread, lock_attempts=(*self.threads[thread].lock_attempts, attempt))

    def _crux(self, note: notes.CruxExtracted) -> None:
        """A crux as its thread left it. Positions are those last declared in public."""
        declared = [m for m in self.messages if m.thread == note.thread and m.new_side is not None]
        positions = {
            m.agent: CruxPosition(side=m.new_side, statement=m.text, confidence=m.confidence or 0.0)
            for m in declared
            if m.new_side is not None
        }
        nothing = CruxScore(coverage=0, polarity=0, impact=0, score=0)
        crux = Crux(
            thread=note.thread,
            question=note.question,
            positions=positions,
            score=self.scores.get(note.thread, nothing),
            locked=any(attempt.success for attempt in self.threads[note.thread].lock_attempts),
            validated=note.validated,
            validation_failures=note.failures,
        )
        self._change(note.thread, crux=crux)


def _strip_move(words: str) -> str:
    """Return a message without its move, which prompts quote before it: `CHALLENGE on B4: …`, `COMMIT_POSITION NO, unsure: …`."""
    return re.sub(r"\A[A-Z_]{5,}(?: (?:on|of|by|YES,|NO,|UNCERTAIN,) [^:]{1,60})?: ", "", words)


def state_so_far(progress: UnfinishedSession) -> DebateState:
    """Return the debate as far as its messages and notes tell it; sealed ballots are not shown before it ends."""
    fold = _Fold(progress.text)
    for event in progress.events:
        if isinstance(event, MessagePublished):
            fold.texts[event.id] = event
        elif isinstance(event, Noted):
            fold.take(event)
    started, propositions = progress.started, fold.framing.propositions if fold.framing else ()
    first = (progress.text(source.text) for source in started.sources if source.generations is None)
    return DebateState(
        agents=started.agents,
        letters=letters_for([agent.id for agent in voices(started.agents)], (started.task, *propositions, *first)),
        framing=fold.framing,
        messages=fold.messages,
        threads=list(fold.threads.values()),
        ballots=(),
        duration=fold.at,
    )


def extend_progress(common: Presentation, progress: UnfinishedSession) -> Presentation:
    """Add to a presentation what shows an unfinished debate: its threads, who said what last, all views."""
    state = state_so_far(progress)
    shown = views(state)
    words = tuple(transcript_blocks(state))
    transcript = View(name="transcript", heading="Messages in order", blocks=words, is_empty=not state.messages)
    threads = next(view for view in shown if view.name == "threads")
    section = Section(name="threads", part="differences", heading="Threads so far", blocks=threads.blocks)
    columns = tuple(_column(thread, state) for thread in state.threads if thread.status in ACTIVE)
    return extend_presentation(common, sections=(section,), views=(*shown, transcript), columns=columns)


def _column(thread: ThreadRecord, state: DebateState) -> ProgressColumn:
    number = int(thread.id.rpartition("-")[2])
    messages = state.said_in(thread.id)[-LAST_LINES:]
    return ProgressColumn(
        heading=f"{number}. {thread.question or thread.topic}",
        badge=badge(thread),
        lines=tuple(
            f"{m.label} {'asks' if m.by_moderator else MOVES[m.move].words}: {brief_words(m, 200)}" for m in messages
        ),
        phases=tuple((phase, number) for phase in PHASES),
    )


def note_line(event: Noted) -> str:
    """Return a note as a line of progress; empty for one that needs none. No note of a debate has long texts."""
    note = _load_note(event, str)
    where = thread_name(getattr(note, "thread", ""))
    match note:
        case notes.FramedNote(framing=framing):
            return f"proposition: {' | '.join(framing.propositions)}" if framing.propositions else "nothing to debate"
        case notes.ThreadCreated():
            return f"{where} opened: {note.question or note.topic}"
        case notes.StageTransition():
            return f"{where}: {STAGES[note.before]} → {STAGES[note.after]} ({note.reason})"
        case notes.CruxLockFailed():
            return f"{where}: lock {note.attempt} failed, {'; '.join(note.failures)}"
        case notes.CruxLocked():
            return f"{where}: locked at attempt {note.attempt}: {note.question}"
        case notes.CruxExtracted():
            why = "; ".join(map(validation_failure, note.failures))
            return f"{where}: {'validated crux' if note.validated else f'no validated crux, {why}'}"
        case notes.CruxChallenged():
            return f"{where}: {note.agent} objects to the crux: {excerpt(note.text, 120)}"
        case notes.AgendaNote(active=active):
            return f"active disputes: {', '.join(map(thread_name, active))}" if active else ""
        case notes.CoalitionDetected():
            members = "; ".join(f"{coalition.label}: {', '.join(coalition.members)}" for coalition in note.coalitions)
            return f"coalitions: {members or note.finding}"
        case notes.ThreadClosed():
            return f"{where} {STATUSES[note.status]}: {note.reason}"
        case notes.CruxTested():
            return (
                f"{where}: tested crux, flips: {note.declared} declared, {note.observed} of {note.tested} when told so"
            )
        case notes.FactTold():
            return f"new fact: {note.fact} ({len(note.moved)} moved)"
        case notes.MessageBlocked():
            return f"{where}: a reply of {note.agent} was blocked ({note.reason.replace('_', ' ')})"
        case notes.GlobalConvergence():
            return f"the exchange ended: {ENDINGS.get(note.reason, note.reason)}"
    return ""


def _load_note(event: Noted, text: Callable[[str], str]) -> BaseModel | None:
    """A note of a debate; None for one of another version that this one cannot read."""
    try:
        return load_note(notes.NOTES[event.name], event, text)
    except (KeyError, ValidationError):
        return None
