"""The rows of a comparison, their budgets, and the sizes of resizable rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import variance

from consilience.domain.agents import Agent
from consilience.domain.detail import Detail
from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.events import CallCompleted, CallFailed, Event, ReplyRejected
from consilience.domain.outcome import Estimate, Limits
from consilience.domain.tokens import estimate_tokens
from consilience.engine.prompt import Opening
from consilience.engine.protocol import Protocol, find_protocol, protocol_names
from consilience.engine.sizes import CallSizes
from consilience.engine.sources import number_documents
from consilience.engine.templates import INSTRUCTIONS
from consilience.evaluation.results import Budget, Match, RowSetup, Run
from consilience.evaluation.task_file import Task
from consilience.reporting.formatting import count, money

SOLO = "solo"
"""The protocol of one call: the first reference and, with all sources, the ceiling."""

REVIEWED = "solo+reviews"
"""The row in which that protocol reviews its own answer as often as the budget allows."""

REVIEWS = "reviews"
"""The setting by which that row grows: each review is two calls, a critique and a new answer."""

REFERENCES = (SOLO, REVIEWED, "vote")
"""Rows to which the others are compared, if present."""

DEFAULT_ROWS = ("emergence", *REFERENCES)
"""The default rows: a deliberation and its references."""


USUAL_REPLY_TOKENS: Mapping[Detail, int] = {"full": 400, "brief": 150}
"""Tokens of a usual reply."""
USUAL_QUOTES = 2
USUAL_INSTRUCTION_TOKENS = 500
"""Tokens of instructions and request in a prompt."""


@dataclass(frozen=True)
class CompareRow:
    """A protocol with its settings, under its name in the table."""

    label: str
    protocol: Protocol
    ceiling: bool = False
    """It is shown every source, also private ones."""
    detail: Detail = "full"
    thinking: int = 0
    """Max thinking tokens before one reply, over all models."""
    reviewed: bool = False
    """It grows by reviews of its own answer."""

    @property
    def sizable(self) -> bool:
        """Whether its size can be chosen: the protocol is resizable and the settings name no size."""
        if self.reviewed:
            return True
        small, large = self.protocol.resized_for_calls(1), self.protocol.resized_for_calls(2)
        changed_fields = {f for f in type(small).model_fields if getattr(small, f) != getattr(large, f)}
        return bool(changed_fields) and not changed_fields & self.protocol.model_fields_set

    def on(self, task: Task) -> CompareRow:
        """Return the row with the task's answer pattern, if the protocol takes one and none was set."""
        fields = type(self.protocol).model_fields
        if (
            not task.answer_pattern
            or "answer_pattern" not in fields
            or "answer_pattern" in self.protocol.model_fields_set
        ):
            return self
        settings = self.protocol.model_dump(exclude_unset=True)
        return replace(self, protocol=type(self.protocol)(**settings, answer_pattern=task.answer_pattern))

    def at(self, detail: Detail) -> CompareRow:
        """Return the row with the prompts and the reply size of that detail."""
        return replace(self, protocol=self.protocol.with_detail(detail), detail=detail)

    def sized(self, calls: int) -> CompareRow:
        return replace(self, protocol=self.protocol.resized_for_calls(max(calls, 1)))

    def nearest(self, calls: float) -> int:
        """Return the size nearest to a number of calls, which may be fractional."""
        return max(1, 1 + 2 * round((calls - 1) / 2) if self.reviewed else round(calls))

    def call_tokens(self, task: Task) -> int:
        """Return the max tokens of one of its calls on this task."""
        return self._size(self._opening(task), self.protocol.agents(None))

    def usual_tokens(self, task: Task, calls: int) -> int:
        """Return the tokens of some calls if replies have their usual length and a call quotes up to `USUAL_QUOTES` of them."""
        reply = min(USUAL_REPLY_TOKENS[self.detail], self.protocol.max_reply_tokens)
        quotes = min(self.protocol.max_quoted_replies, USUAL_QUOTES)
        shown = [source.text for source in task.sources if source.seat is None or self.ceiling]
        read = sum(map(estimate_tokens, (task.task, *shown)))
        return calls * (USUAL_INSTRUCTION_TOKENS + read + (1 + quotes) * reply)

    def max_tokens(self, task: Task) -> int:
        return self.protocol.estimate().max * self.call_tokens(task)

    def holders(self, task: Task) -> set[str]:
        """Return the agents with private sources."""
        if self.ceiling:
            return set()
        seats = {self.protocol.seat(source.seat) for source in task.sources if source.seat is not None}
        return {seat for seat in seats if seat is not None}

    def calls_for(self, tokens: int, task: Task) -> int:
        """Return how many calls are sure to fit in `tokens`; a resizable row is sized to them.

        If every seat is asked once, each is counted with its own sources, and the last one at the max size, which the engine
        reserves for the closing call.
        """
        if self.reviewed or not self.sizable or not task.private:
            return tokens // self.call_tokens(task)
        plain = self._plain_tokens(task)
        seated = [
            source for source in task.sources if source.seat is None or self.protocol.seat(source.seat) is not None
        ]
        private = replace(self, ceiling=True).call_tokens(task.model_copy(update={"sources": tuple(seated)})) - plain
        calls = max(tokens - private + len(seated), 0) // plain  # every size reads all private sources at least once
        while calls > 0 and self.sized(calls)._run_tokens(task) > tokens:
            calls -= 1
        return calls

    def probe_size(self, task: Task) -> int:
        """Return the min size that makes `PROBE_CALLS` calls of the kind of which larger sizes have more."""
        if self.reviewed:
            return 1 + PROBE_CALLS
        seats = {source.seat for source in task.sources if source.seat is not None}
        sizes = range(1, len(seats) + PROBE_CALLS + 1)
        plain = {n: len(self.sized(n).protocol.first_speakers) - len(self.sized(n).holders(task)) for n in sizes}
        return next((n for n in sizes if plain[n] >= PROBE_CALLS), max(plain, key=plain.__getitem__))

    def _run_tokens(self, task: Task) -> int:
        max_call, calls = self.call_tokens(task), self.protocol.estimate().max
        if calls != len(self.protocol.first_speakers):
            return calls * max_call
        opening, plain = self._opening(task), self._plain_tokens(task)
        holders = self.holders(task)
        seats = [agent for agent in self.protocol.agents(None) if agent.id in holders]
        sizes = [self._size(opening, [seat]) for seat in seats]
        _, *later_sizes = sorted([*sizes, *[plain] * (calls - len(sizes))])
        return sum(later_sizes) + max_call

    def _size(self, opening: Opening, agents: Sequence[Agent]) -> int:
        return int(CallSizes(opening, self.protocol, agents, thinking_tokens={"": self.thinking}).max_call.tokens)

    def _plain_tokens(self, task: Task) -> int:
        """Return the max tokens of a call by an agent without private sources."""
        return self.call_tokens(task.model_copy(update={"sources": tuple(s for s in task.sources if s.seat is None)}))

    def _opening(self, task: Task) -> Opening:
        sources = number_documents(task.sources_for(self.protocol, everything=self.ceiling))
        templates = self.protocol.load_templates(detail=self.detail)
        return Opening(templates.render(INSTRUCTIONS, documents=bool(sources)), task.task, sources)


