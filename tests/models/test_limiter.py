"""The limiter in virtual time, so that no test waits."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Awaitable
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilience.domain.errors import (
    ProviderError,
    RateLimited,
    Refused,
    Rejected,
    ServerError,
    Timeout,
    Unreachable,
)
from consilience.models.limiter import (
    Limited,
    Limiter,
    Pace,
    Sendings,
    limiter_for,
    may_retry,
    on_retry,
    requests_of,
    sendings,
)
from consilience.models.port import Completion, Model, ModelRequest

from .virtual import REQUEST, Provider, first, limiter, many, now, run


class TestConcurrency:
    def test_limiter_of_four_admits_fifty_requests_in_order_of_arrival(self) -> None:
        async def main() -> None:
            provider = Provider()
            answers = await many(Limited(provider, gate := limiter(), deadline=60, retries=0), 50)
            assert provider.most == 4
            assert provider.asked == [str(number) for number in range(50)]
            assert now() == 13.0
            waits = [answer.waited for answer in answers if isinstance(answer, Completion)]
            assert waits == [float(number // 4) for number in range(50)]
            assert {answer.requests for answer in answers if isinstance(answer, Completion)} == {1}
            assert (gate.in_flight, gate.waiting) == (0, 0)

        run(main())

    def test_window_grows_only_while_requests_wait(self) -> None:
        async def main() -> None:
            gate = limiter(Pace(initial_window=4, max_window=12))
            model = Limited(Provider(), gate, deadline=60, retries=0)
            for _ in range(20):
                await many(model, 2)
            assert gate.window == 4
            await many(model, 40)
            assert 4 < gate.window <= 12
            await many(model, 400)
            assert gate.window == 12

        run(main())

    def test_models_of_one_account_share_its_window(self) -> None:
        async def main() -> None:
            left, two, gate = Provider(), Provider(), limiter()
            await asyncio.gather(
                many(Limited(left, gate, deadline=60, retries=0), 8),
                many(Limited(two, gate, deadline=60, retries=0), 8),
            )
            assert now() == 4.0

        run(main())

    def test_uncontended_limiter_reads_no_clock_and_no_random_number(self) -> None:
        async def main() -> None:
            def clock() -> float:
                raise AssertionError("asked the time")

            model = Limited(Provider(), Limiter("acme", clock=clock), deadline=60, retries=2)
            answer = await model.complete(REQUEST)
            assert (answer.requests, answer.waited) == (1, 0.0)

        run(main())


class TestRateLimits:
    def test_pause_stops_requests_and_resumes_one_by_one(self) -> None:
        async def main() -> None:
            provider = Provider(outcome=first(4, lambda: RateLimited(retry_after=30)))
            model = Limited(provider, limiter(Pace(initial_window=4, max_window=16)), deadline=60, retries=1)
            answers = await many(model, 20)
            assert all(isinstance(answer, Completion) for answer in answers)
            before = [time for time in provider.dispatched if time < 31]
            after = [time for time in provider.dispatched if time >= 31]
            assert before == [0.0] * 4
            assert len(after) == 20
            assert 31 < after[0] <= 31.25
            assert after[1] >= after[0] + 1.0, "the first goes alone until it is answered"
            assert len(set(after[:4])) == 4, "and no two leave at the same instant"
            assert provider.asked[4:8] == ["0", "1", "2", "3"], "a retry keeps its place"

        run(main())

    def test_burst_of_429s_cuts_the_window_once(self) -> None:
        async def main() -> None:
            gate = limiter(Pace(initial_window=8, max_window=8))
            provider = Provider(outcome=first(8, lambda: RateLimited(retry_after=1)))
            await many(Limited(provider, gate, deadline=60, retries=1), 8)
            assert gate.window == pytest.approx(4, abs=1)

        run(main())

    def test_window_is_cut_relative_to_the_requests_in_flight(self) -> None:
        async def main() -> None:
            gate = limiter(Pace(initial_window=64, max_window=64))
            provider = Provider(outcome=first(4, lambda: RateLimited(retry_after=1)))
            await many(Limited(provider, gate, deadline=60, retries=0), 4)
            assert gate.window == 2

        run(main())

    def test_window_grows_slowly_after_a_cut(self) -> None:
        async def main() -> None:
            gate = limiter(Pace(initial_window=8, max_window=64))
            provider = Provider(outcome=first(1, lambda: RateLimited(retry_after=1)))
            model = Limited(provider, gate, deadline=60, retries=1)
            await many(model, 60)
            assert gate.window < 4 + 60 / 4 / 2

        run(main())

    def test_pauses_double_if_no_wait_is_given(self) -> None:
        async def main() -> None:
            provider = Provider(seconds=0.0, outcome=first(6, RateLimited))
            model = Limited(
                provider, limiter(Pace(initial_window=1, max_window=1, max_spacing_seconds=0.0)), deadline=60, retries=6
            )
            answer = await model.complete(REQUEST)
            assert answer.requests == 7
            pauses = [later - earlier for earlier, later in pairwise(provider.dispatched)]
            for number, pause in enumerate(pauses, 1):
                assert 0.5 * 2**number / 2 <= pause <= 0.5 * 2**number
            assert answer.waited == pytest.approx(sum(pauses))

        run(main())

    def test_pause_beyond_the_deadline_fails_all_calls_until_it_ends(self) -> None:
        async def main() -> None:
            provider = Provider(outcome=first(4, lambda: RateLimited(retry_after=3600)))
            model = Limited(provider, gate := limiter(), deadline=60, retries=3)
            asked: list[int] = []
            may_retry.set(lambda: asked.append(1) is None)  # type: ignore[func-returns-value]
            failures = await many(model, 10)
            assert now() == 1.0
            assert all(isinstance(failure, RateLimited) for failure in failures)
            assert all("asks to wait 3600 s, and a run waits at most 120 s" in str(failure) for failure in failures)
            assert [requests_of(failure) for failure in failures if isinstance(failure, ProviderError)] == [1] * 4 + [
                0
            ] * 6
            assert not asked, "no permission is taken for what cannot be sent"
            with pytest.raises(RateLimited) as caught:
                await model.complete(REQUEST)
            assert 3590 < (caught.value.retry_after or 0) < 3601
            assert (gate.in_flight, gate.waiting, len(provider.dispatched)) == (0, 0, 4)
            await asyncio.sleep(3600)
            assert isinstance(await model.complete(REQUEST), Completion)

        run(main())

    def test_error_of_a_pause_that_is_too_long_keeps_its_class_and_its_wait(self) -> None:
        class Overloaded(RateLimited):
            def __init__(self) -> None:
                super().__init__("overloaded", retry_after=3600)

        async def main() -> None:
            model = Limited(Provider(outcome=first(1, Overloaded)), limiter(), deadline=60, retries=3)
            with pytest.raises(Overloaded, match="asks to wait 3600 s") as caught:
                await model.complete(REQUEST)
            assert caught.value.retry_after == 3600

        run(main())

    def test_longest_pause_is_waited_for_and_shown(self) -> None:
        async def main() -> None:
            provider = Provider(outcome=first(1, lambda: RateLimited(retry_after=120)))
            model = Limited(provider, gate := limiter(), deadline=60, retries=3)
            call = asyncio.create_task(model.complete(REQUEST))
            await asyncio.sleep(11)
            assert gate.waiting == 1
            assert gate.pause_left == pytest.approx(110, abs=0.5)
            assert isinstance(await call, Completion)

        run(main())


class TestServerErrors:
    def test_rate_limit_during_growth_stops_the_growth_without_a_cut(self) -> None:
        async def main() -> None:
            gate = limiter(Pace(initial_window=4, max_window=64, calm_seconds=100))
            provider = Provider(outcome=first(1, ServerError))
            model = Limited(provider, gate, deadline=60, retries=1)
            await many(model, 60)
            assert gate.window == pytest.approx(4, abs=2)
            held = gate.window
            await many(model, 60)
            assert gate.window == held
            await asyncio.sleep(100)
            await many(model, 60)
            assert gate.window > held

        run(main())

    def test_retry_after_pauses_the_account(self) -> None:
        async def main() -> None:
            provider = Provider(outcome=first(1, lambda: ServerError(retry_after=20)))
            await many(Limited(provider, limiter(Pace(initial_window=1, max_window=1)), deadline=60, retries=1), 5)
            assert provider.dispatched[0] == 0.0
            assert provider.dispatched[1] >= 21.0

        run(main())


class TestLoading:
    @staticmethod
    def loading() -> ServerError:
        failure = ServerError("acme: the server is loading its model", retry_after=3.0)
        failure.loading, failure.requests = True, 0
        return failure

    def test_loading_server_is_waited_for_without_counting_requests(self) -> None:
        async def main() -> None:
            shown: list[str] = []
            on_retry.set(shown.append)
            may_retry.set(lambda: False)
            provider = Provider(seconds=0.0, outcome=lambda _: self.loading() if now() < 25 else None)
            answers = await many(Limited(provider, limiter(), deadline=60, retries=4), 5)
            assert [answer.requests for answer in answers if isinstance(answer, Completion)] == [1] * 5
            assert 25 <= now() < 31
            assert shown[0] == "acme: the server is loading its model; waiting for up to 120 s"

        run(main())

    def test_server_that_loads_for_ever_is_given_up_after_the_longest_pause(self) -> None:
        async def main() -> None:
            provider = Provider(seconds=0.0, outcome=lambda _: self.loading())
            with pytest.raises(ServerError, match="loading its model, for 120 s by now") as caught:
                await Limited(provider, limiter(), deadline=60, retries=4).complete(REQUEST)
            assert requests_of(caught.value) == 0
            assert 120 <= now() < 125

        run(main())


class TestRetries:
    @pytest.mark.parametrize("error", [ServerError, Unreachable, RateLimited])
    def test_transient_failures_are_retried_up_to_the_limit(self, error: type[ProviderError]) -> None:
        async def main() -> None:
            provider = Provider(outcome=first(9, error))
            with pytest.raises(error) as caught:
                await Limited(provider, limiter(), deadline=60, retries=3).complete(REQUEST)
            assert (len(provider.dispatched), requests_of(caught.value)) == (4, 4)
            assert vars(caught.value)["waited"] == pytest.approx(now() - 4.0)

        run(main())

    def test_requests_are_counted_if_a_model_raises_the_same_object_again(self) -> None:
        async def main() -> None:
            same = ServerError("down")
            model = Limited(Provider(outcome=lambda _: same), limiter(), deadline=60, retries=1)
            failures = await many(model, 6)
            assert [requests_of(failure) for failure in failures if isinstance(failure, ServerError)] == [2] * 6

        run(main())

    @pytest.mark.parametrize("error", [Timeout, Refused, Rejected])
    def test_permanent_failures_are_not_retried(self, error: type[ProviderError]) -> None:
        async def main() -> None:
            provider = Provider(outcome=first(9, error))
            with pytest.raises(error) as caught:
                await Limited(provider, gate := limiter(), deadline=60, retries=3).complete(REQUEST)
            assert (len(provider.dispatched), requests_of(caught.value), gate.window) == (1, 1, 4)

        run(main())

    def test_completion_counts_requests(self) -> None:
        async def main() -> None:
            provider = Provider(outcome=first(2, Unreachable))
            answer = await Limited(provider, limiter(), deadline=60, retries=3).complete(REQUEST)
            assert answer.requests == 3
            assert answer.waited == pytest.approx(now() - 3.0)

        run(main())

    def test_limiter_retry_needs_permission(self) -> None:
        async def main() -> None:
            left = [True, True]
            may_retry.set(lambda: bool(left) and left.pop())
            provider = Provider(outcome=first(9, ServerError))
            with pytest.raises(ServerError) as caught:
                await Limited(provider, limiter(), deadline=60, retries=8).complete(REQUEST)
            assert (len(provider.dispatched), requests_of(caught.value), left) == (3, 3, [])

        run(main())

    def test_backoff_has_full_jitter_under_a_doubling_bound(self) -> None:
        async def main() -> None:
            gate = limiter(Pace(backoff_seconds=1.0, max_backoff_seconds=20.0))
            for attempt, bound in [(1, 2.0), (2, 4.0), (4, 16.0), (5, 20.0), (12, 20.0)]:
                waits = [gate.backoff(attempt) for _ in range(300)]
                assert min(waits) < bound / 10
                assert bound * 0.9 < max(waits) <= bound

        run(main())

    def test_clock_sleep_and_random_source_can_be_replaced(self) -> None:
        async def main() -> None:
            time = [100.0]

            async def sleep(seconds: float) -> None:
                time[0] += seconds

            def trial() -> Awaitable[Completion]:
                time[0] = 100.0
                gate = Limiter("acme", clock=lambda: time[0], sleep=sleep, rng=random.Random(7))
                failing = Provider(seconds=0.0, outcome=first(3, lambda: RateLimited(retry_after=60)))
                return Limited(failing, gate, deadline=60, retries=3).complete(REQUEST)

            waits = {(await trial()).waited for _ in range(3)}
            assert now() == 0.0
            assert len(waits) == 1
            assert 180 < waits.pop() < 181

        run(main())


class TestDeadline:
    def test_deadline_counts_from_dispatch(self) -> None:
        async def main() -> None:
            provider = Provider(seconds=1.0)
            answers = await many(
                Limited(provider, limiter(Pace(initial_window=1, max_window=1)), deadline=1.5, retries=0), 10
            )
            assert all(isinstance(answer, Completion) for answer in answers)
            assert now() == 10.0

        run(main())

    def test_hanging_request_ends_at_the_deadline_and_frees_its_slot(self) -> None:
        async def main() -> None:
            provider = Provider(seconds=1e9)
            failures = await many(Limited(provider, gate := limiter(), deadline=2.0, retries=3), 8)
            assert [type(failure) for failure in failures] == [Timeout] * 8
            assert (now(), gate.in_flight, provider.flying, len(provider.dispatched)) == (4.0, 0, 0, 8)
            assert str(failures[0]) == "acme: no answer within the deadline of 2 s"

        run(main())

    def test_cancellation_is_not_reported_as_a_timeout(self) -> None:
        async def main() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await Limited(Provider(seconds=50), limiter(), deadline=20, retries=0).complete(REQUEST)

        run(main())


class TestCancellation:
    @pytest.mark.parametrize("when", [0.5, 1.0, 1.5, 2.0])
    def test_cancelled_calls_return_their_slots(self, when: float) -> None:
        """Whether it flew, waited, or was given a slot at that very moment."""

        async def main() -> None:
            provider = Provider()
            model = Limited(provider, gate := limiter(), deadline=60, retries=2)
            tasks = [asyncio.create_task(model.complete(REQUEST)) for _ in range(12)]
            await asyncio.sleep(when)
            for task in tasks[::2]:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(answer, Completion) for answer in ended[1::2])
            assert (gate.in_flight, gate.waiting) == (0, 0)
            await many(model, 8)
            assert provider.most == 4

        run(main())

    def test_call_that_gets_a_slot_when_its_time_is_over_sends_nothing(self) -> None:
        """The slot of a call that its time has ended goes to one whose time ends at the same moment."""

        async def main() -> None:
            provider = Provider(seconds=60.0)
            model = Limited(provider, gate := limiter(Pace(initial_window=1, max_window=1)), deadline=60, retries=0)

            async def call() -> Completion:
                sendings.set(Sendings(ends_at=5.0))
                return await model.complete(REQUEST)

            sender, *waiters = [asyncio.create_task(call()) for _ in range(3)]
            await asyncio.sleep(5.0)
            sender.cancel()
            await asyncio.sleep(1.0)
            for waiter in waiters:
                waiter.cancel()
            await asyncio.wait(waiters)
            assert provider.dispatched == [0.0]
            assert (gate.in_flight, gate.waiting) == (0, 0)

        run(main())

    def test_waiter_cancelled_as_it_gets_a_slot_returns_it(self) -> None:
        async def main() -> None:
            gate = limiter(Pace(initial_window=1, max_window=1))
            held = gate.try_enter()
            assert held
            waiter = asyncio.create_task(gate.enter(gate.ticket()))
            await asyncio.sleep(0)
            gate.succeeded()  # gives the slot to the waiter, which has not run yet
            assert gate.in_flight == 1
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert gate.in_flight == 0

        run(main())

    def test_cancellation_during_pause_and_backoff_returns_the_slot(self) -> None:
        async def main() -> None:
            for error in (lambda: RateLimited(retry_after=30), ServerError):
                provider = Provider(outcome=first(1, error))
                model = Limited(provider, gate := limiter(Pace(backoff_seconds=50)), deadline=60, retries=2)
                task = asyncio.create_task(model.complete(REQUEST))
                await asyncio.sleep(1.5)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert (gate.in_flight, gate.waiting, len(provider.dispatched)) == (0, 0, 1)
                assert isinstance(await model.complete(REQUEST), Completion)

        run(main())

    def test_defect_returns_its_slot(self) -> None:
        async def main() -> None:
            class Broken(Provider):
                async def complete(self, request: ModelRequest) -> Completion:
                    raise KeyError("a defect")

            with pytest.raises(KeyError):
                await Limited(Broken(), gate := limiter(), deadline=60, retries=3).complete(REQUEST)
            assert gate.in_flight == 0

        run(main())


EVENTS = st.sampled_from(["ok", "ok", "ok", "429", "429 wait", "500", "refused", "hang", "cancel", "denied"])


@given(st.lists(st.tuples(EVENTS, st.floats(0, 3)), min_size=1, max_size=40), st.integers(1, 6), st.integers())
def test_every_call_ends_and_returns_its_slot(events: list[tuple[str, float]], window: int, seed: int) -> None:
    async def main() -> None:
        def outcome(number: int) -> ProviderError | None:
            match events[number % len(events)][0]:
                case "429":
                    return RateLimited()
                case "429 wait":
                    return RateLimited(retry_after=5)
                case "500":
                    return ServerError()
                case "refused":
                    return Refused()
            return None

        provider = Provider(seconds=1.0, outcome=outcome)
        gate = limiter(Pace(initial_window=window, max_window=8), seed)
        model = Limited(provider, gate, deadline=10, retries=3)

        async def call(event: str, after: float) -> None:
            await asyncio.sleep(after)
            if event == "denied":
                may_retry.set(lambda: False)
            if event == "hang":
                hanging = Provider(seconds=1e9)
                await Limited(hanging, gate, deadline=10, retries=3).complete(REQUEST)
            elif event == "cancel":
                async with asyncio.timeout(after):
                    await model.complete(REQUEST)
            else:
                await model.complete(REQUEST)

        ended = await asyncio.gather(*(call(*event) for event in events), return_exceptions=True)
        assert all(end is None or isinstance(end, ProviderError | TimeoutError) for end in ended)
        assert (gate.in_flight, gate.waiting, provider.flying) == (0, 0, 0)
        assert provider.most <= 8
        assert 1 <= gate.window <= 8

    run(main())


class TestRegistry:
    def test_limiter_is_per_account_and_loop(self) -> None:
        async def main() -> Limiter:
            assert limiter_for("acme") is limiter_for("acme")
            assert limiter_for("acme") is not limiter_for("other")
            assert limiter_for("new", Pace(initial_window=3)).window == 3
            return limiter_for("acme")

        assert run(main()) is not run(main())

    @pytest.mark.parametrize("patience", [60.0, 3.0], ids=["waited for", "left in the middle of it"])
    def test_closed_loop_is_released_after_a_pause(self, patience: float) -> None:
        async def main() -> weakref.ref[asyncio.AbstractEventLoop]:
            gate = limiter_for("acme")
            gate.clock = now
            busy = Provider(outcome=first(1, lambda: RateLimited(retry_after=5)))
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await Limited(busy, gate, deadline=60, retries=1).complete(REQUEST)
            assert len(busy.dispatched) == (2 if patience > 5 else 1)
            return weakref.ref(asyncio.get_running_loop())

        loop = run(main())
        gc.collect()
        assert loop() is None

    def test_limiter_needs_a_running_loop(self) -> None:
        with pytest.raises(RuntimeError):
            limiter_for("acme")

    def test_limited_model_created_outside_a_loop_works_on_several(self) -> None:
        model = Limited(Provider(), deadline=60, retries=0, pace=Pace(initial_window=2, max_window=2))
        for _ in range(2):
            run(many(model, 6))
        assert model.inner.most == 2  # type: ignore[attr-defined]

    def test_limited_model_exposes_the_wrapped_one(self) -> None:
        provider = Provider()
        model = Limited(provider, deadline=60, retries=0)
        assert isinstance(model, Model)
        assert (model.name, model.account, model.price(1, 1)) == ("acme:one", "acme", 3.0)
        run(model.close())
        assert provider.closed
