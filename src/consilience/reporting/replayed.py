"""A session as it stood after one of its events, with the calls that were in flight then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from consilience.domain.events import CallAwaited, CallLost, Ended, Event
from consilience.reporting.record import SessionRecord
from consilience.reporting.session_state import call_seconds

HOLDER = "the process that ran it then"


def record_at(
    record: SessionRecord, n: int, noticed: Mapping[str, int] = {}
) -> tuple[SessionRecord, Mapping[str, float]]:
    """Return the session as it stood between its `n`-th event and the next, and for how many seconds each call in flight had been
    so, by key. What was in flight follows from when later events say that their calls had begun. Of a session that still runs,
    `noticed` says after how many events each call that is in flight now was seen first; its seconds are not known."""
    if n >= len(record.events):
        return record, {}
    before, after = record.events[:n], record.events[n:]
    now, then = _time(before[-1]), _time(after[0])
    began = _beginnings(record)
    flights, seconds = dict[str, str](), dict[str, float]()
    for event in after:
        inherited = isinstance(event, Ended) and event.inherited  # never in flight in this session
        if isinstance(event, Ended | CallLost) and not inherited and event.key not in flights:
            start = began.get((event.key, event.attempt if isinstance(event, Ended) else 0))
            if event is after[0] or (start is not None and start < then):
                flights[event.key] = event.agent
                if start is not None:
                    seconds[event.key] = max(now - start, 0.0)
    flights |= {key: agent for key, agent in record.flights.items() if noticed.get(key, n + 1) <= n}
    shown = replace(record, events=before, flights={}, holder=None, family=None)
    if shown.state.awaited:  # no process held it
        return shown, {}
    return replace(shown, flights=dict(sorted(flights.items())), holder=HOLDER), seconds  # in the order of the journal


def _beginnings(record: SessionRecord) -> dict[tuple[str, int], float]:
    """Return when each attempt began, in the seconds of the session's events. A person's question began when it was asked."""
    began: dict[tuple[str, int], float] = {}
    for event in record.events:
        if isinstance(event, CallAwaited):
            began.setdefault((event.key, event.attempt), _time(event))
        elif isinstance(event, Ended) and not event.inherited and (seconds := call_seconds(event)) is not None:
            began.setdefault((event.key, event.attempt), _time(event) - seconds)
    return began


def _time(event: Event) -> float:
    t = event.volatile.get("t")
    return float(t) if isinstance(t, int | float) else 0.0
