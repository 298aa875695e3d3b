"""Budgets: what a run, a branch and a call may spend, and what they spent.

A branch's budget has four operations: `reserve` before something is sent, `settle` after it, `split` at a fork and `join` at its
end. A call sees a `CallBudget`, which wraps its branch's budget in the caps of its agent and phase, the time limit and, for the
closing call, the reserve.

Allotments at a fork are estimates, since a call seldom has its largest size. So a call that its branch cannot fund waits until
every branch has ended or waits too, and then takes what the others left unspent, in program order. It is refused if that does not
suffice. Who gets the last call depends on the program alone, never on the order of arrival.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from consilience.domain.events import place_key
from consilience.domain.outcome import FailureKind, LimitOwner, Limits, LimitUnit, SpendingLimits
from consilience.engine.activity import Activity, Phase
from consilience.engine.cancelling import Cancellation
from consilience.engine.sizes import NOTHING, ONE_REQUEST, UNLIMITED, CallSizes, Demand, Usage, usage_allowed

MAX_RETRIES = 9
"""Max further requests funded per call if the budget allows: two models, five requests each, minus the first."""
CLOSING_SHARE = 0.2
"""Share of a session's time limit that is reserved for the closing call."""
MAX_CLOSING_SECONDS = 60.0
"""Max seconds reserved for the closing call."""


class BranchBudget:
    """What a branch may still spend. What is left of an unlimited budget never changes. `refused`: a limit of the session refused a
    call of this branch, or of one that was joined into it."""

    __slots__ = ("_undecided", "children", "ended", "held", "left", "limited", "parent", "refused", "refused_first")

    def __init__(self, left: Usage, parent: BranchBudget | None = None) -> None:
        self.left = left
        self.limited = left != UNLIMITED
        self.parent = parent
        self.children: dict[BranchBudget, None] = {}
        self.ended = False
        self.held = False
        self.refused = False
        self.refused_first = False
        self._undecided: list[Callable[[], None]] | None = []

    def reserve(self, amount: Usage) -> bool:
        """Take `amount` if it is there."""
        if not self.limited:
            return True
        if not self.left.covers(amount):
            return False
        self.left -= amount
        return True

    def settle(self, difference: Usage) -> None:
        """Spend without asking: what was spent beyond the reservation, or what was recorded."""
        if self.limited:
            self.left -= difference

    def decide(self, *, refused: bool = False) -> None:
        """Note whether the first call of this branch was refused. Later decisions are not noted."""
        if self._undecided is None:
            return
        callbacks, self._undecided = self._undecided, None
        self.refused_first = refused
        for callback in callbacks:
            callback()

    def when_decided(self, callback: Callable[[], None]) -> bool:
        """Call back once the first call of this branch was funded or refused. Return False if it was already."""
        if self._undecided is None:
            return False
        self._undecided.append(callback)
        return True

    def end(self) -> None:
        """Note that the branch has ended, whether or not anything has awaited it."""
        self.ended = True
        self.decide()

    def split(self, demands: Sequence[Demand], *, retries: int = 1, pending: Usage = NOTHING) -> list[BranchBudget]:
        """Fund a branch for each demand, in order: its need while that fits, then nothing. Divisible needs that exceed the tokens
        or the money left share them in proportion.

        What is left then goes round in the same order, `retries` times, as means for corrective retries. What exceeds even the
        need `pending` of the calls still to come in this branch goes round further, up to `MAX_RETRIES` times in all. So a
        retry never takes a first attempt from a branch opened at the same fork.
        """
        needs = self._shares(demands, pending)
        amounts = [self.bounded(NOTHING) for _ in demands]
        funded_count = next((i for i, need in enumerate(needs) if not self.reserve(need)), len(needs))
        amounts[:funded_count] = [self.bounded(need) for need in needs[:funded_count]]
        sizes = [
            demand.retry if need == demand.need else need
            for demand, need in zip(demands[:funded_count], needs[:funded_count], strict=True)
        ]
        for i, size in [*enumerate(sizes)] * retries:
            if not self.reserve(size):
                break
            amounts[i] += size
        total = sum(sizes, NOTHING)
        rounds = max(MAX_RETRIES - retries, 0) if sizes else 0
        while rounds and not (self.left - pending).covers(total * rounds):
            rounds -= 1
        self.settle(total * rounds)
        children = [BranchBudget(amount, self) for amount in amounts]
        for i, size in enumerate(sizes):
            children[i].left += size * rounds
        self.children.update(dict.fromkeys(children))
        return children

    def set_aside(self) -> BranchBudget:
        """Open a budget that no branch draws on, for what `hold` moves to it. `join` returns it."""
        aside = BranchBudget(NOTHING, self)
        aside.held = True
        self.children[aside] = None
        return aside

    def hold(self, need: Usage) -> None:
        """Have `need` in this budget, or what is left of it: take it from the branch that opened this one, or return the rest."""
        if self.parent is not None:
            self.parent.left += self.left
            self.left = need.limited_to(self.parent.left)
            self.parent.settle(self.left)

    def join(self, reader: BranchBudget) -> None:
        """Return what is unspent to the branch that opened this one, which also takes over the branches still open. Report a
        refusal to `reader`, the branch that awaited this one."""
        reader.refused |= self.refused
        self._return_unspent()

    def _return_unspent(self) -> None:
        parent = self.parent
        if parent is None or self not in parent.children:
            return
        del parent.children[self]
        for child in self.children:
            child.parent = parent
        parent.children.update(self.children)
        parent.left += self.left
        self.children, self.left, self.parent = {}, NOTHING, None

    def collect(self) -> None:
        """Take back what every branch below that has ended left unspent, although nothing has awaited it yet."""
        for child in [*self.children]:
            child.collect()
            if child.ended:
                child._return_unspent()

    def pool(self, target: BranchBudget) -> None:
        """Move what this branch and those below have left to `target`."""
        for child in self.children:
            if not child.held:
                child.pool(target)
        if self is not target:
            target.left += self.left
            self.left = self.bounded(NOTHING)

    def _chain(self) -> list[BranchBudget]:
        """This branch and those above it."""
        return [self, *(self.parent._chain() if self.parent else ())]

    def funds(self) -> Usage:
        """What this branch and those above it have left."""
        return sum((budget.left for budget in self._chain()), NOTHING)

    def reserve_upward(self, amount: Usage) -> bool:
        """Take `amount` from this branch, and what it lacks from the branches above it."""
        chain = self._chain()
        if not self.funds().covers(amount):
            return False
        for budget in chain:
            part = amount.limited_to(budget.left)
            budget.left -= part
            amount -= part
        return True

    def bounded(self, amount: Usage) -> Usage:
        """`amount` where this budget has a limit, infinity where it has none."""
        left = self.left
        return Usage(
            left.calls if math.isinf(left.calls) else amount.calls,
            left.tokens if math.isinf(left.tokens) else amount.tokens,
            left.cost if math.isinf(left.cost) else amount.cost,
        )

    def _shares(self, demands: Sequence[Demand], pending_need: Usage) -> list[Usage]:
        divisible_need = sum((demand.need for demand in demands if demand.divisible), pending_need)
        available = self.left - sum((demand.need for demand in demands if not demand.divisible), NOTHING)
        tokens = min(1.0, max(available.tokens, 0) / divisible_need.tokens) if divisible_need.tokens else 1.0
        cost = min(1.0, max(available.cost, 0) / divisible_need.cost) if divisible_need.cost else 1.0
        return [
            Usage(demand.need.calls, int(demand.need.tokens * tokens), demand.need.cost * cost)
            if demand.divisible and (tokens, cost) != (1.0, 1.0)
            else demand.need
            for demand in demands
        ]