def rows_of(protocols: Sequence[str | Protocol | CompareRow]) -> list[CompareRow]:
    """Return rows for names, for protocols with settings, or for rows.

    Among rows of one protocol the one that is labelled so or has no settings keeps the name, else the first; the labels of the
    others include their settings. Raises `SettingsError` if two rows have the same label, `UnknownName`.
    """
    entries = [
        reviewed_row() if entry == REVIEWED else find_protocol(entry)() if isinstance(entry, str) else entry
        for entry in protocols
    ]
    named = {e.label if isinstance(e, CompareRow) else e.name for e in entries if _keeps_its_name(e)}
    rows: list[CompareRow] = []
    for entry in entries:
        if isinstance(entry, CompareRow):
            row = entry
        else:
            row = CompareRow(_label(entry, named), entry)
            named.add(entry.name)
        if any(row_so_far.label == row.label for row_so_far in rows):
            raise SettingsError(f"two rows are both {row.label!r}", do="Give them different labels or settings.")
        rows.append(row)
    if not rows:
        raise SettingsError("no row to compare", do=f"Name protocols: {', '.join(protocol_names())}.")
    return rows


def _keeps_its_name(entry: Protocol | CompareRow) -> bool:
    return isinstance(entry, CompareRow) or not _given_settings(entry)


def _label(protocol: Protocol, named: Collection[str]) -> str:
    settings = _given_settings(protocol)
    return f"{protocol.name} ({settings})" if settings and protocol.name in named else protocol.name


def reviewed_row(label: str = REVIEWED, protocol: Protocol | None = None) -> CompareRow:
    """Return the row of one call and its reviews. Raises `SettingsError` if the installed protocol has no reviews."""
    protocol = protocol or find_protocol(SOLO)()
    if REVIEWS not in type(protocol).model_fields:
        raise SettingsError(f"the installed {SOLO} cannot review its answer", do=f"Leave out {label}.")
    # unlike `solo` it has at least one review until it is sized
    return CompareRow(label, protocol.model_copy(update={REVIEWS: 1}), reviewed=True)


