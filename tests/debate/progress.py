"""A debate that is not finished, folded from its messages and notes: the same views as those of its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from consilience.domain.agents import voices
from consilience.domain.events import MessagePublished, Noted, load_note
from consilience.domain.report import UnfinishedSession
from consilience.domain.sections import ProgressColumn, Section, View
from consilience.protocols.debate.moves import ACTIVE
from consilience.protocols.debate.notes import (
    CruxExtracted,
    CruxLocked,
    CruxLockFailed,
    DcgCalculated,
    FramedNote,
    GlobalConvergence,
    MessageBlocked,
    StageTransition,
    SteelmanGraded,
    SteelmanNote,
    ThreadClosed,
    ThreadConverged,
    ThreadCreated,
    TurnNote,
)
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
)
from consilience.protocols.debate.state import DebateState, thread_name
from consilience.protocols.debate.views import badge, transcript_blocks, views
from consilience.protocols.debate.words import ENDINGS, MOVES, STAGES, STATUSES, excerpt, validation_failure

LAST_LINES = 8
"""Messages of a thread that its column shows."""
PHASES = ("discovery", "crux_lock", "evidence", "falsifiers", "flips")
"""Phases of calls about a thread; the index is its number."""


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
        match event.name:
            case "framed":
                self.framing = load_note(FramedNote, event, self.text).framing
            case "turn":
                self._turn(load_note(TurnNote, event, self.text))
            case "thread_created":
                created = load_note(ThreadCreated, event, self.text)
                self.since[created.thread] = created.at
                self.threads[created.thread] = ThreadRecord(
                    id=created.thread,
                    topic=created.topic,
                    question=created.question,
                    status="DISCOVERY",
                    stage="DISCOVERY",
                    parent=created.parent,
                    created_at=created.at,
                )
            case "stage_transition":
                self._stage(load_note(StageTransition, event, self.text))
            case "steelman_attempt" | "steelman_graded":
                self._steelman(event)
            case "crux_locked" | "crux_lock_failed":
                self._attempt(event)
            case "dcg_calculated":
                score = load_note(DcgCalculated, event, self.text)
                self.scores[score.thread] = score.score
                if crux := self.threads[score.thread].crux:
                    self._change(score.thread, crux=crux.model_copy(update={"score": score.score}))
            case "crux_extracted":
                self._crux(load_note(CruxExtracted, event, self.text))
            case "thread_converged":
                converged = load_note(ThreadConverged, event, self.text)
                self._end(converged.thread, converged.at, status="CONVERGED", closed_by=converged.reason)
            case "thread_closed":
                closed = load_note(ThreadClosed, event, self.text)
                ended = {"status": closed.status, "closed_by": closed.reason, "merged_into": closed.into}
                self._end(closed.thread, closed.at, **ended)

    def _change(self, thread: str, **fields: object) -> None:
        if thread in self.threads:
            self.threads[thread] = self.threads[thread].model_copy(update=fields)

    def _turn(self, turn: TurnNote) -> None:
        self.at = max(self.at, turn.at)
        message = self.texts.get(turn.message)
        self.messages.append(
            DebateMessage(
                id=turn.message,
                number=len(self.messages) + 1,
                label=turn.label,
                agent=turn.agent,
                thread=turn.thread,
                move=turn.move,
                at=turn.at,
                text=self.text(message.text) if message else "",
                reply_to=turn.reply_to,
                mentions=turn.mentions,
                topics=turn.topics,
                horizon=turn.horizon,
                confidence=turn.confidence,
                new_side=turn.side,
                attention=turn.attention,
            )
        )

    def _ended_stage(self, thread: ThreadRecord, at: int) -> StageRecord:
        since = self.since.get(thread.id, thread.created_at)
        said = [m for m in self.messages if m.thread == thread.id and not m.by_moderator]
        number = len(said) - sum(stage.messages for stage in thread.stages)
        return StageRecord(stage=thread.stage, messages=number, duration=at - since)

    def _stage(self, note: StageTransition) -> None:
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

    def _steelman(self, event: Noted) -> None:
        if event.name == "steelman_attempt":
            tried = load_note(SteelmanNote, event, self.text)
            attempt = SteelmanAttempt(
                agent=tried.agent,
                of=tried.of,
                claim="",
                reason="",
                falsifier="",
                message=tried.message,
                required=tried.required,
            )
            self._change(tried.thread, steelmen=(*self.threads[tried.thread].steelmen, attempt))
            return
        graded = load_note(SteelmanGraded, event, self.text)
        steelmen = list(self.threads[graded.thread].steelmen)
        for n, steelman in reversed(list(enumerate(steelmen))):
            if (steelman.agent, steelman.of) == (graded.agent, graded.of):
                grade = {"grade": graded.grade, "corrections": graded.corrections}
                steelmen[n] = steelman.model_copy(update=grade)
                break
        self._change(graded.thread, steelmen=tuple(steelmen))

    def _attempt(self, event: Noted) -> None:
        if event.name == "crux_locked":
            locked = load_note(CruxLocked, event, self.text)
            attempt, thread = LockAttempt(at=locked.at, success=True), locked.thread
            self._change(thread, question=locked.question)
        else:
            failed = load_note(CruxLockFailed, event, self.text)
            attempt, thread = LockAttempt(at=failed.at, success=False, failures=failed.failures), failed.thread
        self._change(thread, lock_attempts=(*self.threads[thread].lock_attempts, attempt))

    def _crux(self, note: CruxExtracted) -> None:
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


def state_so_far(progress: UnfinishedSession) -> DebateState:
    """Return the debate as far as its messages and notes tell it; sealed ballots are not shown before it ends."""
    fold = _Fold(progress.text)
    for event in progress.events:
        if isinstance(event, MessagePublished):
            fold.texts[event.id] = event
        elif isinstance(event, Noted):
            fold.take(event)
    agents = progress.started.agents
    return DebateState(
        agents=agents,
        letters={agent.id: chr(ord("A") + n) for n, agent in enumerate(voices(agents))},
        framing=fold.framing,
        messages=fold.messages,
        threads=list(fold.threads.values()),
        ballots=(),
        duration=fold.at,
    )


def progress_parts(progress: UnfinishedSession) -> dict[str, object]:
    """Return the parts of a presentation that show an unfinished debate: its threads, who said what last, all views."""
    state = state_so_far(progress)
    shown = views(state)
    transcript = View(name="transcript", heading="What was said, in order", blocks=tuple(transcript_blocks(state)))
    threads = next(view for view in shown if view.name == "threads")
    section = Section(name="threads", part="differences", heading="Threads so far", blocks=threads.blocks)
    return {
        "sections": (section,),
        "views": (*shown, transcript),
        "columns": tuple(_column(thread, state) for thread in state.threads if thread.status in ACTIVE),
    }


def _column(thread: ThreadRecord, state: DebateState) -> ProgressColumn:
    number = int(thread.id.rpartition("-")[2])
    said = state.said_in(thread.id)[-LAST_LINES:]
    return ProgressColumn(
        heading=f"{number}. {thread.question or thread.topic}",
        badge=badge(thread),
        lines=tuple(f"{m.label} {'asks' if m.by_moderator else MOVES[m.move]}: {excerpt(m.text, 200)}" for m in said),
        phases=tuple((phase, number) for phase in PHASES),
    )


def note_line(event: Noted, text: Callable[[str], str]) -> str:
    """Return a note as a line of progress; empty for one that needs none."""
    match event.name:
        case "framed":
            framing = load_note(FramedNote, event, text).framing
            return f"proposition: {' | '.join(framing.propositions)}" if framing.propositions else "nothing to debate"
        case "thread_created":
            created = load_note(ThreadCreated, event, text)
            return f"{thread_name(created.thread)} opened: {created.question or created.topic}"
        case "stage_transition":
            moved = load_note(StageTransition, event, text)
            return f"{thread_name(moved.thread)}: {STAGES[moved.before]} → {STAGES[moved.after]} ({moved.reason})"
        case "crux_lock_failed":
            failed = load_note(CruxLockFailed, event, text)
            return f"{thread_name(failed.thread)}: lock {failed.attempt} failed, {'; '.join(failed.failures)}"
        case "crux_locked":
            locked = load_note(CruxLocked, event, text)
            return f"{thread_name(locked.thread)}: locked at attempt {locked.attempt}: {locked.question}"
        case "crux_extracted":
            crux = load_note(CruxExtracted, event, text)
            why = "; ".join(map(validation_failure, crux.failures))
            return f"{thread_name(crux.thread)}: {'validated crux' if crux.validated else f'no validated crux, {why}'}"
        case "thread_closed":
            closed = load_note(ThreadClosed, event, text)
            return f"{thread_name(closed.thread)} {STATUSES[closed.status]}: {closed.reason}"
        case "message_blocked":
            blocked = load_note(MessageBlocked, event, text)
            return f"{thread_name(blocked.thread)}: a reply of {blocked.agent} was blocked ({blocked.reason.replace('_', ' ')})"
        case "global_convergence":
            reason = load_note(GlobalConvergence, event, text).reason
            return f"the exchange ended: {ENDINGS.get(reason, reason)}"
    return ""