# --- what a call may spend


@dataclass(frozen=True, slots=True)
class LimitHit:
    """Which limit refused a call: `whose` is None for the session's own."""

    kind: FailureKind
    whose: LimitOwner | None = None
    unit: LimitUnit = "seconds"
    """What the limit bounds."""
    of_owner: str | None = None
    """The owner of the session whose money of the day it is."""


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Seconds that a call may take, infinite without a limit. `whose` names the agent or phase that the limit is for, if any."""

    seconds: float = math.inf
    whose: LimitOwner | None = None


_NO_LIMIT = TimeLeft()


class Cap(BranchBudget):
    """What one agent or one phase may spend. If live branches compete for it, the refusal depends on arrival and is recorded."""

    __slots__ = ("seconds", "whose")

    def __init__(self, whose: LimitOwner, limits: SpendingLimits) -> None:
        super().__init__(usage_allowed(limits))
        self.whose = whose
        self.seconds = math.inf if limits.seconds is None else limits.seconds

    def hit_by(self, amount: Usage) -> LimitHit | None:
        if self.seconds <= 0:
            return LimitHit(FailureKind.TIME, self.whose)
        unit = self.left.lacks(amount)
        return LimitHit(FailureKind.BUDGET, self.whose, unit) if unit else None


class CallBudget:
    """What one call may spend: the budget of its branch, within the caps of its agent and phase and the time limit; for a closing
    call the reserve in addition. Reservations add up until they are settled."""

    def __init__(
        self, ledger: Ledger, branch: BranchBudget, place: str, agent: str, phase: Phase | None, *, closing: bool
    ) -> None:
        self._ledger = ledger
        self.branch = branch
        self._place = place
        self._caps = list(ledger.caps_of(agent, phase)) if ledger.is_capped else []
        self._closing = closing
        self._reserved = NOTHING
        self.is_limited = branch.limited or bool(self._caps)
        self._is_free = not self.is_limited and ledger.limits.seconds is None
        self.from_reserve = False
        self.may_open_reserve = closing
        """False for an attempt that can be done without."""
        self.hit: LimitHit | None = None
        """The limit that refused a further request of this attempt."""

    async def reserve(
        self, amount: Usage, attempt: int, *, forced: bool = False, arrived: bool = False, refused: bool = False
    ) -> LimitHit | None:
        """Reserve one attempt, or return the limit that refuses it. May wait until no other branch can go on.

        A `forced` attempt is recorded or answered already: it waits for funds in the same way, but is never refused. If its reply
        `arrived` before the session was interrupted, it is funded as then and not refused either. `refused`: the record says that
        it was.
        """
        if self._ledger.cancellation.forbids(closing=self._closing) and not forced:
            hit: LimitHit | None = LimitHit(FailureKind.CANCELLED, unit="")
        else:
            hit = None if self._is_free else await self._reserve(amount, attempt, forced=forced)
        if hit is not None and arrived:
            hit = await self._reserve(amount, attempt, forced=True)
        self.branch.decide(refused=refused or (hit is not None and not hit.whose))
        return hit

    async def _reserve(self, amount: Usage, attempt: int, *, forced: bool) -> LimitHit | None:
        if forced:
            if not await self._reserve_in_branch(amount, attempt):
                self.branch.settle(amount)
            self._reserve_in_caps(amount)
            return None
        if hit := self._cap_hit(amount):
            return hit
        funded = not self._is_late(attempt) and await self._reserve_in_branch(amount, attempt)
        late = self._is_late(attempt)  # perhaps only since it waited
        if late or not funded:
            if funded:
                self.branch.settle(NOTHING - amount)
            if not self._open_reserve(amount):
                return LimitHit(FailureKind.TIME) if late else self._budget_hit(amount)
            self.branch.settle(amount)
        if hit := self._cap_hit(amount):
            self.branch.settle(NOTHING - amount)
            return hit
        self._reserve_in_caps(amount)
        return None

    def reserve_step(self, amount: Usage) -> LimitHit | None:
        """Reserve a further step of an agent with tools, or return the limit that refuses it."""
        return self._reserve_more(amount, self.branch.reserve)

    def reserve_retry(self) -> bool:
        """Reserve a further request for an attempt that failed at the provider. `hit` is the limit that refused it, if any."""
        self.hit = self._reserve_more(
            ONE_REQUEST, lambda need: self.branch.reserve(need) or self._open_and_reserve(need)
        )
        return self.hit is None

    def covers(self, amount: Usage) -> bool:
        return self.branch.left.covers(amount)

    def settle(self, spent: Usage, seconds: float = 0.0) -> None:
        """Replace what was reserved for an attempt by what it spent, in `seconds`."""
        if self.is_limited:
            difference = spent - self._reserved
            self.branch.settle(difference)
            for cap in self._caps:
                cap.settle(difference)
                cap.seconds -= seconds
        self._reserved, self.hit = NOTHING, None

    def draw_reserve(self) -> None:
        """Add the reserve to the branch's budget, once in a run."""
        self.from_reserve = True
        self._ledger.pay_reserve_to(self.branch)

    def time_left(self) -> TimeLeft:
        """What the narrowest limit on time leaves an attempt that is sent now. Calls in flight are not counted in caps."""
        if self._is_free:
            return _NO_LIMIT
        session = TimeLeft(self._ledger.seconds_left(closing=self._closing))
        caps = (TimeLeft(cap.seconds, cap.whose) for cap in self._caps)
        return min((session, *caps), key=lambda limit: limit.seconds)

    def _is_late(self, attempt: int) -> bool:
        """A closing call has the time that deliberation leaves, once it draws on the reserve or is repeated."""
        if self._ledger.seconds_left(closing=True) <= 0:
            return True
        return self._ledger.is_late() and not (self.from_reserve or (self._closing and attempt > 1))

    async def _reserve_in_branch(self, amount: Usage, attempt: int) -> bool:
        if self.branch.reserve(amount):
            return True
        return await self._ledger.wait_for_funds(amount, self.branch, (attempt > 1, place_key(self._place), attempt))

    def _reserve_more(self, amount: Usage, reserve: Callable[[Usage], bool]) -> LimitHit | None:
        if hit := self._cap_hit(amount):
            return hit
        if not reserve(amount):
            return self._budget_hit(amount)
        self._reserve_in_caps(amount)
        return None

    def _open_and_reserve(self, amount: Usage) -> bool:
        return self._open_reserve(amount) and self.branch.reserve(amount)

    def _open_reserve(self, amount: Usage) -> bool:
        """Draw the reserve if this is the first closing call to need it and it suffices. It always suffices while it holds one call
        of the largest size: quoted replies may be longer than their tokens foresaw."""
        ledger = self._ledger
        if not self.may_open_reserve or ledger.reserve_drawn or ledger.seconds_left(closing=True) <= 0:
            return False
        reserve = ledger.reserve
        if not (reserve.covers(ledger.sizes.closing_call) or (reserve + self.branch.left).covers(amount)):
            return False
        self.draw_reserve()
        return True

    def _budget_hit(self, amount: Usage) -> LimitHit:
        return LimitHit(FailureKind.BUDGET, unit=self.branch.funds().lacks(amount))

    def _cap_hit(self, amount: Usage) -> LimitHit | None:
        return next((hit for cap in self._caps if (hit := cap.hit_by(amount))), None)

    def _reserve_in_caps(self, amount: Usage) -> None:
        self._reserved += amount
        for cap in self._caps:
            cap.settle(amount)