def ceiling_row(tasks: Sequence[Task], rows: Sequence[CompareRow]) -> CompareRow | None:
    """Return one agent with every source; None if no source is private or the protocol of one call is not installed."""
    if not any(task.private for task in tasks):
        return None
    solo = next((row.protocol for row in rows if row.protocol.name == SOLO), None)
    if solo is None:
        try:
            solo = find_protocol(SOLO)()
        except UnknownName:
            return None
    return CompareRow(f"{SOLO}, all sources", solo, ceiling=True)


def setup_of(row: CompareRow, *, sized: bool) -> RowSetup:
    protocol = row.protocol
    return RowSetup(
        row=row.label,
        protocol=protocol.name,
        settings=protocol.model_dump(mode="json"),
        sized=sized,
        ceiling=row.ceiling,
    )


@dataclass(frozen=True)
class TaskBudget:
    """What each run on one task may spend."""

    budget: Budget
    bound: int
    """Max tokens, or calls if the budget is in calls."""
    anchor: str
    """The row with the max need; it keeps its size, and the others are matched to it."""

    @property
    def limits(self) -> Limits:
        return Limits(calls=self.bound) if self.budget.calls is not None else Limits(tokens=self.bound)

    def resized(self, row: CompareRow) -> bool:
        return row.sizable and not (self.budget.matched and row.label == self.anchor)

    def max_calls(self, row: CompareRow, task: Task) -> int:
        """Return the number of calls that are sure to fit in the bound."""
        if self.budget.calls is not None:
            return self.bound
        return row.calls_for(self.bound, task) if self.resized(row) else self.bound // row.call_tokens(task)

    def probe(self, row: CompareRow, task: Task) -> CompareRow | None:
        """Return the small row that measures the cost of a call; None if the size does not depend on it."""
        if not self.budget.matched or self.budget.match == "calls" or not self.resized(row):
            return None
        return row.sized(min(row.probe_size(task), self.max_calls(row, task)))

    def call_tokens(self, row: CompareRow, task: Task) -> int:
        """Return the max tokens of a call at any size that the row may get. Before its size is known, one seat may hold all
        private sources."""
        if not self.resized(row):
            return row.call_tokens(task)
        if row.reviewed:  # every size quotes the reviewed answer
            return row.call_tokens(task)
        return row.sized(1 if self.budget.matched else self.max_calls(row, task)).call_tokens(task)

    def estimate(self, row: CompareRow, task: Task) -> Estimate:
        """Return the calls of one run. Under a matched budget a resized row makes between one call and what fits the bound."""
        limit = self.max_calls(row, task)
        if self.resized(row):
            whole = row.sized(limit).protocol.estimate()
            return Estimate(min=1, max=whole.max) if self.budget.matched else whole
        estimate = row.protocol.estimate()
        return (
            estimate
            if self.budget.calls is None
            else Estimate(min=min(estimate.min, limit), max=min(estimate.max, limit))
        )


def budget_for_task(budget: Budget, rows: Sequence[CompareRow], task: Task) -> TaskBudget:
    """Return the budget of every run on this task. Raises `SettingsError` for an invalid budget."""
    if budget.tokens is not None and budget.calls is not None:
        raise SettingsError("a budget is in tokens or in calls, not both", do="Give one of the two.")
    if budget.match != "tokens" and not budget.matched:
        raise SettingsError(
            f"runs with a given budget are not matched by {budget.match}",
            do="Leave out the budget or the unit to match.",
        )
    needs = {row.label: row.max_tokens(task) for row in rows}
    anchor = max(needs, key=needs.__getitem__)
    bound = budget.tokens if budget.calls is None else budget.calls
    return TaskBudget(budget, needs[anchor] if bound is None else bound, anchor)


def _given_settings(protocol: Protocol) -> str:
    """Return the settings that differ from the defaults, as on a command line."""
    settings = protocol.model_dump(mode="json", include=protocol.model_fields_set)
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in settings.items()
    )


SIZE_MISMATCH_FACTOR = 2
"""The notes name a resized row whose cost is off by more than this factor."""

PROBE_CALLS = 4
"""Calls whose mean is the cost of one. A single call is up to a quarter off, since replies vary."""


