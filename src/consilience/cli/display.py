"""Progress on standard error of a run or a comparison: redrawn on a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from consilience.cli.errors import can_draw_over, notify
from consilience.domain.agents import Agent
from consilience.domain.events import (
    AnyEvent,
    CallCompleted,
    CallFailed,
    CallStarted,
    Event,
    MessagePublished,
    Noted,
    ReplyRejected,
    SessionStarted,
)
from consilience.domain.report import UnfinishedSession, find_report
from consilience.domain.sections import ProgressColumn
from consilience.models.limiter import pauses
from consilience.reporting.event_lines import event_line, score_words
from consilience.reporting.formatting import (
    count,
    describe_agent,
    describe_output_tokens,
    duration,
    format_range,
    one_line,
    price,
    seat_labels,
    time_range,
)
from consilience.reporting.session_state import SessionState
from consilience.reporting.terminal import wrapped

HEARTBEAT_SECONDS = 10.0
"""Silence after which a line shows that the run is alive."""
TICK_SECONDS = 0.25
HANG_FACTOR = 5
"""A call that takes so many times longer than the longest one before it leaves no estimate of the remaining time."""
_OTHER_LINES = 6
"""Lines of the screen around the rows of agents: head, foot and messages above."""


class Progress(Protocol):
    """What a display shows of a run or a comparison."""

    loading: str
    """What the run waits for before it can start; empty if nothing."""

    def take(self, event: Event) -> str:
        """Record an event; return its line, "" for none."""

    @property
    def heartbeat(self) -> str:
        """The state in one line."""

    def screen(self, height: int, width: int = 100) -> Group:
        """The state as a picture that is redrawn."""


class Display:
    """Shows progress on standard error: redrawn on a terminal, elsewhere as a line per event and a heartbeat.

    `observe` gets every event when it is recorded. `tick` is called every `TICK_SECONDS`. A quiet display prints only messages.
    """

    def __init__(self, progress: Progress, *, quiet: bool = False) -> None:
        self.progress = progress
        self._quiet = quiet
        self._last = time.monotonic()
        self._held: list[tuple[str, str]] | None = None
        self._live: Live | None = None
        if not quiet and can_draw_over(sys.stderr) and can_draw_over(sys.stdout):
            console = Console(stderr=True, highlight=False)
            self._live = Live(
                console=console,
                get_renderable=lambda: progress.screen(console.height, console.width),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def observe(self, event: Event) -> None:
        """Show a recorded event."""
        line = self.progress.take(event)
        if isinstance(event, CallFailed | ReplyRejected) and line:
            self.warn(line)
        else:
            self.line(line)

    def warn(self, line: str) -> None:
        """Print a line of progress that a redrawn screen would not show."""
        if self._live:
            self.tell(line, "yellow")
        else:
            self.line(line)

    def line(self, line: str) -> None:
        """Print a line of progress, if progress is printed as lines."""
        if line and not self._live and not self._quiet:
            self.tell(line)

    def tick(self) -> None:
        """Redraw, or print a heartbeat."""
        if self._held is not None or self._quiet:
            return
        if self._live:
            self._live.refresh()
        elif time.monotonic() - self._last >= HEARTBEAT_SECONDS:
            self.tell(f"… {self.progress.heartbeat}")

    def loading(self, subject: str) -> None:
        """Show what the run waits for before it can start; "" when it is there."""
        self.progress.loading = subject
        self.line(subject)
        if self._live:
            self.tick()

    def aside(self, silent: bool) -> None:
        """Hold back all output while a person is asked (`silent`), then print it."""
        if self._live and silent:
            self._live.stop()
        lines_held, self._held = self._held, [] if silent else None
        for line, style in lines_held or ():
            self.tell(line, style)
        if self._live and not silent:
            self._live.start()

    def close(self) -> None:
        """Leave the screen clean."""
        if self._live:
            self._live.stop()
        lines_held, self._held = self._held, None
        for line, style in lines_held or ():
            self.tell(line, style)

    def tell(self, line: str, style: str = "") -> None:
        """Print a message."""
        if self._held is not None:
            self._held.append((line, style))
            return
        self._last = time.monotonic()
        if self._live:
            self._live.console.print(Text(line, style=style))
        else:
            notify(line)


def _pause_words() -> str:
    """Return for which rate limits requests wait; empty if none does."""
    words = [f"{account} for {duration(round(seconds))}" for account, seconds in pauses().items()]
    return f"waiting for the rate limit of {', '.join(words)}" if words else ""


class RunProgress:
    """Progress of a run. `before` are the events of earlier processes; `text` returns a stored text by its id."""

    def __init__(
        self, recorded_events: Iterable[Event] = (), *, title: str = "", text: Callable[[str], str] | None = None
    ) -> None:
        self.state = SessionState()
        self._text = text
        self._column_events: list[AnyEvent] = []
        self._columns: Sequence[ProgressColumn] | None = None
        """The protocol's columns; None if events came since they were made."""
        self.loading = ""
        self._title = title
        self._call_started: dict[str, float] = {}
        self._opened = time.monotonic()
        for event in recorded_events:
            self._record(event)
        self.state.flying.clear()
        self._seconds_before = self.state.seconds
        self._first_start: float | None = None
        self._last_end = 0.0
        self._longest = 0.0
        """Seconds of the longest call that ended in this process."""
        self._ended = 0

    def take(self, event: Event) -> str:
        """Record an event; return its line, "" for none."""
        self._record(event)
        now = time.monotonic()
        if isinstance(event, CallStarted):
            self._call_started[event.key] = now
            self._first_start = now if self._first_start is None else self._first_start
        elif isinstance(event, CallCompleted | CallFailed) and self._first_start is not None:
            self._ended += 1
            self._longest = max(self._longest, now - self._call_started.get(event.key, now))
            self._last_end = now
        if isinstance(event, SessionStarted) and self._title:
            return f"{self._title} begins"
        return event_line(event, self.state)

    def _record(self, event: Event) -> None:
        self.state.take(event)
        if isinstance(event, SessionStarted | MessagePublished | Noted):
            self._column_events.append(event)
            self._columns = None

    @property
    def columns(self) -> Sequence[ProgressColumn]:
        """The protocol's columns; none if it has none or its code fails, since progress must not end a run."""
        if self._columns is None:
            self._columns = ()
            started = self.state.started
            if self._text is not None and started is not None:
                with suppress(Exception):
                    progress = UnfinishedSession(started, self._column_events, self._text)
                    self._columns = find_report(started.protocol).progress(progress).columns
        return self._columns

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

        Parallel calls count as they do in the mean, so only a change of their number makes the estimate wrong. It
        changes when a call ends. One that has passed is not repeated.
        """
        estimate = self.state.started.estimate if self.state.started else None
        if estimate is None or self._first_start is None or not self._ended:
            return ""
        if max(map(self.seconds_in_flight, self.state.flying), default=0.0) > HANG_FACTOR * max(self._longest, 1.0):
            return ""  # a call that hangs follows no pace
        per_call = (self._last_end - self._first_start) / self._ended
        low, high = (max(n - self.state.made, 0) * per_call for n in (estimate.min, estimate.max))
        return f"{time_range(low, high)} left" if high > time.monotonic() - self._last_end else ""

    @property
    def totals(self) -> str:
        """Calls out of the estimate, tokens, cost, and whether the reserve for the answer is intact."""
        state = self.state
        estimate = state.started.estimate if state.started else None
        out_of = f" of {format_range(estimate.min, estimate.max)}" if estimate else ""
        output_tokens = describe_output_tokens(state.tokens_out, state.tokens_thought)
        limits = state.started.limits if state.started else None
        reserve = ""
        if limits is not None and (limits.calls, limits.tokens, limits.cost) != (None, None, None):
            drawn = any(call.reserve for call in state.calls)
            reserve = f", reserve for the closing answer {'in use' if drawn else 'unused'}"
        return f"{state.made}{out_of} calls, {state.tokens_in:,} tokens read, {output_tokens}, {price(state.cost)}{reserve}"

    @property
    def heartbeat(self) -> str:
        """Elapsed time, and what the run waits for."""
        elapsed, in_flight = duration(self.seconds), self.state.flying
        if self.loading:
            return f"{elapsed}: {self.loading}"
        if not in_flight:
            return f"{elapsed}: {self.totals}"
        if paused := _pause_words():
            return f"{elapsed}: {self.totals}; {paused}"
        names = seat_labels(self.state.agents)
        agents = [names.get(call.agent, call.agent) for call in in_flight.values()]
        rest_note = f" and {len(agents) - 4} more" if len(agents) > 4 else ""
        waiting = f"waiting for {', '.join(dict.fromkeys(agents[:4]))}{rest_note}"
        longest = duration(max(map(self.seconds_in_flight, in_flight)))
        time_left = f", {self.time_left}" if self.time_left else ""
        return f"{elapsed}{time_left}: {self.totals}; {waiting}, longest {longest}"

    def screen(self, height: int, width: int = 100) -> Group:
        """Return a table with one row per agent, or per level if there are more agents than lines; below it the protocol's
        columns, if there is room."""
        state = self.state
        if state.started is None:
            return Group(self._head())
        agents = list(state.agents)
        room = max(3, height - _OTHER_LINES)
        grid = Grid.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_column(no_wrap=True)
        if len(agents) > room:
            self._add_levels(grid)
            agents = self.longest_in_flight(room - grid.row_count)
        for agent in agents:
            grid.add_row(Text(f"  {agent.id}", style="bold"), Text(describe_agent(agent)), self._status(agent))
        figures = self.totals
        if state.checks and (score := score_words(state.checks[-1])):
            figures += f" · {score}"
        names = seat_labels(state.agents)
        columns = columns_grid(
            self.columns, state.flying.values(), names, width, height - _OTHER_LINES - grid.row_count
        )
        rows = [grid, Text(""), columns] if columns is not None else [grid]
        return Group(self._head(), *rows, progress_bar(" ", state.made, state.started.estimate.max, figures))

    def _add_levels(self, grid: Grid) -> None:
        """Add one row per level, for a tree with more agents than the screen has lines."""
        state = self.state
        levels = state.started.topology.levels if state.started else {}
        busy_agents = {call.agent for call in state.flying.values()}
        called_agents = {call.agent for call in state.calls}
        for level in sorted(set(levels.values())):
            members = [agent for agent in state.agents if levels.get(agent.id) == level]
            composing = sum(agent.id in busy_agents for agent in members)
            waiting = sum(agent.id not in busy_agents | called_agents for agent in members)
            counts = {"composing": composing, "waiting": waiting, "done": len(members) - composing - waiting}
            status = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
            style = "cyan" if composing else "dim"
            grid.add_row(
                Text(f"  level {level}", style="bold"), Text(count(len(members), members[0].role)), Text(status, style)
            )

    def longest_in_flight(self, limit: int) -> list[Agent]:
        """Return agents with a call in flight, longest first."""
        state = self.state
        keys = sorted(state.flying, key=self.seconds_in_flight, reverse=True)
        by_id = {agent.id: agent for agent in state.agents}
        return [by_id[state.flying[key].agent] for key in keys if state.flying[key].agent in by_id][: max(limit, 0)]

    def _head(self) -> Text:
        line = Text(self._title, style="bold", no_wrap=True, overflow="ellipsis")
        if self.loading:
            line.append(f" · {self.loading}", style="cyan")
        elif places := list(dict.fromkeys(self.state.place(key) for key in self.state.flying)):
            line.append(f" · {' | '.join(places[:3])}", style="cyan")
        if paused := _pause_words():
            line.append(f" · {paused}", style="yellow")
        line.append(f" · {duration(round(self.seconds))}", style="dim")
        if self.time_left:
            line.append(f" · {self.time_left}", style="dim")
        return line

    def _status(self, agent: Agent) -> Text:
        state = self.state
        if key := next((key for key, call in state.flying.items() if call.agent == agent.id), None):
            return Text(f"composing {duration(round(self.seconds_in_flight(key)))}", style="cyan")
        calls = [call for call in state.calls if call.agent == agent.id]
        if calls and isinstance(calls[-1], CallFailed | ReplyRejected):
            return Text(f"failed: {calls[-1].failure.value}", style="yellow")
        replies = sum(isinstance(call, CallCompleted) for call in calls)
        return Text(f"done · {replies}", style="green") if replies else Text("waiting", style="dim")


# --- columns of the protocol

MIN_COLUMN_CELLS, MIN_COLUMN_LINES = 30, 4
LINES_PER_ENTRY = 3


def columns_grid(
    columns: Sequence[ProgressColumn], flying: Iterable[CallStarted], names: dict[str, str], width: int, lines: int
) -> Grid | None:
    """Return columns side by side in so many lines, with the agents composing in each; None if there is no room for one."""
    shown = columns[: max(width // MIN_COLUMN_CELLS, 0)]
    if not shown or lines < MIN_COLUMN_LINES:
        return None
    wide = width // len(shown) - 2
    calls = list(flying)
    grid = Grid.grid(padding=(0, 2), expand=True)
    for _ in shown:
        grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    composing = [[names.get(call.agent, call.agent) for call in calls if column.has(call.key)] for column in shown]
    grid.add_row(*(Text(one_line(column.heading), style="bold") for column in shown))
    grid.add_row(*(Text(f"[{column.badge}]", style="cyan") for column in shown))
    grid.add_row(*(Text(f"composing: {', '.join(who)}" if who else "", style="cyan") for who in composing))
    grid.add_row(*(Text("\n".join(_last_lines(column, wide, lines - 3))) for column in shown))
    return grid


def _last_lines(column: ProgressColumn, width: int, room: int) -> list[str]:
    entries = [line for entry in column.lines for line in wrapped(entry, width, LINES_PER_ENTRY)]
    return entries[-max(room, 0) :] if room > 0 else []


def progress_bar(lead: str, done: int, total: int, words: str) -> Grid:
    row = Grid.grid(padding=(0, 2))
    row.add_column()
    row.add_column()
    row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_row(Text(lead), ProgressBar(total=max(total, 1), completed=min(done, total), width=16), Text(words))
    return row


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
