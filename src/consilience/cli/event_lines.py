"""One line for each recorded event."""

from __future__ import annotations

import json
from collections.abc import Sequence

from consilience.domain.events import (
    AnyEvent,
    CallCompleted,
    CallFailed,
    CallLost,
    CheckRecorded,
    Ended,
    Event,
    Noted,
    ReplyRejected,
    SessionFinished,
)
from consilience.domain.report import find_report
from consilience.engine.activity import phase_name
from consilience.reporting.formatting import count, duration, one_line, seat_labels
from consilience.reporting.session_state import SessionState, call_seconds, fold_events


def event_line(event: Event, state: SessionState) -> str:
    """Return the end of a call, a check, a note or a lost call in words; empty for other events."""
    names = seat_labels(state.agents)
    match event:
        case CallCompleted() | ReplyRejected() | CallFailed():
            return _call_line(event, names.get(event.agent, event.agent), state)
        case CheckRecorded():
            step = find_report(state.started.protocol).step if state.started else "step"
            return f"check after {step} {event.index}: {score_words(event) or one_line(event.check.detail, 120)}"
        case Noted():
            return _note_line(event, state)
        case CallLost():
            agent = names.get(event.agent, event.agent)
            return f"{state.place(event.key, event.agent)} · {agent}: was in flight at the end of the last process"
    return ""


def _note_line(event: Noted, state: SessionState) -> str:
    """Return a note in its protocol's words; "" if its code cannot read it, since progress must not end a run."""
    try:
        return one_line(find_report(state.started.protocol).note_line(event), 160) if state.started else ""
    except Exception:
        return ""


def _call_line(event: Ended, agent: str, state: SessionState) -> str:
    """Return `round 1 · own answers · critical (L2N1) 6.2 s, 143 tokens`."""
    seconds = call_seconds(event)
    opening = f"{state.place(event.key, event.agent)} · {agent}" + (
        f" {duration(seconds)}" if seconds is not None else ""
    )
    match event:
        case CallCompleted():
            thinking = f" and {event.tokens_thought:,} thinking" if event.tokens_thought else ""
            tokens_written = count(event.tokens_out - event.tokens_thought, "token")
            fallback = f", answered by {event.volatile.get('model')}" if event.volatile.get("fallback") else ""
            return f"{opening}, {tokens_written}{thinking}{fallback}" + (", cut at the limit" if event.cut else "")
        case ReplyRejected():
            then = "asking again" if event.attempt <= state.repairs else "giving up"
            return f"{opening}: the reply could not be used, {then} ({one_line(event.error, 120)})"
        case CallFailed():
            if event.unsent:
                return f"{opening}: refused by a limit ({event.failure.value})"
            return f"{opening}: no reply, {event.failure.value} ({one_line(event.detail, 200)})"


def score_words(event: CheckRecorded) -> str:
    """Return the score of a check with its threshold; empty if there is neither a score nor a pass."""
    check = event.check
    if check.score is None:
        return "met" if check.met else ""
    threshold_note = f", needed {check.threshold:g}" if check.threshold is not None else ""
    return f"{check.kind} {check.score:.2f}{threshold_note}"


def any_event_line(event: Event, state: SessionState) -> str:
    """Return `event_line`, marked if inherited; for an event without one its type, and what a note contains."""
    line = event_line(event, state) or event.type.replace("_", " ")
    if isinstance(event, Noted) and line == event.type:
        line = one_line(f"{line} {event.name}: {json.dumps(event.data, ensure_ascii=False)}", 160)
    if isinstance(event, SessionFinished):
        line += f": {event.stop_reason.value}"
    return f"{line} (inherited)" if isinstance(event, Ended) and event.inherited else line


def listing(events: Sequence[AnyEvent]) -> list[str]:
    """Return a line per event: number, second, description, and the key by which a fork names it; the first call of a phase also
    has the name of the phase."""
    state = fold_events(events)
    lines = []
    phases = set()
    for event in events:
        seconds = event.volatile.get("t")
        when = duration(float(seconds)) if isinstance(seconds, int | float) else ""
        key = getattr(event, "key", "")
        line = f"{event.seq:>5}  {when:>9}  {any_event_line(event, state)}" + (f"  [{key}]" if key else "")
        if isinstance(event, Ended) and event.phase is not None and event.phase not in phases:
            phases.add(event.phase)
            line += f"  phase {phase_name(event.phase)}"
        lines.append(line)
    return lines