@dataclass(frozen=True)
class CallPrice:
    """The cost of a resizable row, in the unit that is matched."""

    each: float = 0.0
    """Cost of each further call; 0 if no agent replied."""
    fixed: float = 0.0
    """Cost at any size."""
    sure: bool = False
    """It was measured on such calls."""
    why: str = ""
    """How the last of these calls failed."""
    is_max: bool = False
    """`each` is the max cost of a call, not a measured one."""


@dataclass(frozen=True)
class RowSize:
    """The size of a resizable row."""

    calls: int
    max_calls: int
    """Calls that are sure to fit."""
    price: CallPrice | None = None
    """None if the size follows from the budget alone."""
    probes: int = 0
    lost: int = 0
    """Calls of its probes that were in flight when a process ended."""

    def notes(self, run: Run, target: float, match: Match) -> list[str]:
        """Return notes on a run of this size, if the most expensive other row spent `target`."""
        if self.price is None:
            return []
        notes = []
        amount_spent = run.spent(match) or 0.0
        run_name = f"{run.row} on task {run.task}, seed {run.seed}"
        cost = f"it cost {amount(amount_spent, match)} where the most expensive other row spent {amount(target, match)}"
        if not self.price.sure:
            price_note = f" ({self.price.why})" if self.price.why else ""
            basis = "the max cost of a call" if self.price.is_max else "the cost of calls that read private documents"
            notes.append(
                f"{run_name}: {count(self.probes, 'probe')} did not measure the cost of a call{price_note}; "
                f"its size of {run.size} follows from {basis}, and {cost}."
            )
        elif run.calls >= self.calls and self._far(amount_spent, target):
            notes.append(
                f"{run_name}: its size of {run.size} is far from the one to be matched: {cost}; the probe measured "
                f"{amount(self.price.each, match)} a call, and the run took {amount(amount_spent / max(run.calls, 1), match)}."
            )
        if self.lost:
            notes.append(f"{run_name}: {count(self.lost, 'call')} of its probes interrupted, possibly charged.")
        return notes

    def _far(self, spent: float, target: float) -> bool:
        """Whether the run was too small with room to grow, or too large and could have been smaller."""
        if spent * SIZE_MISMATCH_FACTOR < target:
            return self.calls < self.max_calls
        return spent > SIZE_MISMATCH_FACTOR * target and self.calls > 1


def amount(value: float, match: Match) -> str:
    if match == "cost":
        return money(value)
    return count(round(value), "call") if match == "calls" else f"{value:,.0f} tokens"


def price_of(row: CompareRow, task: Task, events: Iterable[Event], match: Match) -> CallPrice:
    """Return the price that a probe measured.

    Calls that every size makes once (by agents with private sources; of a reviewed row, the first answer) are kept apart from
    those of which larger sizes have more. If only the former have replies, all calls count alike.
    """
    holders, reason = row.holders(task), ""
    plain, holder_costs = _Costs(), _Costs()
    first = ""
    for event in events:
        if isinstance(event, (CallCompleted, ReplyRejected)):
            first = first or event.key
            is_single_call = event.key == first if row.reviewed else event.agent in holders
            (holder_costs if is_single_call else plain).add(event, match)
        elif isinstance(event, CallFailed):
            reason = event.failure.value
    if plain.each:
        return CallPrice(plain.each, max(holder_costs.total - plain.each * holder_costs.answered, 0.0), sure=True)
    if holder_costs.each:
        is_certain = not row.reviewed and len(holders) >= len(row.protocol.first_speakers)
        return CallPrice(holder_costs.each, sure=is_certain, why=reason)
    return CallPrice(why=reason)


class _Costs:
    """The cost of each call of one kind, including its rejected replies."""

    def __init__(self) -> None:
        self._by_key: Counter[str] = Counter()
        self.answered = 0

    def add(self, event: CallCompleted | ReplyRejected, match: Match) -> None:
        self._by_key[event.key] += (event.cost or 0.0) if match == "cost" else event.tokens_in + event.tokens_out  # type: ignore[assignment]
        self.answered += isinstance(event, CallCompleted)

    @property
    def total(self) -> float:
        return sum(self._by_key.values())

    @property
    def each(self) -> float:
        """The cost by which to divide a sum for the number of calls it pays for; 0 without a reply.

        The reciprocal of the mean of n costs is biased upwards by cv²/n; the bias is removed to second order (Cochran, Sampling
        Techniques, 1977, ch. 6, on ratio estimators).
        """
        if not self.answered or not self.total:
            return 0.0
        costs, mean = list(self._by_key.values()), self.total / self.answered
        if len(costs) < 2:
            return mean
        return mean / (1 - min(variance(costs) / (len(costs) * mean * mean), 0.5))
