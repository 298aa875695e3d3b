"""What is seen while a run or a comparison runs: lines where there is no terminal, a calm table or a bar where there is one."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING
from typing import Protocol as Typed

from consilience.cli.errors import can_draw_over, say
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
from consilience.domain.report import find_report
from consilience.evaluation import Observer, Run, Task
from consilience.reporting.formatting import (
    count,
    describe_output_tokens,
    describe_place,
    duration,
    format_range,
    money,
    one_line,
    seat_labels,
)
from consilience.reporting.session_state import SessionState, call_seconds

if TYPE_CHECKING:
    from rich.progress import Progress


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
        self.course = SessionState()
        self.began: dict[str, float] = {}
        self.opened = time.monotonic()
        for event in before:
            self.course.take(event)
        self.course.flying.clear()
        self.before = self.course.seconds
        self.first: float | None = None
        self.last = 0.0
        self.timed = 0

    def take(self, event: Event) -> None:
        self.course.take(event)
        if isinstance(event, CallStarted):
            self.began[event.key] = time.monotonic()
            self.first = time.monotonic() if self.first is None else self.first
        elif isinstance(event, CallCompleted | CallFailed) and self.first is not None:
            self.timed += 1
            self.last = time.monotonic()

    def composing(self, key: str) -> float:
        return time.monotonic() - self.began.get(key, time.monotonic())

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.opened

    @property
    def left(self) -> str:
        """About how long the calls that are still foreseen take at the pace of those of this process; empty before the first.

        Calls side by side count as they do in the pace, so that only a change of their number makes it wrong.
        """
        estimate = self.course.started.estimate if self.course.started else None
        if estimate is None or self.first is None or not self.timed:
            return ""
        pace = (self.last - self.first) / self.timed
        waited = time.monotonic() - self.last
        least, most = (max(n - self.course.made, 0) * pace for n in (estimate.min, estimate.max))
        if most - waited <= 0:
            return ""
        return f"about {span_of_time(max(least - waited, 0), most - waited)} left"


def span_of_time(least: float, most: float) -> str:
    """`2 min`, or `1 min to 4 min` if they differ by more than a rough figure does."""
    low, high = duration(round(least, -1)), duration(max(round(most, -1), 10))
    return high if most < 1.5 * least or low == high else f"{low} to {high}" if least >= 10 else f"up to {high}"


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
        names = seat_labels(self.watched.course.agents)
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
            names = seat_labels(self.watched.course.agents)
            longest = max(self.watched.composing(key) for key in flying)
            waiting = ", ".join(dict.fromkeys(names.get(call.agent, call.agent) for call in list(flying.values())[:4]))
            more = f" and {len(flying) - 4} more" if len(flying) > 4 else ""
            self._print(
                f"… {duration(self.watched.seconds)}{', ' if self.watched.left else ''}{self.watched.left}: "
                f"{totals(self.watched.course)}; "
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
    seconds = call_seconds(event)
    took_words = f" {duration(seconds)}" if seconds is not None else ""
    head = f"{describe_place(event.key)} · {names.get(event.agent, event.agent)}{took_words}"
    match event:
        case CallCompleted():
            thinking = f" and {event.tokens_thought:,} thinking" if event.tokens_thought else ""
            written = count(event.tokens_out - event.tokens_thought, "token")
            return f"{head}, {written}{thinking}" + (", cut at the limit" if event.cut else "")
        case ReplyRejected():
            then = "asking again" if event.attempt <= repairs else "giving up"
            return f"{head}: the reply could not be used, {then} ({one_line(event.error, 120)})"
        case CallFailed():
            if event.unsent:
                return f"{head}: not asked, a limit is reached ({event.failure.value})"
            return f"{head}: no reply, {event.failure.value} ({one_line(event.detail, 200)})"


def other_line(event: Event, course: SessionState) -> str:
    """A check or a lost call of a session in words; nothing for what has none."""
    match event:
        case CheckRecorded():
            step = find_report(course.started.protocol).step if course.started else "step"
            return f"check after {step} {event.index}: {score_words(event) or one_line(event.check.detail, 120)}"
        case CallLost():
            who = seat_labels(course.agents).get(event.agent, event.agent)
            return f"{describe_place(event.key)} · {who}: was in flight at the end of the last process"
    return ""


def score_words(event: CheckRecorded) -> str:
    check = event.check
    if check.score is None:
        return "met" if check.met else ""
    needed = f", needed {check.threshold:g}" if check.threshold is not None else ""
    return f"{check.kind} {check.score:.2f}{needed}"


def totals(course: SessionState) -> str:
    """Calls of those foreseen, tokens, money, and what became of the reserve where limits were set."""
    estimate = course.started.estimate if course.started else None
    foreseen = f" of {format_range(estimate.min, estimate.max)}" if estimate else ""
    written = describe_output_tokens(course.tokens_out, course.tokens_thought)
    return (
        f"{course.made}{foreseen} calls, {course.tokens_in:,} tokens read, {written}, "
        f"{money(course.cost)}{reserve_words(course)}"
    )


def reserve_words(course: SessionState) -> str:
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
        from consilience.cli.progress_table import Table

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


class Bench:
    """A display of runs: `total` of them; on a terminal a bar, elsewhere a line for each, nothing when quiet. `recorded` says
    whether anything was."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self.total, self.done, self.calls = total, 0, 0
        self.recorded = False
        self._quiet = quiet
        self._now = ""
        self._last = self._opened = time.monotonic()
        self._bar = _bar() if not quiet and can_draw_over(sys.stderr) else None
        self._line = self._bar.add_task("", total=total) if self._bar else None

    @property
    def observer(self) -> Observer:
        return Observer(begins=self._begins, event=self.observe, ended=self._ended)

    def __enter__(self) -> Bench:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def observe(self, event: Event) -> None:
        self.recorded = True
        self.calls += isinstance(event, CallCompleted)

    def tick(self) -> None:
        """Called four times a second."""
        words = f"{self._now} · {count(self.calls, 'call')} · {duration(round(time.monotonic() - self._opened))}"
        if self._bar and self._line is not None:
            self._bar.update(self._line, description=words)
        elif not self._quiet and time.monotonic() - self._last >= HEARTBEAT:
            self._print(f"… {self.done} of {self.total}: {words}")

    def tell(self, text: str) -> None:
        self._print(text)

    def loading(self, what: str) -> None:
        self._now = what
        if what and not self._bar and not self._quiet:
            self._print(what)

    def aside(self, silent: bool) -> None:
        return None

    def close(self) -> None:
        if self._bar:
            self._bar.stop()

    def _begins(self, row: str, task: Task, seed: int) -> None:
        self._now = one_line(f"{row} on {task.id}", 60)

    def _ended(self, run: Run) -> None:
        self.done += 1
        if self._bar and self._line is not None:
            self._bar.update(self._line, completed=self.done)
        elif not self._quiet:
            self._print(f"{self.done} of {self.total}: {run_line(run)}")

    def _print(self, text: str) -> None:
        self._last = time.monotonic()
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            say(text)


def run_line(run: Run) -> str:
    """`solo on split-01: 12, wrong; 1 call, 310 tokens, 4.2 s`."""
    outcome = {True: ", right", False: ", wrong", None: ""}[run.correct if run.answered else None]
    said = one_line(run.position or run.answer or "", 60) if run.answered else "no answer"
    if run.recorded:
        return f"{run.row} on {run.task}: {said}{outcome}; recorded before"
    took = f"{count(run.calls, 'call')}, {count(run.tokens, 'token')}, {duration(run.seconds)}"
    return f"{run.row} on {run.task}: {said}{outcome}; {took}"


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (MofNCompleteColumn(), BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
    return Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4)
