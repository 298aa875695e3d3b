"""Which protocols are compared, what each may spend, and how large a row of any size is made."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import variance

from consilience.domain.agents import Agent
from consilience.domain.detail import Detail
from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.events import CallCompleted, CallFailed, Event, ReplyRejected
from consilience.domain.outcome import Estimate, Limits
from consilience.engine.prompt import Opening
from consilience.engine.protocol import Protocol, find_protocol, protocol_names
from consilience.engine.sizes import CallSizes
from consilience.engine.sources import documents
from consilience.engine.templates import INSTRUCTIONS
from consilience.evaluation.results import Budget, Match, Run, Setup
from consilience.evaluation.task_file import Task
from consilience.reporting.formatting import count, money

ALONE = "solo"
"""The protocol of one call, whose row with all sources is the ceiling, and the first of the references."""

REVIEWED = "solo+reviews"
"""A row of the same protocol that reviews its own answer as often as the budget allows."""

REVIEWS = "reviews"
"""The setting of that protocol that makes it grow: each review is two calls, a critique and a new answer."""

REFERENCES = (ALONE, REVIEWED, "vote")
"""Rows that others are measured against, where they are compared."""

DEFAULT_ROWS = ("emergence", *REFERENCES)
"""What is compared unless it is named: a deliberation and its references."""


@dataclass(frozen=True)
class Row:
    """A protocol under the name it has in the table. `ceiling`: it is shown every source, whoever it is private to."""

    label: str
    protocol: Protocol
    ceiling: bool = False
    detail: Detail = "full"
    thinking: int = 0
    """Max tokens for the thinking before one reply, of any of the models."""
    reviewed: bool = False
    """It grows by reviews of its own answer."""

    @property
    def sizable(self) -> bool:
        """It comes in any size, and none was asked for: a size that was set stands."""
        if self.reviewed:
            return True
        small, large = self.protocol.resized_for_calls(1), self.protocol.resized_for_calls(2)
        changed = {f for f in type(small).model_fields if getattr(small, f) != getattr(large, f)}
        return bool(changed) and not changed & self.protocol.model_fields_set

    def on(self, task: Task) -> Row:
        """With the task's answer pattern, where the protocol takes one and none was set."""
        fields = type(self.protocol).model_fields
        if (
            not task.answer_pattern
            or "answer_pattern" not in fields
            or "answer_pattern" in self.protocol.model_fields_set
        ):
            return self
        settings = self.protocol.model_dump(exclude_unset=True)
        return replace(self, protocol=type(self.protocol)(**settings, answer_pattern=task.answer_pattern))

    def at(self, detail: Detail) -> Row:
        """This with the prompts of that detail, and the replies' size that goes with them."""
        return replace(self, protocol=self.protocol.with_detail(detail), detail=detail)

    def sized(self, calls: int) -> Row:
        return replace(self, protocol=self.protocol.resized_for_calls(max(calls, 1)))

    def nearest(self, calls: float) -> int:
        """The size nearest to so many calls, which need not be a whole number."""
        return max(1, 1 + 2 * round((calls - 1) / 2) if self.reviewed else round(calls))

    def call_tokens(self, task: Task) -> int:
        """The greatest size of one of its calls on this task."""
        return self._size(self._opening(task), self.protocol.agents(None))

    def most_tokens(self, task: Task) -> int:
        return self.protocol.estimate().max * self.call_tokens(task)

    def holders(self, task: Task) -> set[str]:
        """The agents who are shown what others are not."""
        if self.ceiling:
            return set()
        seats = {self.protocol.seat(source.seat) for source in task.sources if source.seat is not None}
        return {seat for seat in seats if seat is not None}

    def calls_for(self, tokens: int, task: Task) -> int:
        """How many calls so many tokens surely pay for, the row sized to them where it is sizable.

        Where every seat is asked once each is counted with its own documents, and the last as the greatest: that much the
        engine holds back for the closing call.
        """
        if self.reviewed or not self.sizable or not task.private:
            return tokens // self.call_tokens(task)
        plain = self._plain_tokens(task)
        held = [source for source in task.sources if source.seat is None or self.protocol.seat(source.seat) is not None]
        private = replace(self, ceiling=True).call_tokens(task.model_copy(update={"sources": tuple(held)})) - plain
        calls = max(tokens - private + len(held), 0) // plain  # no size costs less than all that is private once
        while calls > 0 and self.sized(calls)._together(task) > tokens:
            calls -= 1
        return calls

    def probe_size(self, task: Task) -> int:
        """The least size at which `PROBE_CALLS` calls of the kind that a larger size has more of are made."""
        if self.reviewed:
            return 1 + PROBE_CALLS
        held = {source.seat for source in task.sources if source.seat is not None}
        sizes = range(1, len(held) + PROBE_CALLS + 1)
        plain = {n: len(self.sized(n).protocol.first_speakers) - len(self.sized(n).holders(task)) for n in sizes}
        return next((n for n in sizes if plain[n] >= PROBE_CALLS), max(plain, key=plain.__getitem__))

    def _together(self, task: Task) -> int:
        greatest, calls = self.call_tokens(task), self.protocol.estimate().max
        if calls != len(self.protocol.first_speakers):
            return calls * greatest
        opening, plain = self._opening(task), self._plain_tokens(task)
        holders = self.holders(task)
        seats = [agent for agent in self.protocol.agents(None) if agent.id in holders]
        sizes = [self._size(opening, [seat]) for seat in seats]
        _, *others = sorted([*sizes, *[plain] * (calls - len(sizes))])
        return sum(others) + greatest

    def _size(self, opening: Opening, agents: Sequence[Agent]) -> int:
        return int(CallSizes(opening, self.protocol, agents, thinking_tokens={"": self.thinking}).max_call.tokens)

    def _plain_tokens(self, task: Task) -> int:
        """The greatest size of a call of somebody who holds nothing private."""
        return self.call_tokens(task.model_copy(update={"sources": tuple(s for s in task.sources if s.seat is None)}))

    def _opening(self, task: Task) -> Opening:
        found = documents(task.sources_for(self.protocol, everything=self.ceiling))
        return Opening(self.protocol.load_templates(detail=self.detail).render(INSTRUCTIONS), task.task, found)


