"""How fast an account is asked: adaptive concurrency, one shared pause, retries, and a deadline for each sending.

One `Limiter` per provider account and event loop, shared by all sessions (`limiter_for`). Its window grows gently
while it is what holds requests back, is halved by a 429 (once for all that were in flight), and does not grow for a
while after a failing server. A `retry_after` stops the whole account; afterwards one request goes first, and the
others follow one by one as answers come. `Limiter.send` is the way through it, and `Limited` a model that goes that way.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import heapq
import itertools
import math
import random
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TypeVar
from weakref import WeakKeyDictionary

from consilience.domain.errors import ProviderError, RateLimited, Refused, Rejected, ServerError, Timeout
from consilience.domain.outcome import Thinks
from consilience.models.port import Completion, Model, ModelRequest, context_window, thinks

T = TypeVar("T")

may_retry: ContextVar[Callable[[], bool] | None] = ContextVar("may_retry", default=None)
"""Asked before each further sending of one call, since limits bound sendings; None allows all."""


class Sendings:
    """Counts the requests of one call while they are sent, for a call that is cancelled and so returns no figures.

    A limiter, and a model that sends without one, calls `expect` on arrival, `dispatched` per request and `answered` per result.
    """

    def __init__(self) -> None:
        self._expected = False
        self._sent = 0
        self._open = 0

    @property
    def requests(self) -> int:
        """Requests sent since the last `settle`. 1 for a model that does not report its requests."""
        return self._sent if self._expected else 1

    @property
    def in_flight(self) -> bool:
        """Whether a request was sent and not answered. True for a model that does not report its requests."""
        return self._open > 0 if self._expected else True

    def expect(self) -> None:
        self._expected = True

    def dispatched(self) -> None:
        self._sent += 1
        self._open += 1

    def answered(self) -> None:
        self._open -= 1

    def repeated(self) -> None:
        """A model sent a further request within one sending of its limiter."""
        self._sent += 1

    def settle(self) -> None:
        """The requests so far are recorded elsewhere."""
        self._sent = self._open = 0


sendings: ContextVar[Sendings] = ContextVar("sendings")
"""The count of the running call. Set only for a call that a limit on time may end."""


def running_count() -> Sendings:
    """The count of the running call, or a new one that nobody reads."""
    return sendings.get(None) or Sendings()


def retry_allowed() -> bool:
    """Whether the running call may send once more. Asking may take the permission: send if it is given."""
    ask = may_retry.get()
    return ask is None or ask()


def requests_of(error: ProviderError) -> int:
    """How many requests were sent before `error` was raised."""
    made = getattr(error, "requests", 1)
    return made if isinstance(made, int) else 1


@dataclass(frozen=True, slots=True)
class Pace:
    """Settings of a limiter. Windows are requests in flight, times are seconds.

    `start`, `least` and `most` bound the window, `cut` is what a 429 leaves of it. `calm` is how long it does not
    grow after a server failed. `backoff` and `longest_backoff` bound the waits before retries, which double;
    `spacing` is the most between two releases after a pause. A pause of more than `patience` is not waited for.
    """

    start: float = 16.0
    least: float = 1.0
    most: float = 256.0
    cut: float = 0.5
    calm: float = 10.0
    backoff: float = 0.5
    longest_backoff: float = 30.0
    spacing: float = 0.25
    patience: float = 120.0


class Limiter:
    """The shared state of one account on one event loop. Waiters are served in order of arrival.

    `clock`, `sleep` and `rng` are for tests; nothing but these is asked about time or chance.
    """

    def __init__(
        self,
        account: str,
        pace: Pace | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.account = account
        self.pace = pace or Pace()
        self.clock = clock
        self.sleep = sleep
        self._rng = rng or random.Random()
        self._window = self.pace.start
        self._was_cut = False
        self._ramp = math.inf  # a second bound while recovering from a pause; 0 until the first release after it
        self._flying = 0
        self._waiting: list[tuple[int, asyncio.Future[int]]] = []
        self._tickets = itertools.count()
        self._epoch = 1  # counts cuts: a 429 to a request sent before the last cut cuts nothing
        self._streak = 0  # cuts since the last success
        self._gate = 0.0  # nothing is released before this instant; 0 when open
        self._grows_from = 0.0
        self._opener: asyncio.Task[None] | None = None

    @property
    def window(self) -> float:
        """Requests that may be in flight together, as now believed."""
        return self._window

    @property
    def in_flight(self) -> int:
        return self._flying

    @property
    def waiting(self) -> int:
        return sum(not future.done() for _, future in self._waiting)

    @property
    def shut(self) -> bool:
        """Whether the account was told to stay away for longer than `patience`, so that `enter` would raise."""
        return self._gate > 0.0 and self._gate - self.clock() > self.pace.patience

    async def send(self, sending: Callable[[], Awaitable[T]], *, deadline: float, retries: int) -> tuple[T, int, float]:
        """What `sending` gives, how many requests failed before it, and the seconds waited for slots and between retries.

        `deadline` is seconds for each sending, from dispatch; `retries` bounds the further ones after transient failures.
        Raises the last `ProviderError`; its attributes `requests` and `waited` say what was tried. Cancelled at any
        point, it holds no slot.
        """
        ticket = self.ticket()
        running_count().expect()
        sent, waited, attempt = 0, 0.0, 0
        while True:
            mark = self.try_enter()
            if not mark:
                began = self.clock()
                try:
                    mark = await self.enter(ticket)
                except RateLimited as shut:
                    raise _counted(shut, sent, waited) from None
                waited += self.clock() - began
            outcome = await self._send_once(sending, mark, deadline)
            if not isinstance(outcome, ProviderError):
                return outcome, sent, waited
            sent += requests_of(outcome)
            attempt += 1
            worth = retries if outcome.retries is None else min(retries, outcome.retries)
            if not outcome.transient or attempt > worth or self.shut or not retry_allowed():
                raise _counted(outcome, sent, waited)
            if not isinstance(outcome, RateLimited) and not outcome.retry_after:  # else the account's pause serves
                began = self.clock()
                await self.sleep(self.backoff(attempt))
                waited += self.clock() - began

    async def _send_once(self, sending: Callable[[], Awaitable[T]], mark: int, deadline: float) -> T | ProviderError:
        """One sending in a slot, which is given back however it ends."""
        failure: ProviderError
        count = running_count()
        count.dispatched()
        try:
            async with asyncio.timeout(deadline):
                answer = await sending()
        except ProviderError as error:
            count.answered()
            failure = error
        except TimeoutError:
            failure = Timeout(f"{self.account}: no answer within the deadline of {deadline:g} s")
        except BaseException:
            self.abandoned()
            raise
        else:
            count.answered()
            self.succeeded()
            return answer
        self.failed(mark, failure)
        return failure

    def ticket(self) -> int:
        """A place in the order of arrival; a call keeps its own for all its sendings."""
        return next(self._tickets)

    def try_enter(self) -> int:
        """Take a slot if one is free and nobody waits. Returns a mark to give back with it, or 0."""
        if self._waiting or self._gate or self._flying >= self._window or self._ramp != math.inf:
            return 0
        self._flying += 1
        return self._epoch

    async def enter(self, ticket: int) -> int:
        """Take a slot, in turn. Returns the mark to give back with it.

        Raises `RateLimited` when the account has been told to stay away for longer than `patience`.
        """
        if self.shut:
            raise self._turned_away(self._gate - self.clock())
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (ticket, future))
        self._release_waiters()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.abandoned()  # the slot was given at the moment the waiter was cancelled
            self._drop_gone()
            raise

    def succeeded(self) -> None:
        """Give the slot back after an answer."""
        held_back = self._flying >= self._window - 1 or bool(self._waiting)
        self._flying -= 1
        if self._ramp != math.inf:
            self._recover()
        elif held_back and self._window < self.pace.most and not self._calming():
            self._window = min(self.pace.most, self._window + (1 / self._window if self._was_cut else 0.5))
        self._streak = 0
        if self._waiting:
            self._release_waiters()

    def failed(self, mark: int, error: ProviderError) -> None:
        """Give the slot back after an error, and learn from it. A refusal or rejection is an answer in time."""
        self._flying -= 1
        if isinstance(error, RateLimited):
            self._cut(mark, error.retry_after)
        elif isinstance(error, Refused | Rejected):
            self._recover()
        else:
            self._grows_from = self.clock() + self.pace.calm
            if isinstance(error, ServerError) and error.retry_after:
                self._pause(error.retry_after)
        if self._waiting:
            self._release_waiters()

    def abandoned(self) -> None:
        """Give the slot back without having learned anything."""
        self._flying -= 1
        if self._waiting:
            self._release_waiters()

    def backoff(self, attempt: int) -> float:
        """Seconds before retry number `attempt` (from 1): full jitter under a doubling bound."""
        return self._rng.uniform(0.0, min(self.pace.longest_backoff, self.pace.backoff * 2**attempt))

    def _recover(self) -> None:
        """An answer came: after a pause, one more may be in flight, until the window holds them again."""
        if self._ramp:  # else it answers a request from before the pause
            self._ramp = self._ramp + 1 if self._ramp < self._window else math.inf

    def _calming(self) -> bool:
        if self._grows_from and self.clock() >= self._grows_from:
            self._grows_from = 0.0
        return self._grows_from > 0

    def _cut(self, mark: int, retry_after: float | None) -> None:
        if mark == self._epoch:
            self._epoch += 1
            self._streak += 1
            self._was_cut = True
            self._window = max(self.pace.least, min(self._window, self._flying + 1) * self.pace.cut)
            if retry_after is None:
                bound = min(self.pace.longest_backoff, self.pace.backoff * 2**self._streak)
                retry_after = self._rng.uniform(bound / 2, bound)
        if retry_after is not None:
            self._pause(retry_after)

    def _pause(self, seconds: float) -> None:
        """Nothing is sent on this account for so long, and a little more by chance."""
        gate = self.clock() + seconds + self._rng.uniform(0.0, self.pace.spacing)
        self._gate = max(self._gate, gate)
        self._ramp = 0.0
        if seconds > self.pace.patience:
            for _, future in self._waiting:
                if not future.done():
                    future.set_exception(self._turned_away(seconds))
            self._waiting.clear()

    def _turned_away(self, seconds: float) -> RateLimited:
        error = RateLimited(
            f"{self.account}: the provider asks to wait {seconds:.0f} s; try again later or use another model",
            retry_after=seconds,
        )
        vars(error)["requests"] = 0
        return error

    def _release_waiters(self) -> None:
        while self._drop_gone():
            now = 0.0
            if self._gate:
                now = self.clock()
                if now < self._gate:
                    self._open_later()
                    return
                self._gate = 0.0
            if self._ramp == 0.0:
                self._ramp = self._flying + 1.0
            if self._flying >= min(self._window, self._ramp):
                return
            self._flying += 1
            heapq.heappop(self._waiting)[1].set_result(self._epoch)
            if self._ramp != math.inf:
                self._gate = (now or self.clock()) + self._rng.uniform(0.0, self.pace.spacing)

    def _drop_gone(self) -> bool:
        """Let go of those at the front who gave up, since a future holds its loop; whether anybody is left."""
        while self._waiting and self._waiting[0][1].done():
            heapq.heappop(self._waiting)
        return bool(self._waiting)

    def _open_later(self) -> None:
        if self._opener is None or self._opener.done():
            loop = asyncio.get_running_loop()
            # an empty context, so that the task keeps nothing of the session that happened to start it
            empty = contextvars.Context()
            self._opener = loop.create_task(self._open_when_due(), context=empty)
            self._opener.add_done_callback(self._forget, context=empty)

    def _forget(self, opener: asyncio.Task[None]) -> None:
        """A task holds its loop, as whose limiter this is kept: else a loop that met a pause would never be let go."""
        if self._opener is opener:
            self._opener = None

    async def _open_when_due(self) -> None:
        while self._waiting and self._gate:
            left = self._gate - self.clock()
            if left > 0:
                await self.sleep(left)
            self._release_waiters()


_limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Limiter]] = WeakKeyDictionary()


def limiter_for(account: str, pace: Pace | None = None) -> Limiter:
    """The limiter of `account` on the running event loop; `pace` counts when it is made. Needs a running loop."""
    accounts = _limiters.setdefault(asyncio.get_running_loop(), {})
    if account not in accounts:
        accounts[account] = Limiter(account, pace)
    return accounts[account]


class Limited:
    """A model behind its account's limiter, with retries of transient failures and a deadline for each sending.

    `deadline` is seconds from dispatch, after the limiter; `retries` bounds the further sendings, each of which also
    asks `may_retry`. Without a `limiter` it is the account's own on whatever loop runs (`pace` if it is new).
    """

    def __init__(
        self,
        inner: Model,
        limiter: Limiter | None = None,
        *,
        deadline: float,
        retries: int,
        pace: Pace | None = None,
    ) -> None:
        self.inner = inner
        self.deadline = deadline
        self.retries = retries
        self._limiter = limiter
        self._pace = pace

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def account(self) -> str:
        return self.inner.account

    @property
    def thinks(self) -> Thinks:
        return thinks(self.inner)

    @property
    def context_window(self) -> int | None:
        return context_window(self.inner)

    async def complete(self, request: ModelRequest) -> Completion:
        """The inner model's answer with `requests` and `waited` filled in. Raises as `Limiter.send` does."""
        limiter = self._limiter or limiter_for(self.inner.account, self._pace)
        completion, failed, waited = await limiter.send(
            lambda: self.inner.complete(request), deadline=self.deadline, retries=self.retries
        )
        if not failed and not waited:
            return completion
        return replace(completion, requests=failed + completion.requests, waited=waited + completion.waited)

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return self.inner.price(tokens_in, tokens_out)

    async def close(self) -> None:
        await self.inner.close()


def _counted(error: ProviderError, sent: int, waited: float) -> ProviderError:
    """The error with what was tried, as one of its own: a model may raise the same object each time."""
    told = copy.copy(error)
    vars(told).update(requests=sent, waited=waited)
    return told
