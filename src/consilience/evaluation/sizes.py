"""How large a row of any size is made, and what is to be said where that did not go as meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from consilience.domain.events import CallCompleted, CallFailed, Event, ReplyRejected
from consilience.evaluation.results import Run
from consilience.evaluation.rows import Row
from consilience.evaluation.taskfile import Task
from consilience.reporting.words import count

FAR = 2
"""A row of any size that cost so many times more or less than it was to is named."""


@dataclass(frozen=True)
class Price:
    """Tokens of a call of somebody who holds nothing private, and those that what is private costs in all.

    `sure`: it was learnt from such calls; else `why` says how the last of them failed. `each` is 0 where nobody answered, and
    `greatest` where it stands for the most that a call can cost.
    """

    each: float = 0.0
    private: float = 0.0
    sure: bool = False
    why: str = ""
    greatest: bool = False


@dataclass(frozen=True)
class Size:
    """`calls` of the `most` that surely fit; without a `price` they are all that fit. `lost` calls of its probes were in flight
    when a process ended."""

    calls: int
    most: int
    price: Price | None = None
    probes: int = 0
    lost: int = 0

    def notes(self, run: Run, dearest: int) -> list[str]:
        """What is to be said of a run of this size, where the dearest other row spent so much."""
        if self.price is None:
            return []
        said = []
        where = f"{run.row} on task {run.task}, seed {run.seed}"
        cost = f"it cost {run.tokens:,} tokens where the dearest other row spent {dearest:,}"
        if not self.price.sure:
            why = f" ({self.price.why})" if self.price.why else ""
            counted = (
                "the most that a call can cost"
                if self.price.greatest
                else "what those cost that read private documents"
            )
            said.append(
                f"{where}: what a call costs was not told by {count(self.probes, 'probe')}{why}; "
                f"its size of {run.size} follows from {counted}, and {cost}."
            )
        elif self._far(run, dearest):
            said.append(
                f"{where}: its size of {run.size} is far from the one to be matched: {cost}; the probe told "
                f"{self.price.each:,.0f} a call, and the run took {run.tokens / max(run.calls, 1):,.0f}."
            )
        if self.lost:
            said.append(f"{where}: {count(self.lost, 'call')} of its probes lost in flight, perhaps paid for.")
        return said

    def _far(self, run: Run, dearest: int) -> bool:
        """Too small, and there was room; or too large, and it could have been smaller."""
        if run.tokens * FAR < dearest:
            return self.calls < self.most
        return run.tokens > FAR * dearest and self.calls > 1


def price_of(row: Row, task: Task, events: Iterable[Event]) -> Price:
    """What a probe tells. At any size everything private is shown once: to seats of its own, or to those that it wraps onto.
    Where nobody without it answered, all calls count alike."""
    holders, tokens, calls, why = row.holders(task), Counter[bool](), Counter[bool](), ""
    for event in events:
        if isinstance(event, (CallCompleted, ReplyRejected)):
            tokens[event.agent in holders] += event.tokens_in + event.tokens_out
            calls[event.agent in holders] += isinstance(event, CallCompleted)
        elif isinstance(event, CallFailed):
            why = event.failure.value
    if tokens[False] and calls[False]:
        each = tokens[False] / calls[False]
        return Price(each, max(tokens[True] - each * calls[True], 0.0), sure=True)
    if tokens.total() and calls.total():
        return Price(tokens.total() / calls.total(), sure=len(holders) >= len(row.protocol.first_seats), why=why)
    return Price(why=why)
