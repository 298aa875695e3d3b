"""The rate of requests to an account: adaptive concurrency, a shared pause, retries, and a deadline for each request.

One `Limiter` per provider account and event loop, shared by all sessions (`limiter_for`). Its window grows slowly while it
holds requests back, is halved by a 429 (once for all requests in flight), and does not grow for a while after a server
failed. A `retry_after` pauses the whole account. After it one request is sent, and the others follow one by one as answers
arrive. `Limited` is a model whose requests pass a limiter.
"""

from __future__ import annotations

import asyncio
import contextvars
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

on_retry: ContextVar[Callable[[str], None] | None] = ContextVar("on_retry", default=None)
"""Called with a sentence before a failed request is repeated, for showing it."""

may_retry: ContextVar[Callable[[], bool] | None] = ContextVar("may_retry", default=None)
"""Called before each further request of a call, because limits count requests; None allows all."""


class Sendings:
    """Counts the requests of one call while they are sent, because a cancelled call returns no figures.

    A limiter, or a model without one, calls `expect` first, `dispatched` per request and `answered` per result.
    """

    def __init__(self, ends_at: float = math.inf) -> None:
        """`ends_at` is when the call is ended, by the clock of its event loop: nothing is sent then."""
        self._ends_at = ends_at
        self._expected = False
        self._sent = 0
        self._open = 0

    @property
    def requests(self) -> int:
        """Requests sent since the last `settle`. 1 for a model that does not report its requests."""
        return self._sent if self._expected else 1

    @property
    def in_flight(self) -> bool:
        """Whether a request was sent and not answered; True for a model that does not report its requests."""
        return self._open > 0 if self._expected else True

    @property
    def is_over(self) -> bool:
        """Whether the time of the call is over, so that it is about to be ended."""
        return asyncio.get_running_loop().time() >= self._ends_at

    def expect(self) -> None:
        self._expected = True

    def dispatched(self) -> None:
        self._sent += 1
        self._open += 1

    def answered(self) -> None:
        self._open -= 1

    def repeated(self) -> None:
        """The model sent a further request while it held one slot of its limiter."""
        self._sent += 1

    def settle(self) -> None:
        """Reset: the requests so far have been recorded."""
        self._sent = self._open = 0


sendings: ContextVar[Sendings] = ContextVar("sendings")
"""The count of the running call; set only if a limit on time may end the call."""


def running_count() -> Sendings:
    """Return the count of the running call, or a new one that is not read."""
    return sendings.get(None) or Sendings()


def retry_allowed() -> bool:
    """Return whether the running call may send another request. True may reserve it, so it must be sent."""
    ask = may_retry.get()
    return ask is None or ask()


def requests_of(error: ProviderError) -> int:
    """Return the number of requests sent before `error` was raised."""
    requests = getattr(error, "requests", 1)
    return requests if isinstance(requests, int) else 1


@dataclass(frozen=True, slots=True)
class Pace:
    """Settings of a limiter. A window is a number of requests in flight."""

    initial_window: float = 16.0
    min_window: float = 1.0
    max_window: float = 256.0
    cut_factor: float = 0.5
    """What a 429 leaves of the window."""
    calm_seconds: float = 10.0
    """How long the window does not grow after a server failed."""
    backoff_seconds: float = 0.5
    """Bound on the wait before the first retry. It doubles with each retry."""
    max_backoff_seconds: float = 30.0
    max_spacing_seconds: float = 0.25
    """Max time between two releases after a pause."""
    max_pause_seconds: float = 120.0
    """If the provider asks for a longer pause, waiting requests fail."""


