"""Progress on standard error while a run or a comparison runs: a live table or bar on a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from consilience.cli.errors import can_draw_over, notify
from consilience.cli.event_lines import event_line, score_words
from consilience.domain.agents import Agent
from consilience.domain.events import (
    CallCompleted,
    CallFailed,
    CallStarted,
    Event,
    ReplyRejected,
    SessionStarted,
)
from consilience.evaluation import CompareObserver, Run, Task
from consilience.reporting.formatting import (
    count,
    describe_agent,
    describe_output_tokens,
    describe_place,
    duration,
    format_range,
    money,
    one_line,
    seat_labels,
)
from consilience.reporting.session_state import SessionState

HEARTBEAT_SECONDS = 10.0
"""Silence after which a line shows that the run is alive."""
TICK_SECONDS = 0.25
_OTHER_LINES = 6
"""Lines of the screen around the table's rows: head, foot and what was written above."""


class Display:
    """Progress on standard error. This class prints only messages; subclasses also show events.

    `observe` gets every event when it is recorded. `tick` is called every `TICK_SECONDS`.
    """

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._held: list[tuple[str, str]] | None = None

    def observe(self, event: Event) -> None:
        """Show a recorded event."""

    def tick(self) -> None:
        """Redraw, or print a heartbeat."""

    def loading(self, what: str) -> None:
        """Show what is waited for before the run can start; empty when it is there."""

    def tell(self, text: str) -> None:
        """Print a message."""
        self._print(text)

    def aside(self, silent: bool) -> None:
        """Hold back all output while a person is asked (`silent`), then print it."""
        held, self._held = self._held, [] if silent else None
        for line, style in held or ():
            self._print(line, style)

    def close(self) -> None:
        """Leave the screen clean."""
        self.aside(False)

    @property
    def _is_heartbeat_due(self) -> bool:
        return self._held is None and time.monotonic() - self._last >= HEARTBEAT_SECONDS

    def _print(self, line: str, style: str = "") -> None:
        if self._held is not None:
            self._held.append((line, style))
            return
        self._last = time.monotonic()
        self._write(line, style)

    def _write(self, line: str, style: str) -> None:
        notify(line)


class RunProgress:
    """The state of a run, with the time at which this process saw each call start."""

    def __init__(self, before: Iterable[Event] = ()) -> None:
        self.state = SessionState()
        self._call_started: dict[str, float] = {}
        self._opened = time.monotonic()
        for event in before:
            self.state.take(event)
        self.state.flying.clear()
        self._seconds_before = self.state.seconds
        self._first_start: float | None = None
        self._last_end = 0.0
        self._ended = 0

    def take(self, event: Event) -> None:
        self.state.take(event)
        now = time.monotonic()
        if isinstance(event, CallStarted):
            self._call_started[event.key] = now
            self._first_start = now if self._first_start is None else self._first_start
        elif isinstance(event, CallCompleted | CallFailed) and self._first_start is not None:
            self._ended += 1
            self._last_end = now

    def seconds_in_flight(self, key: str) -> float:
        now = time.monotonic()
        return now - self._call_started.get(key, now)

    @property
    def seconds(self) -> float:
        """Elapsed time of the run, including earlier processes."""
        return self._seconds_before + time.monotonic() - self._opened

    @property
    def time_left(self) -> str:
        """The estimated remaining time, from the mean time per call in this process; empty before the first.

        Parallel calls count as they do in the mean, so only a change of their number makes the estimate wrong.
        """
        estimate = self.state.started.estimate if self.state.started else None
        if estimate is None or self._first_start is None or not self._ended:
            return ""
        per_call = (self._last_end - self._first_start) / self._ended
        waited = time.monotonic() - self._last_end
        low, high = (max(n - self.state.made, 0) * per_call - waited for n in (estimate.min, estimate.max))
        return f"about {_time_range(max(low, 0), high)} left" if high > 0 else ""

    @property
    def totals(self) -> str:
        """Calls out of the estimate, tokens, cost, and whether the reserve for the answer is intact."""
        state = self.state
        estimate = state.started.estimate if state.started else None
        foreseen = f" of {format_range(estimate.min, estimate.max)}" if estimate else ""
        written = describe_output_tokens(state.tokens_out, state.tokens_thought)
        limits = state.started.limits if state.started else None
        reserve = ""
        if limits is not None and (limits.calls, limits.tokens, limits.money) != (None, None, None):
            reserve = ", reserve drawn" if any(call.reserve for call in state.calls) else ", reserve held"
        return f"{state.made}{foreseen} calls, {state.tokens_in:,} tokens read, {written}, {money(state.cost)}{reserve}"


