"""One line for each recorded event of a running session, and progress in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from consilience.domain.events import (
    BlindnessLifted,
    CallCompleted,
    CallFailed,
    CallLost,
    CheckRecorded,
    CommentPosted,
    Ended,
    Event,
    Noted,
    ReplyRejected,
    SessionStarted,
)
from consilience.domain.outcome import FailureKind
from consilience.domain.report import find_report
from consilience.reporting.formatting import count, duration, format_range, one_line, seat_labels
from consilience.reporting.session_state import SessionState, call_seconds


def event_line(event: Event, state: SessionState) -> str:
    """Return the end of a call, a check, a note or a lost call in words; empty for other events."""
    names = seat_labels(state.agents)
    match event:
        case CallCompleted() | ReplyRejected() | CallFailed():
            return _call_line(event, names.get(event.agent, event.agent), state)
        case CheckRecorded():
            step = find_report(state.started.protocol).step if state.started else "step"
            return f"check after {step} {event.index}: {check_words(event)}"
        case Noted():
            return _note_line(event, state)
        case CommentPosted():
            return f"comment by {event.by or 'somebody'}"
        case BlindnessLifted():
            return f"{event.by or 'somebody'} lifted the blindness of the seats of people"
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
            if event.failure is FailureKind.CANCELLED and event.unsent:
                return f"{opening}: {event.detail}"
            if event.unsent:
                return f"{opening}: refused by a limit ({event.failure.value})"
            return f"{opening}: no reply, {event.failure.value} ({one_line(event.reason, 200)})"


def check_words(event: CheckRecorded) -> str:
    """Return what a check found in words, or else its score."""
    return one_line(event.check.detail, 120) or score_words(event)


def score_words(event: CheckRecorded) -> str:
    """Return the score of a check with its threshold; empty if there is neither a score nor a pass."""
    check = event.check
    if check.score is None:
        return "met" if check.met else ""
    threshold_note = f", needed {check.threshold:g}" if check.threshold is not None else ""
    return f"{check.kind} {check.score:.2f}{threshold_note}"


def notebook_progress() -> Callable[[Event], None] | None:
    """Return an observer that shows the progress of sessions below the cell that runs; None outside of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return _NotebookProgress(ipython.display.display) if ipython and hasattr(shell, "kernel") else None


class _NotebookProgress:
    """Shows the last line of each session, with the calls so far, in a line of its own."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._state = SessionState()
        self._handle: Any = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, SessionStarted):
            self._state, self._handle = SessionState(), None
        self._state.take(event)
        started = self._state.started
        if started is None or not (line := event_line(event, self._state)):
            return
        estimate = format_range(started.estimate.min, started.estimate.max)
        shown = {"text/plain": f"{self._state.made} of {estimate} calls · {line}"}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)
