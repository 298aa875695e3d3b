"""A run on a terminal: one row per agent, one line of figures, redrawn at most four times a second."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from consilience.cli.progress import Watched, ended_line, other_line, score_words, totals
from consilience.domain.agents import Agent
from consilience.domain.events import CallFailed, CallStarted, Event, ReplyRejected
from consilience.reporting.course import Ended
from consilience.reporting.words import duration, place, seats, view

_ROOM = 8
"""Lines of the screen that are not rows of agents."""


class Table:
    """The live table; gone from the screen when it closes. Failures stay, as lines above it."""

    def __init__(self, before: Iterable[Event] = (), *, title: str, loading: str = "") -> None:
        self.watched = Watched(before)
        self._title = title
        self._loading = loading
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
        if isinstance(event, Ended):
            self._loading = ""
        if isinstance(event, CallFailed | ReplyRejected):
            names = seats(self.watched.course.agents)
            line = ended_line(event, names) or other_line(event, names)
            self._console.print(Text(line, style="yellow"))

    def tick(self) -> None:
        self._live.update(self._screen(), refresh=True)

    def tell(self, text: str) -> None:
        self._console.print(Text(text))

    def close(self) -> None:
        self._live.stop()

    def _screen(self) -> Group:
        course = self.watched.course
        parts: list[Text | Grid] = [self._head()]
        shown = self._rows(max(3, self._console.height - _ROOM))
        grid = Grid.grid(padding=(0, 2))
        for agent in shown:
            grid.add_row(
                Text(f"  {agent.id}", style="bold"), Text(view(agent), overflow="ellipsis"), self._state(agent)
            )
        parts.append(grid)
        if len(shown) < len(course.agents):
            parts.append(Text(f"  … and {len(course.agents) - len(shown)} more agents", style="dim"))
        parts.append(self._foot())
        return Group(*parts)

    def _head(self) -> Text:
        course = self.watched.course
        head = Text(self._title, style="bold")
        if self._loading:
            head.append(f" · {self._loading}", style="cyan")
        elif places := list(dict.fromkeys(place(key) for key in course.flying)):
            head.append(f" · {' | '.join(places[:3])}", style="cyan")
        head.append(f" · {duration(round(self.watched.seconds))}", style="dim")
        return head

    def _rows(self, most: int) -> list[Agent]:
        """All agents, or where they do not fit, those at work first."""
        agents = list(self.watched.course.agents)
        if len(agents) <= most:
            return agents
        busy = {call.agent for call in self.watched.course.flying.values()}
        return sorted(agents, key=lambda agent: agent.id not in busy)[:most]

    def _state(self, agent: Agent) -> Text:
        course = self.watched.course
        mine = [call for call in course.flying.values() if call.agent == agent.id]
        if mine and not self._loading:
            return self._composing(mine[0])
        last = next((call for call in reversed(course.calls) if call.agent == agent.id), None)
        if isinstance(last, CallFailed):
            return Text(f"failed: {last.failure.value}", style="yellow")
        replies = sum(call.agent == agent.id for call in course.calls)
        return Text(f"done · {replies}", style="green") if replies else Text("waiting", style="dim")

    def _composing(self, call: CallStarted) -> Text:
        return Text(f"composing {duration(round(self.watched.composing(call.key)))}", style="cyan")

    def _foot(self) -> Grid:
        course = self.watched.course
        foot = Grid.grid(padding=(0, 2))
        most = course.started.estimate.max if course.started else 1
        figures = totals(course)
        if course.checks and (score := score_words(course.checks[-1])):
            figures += f" · {score}"
        foot.add_row(
            Text(" "), ProgressBar(total=max(most, 1), completed=min(course.made, most), width=24), Text(figures)
        )
        return foot
