"""A recorded run shown again as it went: at a pace of its own, or event by event."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence

from consilience.cli.failures import say
from consilience.cli.progress import TICK, Display, display, ended_line, other_line
from consilience.domain.errors import SettingsError
from consilience.domain.events import AnyEvent, CallCompleted, CallFailed, CallStarted, Ended, Event
from consilience.journal.store import Store
from consilience.reporting.course import Course, fold, took
from consilience.reporting.unfinished import prose
from consilience.reporting.words import count, duration, one_line, seats

_LONGEST = 400

Timed = tuple[float, Event]


def play(events: Sequence[AnyEvent], *, title: str, speed: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show a run's events as they came, `speed` times as fast as then. Raises `SettingsError` for a speed that is none."""
    if not 0 < speed < float("inf"):
        raise SettingsError(f"a speed cannot be {speed}", where="--speed", do="Give a number above 0; 1 is as it was.")
    screen = display((), title=title, quiet=False)
    try:
        now = 0.0
        for at, event in timed(events):
            _wait(screen, max(0.0, at - now) / speed, sleep)
            now = max(now, at)
            screen.observe(event)
        screen.tick()
    finally:
        screen.close()


def timed(events: Iterable[AnyEvent]) -> list[Timed]:
    """Events by the second at which they were recorded, each call's start again where its duration says it was."""
    found: list[tuple[float, int, Event]] = []
    at = 0.0
    for n, event in enumerate(events):
        recorded = event.volatile.get("t")
        at = float(recorded) if isinstance(recorded, int | float) else at
        found.append((at, 2 * n + 1, event))
        if isinstance(event, Ended) and not event.inherited and not _refused(event):
            started = CallStarted(
                **{name: getattr(event, name) for name in ("place", "key", "agent", "phase", "attempt")}
            )
            found.append((max(0.0, at - (took(event) or 0.0)), 2 * n, started))
    return [(at, event) for at, _, event in sorted(found, key=lambda row: row[:2])]


def step(events: Sequence[AnyEvent], store: Store, *, ask: Callable[[str], str] = input) -> None:
    """One event at a time: what happened, what was said, what it had been shown; Enter goes on, q stops."""
    if not sys.stdin.isatty() and ask is input:
        raise SettingsError(
            "stepping waits for a key, and there is no terminal",
            where="--step",
            do="Leave it out, or read them all: consilience show ID --events.",
        )
    course = fold(events)
    for n, event in enumerate(events, 1):
        print(f"{event.seq:>5}  {line_of(event, course)}")
        for line in _more(event, store):
            print(f"       {line}")
        if n < len(events) and _stops(ask(f"[{n} of {len(events)}] Enter: next, q: stop ")):
            return
    say(f"That was all of it: {count(len(events), 'event')}.")


def line_of(event: Event, course: Course) -> str:
    """An event of a session in one line."""
    if isinstance(event, Ended):
        line = ended_line(event, seats(course.agents), course.repairs)
        return f"{line} (inherited)" if event.inherited else line
    return other_line(event, course) or event.type.replace("_", " ")


def _more(event: Event, store: Store) -> list[str]:
    if not isinstance(event, CallCompleted):
        return []
    quoted = [part.split(":", 2)[1:] for part in store.prompt(event.prompt) if part.startswith("q:")]
    read = ", ".join(f"{id} as {label}" for label, id in quoted) or "nobody's words"
    return [f"“{one_line(prose(store.text(event.text)), _LONGEST)}”", f"key {event.key}; had read: {read}"]


def listing(events: Sequence[AnyEvent]) -> list[str]:
    """All events, a line each: number, second, what it was, and the key by which a fork names it."""
    course = fold(events)
    lines = []
    for event in events:
        at = event.volatile.get("t")
        when = duration(float(at)) if isinstance(at, int | float) else ""
        key = getattr(event, "key", "")
        lines.append(f"{event.seq:>5}  {when:>9}  {line_of(event, course)}" + (f"  [{key}]" if key else ""))
    return lines


def _wait(screen: Display, seconds: float, sleep: Callable[[float], None]) -> None:
    while seconds > 0:
        sleep(min(TICK, seconds))
        screen.tick()
        seconds -= TICK


def _refused(event: Ended) -> bool:
    return isinstance(event, CallFailed) and event.failure.is_limit


def _stops(answer: str) -> bool:
    return answer.strip().lower() in ("q", "quit")
