"""The result of a comparison as data: runs, rows over all their runs, differences to the references."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from consilience.domain.outcome import CUT_SHORT, StopReason
from consilience.domain.report import Frozen
from consilience.domain.validation import UserWritten

Match = Literal["tokens", "calls", "cost"]


class Budget(UserWritten):
    """What every run may spend, in tokens or in calls.

    Calls are reserved at their max size, so a run exceeds its budget only if a text has more tokens than estimated; the notes
    name such runs.

    With neither limit, runs are *matched*: the limit is the max need of the most expensive protocol, so that it cuts no run. A
    resizable row (`vote`, `solo+reviews`) gets the size that costs as much as the most expensive other row spent on the same
    task with the same seed.
    """

    tokens: Annotated[int, Field(ge=1)] | None = None
    """Input and output tokens."""
    calls: Annotated[int, Field(ge=1)] | None = None
    """Requests, including repairs and retries."""
    match: Match = "tokens"
    """The unit in which resizable rows are matched: tokens, calls, or US dollars."""

    @property
    def matched(self) -> bool:
        return self.tokens is None and self.calls is None


class RowSetup(Frozen):
    """A row of the table: a protocol with its settings."""

    row: str
    protocol: str
    settings: dict[str, object]
    sized: bool = False
    """Its size was chosen to match the budget."""
    ceiling: bool = False
    """It sees every private source and is not compared with other rows."""


class Run(Frozen):
    """One row on one task with one seed."""

    row: str
    task: str
    split: str = ""
    seed: int
    session: str
    """Its session in the journal."""
    size: int | None = None
    """Calls of a row that was sized."""
    answer: str | None
    position: str | None
    answered: bool
    correct: bool | None
    """None if the task has no reference."""
    error: float | None = None
    """As in `Score`."""
    orders: float | None = None
    """As in `Score`."""
    stop_reason: StopReason
    degraded: str | None = None
    limit: int
    """Max tokens, or requests if the budget is in calls."""
    calls: int
    requests: int = 0
    """Requests sent for the calls, including repairs and retries."""
    lost: int = 0
    """Calls in flight when a process ended; in no other figure."""
    tokens_in: int
    tokens_out: int
    cost: float | None
    """US dollars; None if a price is unknown."""
    seconds: float
    """Wall time."""
    draft_similarity: float | None = None
    """Mean pairwise Jaccard similarity of first drafts."""
    voices: int = 0
    """Agents that wrote a first draft."""
    effective: float | None = None
    """How many independent voices they count as, if known."""
    changes: int = 0
    """Changes of position."""
    conformity: int = 0
    """Those of them that cite no argument."""
    recorded: bool = False
    """It had finished before this comparison ran."""

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out

    def spent(self, match: Match) -> float | None:
        """Return the cost of the run in that unit; None if a price is unknown."""
        return {"tokens": self.tokens, "calls": self.calls, "cost": self.cost}[match]


class RowResult(Frozen):
    """A row over all its runs. Numbers that are not counts are means over runs."""

    row: str
    ceiling: bool = False
    tasks: int
    runs: int
    scored: int
    right: int
    unanswered: int
    accuracy: float | None
    """Mean over tasks of the share of correct repeats."""
    tokens: float
    calls: float
    cost: float | None
    seconds: float
    spent: float
    """Mean share of the limit that was spent, in requests or tokens."""
    draft_similarity: float | None
    voices: float
    changes: int
    conformity: int
    holds: float | None
    """Mean over tasks of the share of repeats with the most frequent position; None without repeats."""
    orders: float | None
    """Mean distance in orders of magnitude, over the runs that have one."""
    stops: dict[StopReason, int] = {}
    """Runs by stop reason, the most frequent first."""

    @property
    def cut_short(self) -> int:
        """Runs that a limit or a cancel ended early."""
        return sum(n for reason, n in self.stops.items() if reason in CUT_SHORT)


Verdict = Literal["won", "lost", "cannot tell"]


class Difference(Frozen):
    """`row` against `reference` on the same tasks, by the share of correct repeats of each task."""

    row: str
    reference: str
    tasks: int
    difference: float
    """Mean over tasks of the difference in that share."""
    low: float
    """The 95 % paired bootstrap interval of `difference`."""
    high: float
    better: int
    """Tasks on which `row` was right in more of the repeats. With one repeat: tasks that it alone got right."""
    worse: int
    test: Literal["mcnemar", "sign-flip"]
    """McNemar's exact test if each task was run once, else a sign-flip test on the tasks' differences."""
    p: float
    """Two-sided."""
    detectable: float | None
    """The true difference that such a set shows with probability 0.8; None if it can show none."""
    verdict: Verdict
    """`won` or `lost` if p < 0.05 and the interval excludes 0."""


class Comparison(Frozen):
    schema_version: int = 2
    name: str
    models: tuple[str, ...]
    budget: Budget
    seeds: tuple[int, ...]
    tasks: tuple[str, ...]
    setups: tuple[RowSetup, ...]
    runs: tuple[Run, ...]
    rows: tuple[RowResult, ...]
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()

    def of(self, row: str) -> list[Run]:
        """The runs of a row, in order of tasks, then seeds."""
        return [run for run in self.runs if run.row == row]
