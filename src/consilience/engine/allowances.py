"""Limits on what one agent or one phase may spend, beside those of the session. They are looked at when a call is dispatched."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from consilience.domain.outcome import Allowance, FailureKind, Limits
from consilience.engine.branch import Account, Amount, Phase

EACH = "*"
"""In place of a name: every agent, or every phase at every index, has this much for itself."""


CUT_OFF = "a limit allowed no further attempt; "
"""Stands before what the last attempt of a call came to."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Which limit refused a call: `whose` is empty for the session's own."""

    kind: FailureKind
    whose: str = ""


@dataclass(slots=True)
class _Purse:
    whose: str
    account: Account
    seconds: float
    spent: float = 0.0


@dataclass
class Allowances:
    """What agents and phases have left. Where live branches compete for one, who is refused depends on arrival and is recorded."""

    limits: Limits
    _purses: dict[str, _Purse] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.limits.agents or self.limits.phases)

    def draw(self, agent: str, phase: Phase | None, cost: Amount) -> Refusal | None:
        """Reserve from every limit that this call falls under, or from none and say which refused."""
        purses = list(self._of(agent, phase))
        for purse in purses:
            if purse.spent >= purse.seconds:
                return Refusal(FailureKind.TIME, purse.whose)
            if not purse.account.left.covers(cost):
                return Refusal(FailureKind.BUDGET, purse.whose)
        for purse in purses:
            purse.account.draw(cost)
        return None

    def charge(self, agent: str, phase: Phase | None, amount: Amount, seconds: float = 0.0) -> None:
        for purse in self._of(agent, phase):
            purse.account.charge(amount)
            purse.spent += seconds

    def unmet(self) -> list[str]:
        """Limits under which no call fell, by name: most likely a name that is spelt wrongly."""
        met = {purse.whose for purse in self._purses.values()}
        named = [f"agent {id}" for id in self.limits.agents] + [f"phase {name}" for name in self.limits.phases]
        return [name for name in named if EACH not in name and name not in met]

    def _of(self, agent: str, phase: Phase | None) -> Iterator[_Purse]:
        agents, phases = self.limits.agents, self.limits.phases
        yield from self._find(agents, "agent", agent, agent)
        if phase is not None:
            once = f"{phase[0]}/{phase[1]}"
            yield from self._find(phases, "phase", phase[0], once)
            if once in phases:
                yield self._purse("phase", once, phases[once])

    def _find(self, limits: Mapping[str, Allowance], kind: str, name: str, once: str) -> Iterator[_Purse]:
        if name in limits:
            yield self._purse(kind, name, limits[name])
        if EACH in limits:
            yield self._purse(f"each {kind}:", once, limits[EACH])

    def _purse(self, kind: str, name: str, limit: Allowance) -> _Purse:
        whose = f"{kind} {name}"
        if whose not in self._purses:
            amount = Amount(*(math.inf if x is None else x for x in (limit.calls, limit.tokens, limit.money)))
            seconds = math.inf if limit.seconds is None else limit.seconds
            self._purses[whose] = _Purse(whose, Account(amount), seconds)
        return self._purses[whose]