class Limiter:
    """The shared state of one account on one event loop. Waiters are served in order of arrival.

    `clock`, `sleep` and `rng` are the only sources of time and chance; tests replace them.
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
        self._window = self.pace.initial_window
        self._was_cut = False
        self._ramp = math.inf  # a second bound while recovering from a pause; 0 until the first release after it
        self._in_flight = 0
        self._waiting: list[tuple[int, asyncio.Future[int]]] = []
        self._tickets = itertools.count()
        self._epoch = 1  # counts cuts: a 429 to a request sent before the last cut cuts nothing
        self._streak = 0  # cuts since the last success
        self._gate = 0.0  # nothing is released before this instant; 0 when open
        self._grows_from = 0.0
        self._opener: asyncio.Task[None] | None = None

    @property
    def window(self) -> float:
        """Current bound on requests in flight."""
        return self._window

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def waiting(self) -> int:
        return sum(not future.done() for _, future in self._waiting)

    @property
    def is_closed(self) -> bool:
        """Whether the provider asked for a pause above `max_pause_seconds`, so that `enter` raises."""
        return self._gate > 0.0 and self.pause_left > self.pace.max_pause_seconds + self.pace.max_spacing_seconds

    @property
    def pause_left(self) -> float:
        """Seconds until the next request may be sent."""
        return max(self._gate - self.clock(), 0.0)

    async def send(self, sending: Callable[[], Awaitable[T]], *, deadline: float, retries: int) -> tuple[T, int, float]:
        """Return the result of `sending`, the number of failed requests before it, and the seconds waited.

        `deadline` is seconds per request from dispatch; `retries` bounds further requests after transient failures. A server
        that is loading its model is asked again for up to `Pace.max_pause_seconds`; this counts as no request and no retry. Raises
        the last `ProviderError` with the attributes `requests` and `seconds_waited`. A cancelled call holds no slot.
        """
        ticket = self.ticket()
        running_count().expect()
        sent, seconds_waited, attempt = 0, 0.0, 0
        loading_since: float | None = None
        while True:
            mark = self.try_enter()
            if not mark:
                began = self.clock()
                try:
                    mark = await self.enter(ticket)
                except RateLimited as error:
                    raise _with_counts(error, sent, seconds_waited) from None
                seconds_waited += self.clock() - began
            if running_count().is_over:  # the slot is that of another call that its time has ended
                self.abandoned()
                await asyncio.get_running_loop().create_future()
            outcome = await self._send_once(sending, mark, deadline)
            if not isinstance(outcome, ProviderError):
                return outcome, sent, seconds_waited
            sent += requests_of(outcome)
            if isinstance(outcome, ServerError) and outcome.loading and not self.is_closed:
                loading_since = self.clock() if loading_since is None else loading_since
                if self.clock() - loading_since < self.pace.max_pause_seconds:
                    self._show(f"{outcome.detail}; waiting for up to {self.pace.max_pause_seconds:.0f} s")
                    continue
                raise _with_counts(
                    outcome.with_detail(f"{outcome.detail}, for {self.pace.max_pause_seconds:.0f} s by now"),
                    sent,
                    seconds_waited,
                )
            attempt += 1
            useful_retries = retries if outcome.retries is None else min(retries, outcome.retries)
            if not outcome.transient or attempt > useful_retries or self.is_closed or not retry_allowed():
                if outcome.retry_after and self.is_closed:
                    outcome = outcome.with_detail(f"{outcome.detail}. {self._pause_words(outcome.retry_after)}")
                raise _with_counts(outcome, sent, seconds_waited)
            self._show(f"{outcome.detail}; asking again ({attempt} of at most {useful_retries} times)")
            if not isinstance(outcome, RateLimited) and not outcome.retry_after:  # else the account's pause serves
                began = self.clock()
                await self.sleep(self.backoff(attempt))
                seconds_waited += self.clock() - began

    @staticmethod
    def _show(sentence: str) -> None:
        if (show := on_retry.get()) is not None:
            show(sentence)

    async def _send_once(self, sending: Callable[[], Awaitable[T]], mark: int, deadline: float) -> T | ProviderError:
        """One request in a slot, which is released in any case."""
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
        """A place in the order of arrival; a call keeps it for all its requests."""
        return next(self._tickets)

    def try_enter(self) -> int:
        """Take a slot if one is free and no request waits. Returns a mark for releasing it, or 0."""
        if self._waiting or self._gate or self._in_flight >= self._window or self._ramp != math.inf:
            return 0
        self._in_flight += 1
        return self._epoch

    async def enter(self, ticket: int) -> int:
        """Take a slot, in turn. Returns the mark for releasing it. Raises `RateLimited` if the account `is_closed`."""
        if self.is_closed:
            raise self._pause_error(self.pause_left)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (ticket, future))
        self._release_waiters()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.abandoned()  # the slot was given at the moment the waiter was cancelled
            self._drop_cancelled()
            raise

    def succeeded(self) -> None:
        """Release the slot after an answer."""
        was_full = self._in_flight >= self._window - 1 or bool(self._waiting)
        self._in_flight -= 1
        if self._ramp != math.inf:
            self._recover()
        elif was_full and self._window < self.pace.max_window and not self._is_calming():
            self._window = min(self.pace.max_window, self._window + (1 / self._window if self._was_cut else 0.5))
        self._streak = 0
        if self._waiting:
            self._release_waiters()

    def failed(self, mark: int, error: ProviderError) -> None:
        """Release the slot after an error and adapt. A refusal or rejection counts as an answer in time."""
        self._in_flight -= 1
        if isinstance(error, RateLimited):
            self._cut(mark, error.retry_after)
        elif isinstance(error, Refused | Rejected):
            self._recover()
        else:
            self._grows_from = self.clock() + self.pace.calm_seconds
            if isinstance(error, ServerError) and error.retry_after:
                self._pause(error.retry_after)
        if self._waiting:
            self._release_waiters()

    def abandoned(self) -> None:
        """Release the slot without adapting."""
        self._in_flight -= 1
        if self._waiting:
            self._release_waiters()

    def backoff(self, attempt: int) -> float:
        """Seconds before retry number `attempt` (from 1): full jitter under a doubling bound."""
        return self._rng.uniform(0.0, min(self.pace.max_backoff_seconds, self.pace.backoff_seconds * 2**attempt))

    def _recover(self) -> None:
        """After a pause, each answer allows one more request in flight, up to the window."""
        if self._ramp:  # else it answers a request from before the pause
            self._ramp = self._ramp + 1 if self._ramp < self._window else math.inf

    def _is_calming(self) -> bool:
        if self._grows_from and self.clock() >= self._grows_from:
            self._grows_from = 0.0
        return self._grows_from > 0

    def _cut(self, mark: int, retry_after: float | None) -> None:
        if mark == self._epoch:
            self._epoch += 1
            self._streak += 1
            self._was_cut = True
            self._window = max(self.pace.min_window, min(self._window, self._in_flight + 1) * self.pace.cut_factor)
            if retry_after is None:
                bound = min(self.pace.max_backoff_seconds, self.pace.backoff_seconds * 2**self._streak)
                retry_after = self._rng.uniform(bound / 2, bound)
        if retry_after is not None:
            self._pause(retry_after)

    def _pause(self, seconds: float) -> None:
        """Send nothing on this account for so long, plus a small random time."""
        gate = self.clock() + seconds + self._rng.uniform(0.0, self.pace.max_spacing_seconds)
        self._gate = max(self._gate, gate)
        self._ramp = 0.0
        if seconds > self.pace.max_pause_seconds:
            for _, future in self._waiting:
                if not future.done():
                    future.set_exception(self._pause_error(seconds))
            self._waiting.clear()

    def _pause_error(self, seconds: float) -> RateLimited:
        error = RateLimited(f"{self.account}: {self._pause_words(seconds)}", retry_after=seconds)
        vars(error)["requests"] = 0
        return error

    def _pause_words(self, seconds: float) -> str:
        return (
            f"The provider asks to wait {seconds:.0f} s, and a run waits at most {self.pace.max_pause_seconds:.0f} s: "
            "try again later or use another model"
        )

    def _release_waiters(self) -> None:
        while self._drop_cancelled():
            now = 0.0
            if self._gate:
                now = self.clock()
                if now < self._gate:
                    self._open_later()
                    return
                self._gate = 0.0
            if self._ramp == 0.0:
                self._ramp = self._in_flight + 1.0
            if self._in_flight >= min(self._window, self._ramp):
                return
            self._in_flight += 1
            heapq.heappop(self._waiting)[1].set_result(self._epoch)
            if self._ramp != math.inf:
                self._gate = (now or self.clock()) + self._rng.uniform(0.0, self.pace.max_spacing_seconds)

    def _drop_cancelled(self) -> bool:
        """Drop cancelled waiters at the front, because a future keeps its loop alive. Returns whether any waiter is left."""
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
        """Drop the task: it would keep its loop alive, whose limiter this is."""
        if self._opener is opener:
            self._opener = None

    async def _open_when_due(self) -> None:
        while self._waiting and self._gate:
            seconds_left = self._gate - self.clock()
            if seconds_left > 0:
                await self.sleep(seconds_left)
            self._release_waiters()


_limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Limiter]] = WeakKeyDictionary()


def limiter_for(account: str, pace: Pace | None = None) -> Limiter:
    """Return the limiter of `account` on the running event loop; `pace` applies if it is new."""
    accounts = _limiters.setdefault(asyncio.get_running_loop(), {})
    if account not in accounts:
        accounts[account] = Limiter(account, pace)
    return accounts[account]


def pauses() -> dict[str, float]:
    """Return the seconds for which accounts send nothing, at least 1, because their provider asked for it or limits its rate."""
    limiters = [limiter for accounts in _limiters.values() for limiter in accounts.values()]
    return {limiter.account: limiter.pause_left for limiter in limiters if limiter.waiting and limiter.pause_left >= 1}


def waits() -> dict[str, int]:
    """Return the number of requests that each account holds back, of the accounts that were used. Any thread may ask."""
    found: dict[str, int] = {}
    for accounts in list(_limiters.values()):
        for limiter in list(accounts.values()):
            found[limiter.account] = found.get(limiter.account, 0) + limiter.waiting
    return found


class Limited:
    """A model behind its account's limiter, with retries of transient failures and a deadline for each request.

    `deadline` is seconds from dispatch; `retries` bounds further requests, each of which also asks `may_retry`. Without a
    `limiter`, the account's own on the running loop is used (with `pace` if it is new).
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
        """Return the inner model's answer with `requests` and `seconds_waited` set. Raises as `Limiter.send` does."""
        return await self.send(request, retries=self.retries)

    async def send(self, request: ModelRequest, *, retries: int) -> Completion:
        """Do the same with another number of `retries`."""
        limiter = self._limiter or limiter_for(self.inner.account, self._pace)
        completion, failed, seconds_waited = await limiter.send(
            lambda: self.inner.complete(request), deadline=self.deadline, retries=retries
        )
        if not failed and not seconds_waited:
            return completion
        return replace(completion, requests=failed + completion.requests, waited=seconds_waited + completion.waited)

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return self.inner.price(tokens_in, tokens_out)

    async def close(self) -> None:
        await self.inner.close()


def _with_counts(error: ProviderError, sent: int, seconds_waited: float) -> ProviderError:
    """Return a copy of the error with these counts; a model may raise the same object each time."""
    copied = error.with_detail(error.detail)
    vars(copied).update(requests=sent, waited=seconds_waited)
    return copied
