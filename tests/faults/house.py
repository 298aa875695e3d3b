"""A local server with one model per seat, named after it; some of the models misbehave."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from consilience.domain.outcome import FailureKind
from models.misbehaving import Answer, Server, completion, error, misbehaving

USAGE = {"prompt_tokens": 12, "completion_tokens": 200_000, "total_tokens": 200_012}


@dataclass(frozen=True)
class Bad:
    """`answer` is what the seat's n-th request gets, from 1; `requests` those that one call of it makes with two retries."""

    name: str
    answer: Callable[[int], Answer]
    kind: FailureKind | None
    requests: int


def _always(name: str, answer: Answer, kind: FailureKind | None, requests: int) -> Bad:
    return Bad(name, lambda n: answer, kind, requests)


BAD = (
    _always("429 with Retry-After", error(429, Retry_After="0"), FailureKind.RATE_LIMITED, 3),
    _always("429 without", error(429), FailureKind.RATE_LIMITED, 3),
    _always("500", error(500), FailureKind.SERVER, 3),
    _always("529", error(529), FailureKind.SERVER, 3),
    _always("hang", Answer(hang=True), FailureKind.DEADLINE, 1),
    _always("cut in the body", Answer(body=completion().body, cut=60), FailureKind.UNREACHABLE, 3),
    _always("cut in the JSON", Answer(body=b'{"id": "c-1", "choices": [{"ind'), FailureKind.SERVER, 2),
    _always("a page", Answer(body=b"<html>sign in</html>"), FailureKind.SERVER, 2),
    _always("no bytes of a text", Answer(body=b'\xff\xfe{"a'), FailureKind.SERVER, 2),
    _always("half a character pair", Answer(400, b'{"error": {"message": "no \\ud83d"}}'), FailureKind.REJECTED, 1),
    _always("wrong key", error(401), FailureKind.REJECTED, 1),
    _always("empty", completion(""), FailureKind.MALFORMED, 2),
    _always("refusal", completion(None, refusal="I will not do that."), FailureKind.REFUSED, 1),
    _always("content filter", completion("Hal", finish="content_filter"), FailureKind.REFUSED, 1),
    _always("half an object", completion('{"points": ["a'), FailureKind.MALFORMED, 2),
    _always("schema echo", completion('{"type": "object", "properties": {"text": {}}}'), FailureKind.MALFORMED, 2),
    _always("empty object", completion("{}"), FailureKind.MALFORMED, 2),
    _always("200 000 tokens", completion("word " * 200_000, usage=USAGE), None, 1),
)


def ordinary_reply(body: dict[str, Any]) -> Answer:
    text = f"{body['model']} thinks: yes."
    return completion(json.dumps({"text": text}) if "response_format" in body else text)


@dataclass
class FaultyServer:
    """`bad` returns the answer to a seat's n-th request, or None for an ordinary one. `asked` counts requests by seat."""

    bad: Callable[[str, int], Answer | None]
    server: Server | None = None
    asked: Counter[str] = field(default_factory=Counter)

    def answer(self, _: int) -> Answer:
        assert self.server is not None
        body = self.server.seen[-1].body
        seat = body["model"]
        self.asked[seat] += 1
        return self.bad(seat, self.asked[seat]) or ordinary_reply(body)

    @property
    def environment(self) -> dict[str, str | None]:
        assert self.server is not None
        url = f"{self.server.url}/v1"
        free = {"OPENAI_BASE_URL": url, "CONSILIENCE_FREE_ENDPOINTS": url}
        return {**free, "OPENAI_API_KEY": "zq7-wintermute-plum-4410"}

    @property
    def account(self) -> str:
        assert self.server is not None
        return f"openai@{self.server.url.removeprefix('http://')}"


@asynccontextmanager
async def faulty_server(bad: Callable[[str, int], Answer | None]) -> AsyncIterator[FaultyServer]:
    made = FaultyServer(bad)
    async with misbehaving(made.answer) as made.server:
        yield made


@contextmanager
def faulty_server_in_a_thread(bad: Callable[[str, int], Answer | None]) -> Iterator[FaultyServer]:
    """The same in a thread of its own, for a command that runs a loop of its own."""
    made: list[FaultyServer] = []
    up = threading.Event()

    async def serve() -> None:
        async with faulty_server(bad) as opened:
            opened_until = asyncio.Event()
            made.append(opened)
            stops.append(lambda: loop.call_soon_threadsafe(opened_until.set))
            up.set()
            await opened_until.wait()

    stops: list[Callable[[], object]] = []
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert up.wait(10), "the server did not come up"
    try:
        yield made[0]
    finally:
        stops[0]()
        thread.join(10)
        loop.close()
