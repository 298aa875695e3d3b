"""One debate to its end by every kind of client, against the real server process, whose agents follow a script."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client

from cli.loopback import PATIENCE, Provider, provider
from consilience.domain.events import SessionFinished, canonical_digest
from consilience.journal.sqlite import SqliteStore
from server.inprocess import client_of
from server.served import Served, serving
from server.test_responses import CODEX

pytestmark = pytest.mark.processes

TASK = "Should we move the orders to queues?"
SETTINGS = {"debaters": 2, "max_messages": 40}
MODEL = "consilience/debate"
OPTIONS = {"consilience": {"settings": SETTINGS}}
SCRIPTED = """
from cli.loopback import MODEL
from consilience.engine import seats
from consilience.testing import ScriptedModel
from kit.debating import Debaters
resolve, debaters = seats.resolve, ScriptedModel(Debaters(), name=MODEL)
seats.resolve = lambda name, **more: debaters if name == MODEL else resolve(name, **more)
"""


@pytest.fixture(scope="module")
def unasked() -> Iterator[Provider]:
    """Stands where the model's provider would, and is never asked."""
    with provider() as found:
        yield found
    assert found.asked == []


def by_curl(served: Served) -> str:
    def curl(path: str, *options: str) -> str:
        command = ["curl", "-sSfN", "--max-time", str(PATIENCE), *options, served.url + path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    body = json.dumps({"protocol": "debate", "task": TASK, "settings": SETTINGS})
    session = str(json.loads(curl("/api/sessions", "-H", "content-type: application/json", "-d", body))["session"])
    events = curl(f"/api/sessions/{session}/events")
    assert "event: crux_extracted" in events
    assert events.count("event: session_finished") == 1
    assert f"# {TASK}" in curl(f"/api/sessions/{session}/export?format=markdown")
    return session


def by_chat(served: Served) -> str:
    """Posts three times during the debate, as a client that gives up and repeats, and again at its end."""
    with client_of(served.url) as client:
        messages: Any = [{"role": "user", "content": TASK}]

        def post(_: int) -> Any:
            return client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, extra_body=OPTIONS)

        with ThreadPoolExecutor(3) as pool:
            answers = [*pool.map(post, range(3)), post(3)]
        assert len({answer.parse().choices[0].message.content for answer in answers}) == 1
        assert "CRUX" in str(answers[0].parse().choices[0].message.reasoning_content).upper()
        return str(answers[0].headers["X-Consilience-Session"])


def by_streamed_chat(served: Served) -> str:
    with client_of(served.url) as client:
        reasoning, content = "", ""
        messages: Any = [{"role": "user", "content": TASK}]
        stream = client.chat.completions.create(model=MODEL, messages=messages, extra_body=OPTIONS, stream=True)
        for chunk in stream:
            delta = chunk.choices[0].delta
            reasoning += getattr(delta, "reasoning_content", None) or ""
            content += delta.content or ""
        assert "D1" in reasoning
        return content.rsplit("\n", 1)[-1].partition("[")[2].partition("]")[0]


def by_background_response(served: Served) -> str:
    with client_of(served.url) as client:
        response = client.responses.create(model=MODEL, input=TASK, background=True, extra_body=OPTIONS)
        events = list(client.responses.retrieve(response.id, stream=True))
        assert events[-1].type == "response.completed"
        assert client.responses.retrieve(response.id).status == "completed"
        return str((response.metadata or {})["session"])


def by_fastmcp(served: Served) -> str:
    async def call() -> str:
        async with Client(f"{served.url}/mcp") as agent:
            asked = {"task": TASK, "protocol": "debate", "settings": SETTINGS, "wait_s": PATIENCE}
            result = await agent.call_tool("deliberate", asked)
            text = str(result.content[0].text)  # type: ignore[union-attr]
            assert text.startswith("**Finished")
            return text.partition("Session ")[2].partition(".")[0]

    return asyncio.run(call())


def by_codex(served: Served) -> str:
    """As Codex asks in a directory without instructions."""
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": TASK}]}
    body = {**CODEX, "input": [CODEX["input"][0], said], "extra_body": {**CODEX["extra_body"], **OPTIONS}}
    with client_of(served.url) as client:
        events: list[Any] = list(client.responses.create(model=MODEL, **body))
        assert events[-1].type == "response.completed"
        assert "tools of the request have no effect" in events[-1].response.output_text
        return str(events[-1].response.metadata["session"])


@dataclass(frozen=True)
class Outcome:
    journal: str
    report_digest: str
    report: dict[str, Any]


def outcome(home: Path, unasked: Provider, drive: Callable[[Served], str]) -> Outcome:
    """What a client's debate leaves on a server of its own. The digests are of all that does not differ between two equal runs."""
    home.mkdir()
    with serving(home, unasked, before=SCRIPTED) as served:
        session = drive(served)
        (row,) = served.get("/api/sessions")["sessions"]
        assert row["session"] == session
        report = served.get(f"/api/sessions/{session}")["report"]
    with closing(SqliteStore(home / "journal.db")) as store:
        finished = store.ending(session)
        assert isinstance(finished, SessionFinished)
        return Outcome(canonical_digest(store.read(session)), finished.report_digest, report)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, unasked: Provider) -> Outcome:
    """That of a client of the standard library."""

    def drive(served: Served) -> str:
        session = served.begin(protocol="debate", task=TASK, settings=SETTINGS)
        served.wait(session)
        return session

    return outcome(tmp_path_factory.mktemp("expected") / "server", unasked, drive)


def test_debate_has_a_locked_crux(expected: Outcome) -> None:
    (thread,) = expected.report["threads"]
    assert thread["crux"]["locked"]
    assert expected.report["stop_reason"] == "settled"


@pytest.mark.parametrize(
    "drive",
    [by_curl, by_chat, by_streamed_chat, by_background_response, by_codex, by_fastmcp],
    ids=lambda f: f.__name__,
)
def test_client_drives_the_debate_to_the_same_end(
    drive: Callable[[Served], str], expected: Outcome, tmp_path: Path, unasked: Provider
) -> None:
    found = outcome(tmp_path / "server", unasked, drive)
    assert found.report["threads"] == expected.report["threads"]
    assert (found.journal, found.report_digest) == (expected.journal, expected.report_digest)
