"""What is seen of a comparison while it runs: a line a run where there is no terminal, a bar where there is one."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from consilience.cli.failures import say
from consilience.cli.output import can_draw_over
from consilience.cli.progress import HEARTBEAT
from consilience.domain.events import CallCompleted, Event
from consilience.evaluation import Observer, Run, Task
from consilience.reporting.words import count, duration, one_line

if TYPE_CHECKING:
    from rich.progress import Progress


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
            self._print(f"{self.done} of {self.total}: {ended_line(run)}")

    def _print(self, text: str) -> None:
        self._last = time.monotonic()
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            say(text)


def ended_line(run: Run) -> str:
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
