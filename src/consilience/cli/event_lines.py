"""The events of a session as a list."""

from __future__ import annotations

import json
from collections.abc import Sequence

from consilience.domain.events import (
    AnyEvent,
    Ended,
    Event,
    Noted,
    SessionFinished,
)
from consilience.engine.activity import phase_name
from consilience.reporting.event_lines import event_line
from consilience.reporting.formatting import duration, one_line
from consilience.reporting.session_state import SessionState, fold_events


def any_event_line(event: Event, state: SessionState) -> str:
    """Return `event_line`, marked if inherited; for an event without one its type, and what a note contains."""
    line = event_line(event, state) or event.type.replace("_", " ")
    if isinstance(event, Noted) and line == event.type:
        line = one_line(f"{line} {event.name}: {event.body or json.dumps(event.data, ensure_ascii=False)}", 160)
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
