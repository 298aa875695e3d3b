"""A run on a terminal: one row per agent, one line of figures, redrawn at most four times a second."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from consilience.cli.display import Watched, ended_line, score_words, totals
from consilience.domain.agents import Agent
from consilience.domain.events import CallCompleted, CallFailed, CallStarted, Event, ReplyRejected
from consilience.reporting.formatting import count, describe_agent, describe_place, duration, seat_labels

_ROOM = 6
"""Lines of the screen that are not rows: head, foot, and what was written above."""


class Table:
    """The live table; gone from the screen when it closes. Failures stay, as lines above it."""

    def __init__(self, before: Iterable[Event] = (), *, title: str) -> None:
        self.watched = Watched(before)
        self._title = title
        self._loading = ""
        self._held: list[Text] | None = None
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
        self.watched.take(event)
        if isinstance(event, CallFailed | ReplyRejected):
            names = seat_labels(self.watched.course.agents)
            line = ended_line(event, names, self.watched.course.repairs)
            self._print(Text(line, style="yellow"))

    def tick(self) -> None:
        if self._held is None:
            self._live.update(self._screen(), refresh=True)

    def tell(self, text: str) -> None:
        self._print(Text(text))

    def loading(self, what: str) -> None:
        self._loading = what
        self.tick()

    def aside(self, silent: bool) -> None:
        held, self._held = self._held, [] if silent else None
        if silent:
            self._live.stop()
        else:
            for line in held or ():
                self._console.print(line)
            self._live.start()

    def close(self) -> None:
        self._live.stop()
        for line in self._held or ():
            self._console.print(line)
        self._held = []

    def _print(self, line: Text) -> None:
        if self._held is None:
            self._console.print(line)
        else:
            self._held.append(line)

    def _screen(self) -> Group:
        agents = list(self.watched.course.agents)
        room = max(3, self._console.height - _ROOM)
        grid = Grid.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_column(no_wrap=True)
        if len(agents) > room:
            self._add_levels(grid)
            agents = self.longest_at_work(room - grid.row_count)
        for agent in agents:
            grid.add_row(Text(f"  {agent.id}", style="bold"), Text(describe_agent(agent)), self._state(agent))
        if self.watched.course.started is None:
            return Group(self._head())
        return Group(self._head(), grid, self._foot(self.watched.course.started.estimate.max))

    def _add_levels(self, grid: Grid) -> None:
        """One row for every level of a tree with more agents than the screen has lines."""
        course = self.watched.course
        levels = course.started.topology.levels if course.started else {}
        busy = {call.agent for call in course.flying.values()}
        heard = {call.agent for call in course.calls}
        for level in sorted(set(levels.values())):
            members = [agent for agent in course.agents if levels.get(agent.id) == level]
            composing = sum(agent.id in busy for agent in members)
            waiting = sum(agent.id not in busy | heard for agent in members)
            parts = [f"{composing} composing" * bool(composing), f"{waiting} waiting" * bool(waiting)]
            done = len(members) - composing - waiting
            parts.append(f"{done} done" * bool(done))
            said = Text(", ".join(filter(None, parts)), style="cyan" if composing else "dim")
            grid.add_row(Text(f"  level {level}", style="bold"), Text(count(len(members), members[0].role)), said)

    def longest_at_work(self, most: int) -> list[Agent]:
        """Agents that compose, those that do so longest first."""
        course = self.watched.course
        ids = sorted(course.flying, key=lambda key: -self.watched.composing(key))
        by_id = {agent.id: agent for agent in course.agents}
        return [by_id[course.flying[key].agent] for key in ids if course.flying[key].agent in by_id][: max(most, 0)]

    def _head(self) -> Text:
        course = self.watched.course
        head = Text(self._title, style="bold", no_wrap=True, overflow="ellipsis")
        if self._loading:
            head.append(f" · {self._loading}", style="cyan")
        elif places := list(dict.fromkeys(describe_place(key) for key in course.flying)):
            head.append(f" · {' | '.join(places[:3])}", style="cyan")
        head.append(f" · {duration(round(self.watched.seconds))}", style="dim")
        if left := self.watched.left:
            head.append(f" · {left}", style="dim")
        return head

    def _state(self, agent: Agent) -> Text:
        course = self.watched.course
        mine = [call for call in course.flying.values() if call.agent == agent.id]
        if mine:
            return self._composing(mine[0])
        last = next((call for call in reversed(course.calls) if call.agent == agent.id), None)
        if isinstance(last, CallFailed | ReplyRejected):
            return Text(f"failed: {last.failure.value}", style="yellow")
        replies = sum(call.agent == agent.id and isinstance(call, CallCompleted) for call in course.calls)
        return Text(f"done · {replies}", style="green") if replies else Text("waiting", style="dim")

    def _composing(self, call: CallStarted) -> Text:
        return Text(f"composing {duration(round(self.watched.composing(call.key)))}", style="cyan")

    def _foot(self, most: int) -> Grid:
        course = self.watched.course
        foot = Grid.grid(padding=(0, 2))
        foot.add_column()
        foot.add_column()
        foot.add_column(no_wrap=True, overflow="ellipsis")
        figures = totals(course)
        if course.checks and (score := score_words(course.checks[-1])):
            figures += f" · {score}"
        foot.add_row(
            Text(" "), ProgressBar(total=max(most, 1), completed=min(course.made, most), width=16), Text(figures)
        )
        return foot
