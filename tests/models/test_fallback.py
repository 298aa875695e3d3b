"""The next model when one does not answer, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consilience.domain.errors import RateLimited, Refused, Rejected, ServerError
from consilience.models.fallback import Fallback
from consilience.models.limiter import Limited, may_retry, requests_of
from consilience.models.port import Completion, Model, ModelRequest

from .virtual import REQUEST, Provider, first, limiter, now, run


def test_chain_answers_with_the_next_model_and_sums_requests() -> None:
    async def main() -> None:
        gate = limiter()
        failing = Limited(Provider(outcome=first(9, ServerError)), gate, deadline=60, retries=2)
        refusing = Provider(outcome=first(9, Refused), name="acme:two")
        model = Fallback([failing, refusing, Provider(name="other:three")])
        answer = await model.complete(REQUEST)
        assert (answer.model, answer.requests) == ("other:three", 5)
        assert answer.waited == pytest.approx(now() - 5.0)
        assert (model.name, model.account, isinstance(model, Model)) == ("acme:one", "acme", True)

    run(main())


def test_failed_chain_reports_all_errors() -> None:
    async def main() -> None:
        failing = Provider(outcome=first(9, lambda: Refused("one refused")))
        two = Provider(outcome=first(9, lambda: Rejected("two: no such model")))
        with pytest.raises(Rejected) as caught:
            await Fallback([failing, two]).complete(REQUEST)
        assert str(caught.value) == "two: no such model; before that, one refused"
        assert requests_of(caught.value) == 2

    run(main())


def test_cost_of_a_chain_is_unknown_after_a_failure_of_unknown_cost() -> None:
    class Free(Provider):
        async def complete(self, request: ModelRequest) -> Completion:
            return replace(await super().complete(request), cost=0.0)

    def fails() -> ServerError:
        error = ServerError("the program failed")
        error.cost_unknown = True
        return error

    async def main() -> None:
        program = Provider(outcome=first(9, fails))
        assert (await Fallback([Provider(outcome=first(1, Refused)), Free()]).complete(REQUEST)).cost == 0.0
        assert (await Fallback([program, Free()]).complete(REQUEST)).cost is None
        refusing = Provider(outcome=first(9, Refused))
        with pytest.raises(Refused) as caught:
            await Fallback([program, refusing]).complete(REQUEST)
        assert caught.value.cost_unknown

    run(main())


def test_next_model_needs_permission() -> None:
    async def main() -> None:
        may_retry.set(lambda: False)
        second = Provider()
        with pytest.raises(Refused):
            await Fallback([Provider(outcome=first(9, Refused)), second]).complete(REQUEST)
        assert second.dispatched == []

    run(main())


def test_next_model_after_an_unsent_request_needs_no_permission() -> None:
    """Where the first account is shut, the sending that was allowed is still to be made."""

    async def main() -> None:
        gate = limiter()
        shut = Limited(Provider(outcome=first(1, lambda: RateLimited(retry_after=3600))), gate, deadline=60, retries=0)
        with pytest.raises(RateLimited):
            await shut.complete(REQUEST)
        may_retry.set(lambda: False)
        answer = await Fallback([shut, Provider(name="other:two")]).complete(REQUEST)
        assert (answer.model, answer.requests) == ("other:two", 1)

    run(main())


def test_chain_has_the_highest_price_and_closes_all_models() -> None:
    class Unpriced(Provider):
        def price(self, tokens_in: int, tokens_out: int) -> float | None:
            return None

    class Dear(Provider):
        def price(self, tokens_in: int, tokens_out: int) -> float | None:
            return 100.0

    models = [Provider(), Dear()]
    assert Fallback(models).price(1, 1) == 100.0
    assert Fallback([*models, Unpriced()]).price(1, 1) is None
    run(Fallback(models).close())
    assert [model.closed for model in models] == [True, True]
    with pytest.raises(ValueError, match="at least one"):
        Fallback([])