def _time_range(low: float, high: float) -> str:
    """Return `2 min`, or `1 min to 4 min` if the bounds differ by more than the estimate's error."""
    low_words, high_words = duration(round(low, -1)), duration(max(round(high, -1), 10))
    if high < 1.5 * low or low_words == high_words:
        return high_words
    return f"{low_words} to {high_words}" if low >= 10 else f"up to {high_words}"


class Lines(Display):
    """One line for every call that ended, and a heartbeat."""

    def __init__(self, before: Iterable[Event] = (), *, title: str = "") -> None:
        super().__init__()
        self.progress = RunProgress(before)
        self._title = title
        self._loading = ""

    def observe(self, event: Event) -> None:
        self.progress.take(event)
        if isinstance(event, SessionStarted) and self._title:
            self._print(f"{self._title} begins")
        elif line := event_line(event, self.progress.state):
            self._print(line)

    def tick(self) -> None:
        if not self._is_heartbeat_due:
            return
        progress, in_flight = self.progress, self.progress.state.flying
        elapsed = duration(progress.seconds)
        if self._loading:
            self._print(f"… {elapsed}: {self._loading}")
        elif in_flight:
            names = seat_labels(progress.state.agents)
            agents = [names.get(call.agent, call.agent) for call in in_flight.values()]
            more = f" and {len(agents) - 4} more" if len(agents) > 4 else ""
            waiting = f"waiting for {', '.join(dict.fromkeys(agents[:4]))}{more}"
            longest = duration(max(map(progress.seconds_in_flight, in_flight)))
            left = f", {progress.time_left}" if progress.time_left else ""
            self._print(f"… {elapsed}{left}: {progress.totals}; {waiting}, longest {longest}")
        else:
            self._print(f"… {elapsed}: {progress.totals}")

    def loading(self, what: str) -> None:
        self._loading = what
        if what:
            self._print(what)


