"""Branches: where in the program one is, and what it may spend.

A place is the ordinal of an operation in its branch, prefixed by the place of the gather or start that opened the
branch and by the branch's index there. Places and allotments depend on the program alone, never on who answered first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass

Phase = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Amount:
    """Calls (requests), tokens (read and written) and US dollars; infinity is no limit."""

    calls: float = 0
    tokens: float = 0
    money: float = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.calls + other.calls, self.tokens + other.tokens, self.money + other.money)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.calls - other.calls, self.tokens - other.tokens, self.money - other.money)

    def __mul__(self, times: float) -> Amount:
        return Amount(self.calls * times, self.tokens * times, self.money * times)

    def covers(self, other: Amount) -> bool:
        return self.calls >= other.calls and self.tokens >= other.tokens and self.money >= other.money


RETRIES = 9
"""Sendings of a call beside the first that a budget has means for where there is enough: five of each of two models."""

NOTHING = Amount()
UNLIMITED = Amount(math.inf, math.inf, math.inf)


class Account:
    """What a branch may still spend. An unlimited account is never written to. Of what is left the `borrowed` part is needed
    elsewhere once the branch has ended."""

    __slots__ = ("borrowed", "left", "limited")

    def __init__(self, left: Amount, borrowed: Amount = NOTHING) -> None:
        self.left = left
        self.limited = left != UNLIMITED
        self.borrowed = borrowed

    def draw(self, amount: Amount) -> bool:
        """Reserve `amount` if it is there."""
        if not self.limited:
            return True
        if not self.left.covers(amount):
            return False
        self.left -= amount
        return True

    def charge(self, amount: Amount) -> None:
        """Spend without asking: what was recorded before, or the difference between a reservation and what came."""
        if self.limited:
            self.left -= amount

    def bounded(self, amount: Amount) -> Amount:
        """`amount` where this account has a limit, infinity where it has none."""
        left = self.left
        return Amount(
            left.calls if math.isinf(left.calls) else amount.calls,
            left.tokens if math.isinf(left.tokens) else amount.tokens,
            left.money if math.isinf(left.money) else amount.money,
        )

    def return_to(self, parent: Account) -> None:
        """Give what is unspent back, once."""
        if self.limited:
            parent.left += self.left
            self.left = Amount()


def allot(account: Account, needs: Sequence[Amount], due: Amount = NOTHING, *, lent: bool = False) -> list[Account]:
    """Fund branches from `account` in the order asked: each its whole need while that fits, then nothing.

    What is left over goes round again, in the same order, as each funded branch's means for retries: once more its need while that
    fits, and while what is `due` stays there for the calls that the forking branch will make before it has this back. What is
    `lent` comes back before those, and so may be taken out of them; but then it may not be handed on to anybody who keeps it
    longer, and is marked as `borrowed`. What nobody needs goes round up to `RETRIES` times. So a retry never takes a first
    attempt from a sibling, and nothing depends on arrival.
    """
    if not account.limited:
        return [Account(UNLIMITED) for _ in needs]
    funded = 0
    granted = [Amount() for _ in needs]
    for i, need in enumerate(needs):
        if not account.draw(need):
            break
        granted[i] = account.bounded(need)
        funded += 1
    held = NOTHING if lent else due + account.borrowed
    borrowed = [NOTHING for _ in needs]
    for i in range(funded):
        if not (account.left - needs[i]).covers(held) or not account.draw(needs[i]):
            break
        borrowed[i] = needs[i]
    whole = _rounds(account.left - due - account.borrowed, needs[:funded])
    for i in range(funded):
        account.draw(needs[i] * whole)
        granted[i] += borrowed[i] + needs[i] * whole
    return [Account(amount, loan) for amount, loan in zip(granted, borrowed, strict=True)]


def _rounds(spare: Amount, needs: Sequence[Amount]) -> int:
    """How many whole rounds of these needs `spare` has means for beside the first, `RETRIES` with it at most."""
    total = sum(needs, NOTHING)
    whole = RETRIES - 1 if needs else 0
    while whole and not spare.covers(total * whole):
        whole -= 1
    return whole


@dataclass(slots=True)
class Branch:
    """A line of execution: operations get ordinals from 0 in program order; `due` calls may still have to be made in it."""

    prefix: str
    account: Account
    due: float = 0
    ordinal: int = 0

    def next_place(self) -> str:
        place = f"{self.prefix}{self.ordinal}"
        self.ordinal += 1
        return place


current_branch: ContextVar[Branch] = ContextVar("current_branch")
current_phase: ContextVar[Phase | None] = ContextVar("current_phase", default=None)
