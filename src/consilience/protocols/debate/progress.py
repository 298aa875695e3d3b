"""A debate that is not finished, folded from its messages and notes: the same views as those of its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pydantic import BaseModel

from consilience.domain.agents import voices
from consilience.domain.events import MessagePublished, Noted
from consilience.domain.notes import load_note
from consilience.domain.report import UnfinishedSession
from consilience.domain.sections import (
    Bar,
    Block,
    Paragraph,
    Presentation,
    ProgressColumn,
    Section,
    Subheading,
    Table,
    View,
    extend_presentation,
)
from consilience.protocols._common.presenting import bullets
from consilience.protocols.debate import notes
from consilience.protocols.debate.crux_map import crux_map
from consilience.protocols.debate.crux_sections import GIVES_UP, relations, steelman_items
from consilience.protocols.debate.fold import DebateFold
from consilience.protocols.debate.moves import ACTIVE, ENDINGS, MOVES, SIDES, STAGES, STATUSES
from consilience.protocols.debate.records import Framing, ThreadRecord
from consilience.protocols.debate.state import DebateState, certainty, excerpt, thread_name
from consilience.protocols.debate.views import badge, brief_words, thread_heading, transcript_blocks, views

LAST_LINES = 8
"""Messages of a thread that its column shows."""


def state_so_far(progress: UnfinishedSession) -> DebateState:
    """Return the debate as far as its messages and notes tell it; sealed ballots are not shown before it ends."""
    return _state(_fold(progress), progress)


def _fold(progress: UnfinishedSession) -> DebateFold:
    started = progress.started
    first = (progress.text(source.text) for source in started.sources if source.generations is None)
    fold = DebateFold([agent.id for agent in voices(started.agents)], (started.task, *first))
    for event in progress.events:
        if isinstance(event, MessagePublished):
            fold.publish(event.id, event.sender, event.kind, progress.text(event.text), event.reply_to)
        elif isinstance(event, Noted) and (note := _load_note(event, progress.text)) is not None:
            fold.apply(note)
    return fold


def _state(fold: DebateFold, progress: UnfinishedSession) -> DebateState:
    duration = max((message.at for message in fold.messages), default=0)
    return DebateState(agents=progress.started.agents, duration=duration, **fold.record())


def extend_progress(common: Presentation, progress: UnfinishedSession) -> Presentation:
    """Add to a presentation what shows an unfinished debate: its threads, who said what last, all views."""
    fold = _fold(progress)
    state = _state(fold, progress)
    maps = (crux_map(state, fold.coalitions, bullets(relations(state))),) if len(state.cruxes) > 1 else ()
    words = tuple(transcript_blocks(state))
    transcript = View(name="transcript", heading="Messages in order", blocks=words, is_empty=not state.messages)
    cards = tuple(block for thread in state.threads for block in _card(thread, state))
    section = Section(name="threads", part="differences", heading="Questions so far", blocks=cards)
    columns = tuple(_column(thread, state) for thread in state.threads if thread.status in ACTIVE)
    named = common.model_copy(update={"names": {**common.names, **state.names}})
    return extend_presentation(named, sections=(section,), views=(*views(state), *maps, transcript), columns=columns)


def _column(thread: ThreadRecord, state: DebateState) -> ProgressColumn:
    messages = state.said_in(thread.id)[-LAST_LINES:]
    return ProgressColumn(
        heading=thread_heading(thread),
        badge=badge(thread),
        lines=tuple(
            f"{m.label} {'asks' if m.by_moderator else MOVES[m.move].words}: {brief_words(m, 200)}" for m in messages
        ),
        part=thread.id,
        bar=Bar(name="convergence", value=thread.signal),
    )


def _card(thread: ThreadRecord, state: DebateState) -> Iterator[Block]:
    """Yield the question of a thread with who is committed to which answer, what would change that, and the steelmen so far."""
    yield Subheading(text=thread_heading(thread))
    refs = tuple(message.id for message in state.said_in(thread.id)[-1:])
    yield Paragraph(lead=f"{badge(thread).capitalize()}.", text=_result_so_far(thread, state), refs=refs)
    if thread.commitments:
        heads = ("agent", "answer", "gives up its claim", "what would show it")
        yield Table(
            heads=heads,
            rows=tuple(
                (
                    state.names[held.agent],
                    f"{SIDES[held.side]}, {certainty(held.confidence)}",
                    "–" if held.gives_up_if is None else GIVES_UP[held.gives_up_if],
                    held.falsifier.words() if held.falsifier else "–",
                )
                for held in thread.commitments
            ),
            left=len(heads),
            refs=tuple((held.message,) if held.message else () for held in thread.commitments),
        )
    yield from bullets(steelman_items(thread, state, is_running=True))


def _result_so_far(thread: ThreadRecord, state: DebateState) -> str:
    """Return whether its crux is validated; without one, why its last lock failed."""
    if thread.crux:
        flaws = "; ".join(flaw.words for flaw in thread.crux.validation_failures)
        return "Its crux is validated." if thread.crux.validated else f"No validated crux: {flaws or 'not judged'}."
    if thread.lock_attempts and (failures := thread.lock_attempts[-1].failures):
        missing = "; ".join(failure.words(state.letters) for failure in failures)
        return f"Its agents have not agreed on the question (attempt {len(thread.lock_attempts)}: {missing})."
    return ""


def note_line(event: Noted) -> str:
    """Return a note as a line of progress; empty for one that needs none, or whose data is a text beside the event."""
    note = _load_note(event, str)
    where = thread_name(getattr(note, "thread", ""))
    match note:
        case Framing() as framing:
            return f"proposition: {' | '.join(framing.propositions)}" if framing.propositions else "nothing to debate"
        case notes.ThreadCreated():
            return f"{where} opened: {note.question or note.topic}"
        case notes.StageTransition():
            return f"{where}: {STAGES[note.before]} → {STAGES[note.after]} ({note.reason})"
        case notes.CruxLockFailed():
            why = "; ".join(missing.words({}) for missing in note.failures)
            return f"{where}: lock {note.attempt} failed, {why}"
        case notes.CruxLocked():
            return f"{where}: locked at attempt {note.attempt}: {note.question}"
        case notes.CruxExtracted():
            why = "; ".join(flaw.words for flaw in note.failures)
            return f"{where}: {f'no validated crux, {why}' if why else 'validated crux'}"
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
    """A note of a debate; None for one that cannot be read: it is of another version, or `text` has not what it holds."""
    try:
        return load_note(notes.NOTES[event.name], event, text)
    except (KeyError, ValueError):
        return None