def rows_of(protocols: Sequence[str | Protocol | Row]) -> list[Row]:
    """Rows from names, from protocols with settings, or from rows. Of those of one name it is kept by the row that was called so
    or has no settings, wherever it stands, else by the first; the others get their settings beside it.

    Raises `SettingsError` where two rows could not be told apart, `UnknownName`.
    """
    given = [
        reviewed_row() if one == REVIEWED else find_protocol(one)() if isinstance(one, str) else one
        for one in protocols
    ]
    kept = {one.label if isinstance(one, Row) else one.name for one in given if isinstance(one, Row) or not _set(one)}
    found: list[Row] = []
    for one in given:
        if isinstance(one, Protocol):
            settings = _set(one)
            label = f"{one.name} ({settings})" if settings and one.name in kept else one.name
            kept.add(one.name)
            one = Row(label, one)
        if any(row.label == one.label for row in found):
            raise SettingsError(
                f"two rows are both {one.label!r}", do="Name them apart, or give them different settings."
            )
        found.append(one)
    if not found:
        raise SettingsError("nothing is to be compared", do=f"Name protocols: {', '.join(protocol_names())}.")
    return found


def reviewed_row(label: str = REVIEWED, protocol: Protocol | None = None) -> Row:
    """The row of one call and reviews of it. Raises `SettingsError` if the installed protocol of one call has none."""
    protocol = protocol or find_protocol(ALONE)()
    if REVIEWS not in type(protocol).model_fields:
        raise SettingsError(f"the installed {ALONE} cannot review its answer", do=f"Leave out {label}.")
    # a row of its own, unlike `solo`, has at least one review until it is sized
    return Row(label, protocol.model_copy(update={REVIEWS: 1}), reviewed=True)


