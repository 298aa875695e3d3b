"""Replies that are too large, against a real server: one request, a plain error, and little memory."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent

import consilience
from consilience.domain.errors import ProviderError, Rejected
from consilience.models.embeddings import MAX_VECTORS_BYTES, ProviderEncoder
from consilience.models.limiter import requests_of
from consilience.models.port import ModelRequest
from consilience.models.registry import resolve
from consilience.models.transfer import MAX_REPLY_BYTES
from kit.forks import PYTHONPATH

from .misbehaving import KEY, Answer, Server, completion, error, misbehaving

MODELS = ("openai-chat:stub", "openai-responses:stub", "anthropic:claude-haiku-4-5", "google:gemini-2.5-flash")
GZIP = {"Content-Encoding": "gzip"}


def gzip_bomb(size: int) -> bytes:
    """A gzip file of about `size` / 1000 bytes that unpacks to `size`."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    block = bytes(1 << 20)
    return b"".join([*(packer.compress(block) for _ in range(size >> 20)), packer.flush()])


TOO_LARGE = {
    "a reply": Answer(body=b" " * (MAX_REPLY_BYTES + 1)),
    "an error": Answer(429, b" " * (MAX_REPLY_BYTES + 1)),
    "a redirect": Answer(307, b" " * (MAX_REPLY_BYTES + 1), {"Location": "/elsewhere"}),
}


@pytest.fixture
def point_providers_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[Server], None]:
    """Have every provider's requests go to a server."""

    def use(server: Server) -> None:
        for variable in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"):
            monkeypatch.setenv(variable, f"{server.url}/v1" if "OPENAI" in variable else server.url)
        for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"):
            monkeypatch.setenv(variable, KEY)

    return use


def request() -> ModelRequest:
    return ModelRequest(agent="a", key="k", system="Be brief.", user="2+2?")


async def failure_of(model: str) -> ProviderError:
    asked = resolve(model)
    try:
        with pytest.raises(ProviderError) as caught:
            await asked.complete(request())
    finally:
        await asked.close()
    return caught.value


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("answer", TOO_LARGE.values(), ids=TOO_LARGE.keys())
async def test_too_large_reply_is_rejected_after_one_request(
    model: str, answer: Answer, point_providers_at: Callable[[Server], None]
) -> None:
    async with misbehaving(answer) as server:
        point_providers_at(server)
        failed = await failure_of(model)
    assert isinstance(failed, Rejected)
    assert "the reply was not read: it has more than 8 MB" in failed.detail
    assert (len(server.seen), requests_of(failed)) == (1, 1)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("encoding", "reason"),
    [
        ("gzip", "said to be compressed as 'gzip', and is not"),
        ("br", "compressed as 'br', which was not asked for"),
        ("deflate", "said to be compressed as 'deflate', and is not"),
    ],
)
async def test_compressed_reply_is_not_requested_and_unreadable_one_rejected(
    model: str, encoding: str, reason: str, point_providers_at: Callable[[Server], None]
) -> None:
    async with misbehaving(Answer(body=b"not compressed", headers={"Content-Encoding": encoding})) as server:
        point_providers_at(server)
        failed = await failure_of(model)
    assert isinstance(failed, Rejected)
    assert reason in failed.detail
    assert [seen.headers["accept-encoding"] for seen in server.seen] == ["identity"]


@pytest.mark.parametrize(("encoding", "bits"), [("gzip", 16 + zlib.MAX_WBITS), ("deflate", zlib.MAX_WBITS)])
async def test_reply_of_a_server_that_compresses_unasked_is_read(
    encoding: str, bits: int, point_providers_at: Callable[[Server], None]
) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, bits)
    packed = packer.compress(json.dumps(completion("Four.").body).encode()) + packer.flush()
    async with misbehaving(Answer(body=packed, headers={"Content-Encoding": encoding})) as server:
        point_providers_at(server)
        model = resolve("openai-chat:stub")
        assert (await model.complete(request())).text == "Four."
        await model.close()


async def test_a_long_reply_within_the_limit_is_read_whole(point_providers_at: Callable[[Server], None]) -> None:
    text = "word " * 1_000_000
    async with misbehaving(completion(text)) as server:
        point_providers_at(server)
        for _ in range(2):  # on one connection
            model = resolve("openai-chat:stub")
            assert (await model.complete(request())).text == text
            await model.close()


async def test_embedding_reply_has_its_own_size_limit(point_providers_at: Callable[[Server], None]) -> None:
    few = Answer(body=b" " * MAX_REPLY_BYTES + json.dumps(vectors()).encode())
    async with misbehaving(few) as server:
        point_providers_at(server)
        assert await ProviderEncoder("openai:text-embedding-3-small").encode(["a"]) == [[1.0, 0.0]]
    async with misbehaving(Answer(body=b" " * (MAX_VECTORS_BYTES + 1))) as server:
        point_providers_at(server)
        with pytest.raises(Rejected, match="it has more than 64 MB"):
            await ProviderEncoder("openai:text-embedding-3-small").encode(["a"])
        assert len(server.seen) == 1


def vectors() -> dict[str, object]:
    data = [{"object": "embedding", "index": 0, "embedding": [1.0, 0.0]}]
    return {"object": "list", "model": "e", "data": data, "usage": {"prompt_tokens": 3, "total_tokens": 3}}


async def test_tool_agent_rejects_a_too_large_reply(point_providers_at: Callable[[Server], None]) -> None:
    async with misbehaving(TOO_LARGE["a reply"]) as server:
        point_providers_at(server)
        agent = Agent("openai-chat:stub", name="reader")
        report = await consilience.deliberate(
            "Is it so?", consilience.Emergence(children=2, max_rounds=1), model=agent, store=None
        )
    assert "it has more than 8 MB" in str([missing.reason for missing in report.missing])


MEASURED = """
import sys
from pathlib import Path
from typing import Any
from consilience.cli.main import main
try:
    main()
finally:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print("PEAK", int(status["VmHWM"].split()[0]) // 1000, "MB", file=sys.stderr)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
async def test_compression_bomb_takes_little_memory(home: Path, point_providers_at: Callable[[Server], None]) -> None:
    """A whole command, which without the limit takes more than 1 GB."""
    async with misbehaving(Answer(body=gzip_bomb(400 << 20), headers=GZIP)) as server:
        point_providers_at(server)
        command = ("emergence", "Is it so?", "--model", "openai-chat:stub", "--max-calls", "1", "--no-store", "--yes")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", MEASURED, *command),
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = (text.decode() for text in await process.communicate())
    assert "it has more than 8 MB" in out
    peak = re.search(r"PEAK (\d+) MB", err)
    assert peak is not None, err
    assert int(peak[1]) < 250


@pytest.mark.parametrize("model", MODELS)
async def test_library_timeouts_do_not_end_a_request_before_its_deadline(
    model: str, point_providers_at: Callable[[Server], None]
) -> None:
    """The libraries stop waiting after 600 s; `--deadline 900` and `--thinking medium` allow more."""
    timeouts: list[dict[str, float | None]] = []

    async def note(response: Any) -> None:
        timeouts.append(response.request.extensions["timeout"])

    async with misbehaving(error(400)) as server:
        point_providers_at(server)
        asked = resolve(model)
        asked.inner._model.provider._own_http_client.event_hooks["response"].append(note)  # type: ignore[attr-defined]
        with pytest.raises(ProviderError):
            await asked.complete(request())
        await asked.close()
    assert [(timeout["read"], timeout["connect"]) for timeout in timeouts] == [(None, 5)]
