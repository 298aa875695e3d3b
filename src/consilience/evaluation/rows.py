"""Which protocols are compared, and what each may spend."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from consilience.domain.errors import SettingsError, UnknownName
from consilience.domain.outcome import Estimate, Limits
from consilience.engine.budget import call_size
from consilience.engine.prompt import Opening
from consilience.engine.protocol import Protocol, find_protocol, protocol_names
from consilience.engine.sources import documents
from consilience.engine.templates import INSTRUCTIONS
from consilience.evaluation.results import Budget, Setup
from consilience.evaluation.taskfile import Task

ALONE = "solo"
"""The protocol of one call, whose row with all sources is the ceiling, and the first of the references."""

REFERENCES = (ALONE, "vote")
"""Rows that others are measured against, where they are compared."""


@dataclass(frozen=True)
class Row:
    """A protocol under the name it has in the table. `ceiling`: it is shown every source, whoever it is private to."""

    label: str
    protocol: Protocol
    ceiling: bool = False

    @property
    def sizable(self) -> bool:
        """It comes in any size, and none was asked for: a size that was set stands."""
        small, large = self.protocol.sized_to(1), self.protocol.sized_to(2)
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

    def sized(self, calls: int) -> Row:
        return replace(self, protocol=self.protocol.sized_to(max(calls, 1)))

    def call_tokens(self, task: Task) -> int:
        """The greatest size of one of its calls on this task."""
        return int(call_size(self._opening(task), self.protocol, {}).tokens)

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
        if not self.sizable or not task.private:
            return tokens // self.call_tokens(task)
        plain = self._plain_tokens(task)
        held = [source for source in task.sources if source.seat is None or self.protocol.seat(source.seat) is not None]
        private = replace(self, ceiling=True).call_tokens(task.model_copy(update={"sources": tuple(held)})) - plain
        calls = max(tokens - private + len(held), 0) // plain  # no size costs less than all that is private once
        while calls > 0 and self.sized(calls)._together(task) > tokens:
            calls -= 1
        return calls

    def probe_size(self, task: Task) -> int:
        """The least size at which somebody holds nothing private: a run of it tells what calls cost with that and without."""
        held = {source.seat for source in task.sources if source.seat is not None}
        sizes = range(1, len(held) + 2)
        return next((n for n in sizes if len(self.sized(n).holders(task)) < len(self.sized(n).protocol.first_seats)), 1)

    def _together(self, task: Task) -> int:
        greatest, calls = self.call_tokens(task), self.protocol.estimate().max
        if calls != len(self.protocol.first_seats):
            return calls * greatest
        opening, plain = self._opening(task), self._plain_tokens(task)
        holders = self.holders(task)
        seats = [agent for agent in self.protocol.agents(None) if agent.id in holders]
        sizes = [int(call_size(opening, self.protocol, {}, [seat]).tokens) for seat in seats]
        _, *others = sorted([*sizes, *[plain] * (calls - len(sizes))])
        return sum(others) + greatest

    def _plain_tokens(self, task: Task) -> int:
        """The greatest size of a call of somebody who holds nothing private."""
        return self.call_tokens(task.model_copy(update={"sources": tuple(s for s in task.sources if s.seat is None)}))

    def _opening(self, task: Task) -> Opening:
        found = documents(task.sources_for(self.protocol, everything=self.ceiling))
        return Opening(self.protocol.templates().render(INSTRUCTIONS), task.task, found)


def rows_of(protocols: Sequence[str | Protocol | Row]) -> list[Row]:
    """Rows from names, from protocols with settings, or from rows. Of those of one name it is kept by the row that was called so
    or has no settings, wherever it stands, else by the first; the others get their settings beside it.

    Raises `SettingsError` where two rows could not be told apart, `UnknownName`.
    """
    given = [find_protocol(one)() if isinstance(one, str) else one for one in protocols]
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
        """What is run to learn what a row's calls cost; None where its size does not hang on that."""
        if not self.budget.matched or not self.resized(row):
            return None
        return row.sized(min(row.probe_size(task), self.most_calls(row, task)))

    def call_tokens(self, row: Row, task: Task) -> int:
        """The greatest size of a call at any size that the row may get: where it is not known before, all that is private may
        come to one seat."""
        if not self.resized(row):
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