def ceiling_row(tasks: Sequence[Task], rows: Sequence[Row]) -> Row | None:
    """One agent that is shown every source, where some are private; None where none is or no protocol of one call is known."""
    if not any(task.private for task in tasks):
        return None
    own = next((row.protocol for row in rows if row.protocol.name == ALONE), None)
    if own is None:
        try:
            own = find_protocol(ALONE)()
        except UnknownName:
            return None
    return Row(f"{ALONE}, all sources", own, ceiling=True)


def setup_of(row: Row, *, sized: bool) -> Setup:
    protocol = row.protocol
    return Setup(
        row=row.label,
        protocol=protocol.name,
        settings=protocol.model_dump(mode="json"),
        sized=sized,
        ceiling=row.ceiling,
    )


@dataclass(frozen=True)
class Allotment:
    """What runs on one task may spend. `anchor` is the row that could need most; it keeps its size, and sizes the others."""

    budget: Budget
    bound: int
    anchor: str

    @property
    def limits(self) -> Limits:
        return Limits(calls=self.bound) if self.budget.calls is not None else Limits(tokens=self.bound)

    def resized(self, row: Row) -> bool:
        return row.sizable and not (self.budget.matched and row.label == self.anchor)

    def most_calls(self, row: Row, task: Task) -> int:
        """Calls that the bound surely pays for."""
        if self.budget.calls is not None:
            return self.bound
        return row.calls_for(self.bound, task) if self.resized(row) else self.bound // row.call_tokens(task)

    def probe(self, row: Row, task: Task) -> Row | None:
        """What is run to learn what a row's calls cost; None if its size does not depend on that."""
        if not self.budget.matched or self.budget.match == "calls" or not self.resized(row):
            return None
        return row.sized(min(row.probe_size(task), self.most_calls(row, task)))

    def call_tokens(self, row: Row, task: Task) -> int:
        """The greatest size of a call at any size that the row may get: where it is not known before, all that is private may
        come to one seat."""
        if not self.resized(row):
            return row.call_tokens(task)
        if row.reviewed:  # the answer that is reviewed is quoted at every size
            return row.call_tokens(task)
        return row.sized(1 if self.budget.matched else self.most_calls(row, task)).call_tokens(task)

    def estimate(self, row: Row, task: Task) -> Estimate:
        """Calls of one run. Under a matched budget a row's size is not known before; it is at least one and fits the bound."""
        most = self.most_calls(row, task)
        if self.resized(row):
            whole = row.sized(most).protocol.estimate()
            return Estimate(min=1, max=whole.max) if self.budget.matched else whole
        own = row.protocol.estimate()
        return own if self.budget.calls is None else Estimate(min=min(own.min, most), max=min(own.max, most))


def allot(budget: Budget, rows: Sequence[Row], task: Task) -> Allotment:
    """The bound on every run on this task. Raises `SettingsError` for a budget that cannot be."""
    if budget.tokens is not None and budget.calls is not None:
        raise SettingsError("a budget is either of tokens or of calls", do="Give one of the two.")
    if budget.match != "tokens" and not budget.matched:
        raise SettingsError(
            f"runs with a given budget are not matched by {budget.match}", do="Leave out the budget, or what to match."
        )
    needs = {row.label: row.most_tokens(task) for row in rows}
    anchor = max(needs, key=needs.__getitem__)
    given = budget.tokens if budget.calls is None else budget.calls
    if given is not None and given < 1:
        raise SettingsError(f"a budget of {given} buys no answer", do="Give 1 or more.")
    return Allotment(budget, needs[anchor] if given is None else given, anchor)


def _set(protocol: Protocol) -> str:
    """The settings that were given, as on a command line."""
    given = protocol.model_dump(mode="json", include=protocol.model_fields_set)
    return ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in given.items()
    )


