"""Bounds on requests, on a real socket and in this process; and what readers and lists cost, by counting."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Message

from consilience.journal import records
from consilience.journal.records import SqliteRecords
from consilience.server import bounds, feeds
from consilience.server.bounds import MAX_DEPTH, MAX_HEADERS, MAX_VALUES, Bounds
from server.inprocess import Face, facing


@pytest.fixture
async def face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Face]:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
    async with facing(tmp_path, max_body=10_000) as found:
        yield found


@pytest.fixture
async def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Face]:
    monkeypatch.setenv("OPENAI_API_KEY", "none-needed")
    async with facing(tmp_path) as found:
        yield found


JSON = {"content-type": "application/json"}


async def test_body_that_declares_too_much_is_refused_unread(face: Face) -> None:
    refused = await face.call("POST", "/api/sessions", status=413, content=b"x" * 10_001, headers=JSON)
    assert "10,000 bytes" in refused["error"]["what"]


@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data; boundary=b"])
async def test_body_without_a_length_is_refused_once_it_is_too_long(face: Face, content_type: str) -> None:
    taken = []

    async def endless() -> AsyncIterator[bytes]:
        for n in range(10_000):
            taken.append(n)
            yield b'--b\r\nContent-Disposition: form-data; name="request"\r\n\r\n' if not n else b" " * 1_000

    await face.call("POST", "/api/sessions", status=413, content=endless(), headers={"content-type": content_type})
    assert len(taken) < 20


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"[" * 5_000, "levels deep"),
        (b"[" * (MAX_DEPTH + 2) + b"]" * (MAX_DEPTH + 2), "levels deep"),
        (b'{"task": "\\ud800"}', "surrogate"),
        (b'{"\\ud800": 1}', "surrogate"),
        (b'{"task": "\\u0000"}', "NUL"),
        (b'{"seed": NaN}', "NaN"),
        (b'{"seed": ' + b"9" * 5_000 + b"}", "JSON"),
        (b"\xff\xfe{", "JSON"),
        ('{"task": "a"}'.encode("utf-16"), "JSON"),
        (b"[" + b"{}," * MAX_VALUES + b"{}]", "values"),
        (b"[" + b'"a",' * MAX_VALUES + b"1]", "values"),
        (b"[" + b'"\\\\",' * MAX_VALUES + b"1]", "values"),
        (b"[" + b"1," * MAX_VALUES + b"1]", "values"),
        (b'["\\\\", ' + b"1," * MAX_VALUES + b"1]", "values"),
        (b"{", "JSON"),
    ],
)
async def test_body_that_is_not_sound_json_is_refused(large: Face, content: bytes, told: str) -> None:
    refused = await large.call("POST", "/api/sessions", status=422, content=content, headers=JSON)
    assert told in refused["error"]["what"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/api/debate-multi", "/api/choices",
                                  "/api/sessions/x/share", "/api/sessions/x/seats/y/link", "/api/sessions/x/fork"])  # fmt: skip
@pytest.mark.parametrize("content", [b"[" * 5_000, b"[" + b"{}," * MAX_VALUES + b"{}]", b'{"model": "\\u0000"}'])
async def test_json_is_bounded_on_every_route(large: Face, path: str, content: bytes) -> None:
    is_of_openai = path.startswith("/v1")
    refused = await large.call("POST", path, status=400 if is_of_openai else 422, content=content, headers=JSON)
    told = refused["error"]["message" if is_of_openai else "what"]
    assert "levels deep" in told or "values" in told or "NUL" in told


async def test_body_with_much_of_json_in_its_texts_is_read(large: Face) -> None:
    text = json.dumps([{"a": ["\\", '"']}] * MAX_VALUES)
    plan = {"protocol": "vote", "task": "a", "sources": [{"text": text}], "dry_run": True}
    await large.post("/api/sessions", plan)


async def test_strings_without_an_end_are_read_once(large: Face) -> None:
    content = b'"' + b'\\"' * 1_000_000  # takes hours if each quote is taken for a beginning
    await large.call("POST", "/api/sessions", status=422, content=content, headers=JSON)


async def test_documents_are_counted_before_they_are_read(large: Face) -> None:
    sources = [{"text": "a"}] * 1_001
    refused = await large.post("/api/sessions", {"protocol": "vote", "task": "a", "sources": sources}, 422)
    assert refused["error"]["where"] == "sources"


async def test_too_many_headers_are_refused(face: Face) -> None:
    headers = {f"x-{n}": "1" for n in range(MAX_HEADERS + 1)}
    await face.call("GET", "/healthz", status=431, headers=headers)


@pytest.mark.parametrize("seconds", ["IDLE_SECONDS", "BODY_SECONDS"])
async def test_slow_body_is_given_up(seconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, seconds, 0.05)
    sent: list[Message] = []
    parts = 0

    async def read(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    async def trickle() -> Message:
        nonlocal parts
        parts += 1
        await asyncio.sleep(60 if seconds == "IDLE_SECONDS" else 0.001)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    app = Bounds(Starlette(routes=[Route("/", read, methods=["POST"])]), max_body=10**9)
    scope: dict[str, Any] = {
        "type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "headers": [],
    }  # fmt: skip
    await app(scope, trickle, send)
    assert sent[0]["status"] == 408


async def test_readers_of_a_session_share_one_poll_and_one_text(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await face.run(protocol="emergence", settings={"children": 2, "max_rounds": 1})
    last = face.store.last(session)
    reads: Counter[str] = Counter()
    read = SqliteRecords.read

    def counted(self: SqliteRecords, session: str, *, after: int = 0) -> Any:
        reads["read"] += 1
        return read(self, session, after=after)

    monkeypatch.setattr(SqliteRecords, "read", counted)
    streams = [face.sessions.feeds.follow(("",), session) for _ in range(200)]
    seen = await asyncio.gather(*(_rows(stream) for stream in streams))
    assert reads["read"] == 1
    assert set(seen) == {last}
    assert face.sessions.feeds.readers == 0
    assert not face.sessions.feeds._feeds


async def _rows(stream: Any) -> int:
    return sum(chunk.count(b"\nevent: ") for chunk in [part async for part in stream])


async def test_quiet_stream_has_comments_and_ends_with_the_server(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "HEARTBEAT_SECONDS", 0.05)
    body = {"protocol": "solo", "task": "?", "models": ["human"]}
    session = (await face.post("/api/sessions", body, 201))["session"]
    rows = await face.sessions.follow(face.caller[0], session)
    assert rows is not None
    async for chunk in rows:
        if chunk == b":\n\n":
            break
    face.sessions.feeds.close()
    assert [part async for part in rows if part != b":\n\n" and b"call_started" not in part] == []


async def test_stream_of_a_removed_session_ends(face: Face) -> None:
    body = {"protocol": "solo", "task": "?", "models": ["human"]}
    session = (await face.post("/api/sessions", body, 201))["session"]
    rows = await face.sessions.follow(face.caller[0], session)
    assert rows is not None
    async for chunk in rows:
        if b"event: call_awaited" in chunk:
            break
    await face.post(f"/api/sessions/{session}/cancel", {})
    async for _ in face.sessions.tail(face.caller[0], session):
        pass
    assert face.executor.join(60)
    await face.call("DELETE", f"/api/sessions/{session}")
    async for _ in rows:
        pass
    await face.get(f"/api/sessions/{session}/events", 404)


async def test_page_of_a_list_reads_the_records_of_that_page_alone(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(60):
        face.store.create(f"s{n}").release()
    reads: Counter[str] = Counter()
    read = SqliteRecords.read

    def counted(self: SqliteRecords, session: str, *, after: int = 0) -> Any:
        reads[session] += 1
        return read(self, session, after=after)

    monkeypatch.setattr(SqliteRecords, "read", counted)
    page = await face.get("/api/sessions?page=2")
    assert [row["session"] for row in page["sessions"]] == [f"s{n}" for n in range(9, -1, -1)]
    assert reads == {f"s{n}": 1 for n in range(10)}


async def test_event_ids_beyond_the_end_and_beyond_numbers(face: Face) -> None:
    session = await face.run()
    last = face.store.last(session)
    for cursor in (str(last), str(last + 1), "9" * 400):
        answer = await face.client.get(f"/api/sessions/{session}/events", headers={"Last-Event-ID": cursor})
        assert answer.status_code == 204
    for cursor in ("x", "-1", "²", ""):
        answer = await face.client.get(f"/api/sessions/{session}/events", headers={"Last-Event-ID": cursor.encode()})
        assert answer.text.count("\nevent: ") == last
    rows = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert [row["seq"] for row in rows] == list(range(1, last + 1))


async def test_journal_is_checked_for_damage_once_and_not_for_each_session(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = []
    monkeypatch.setattr(records, "check_records", lambda rows, path: checks.append(path))
    for _ in range(3):
        await face.run()
    assert len(checks) == 1
