"""The encoder of a provider, against a server on this machine that embeds well, badly, late or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import pytest

from consilience.domain.errors import ProviderError, RateLimited, Rejected, ServerError, Timeout, UnavailableModel
from consilience.models import hosted
from consilience.models.embeddings import ProviderEncoder
from consilience.models.hosted import RETRIES
from consilience.models.limiter import Limiter, Pace, limiter_for, requests_of
from consilience.models.registry import paid, resolve

from .misbehaving import KEY, Answer, Server, error, misbehaving

ENCODER = "openai:text-embedding-3-small"
AT_ONCE = Pace(backoff_seconds=0.0, max_backoff_seconds=0.0, max_spacing_seconds=0.0)


def vectors(*items: list[float]) -> Answer:
    data = [{"object": "embedding", "index": n, "embedding": vector} for n, vector in enumerate(items)]
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    return Answer(body={"object": "list", "model": "text-embedding-3-small", "data": data, "usage": usage})


class On(Protocol):
    def __call__(
        self, answer: Answer | Callable[[int], Answer], pace: Pace = AT_ONCE
    ) -> AbstractAsyncContextManager[tuple[ProviderEncoder, Server, Limiter]]:
        """The encoder, its provider, and the limiter that models of this provider have too."""
        ...


@pytest.fixture
def encoder_on(monkeypatch: pytest.MonkeyPatch) -> On:
    @asynccontextmanager
    async def on(
        answer: Answer | Callable[[int], Answer], pace: Pace = AT_ONCE
    ) -> AsyncIterator[tuple[ProviderEncoder, Server, Limiter]]:
        async with misbehaving(answer) as server:
            monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
            monkeypatch.setenv("OPENAI_API_KEY", KEY)
            gate = limiter_for(resolve("openai-chat:stub").account, pace)
            yield ProviderEncoder(ENCODER), server, gate

    return on


async def test_encoder_returns_one_vector_per_text(encoder_on: On) -> None:
    async with encoder_on(vectors([1.0, 0.0], [0.0, 1.0], [0.5, 0.5])) as (encoder, server, _):
        assert await encoder.encode(["a", "b", "c"]) == [[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]
    (seen,) = server.seen
    assert (seen.path, seen.body["input"]) == ("/v1/embeddings", ["a", "b", "c"])


async def test_encoder_on_another_event_loop_opens_new_connections(encoder_on: On) -> None:
    async with encoder_on(vectors([1.0])) as (encoder, server, _):
        assert await encoder.encode(["a"]) == [[1.0]]
        assert await asyncio.to_thread(lambda: asyncio.run(encoder.encode(["b"]))) == [[1.0]]
        assert await encoder.encode(["c"]) == [[1.0]]
        assert len(server.seen) == 3


@pytest.mark.parametrize("failure", [error(429, Retry_After="0"), error(429), error(500), error(529)])
async def test_encoder_retries_a_busy_provider(encoder_on: On, failure: Answer) -> None:
    async with encoder_on(lambda number: failure if number < 3 else vectors([1.0, 2.0])) as (encoder, server, gate):
        assert await encoder.encode(["a"]) == [[1.0, 2.0]]
        assert (len(server.seen), gate.in_flight, gate.waiting) == (3, 0, 0)


@pytest.mark.parametrize(
    ("failure", "raised", "sendings"),
    [(error(500), ServerError, 1 + RETRIES), (error(429), RateLimited, 1 + RETRIES), (error(400), Rejected, 1)],
)
async def test_encoder_requests_are_bounded_without_library_retries(
    encoder_on: On, failure: Answer, raised: type[ProviderError], sendings: int
) -> None:
    async with encoder_on(failure) as (encoder, server, gate):
        with pytest.raises(raised) as caught:
            await encoder.encode(["a"])
        assert (len(server.seen), requests_of(caught.value), gate.in_flight) == (sendings, sendings, 0)
        assert KEY not in f"{caught.value!r} {vars(caught.value)}"


async def test_encoder_with_a_hanging_provider_ends_at_the_deadline(
    encoder_on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted, "SERVER_DEADLINE_SECONDS", 0.05)
    async with encoder_on(Answer(hang=True)) as (encoder, _, gate):
        with pytest.raises(Timeout):
            await encoder.encode(["a"])
        assert gate.in_flight == 0


async def test_encoder_shares_the_limiter_of_its_provider(encoder_on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    async with encoder_on(vectors([1.0]), Pace(initial_window=1, max_window=1)) as (encoder, server, gate):
        enter, waits = gate.enter, asyncio.Event()

        async def noticed(ticket: int) -> int:
            waits.set()
            return await enter(ticket)

        monkeypatch.setattr(gate, "enter", noticed)
        assert gate.try_enter()
        encoding = asyncio.create_task(encoder.encode(["a"]))
        async with asyncio.timeout(10):
            await waits.wait()
        assert server.seen == []
        gate.succeeded()
        assert await encoding == [[1.0]]


@pytest.mark.parametrize(("name", "costs"), [(ENCODER, True), ("sentence-transformers:all-MiniLM-L6-v2", False)])
def test_paid_encoders_are_recognised(name: str, costs: bool) -> None:
    assert paid(name) is costs


@pytest.mark.parametrize("name", ["nobody:nothing", ENCODER])
def test_unusable_encoder_is_a_user_error(name: str) -> None:
    with pytest.raises(UnavailableModel) as refusal:
        ProviderEncoder(name)
    assert name in str(refusal.value)
    assert "jaccard" in str(refusal.value)