FAR = 2
"""A row of any size that cost so many times more or less than it was to is named."""

PROBE_CALLS = 4
"""Calls whose mean is taken for the cost of one. A single one is up to a quarter off at what replies vary by."""


@dataclass(frozen=True)
class Price:
    """What a row of any size costs, in the unit that is matched: `each` further call, and `fixed` at any size.

    `sure`: it was learnt from such calls; else `why` says how the last of them failed. `each` is 0 where no agent answered, and
    `greatest` where it stands for the most that a call can cost.
    """

    each: float = 0.0
    fixed: float = 0.0
    sure: bool = False
    why: str = ""
    greatest: bool = False


@dataclass(frozen=True)
class Size:
    """`calls` of the `most` that surely fit; without a `price` they follow from the budget alone. `lost` calls of its probes were
    in flight when a process ended."""

    calls: int
    most: int
    price: Price | None = None
    probes: int = 0
    lost: int = 0

    def notes(self, run: Run, target: float, match: Match) -> list[str]:
        """What is to be reported of a run of this size, if the most expensive other row spent `target`."""
        if self.price is None:
            return []
        said = []
        spent = run.spent(match) or 0.0
        where = f"{run.row} on task {run.task}, seed {run.seed}"
        cost = f"it cost {amount(spent, match)} where the dearest other row spent {amount(target, match)}"
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
        elif run.calls >= self.calls and self._far(spent, target):
            said.append(
                f"{where}: its size of {run.size} is far from the one to be matched: {cost}; the probe told "
                f"{amount(self.price.each, match)} a call, and the run took {amount(spent / max(run.calls, 1), match)}."
            )
        if self.lost:
            said.append(f"{where}: {count(self.lost, 'call')} of its probes lost in flight, perhaps paid for.")
        return said

    def _far(self, spent: float, target: float) -> bool:
        """Too small, and there was room; or too large, and it could have been smaller."""
        if spent * FAR < target:
            return self.calls < self.most
        return spent > FAR * target and self.calls > 1


def amount(value: float, match: Match) -> str:
    if match == "cost":
        return money(value)
    return count(round(value), "call") if match == "calls" else f"{value:,.0f} tokens"


def price_of(row: Row, task: Task, events: Iterable[Event], match: Match) -> Price:
    """What a probe tells. Apart from the calls of which a larger size has more stand those that every size makes once: of agents
    who are shown what is private or, of a row that is reviewed, the first answer. If none but those was answered, all
    calls count alike."""
    holders, why = row.holders(task), ""
    plain, apart = _Costs(), _Costs()
    first = ""
    for event in events:
        if isinstance(event, (CallCompleted, ReplyRejected)):
            first = first or event.key
            once = event.key == first if row.reviewed else event.agent in holders
            (apart if once else plain).add(event, match)
        elif isinstance(event, CallFailed):
            why = event.failure.value
    if plain.each:
        return Price(plain.each, max(apart.total - plain.each * apart.answered, 0.0), sure=True)
    if apart.each:
        sure = not row.reviewed and len(holders) >= len(row.protocol.first_speakers)
        return Price(apart.each, sure=sure, why=why)
    return Price(why=why)


class _Costs:
    """Of calls of one kind, what each cost with its rejected replies."""

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
        """The cost by which a sum is to be divided for the number of calls that it buys; 0 if no call was answered.

        The reciprocal of a mean of n costs is too large by the share cv²/n on average, and so would the number be; that
        much is taken off, to second order (Cochran, Sampling Techniques, 1977, ch. 6, on ratio estimators).
        """
        if not self.answered or not self.total:
            return 0.0
        costs, mean = list(self._by_key.values()), self.total / self.answered
        if len(costs) < 2:
            return mean
        return mean / (1 - min(variance(costs) / (len(costs) * mean * mean), 0.5))
