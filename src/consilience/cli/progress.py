"""What is seen of a run while it runs: lines where there is no terminal, a calm table where there is one."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Protocol as Typed

from consilience.cli.failures import say
from consilience.cli.output import can_draw_over
from consilience.domain.events import (
    CallCompleted,
    CallFailed,
    CallLost,
    CallStarted,
    CheckRecorded,
    Ended,
    Event,
    ReplyRejected,
    SessionStarted,
)
from consilience.reporting.course import Course, took
from consilience.reporting.words import count, duration, money, one_line, place, seats, span, step_word

HEARTBEAT = 10.0
"""Seconds of silence after which a line says that the run lives."""
TICK = 0.25


class Display(Typed):
    """`observe` gets every event as it is recorded; `tick` is called four times a second; `tell` says a sentence in between;
    `loading` names what is waited for before the run can begin, then nothing; `aside(True)` keeps silent until `aside(False)`,
    while a person is asked; `close` leaves the screen clean."""

    def observe(self, event: Event) -> None: ...

    def tick(self) -> None: ...

    def tell(self, text: str) -> None: ...

    def loading(self, what: str) -> None: ...

    def aside(self, silent: bool) -> None: ...

    def close(self) -> None: ...


class Watched:
    """The fold of a run that is watched, with the moment each call began on this machine's clock."""

    def __init__(self, before: Iterable[Event] = ()) -> None:
        self.course = Course()
        self.began: dict[str, float] = {}
        self.opened = time.monotonic()
        for event in before:
            self.course.take(event)
        self.course.flying.clear()
        self.before = self.course.seconds

    def take(self, event: Event) -> None:
        self.course.take(event)
        if isinstance(event, CallStarted):
            self.began[event.key] = time.monotonic()

    def composing(self, key: str) -> float:
        return time.monotonic() - self.began.get(key, time.monotonic())

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.opened


class Quiet:
    """Nothing."""

    def observe(self, event: Event) -> None:
        return None

    def tick(self) -> None:
        return None

    def tell(self, text: str) -> None:
        say(text)

    def loading(self, what: str) -> None:
        return None

    def aside(self, silent: bool) -> None:
        return None

    def close(self) -> None:
        return None


class Lines:
    """One line for every call that ended, and one after ten seconds without any."""

    def __init__(self, before: Iterable[Event] = (), *, title: str = "") -> None:
        self.watched = Watched(before)
        self._title = title
        self._last = time.monotonic()
        self._loading = ""
        self._held: list[str] | None = None

    def observe(self, event: Event) -> None:
        self.watched.take(event)
        names = seats(self.watched.course.agents)
        if isinstance(event, Ended):
            self._print(ended_line(event, names, self.watched.course.repairs))
        elif isinstance(event, SessionStarted) and self._title:
            self._print(f"{self._title} begins")
        elif line := other_line(event, self.watched.course):
            self._print(line)

    def tick(self) -> None:
        if self._held is not None or time.monotonic() - self._last < HEARTBEAT:
            return
        flying = self.watched.course.flying
        if self._loading:
            self._print(f"… {duration(self.watched.seconds)}: {self._loading}")
        elif flying:
            names = seats(self.watched.course.agents)
            longest = max(self.watched.composing(key) for key in flying)
            waiting = ", ".join(dict.fromkeys(names.get(call.agent, call.agent) for call in list(flying.values())[:4]))
            more = f" and {len(flying) - 4} more" if len(flying) > 4 else ""
            self._print(
                f"… {duration(self.watched.seconds)}: {totals(self.watched.course)}; "
                f"composing for up to {duration(longest)}: {waiting}{more}"
            )
        else:
            self._print(f"… {duration(self.watched.seconds)}: {totals(self.watched.course)}")

    def tell(self, text: str) -> None:
        self._print(text)

    def loading(self, what: str) -> None:
        self._loading = what
        if what:
            self._print(what)

    def aside(self, silent: bool) -> None:
        held, self._held = self._held, [] if silent else None
        for line in held or ():
            self._print(line)

    def close(self) -> None:
        self.aside(False)

    def _print(self, line: str) -> None:
        if self._held is not None:
            self._held.append(line)
            return
        self._last = time.monotonic()
        say(line)


def ended_line(event: Ended, names: dict[str, str], repairs: int) -> str:
    """`round 1 · leaf_respond · L2N1 (critical) 6.2 s, 143 tokens`; an unusable reply is asked for again `repairs` times."""
    seconds = took(event)
    took_words = f" {duration(seconds)}" if seconds is not None else ""
    head = f"{place(event.key)} · {names.get(event.agent, event.agent)}{took_words}"
    match event:
        case CallCompleted():
            return f"{head}, {count(event.tokens_out, 'token')}" + (
                ", cut at the limit" if event.finish == "length" else ""
            )
        case ReplyRejected():
            then = "asking again" if event.attempt <= repairs else "giving up"
            return f"{head}: the reply could not be used, {then} ({one_line(event.error, 120)})"
        case CallFailed():
            if event.failure.is_limit:
                return f"{head}: not asked, a limit is reached ({event.failure.value})"
            return f"{head}: no reply, {event.failure.value} ({one_line(event.detail, 200)})"


def other_line(event: Event, course: Course) -> str:
    """A check or a lost call of a session in words; nothing for what has none."""
    match event:
        case CheckRecorded():
            step = step_word(course.started.settings if course.started else {})
            return f"check after {step} {event.index}: {score_words(event) or one_line(event.check.detail, 120)}"
        case CallLost():
            who = seats(course.agents).get(event.agent, event.agent)
            return f"{place(event.key)} · {who}: was in flight at the end of the last process"
    return ""


def score_words(event: CheckRecorded) -> str:
    check = event.check
    if check.score is None:
        return "met" if check.met else ""
    needed = f", needed {check.threshold:g}" if check.threshold is not None else ""
    return f"{check.kind} {check.score:.2f}{needed}"


def totals(course: Course) -> str:
    """Calls of those foreseen, tokens, money, and what became of the reserve where limits were set."""
    estimate = course.started.estimate if course.started else None
    foreseen = f" of {span(estimate.min, estimate.max)}" if estimate else ""
    return (
        f"{course.made}{foreseen} calls, {course.tokens_in:,} tokens read, {course.tokens_out:,} written, "
        f"{money(course.cost)}{reserve_words(course)}"
    )


def reserve_words(course: Course) -> str:
    """Whether what is held back for the answer is still there; nothing without a limit that it is held back from."""
    limits = course.started.limits if course.started else None
    if limits is None or (limits.calls, limits.tokens, limits.money) == (None, None, None):
        return ""
    return ", reserve drawn" if any(call.reserve for call in course.calls) else ", reserve held"


def display(before: Iterable[Event] = (), *, title: str, quiet: bool) -> Display:
    """The table on a terminal that can be drawn over, lines elsewhere, nothing when asked to be quiet."""
    if quiet:
        return Quiet()
    if can_draw_over(sys.stderr) and can_draw_over(sys.stdout):
        from consilience.cli.live import Table

        return Table(before, title=title)
    return Lines(before, title=title)


@asynccontextmanager
async def shown(screen: Display) -> AsyncIterator[Display]:
    """Tick while the block runs; leave the screen clean after it."""

    async def ticking() -> None:
        while True:
            await asyncio.sleep(TICK)
            screen.tick()

    task = asyncio.create_task(ticking())
    try:
        yield screen
    finally:
        task.cancel()
        screen.close()