class Table(Display):
    """A live table with one row per agent, removed from the screen at the end. Failures stay, as lines above it."""

    def __init__(self, before: Iterable[Event] = (), *, title: str) -> None:
        super().__init__()
        self.progress = RunProgress(before)
        self._title = title
        self._loading = ""
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(
            self._screen(),
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def observe(self, event: Event) -> None:
        self.progress.take(event)
        if isinstance(event, CallFailed | ReplyRejected):
            self._print(event_line(event, self.progress.state), "yellow")

    def tick(self) -> None:
        if self._held is None:
            self._live.update(self._screen(), refresh=True)

    def loading(self, what: str) -> None:
        self._loading = what
        self.tick()

    def aside(self, silent: bool) -> None:
        if silent:
            self._live.stop()
        super().aside(silent)
        if not silent:
            self._live.start()

    def close(self) -> None:
        self._live.stop()
        super().aside(False)

    def _write(self, line: str, style: str) -> None:
        self._console.print(Text(line, style=style))

    def _screen(self) -> Group:
        state = self.progress.state
        if state.started is None:
            return Group(self._head())
        agents = list(state.agents)
        room = max(3, self._console.height - _OTHER_LINES)
        grid = Grid.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_column(no_wrap=True)
        if len(agents) > room:
            self._add_levels(grid)
            agents = self.longest_in_flight(room - grid.row_count)
        for agent in agents:
            grid.add_row(Text(f"  {agent.id}", style="bold"), Text(describe_agent(agent)), self._status(agent))
        return Group(self._head(), grid, self._foot(state.started.estimate.max))

    def _add_levels(self, grid: Grid) -> None:
        """Add one row per level, for a tree with more agents than the screen has lines."""
        state = self.progress.state
        levels = state.started.topology.levels if state.started else {}
        busy = {call.agent for call in state.flying.values()}
        called = {call.agent for call in state.calls}
        for level in sorted(set(levels.values())):
            members = [agent for agent in state.agents if levels.get(agent.id) == level]
            composing = sum(agent.id in busy for agent in members)
            waiting = sum(agent.id not in busy | called for agent in members)
            counts = {"composing": composing, "waiting": waiting, "done": len(members) - composing - waiting}
            status = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
            style = "cyan" if composing else "dim"
            grid.add_row(
                Text(f"  level {level}", style="bold"), Text(count(len(members), members[0].role)), Text(status, style)
            )

    def longest_in_flight(self, limit: int) -> list[Agent]:
        """Return agents with a call in flight, longest first."""
        state = self.progress.state
        keys = sorted(state.flying, key=self.progress.seconds_in_flight, reverse=True)
        by_id = {agent.id: agent for agent in state.agents}
        return [by_id[state.flying[key].agent] for key in keys if state.flying[key].agent in by_id][: max(limit, 0)]

    def _head(self) -> Text:
        head = Text(self._title, style="bold", no_wrap=True, overflow="ellipsis")
        if self._loading:
            head.append(f" · {self._loading}", style="cyan")
        elif places := list(dict.fromkeys(describe_place(key) for key in self.progress.state.flying)):
            head.append(f" · {' | '.join(places[:3])}", style="cyan")
        head.append(f" · {duration(round(self.progress.seconds))}", style="dim")
        if left := self.progress.time_left:
            head.append(f" · {left}", style="dim")
        return head

    def _status(self, agent: Agent) -> Text:
        state = self.progress.state
        if key := next((key for key, call in state.flying.items() if call.agent == agent.id), None):
            return Text(f"composing {duration(round(self.progress.seconds_in_flight(key)))}", style="cyan")
        calls = [call for call in state.calls if call.agent == agent.id]
        if calls and isinstance(calls[-1], CallFailed | ReplyRejected):
            return Text(f"failed: {calls[-1].failure.value}", style="yellow")
        replies = sum(isinstance(call, CallCompleted) for call in calls)
        return Text(f"done · {replies}", style="green") if replies else Text("waiting", style="dim")

    def _foot(self, max_calls: int) -> Grid:
        state = self.progress.state
        foot = Grid.grid(padding=(0, 2))
        foot.add_column()
        foot.add_column()
        foot.add_column(no_wrap=True, overflow="ellipsis")
        figures = self.progress.totals
        if state.checks and (score := score_words(state.checks[-1])):
            figures += f" · {score}"
        bar = ProgressBar(total=max(max_calls, 1), completed=min(state.made, max_calls), width=16)
        foot.add_row(Text(" "), bar, Text(figures))
        return foot


class ComparisonProgress(Display):
    """Progress of the `total` runs of a comparison: a bar on a terminal, elsewhere a line per run."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        super().__init__()
        self.total, self.done, self.calls = total, 0, 0
        self.recorded = False
        """Whether any event was recorded."""
        self._quiet = quiet
        self._now = ""
        self._opened = time.monotonic()
        self._bar: Progress | None = None
        if not quiet and can_draw_over(sys.stderr):
            columns = (MofNCompleteColumn(), BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4)
            self._row = self._bar.add_task("", total=total)
            self._bar.start()

    @property
    def observer(self) -> CompareObserver:
        return CompareObserver(begins=self._begins, event=self.observe, ended=self._ended)

    def observe(self, event: Event) -> None:
        self.recorded = True
        self.calls += isinstance(event, CallCompleted)

    def tick(self) -> None:
        status = f"{self._now} · {count(self.calls, 'call')} · {duration(round(time.monotonic() - self._opened))}"
        if self._bar:
            self._bar.update(self._row, description=status)
        elif not self._quiet and self._is_heartbeat_due:
            self._print(f"… {self.done} of {self.total}: {status}")

    def loading(self, what: str) -> None:
        self._now = what
        if what and not self._bar and not self._quiet:
            self._print(what)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()

    def _begins(self, row: str, task: Task, seed: int) -> None:
        self._now = one_line(f"{row} on {task.id}", 60)

    def _ended(self, run: Run) -> None:
        self.done += 1
        if self._bar:
            self._bar.update(self._row, completed=self.done)
        elif not self._quiet:
            self._print(f"{self.done} of {self.total}: {run_line(run)}")

    def _write(self, line: str, style: str) -> None:
        if self._bar:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            notify(line)


def run_line(run: Run) -> str:
    """Return `solo on split-01: 12, wrong; 1 call, 310 tokens, 4.2 s`."""
    verdict = {True: ", right", False: ", wrong", None: ""}[run.correct if run.answered else None]
    answer = one_line(run.position or run.answer or "", 60) if run.answered else "no answer"
    usage = f"{count(run.calls, 'call')}, {count(run.tokens, 'token')}, {duration(run.seconds)}"
    return f"{run.row} on {run.task}: {answer}{verdict}; {'recorded before' if run.recorded else usage}"


def open_display(before: Iterable[Event] = (), *, title: str, quiet: bool) -> Display:
    """Return a table on a terminal that can be redrawn, lines elsewhere, only messages if `quiet`."""
    if quiet:
        return Display()
    if can_draw_over(sys.stderr) and can_draw_over(sys.stdout):
        return Table(before, title=title)
    return Lines(before, title=title)


@asynccontextmanager
async def ticking(screen: Display) -> AsyncIterator[Display]:
    """Tick while the block runs, then close the display."""

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            screen.tick()

    task = asyncio.create_task(tick())
    try:
        yield screen
    finally:
        task.cancel()
        screen.close()
