"""What a protocol shows of a running session, side by side: a column for each place where something goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.table import Table as Grid
from rich.text import Text

from consilience.domain.events import AnyEvent, CallStarted, Event, MessagePublished, Noted, SessionStarted
from consilience.domain.report import UnfinishedSession, find_report
from consilience.domain.sections import ProgressColumn
from consilience.reporting.formatting import one_line
from consilience.reporting.terminal import wrapped

MIN_COLUMN_CELLS, MIN_COLUMN_LINES = 30, 4
LINES_PER_ENTRY = 3


class ProgressColumns:
    """The columns of a running session, by its protocol. `text` returns a stored text by its id."""

    def __init__(self, before: Iterable[Event], text: Callable[[str], str] | None) -> None:
        self._text = text
        self._events: list[AnyEvent] = []
        self._columns: Sequence[ProgressColumn] | None = None
        """None if events came since they were made."""
        for event in before:
            self.take(event)

    def take(self, event: Event) -> None:
        if isinstance(event, SessionStarted | MessagePublished | Noted):
            self._events.append(event)
            self._columns = None

    @property
    def current(self) -> Sequence[ProgressColumn]:
        """The columns; none if the protocol has none or its code fails, since progress must not end a run."""
        if self._columns is None:
            self._columns = ()
            started = self._events[0] if self._events else None
            if self._text is not None and isinstance(started, SessionStarted):
                try:
                    progress = UnfinishedSession(started, self._events, self._text)
                    self._columns = find_report(started.protocol).progress(progress).columns
                except Exception:
                    self._columns = ()
        return self._columns


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
    composing = [
        [names.get(call.agent, call.agent) for call in calls if call.phase in column.phases] for column in shown
    ]
    grid.add_row(*(Text(one_line(column.heading), style="bold") for column in shown))
    grid.add_row(*(Text(f"[{column.badge}]", style="cyan") for column in shown))
    grid.add_row(*(Text(f"composing: {', '.join(who)}" if who else "", style="cyan") for who in composing))
    grid.add_row(*(Text("\n".join(_last_lines(column, wide, lines - 3))) for column in shown))
    return grid


def _last_lines(column: ProgressColumn, width: int, room: int) -> list[str]:
    entries = [line for entry in column.lines for line in wrapped(entry, width, LINES_PER_ENTRY)]
    return entries[-max(room, 0) :] if room > 0 else []