# --- what a session may spend


@dataclass(eq=False, slots=True)
class _Waiting:
    """A call that its branch cannot fund."""

    amount: Usage
    branch: BranchBudget
    order: tuple[bool, tuple[int, ...], int]
    funded: asyncio.Future[bool]


class Ledger:
    """What a session may spend: the budget of its first branch, caps per agent and per phase, time, and the reserve for the closing
    call: one call of the largest size, or all there is if that is less."""

    def __init__(
        self,
        sizes: CallSizes,
        limits: Limits,
        activity: Activity,
        now: Callable[[], float],
        cancellation: Cancellation,
    ) -> None:
        self.sizes = sizes
        self.limits = limits
        self.cancellation = cancellation
        self.root = BranchBudget(usage_allowed(limits))
        reserve = sizes.closing_call.limited_to(self.root.left) if sizes.protocol.closing else NOTHING
        self.reserve = self.root.bounded(reserve)
        self.root.settle(reserve)
        self.reserve_drawn = False
        self.late = False
        """Whether deliberation has run out of time. It never starts again: the first refusal decides for all later live calls."""
        self.is_capped = bool(limits.agents or limits.phases)
        self._activity = activity
        self._now = now
        self._caps: dict[LimitOwner, Cap] = {}
        self._waiting: list[_Waiting] = []

    def pay_reserve_to(self, branch: BranchBudget) -> None:
        if not self.reserve_drawn and branch.limited:
            branch.left += self.reserve
        self.reserve_drawn = True

    def caps_of(self, agent: str, phase: Phase | None) -> Iterator[Cap]:
        """The caps under which a call falls."""
        for whose, limits in self.limits.of_call(agent, phase):
            yield self._caps.setdefault(whose, Cap(whose, limits))

    def unused_caps(self) -> list[LimitOwner]:
        """Owners of caps under which no call fell: most likely a misspelled name."""
        return [owner for owner, _ in self.limits.named() if owner not in self._caps and not owner.each]

    @property
    def held_back(self) -> int:
        """Calls in the reserve, while it is not drawn; 0 without a limit on calls."""
        return 0 if self.reserve_drawn or math.isinf(self.reserve.calls) else int(self.reserve.calls)

    def seconds_left(self, *, closing: bool) -> float:
        """Wall time left for deliberation, or for the closing call; infinite without a limit."""
        limit = self.limits.seconds
        if limit is None:
            return math.inf
        reserved = self.sizes.protocol.closing and not closing
        return (deliberation_seconds(limit) if reserved else limit) - self._now()

    def is_late(self) -> bool:
        self.late = self.late or self.seconds_left(closing=False) <= 0
        return self.late

    async def wait_for_funds(
        self, amount: Usage, branch: BranchBudget, order: tuple[bool, tuple[int, ...], int]
    ) -> bool:
        """Wait until no branch can go on, for what they leave. Return whether `amount` was reserved for `branch`."""
        waiting = _Waiting(amount, branch, order, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._activity.leave()
        try:
            return await waiting.funded
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def fund_waiting(self) -> bool:
        """Give what is unspent to the calls that wait for it, in program order, first attempts before retries. Refuse them all if
        none can be funded. Called when no branch can go on. Return whether any call waited."""
        self.root.collect()
        queue = sorted(self._waiting, key=lambda waiting: waiting.order)
        funded = [waiting for waiting in queue if waiting.branch.reserve_upward(waiting.amount)]
        if not funded:
            self.root.pool(self.root)
            funded = [waiting for waiting in queue if waiting.branch.reserve_upward(waiting.amount)]
        for waiting in funded or queue:
            self._waiting.remove(waiting)
            self._activity.enter()
            waiting.funded.set_result(bool(funded))
        return bool(queue)


def deliberation_seconds(limit: float) -> float:
    """Seconds after which a run under this time limit makes no call but the closing one."""
    return limit - min(limit * CLOSING_SHARE, MAX_CLOSING_SECONDS)
