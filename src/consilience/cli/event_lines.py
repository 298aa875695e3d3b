"""One line for each event of a session."""

from __future__ import annotations

from collections.abc import Sequence

from consilience.domain.events import (
    AnyEvent,
    CallCompleted,
    CallFailed,
    CallLost,
    CheckRecorded,
    Ended,
    Event,
    ReplyRejected,
)
from consilience.domain.report import find_report
from consilience.reporting.formatting import count, describe_place, duration, one_line, seat_labels
from consilience.reporting.session_state import SessionState, call_seconds, fold_events


def event_line(event: Event, state: SessionState) -> str:
    """Return the end of a call, a check or a lost call in words; empty for other events."""
    names = seat_labels(state.agents)
    match event:
        case CallCompleted() | ReplyRejected() | CallFailed():
            return _call_line(event, names.get(event.agent, event.agent), state.repairs)
        case CheckRecorded():
            step = find_report(state.started.protocol).step if state.started else "step"
            return f"check after {step} {event.index}: {score_words(event) or one_line(event.check.detail, 120)}"
        case CallLost():
            agent = names.get(event.agent, event.agent)
            return f"{describe_place(event.key)} · {agent}: was in flight at the end of the last process"
    return ""


def _call_line(event: Ended, agent: str, max_repairs: int) -> str:
    """Return `round 1 · leaf_respond · L2N1 (critical) 6.2 s, 143 tokens`."""
    seconds = call_seconds(event)
    head = f"{describe_place(event.key)} · {agent}" + (f" {duration(seconds)}" if seconds is not None else "")
    match event:
        case CallCompleted():
            thinking = f" and {event.tokens_thought:,} thinking" if event.tokens_thought else ""
            written = count(event.tokens_out - event.tokens_thought, "token")
            return f"{head}, {written}{thinking}" + (", cut at the limit" if event.cut else "")
        case ReplyRejected():
            then = "asking again" if event.attempt <= max_repairs else "giving up"
            return f"{head}: the reply could not be used, {then} ({one_line(event.error, 120)})"
        case CallFailed():
            if event.unsent:
                return f"{head}: not asked, a limit is reached ({event.failure.value})"
            return f"{head}: no reply, {event.failure.value} ({one_line(event.detail, 200)})"


def score_words(event: CheckRecorded) -> str:
    """Return the score of a check with its threshold; empty if there is neither a score nor a pass."""
    check = event.check
    if check.score is None:
        return "met" if check.met else ""
    needed = f", needed {check.threshold:g}" if check.threshold is not None else ""
    return f"{check.kind} {check.score:.2f}{needed}"


def any_event_line(event: Event, state: SessionState) -> str:
    """Return `event_line`, marked if inherited; the event's type for an event without one."""
    line = event_line(event, state) or event.type.replace("_", " ")
    return f"{line} (inherited)" if isinstance(event, Ended) and event.inherited else line


def listing(events: Sequence[AnyEvent]) -> list[str]:
    """Return a line per event: number, second, description, and the key by which a fork names it."""
    state = fold_events(events)
    lines = []
    for event in events:
        at = event.volatile.get("t")
        when = duration(float(at)) if isinstance(at, int | float) else ""
        key = getattr(event, "key", "")
        lines.append(f"{event.seq:>5}  {when:>9}  {any_event_line(event, state)}" + (f"  [{key}]" if key else ""))
    return lines
