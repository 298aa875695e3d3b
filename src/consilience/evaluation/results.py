"""The result of a comparison, as data: every run, every row over all its runs, every difference to a reference."""

from __future__ import annotations

from typing import Literal

from consilience.domain.outcome import StopReason
from consilience.domain.report import Frozen

Match = Literal["tokens", "calls", "cost"]


class Budget(Frozen):
    """What every run may spend: so many tokens, read and written, or calls, repairs and retries among them.

    Calls are reserved at their greatest size, so that no run exceeds it as long as texts are estimated to hold no fewer tokens
    than their model counts; one that does is named in the notes.

    With neither given, runs are *matched*: the bound is what the most expensive of the protocols could need at most, so that
    it cuts no run, and a row that comes in any size (`vote`, `solo+reviews`) gets the size that costs as much as the most
    expensive other row really spent on the same task with the same seed.
    """

    tokens: int | None = None
    calls: int | None = None
    match: Match = "tokens"
    """What a row of any size is made equal in, if runs are matched: tokens read and written, calls, or US dollars."""

    @property
    def matched(self) -> bool:
        return self.tokens is None and self.calls is None


class RowSetup(Frozen):
    """A row of the table: a protocol with its settings. `ceiling` rows see every private source, and are compared with nobody."""

    row: str
    protocol: str
    settings: dict[str, object]
    sized: bool = False
    ceiling: bool = False


CUT_SHORT_REASONS = (StopReason.EXHAUSTED_BUDGET, StopReason.EXHAUSTED_TIME)


class Run(Frozen):
    """One row on one task with one seed; `session` is its record in the journal.

    `correct` is None where the task has no reference; `error` and `orders` are those of `Score`. `limit` is the most tokens or
    requests it might spend. `calls` are its asks, `requests` the sendings for them, repairs and retries among them; `lost`
    calls were in flight when a process ended and are in no other figure. `tokens` are what it spent, `cost` in US dollars
    (None: not known), `seconds` its wall time.
    `likeness` is the mean pairwise Jaccard similarity of the texts given before anybody saw another's; `voices` the number of
    agents that gave one, `effective` how many independent ones they count as where that is known. `changes` are changes of
    position, `conformity` those among them that cite no argument. `size` is the number of calls of a row that was sized.
    `recorded`: it had been finished before this comparison ran.
    """

    row: str
    task: str
    split: str = ""
    seed: int
    session: str
    size: int | None = None
    answer: str | None
    position: str | None
    answered: bool
    correct: bool | None
    error: float | None = None
    orders: float | None = None
    stop_reason: StopReason
    degraded: str | None = None
    limit: int
    calls: int
    requests: int = 0
    lost: int = 0
    tokens_in: int
    tokens_out: int
    cost: float | None
    seconds: float
    likeness: float | None = None
    voices: int = 0
    effective: float | None = None
    changes: int = 0
    conformity: int = 0
    recorded: bool = False

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out

    def spent(self, match: Match) -> float | None:
        """What the run cost in that unit; None if a price is unknown."""
        return {"tokens": self.tokens, "calls": self.calls, "cost": self.cost}[match]


class RowResult(Frozen):
    """A row over all its runs. Means are over runs, `accuracy` over tasks of the share of repeats that were right.

    `holds` is the mean over tasks of the share of repeats with the most frequent position, None without repeats. `orders` is the
    mean distance in orders of magnitude over the runs that gave one. `spent` is the mean share that was spent: requests of
    the calls allowed, where the budget is of calls, else tokens of the tokens.
    `stops` counts the runs by the reason they stopped, the most frequent first.
    """

    row: str
    ceiling: bool = False
    tasks: int
    runs: int
    scored: int
    right: int
    unanswered: int
    accuracy: float | None
    tokens: float
    calls: float
    cost: float | None
    seconds: float
    spent: float
    likeness: float | None
    voices: float
    changes: int
    conformity: int
    holds: float | None
    orders: float | None
    stops: dict[StopReason, int] = {}

    @property
    def cut_short(self) -> int:
        """Runs that a limit ended before they had run their course."""
        return sum(n for reason, n in self.stops.items() if reason in CUT_SHORT_REASONS)


Verdict = Literal["won", "lost", "cannot tell"]


class Difference(Frozen):
    """`row` against `reference` on the same tasks, each task by the share of its repeats that were right."""

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
    """The true difference that such a set would have shown in four cases of five; None if it could show none."""
    verdict: Verdict
    """`won` or `lost` if p < 0.05 and the interval leaves out 0."""


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
