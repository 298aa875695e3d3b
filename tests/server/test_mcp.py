"""Consilience as tools for another agent: real processes, a client of another maker, a model on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

import mcp_types
import pytest
import uvicorn
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from mcp import Client as OfficialClient
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.stdio import StdioServerParameters

from cli.loopback import MODEL, PATIENCE, Provider, environment, prose, provider
from consilience.server.app import build_app
from consilience.server.run import serving
from consilience.server.settings import ServerSettings
from kit.forks import launcher

pytestmark = pytest.mark.processes
COMMAND = str(Path(sys.executable).with_name("consilience"))
VOTE = {"task": "Should the club meet weekly?", "protocol": "vote", "settings": {"votes": 3}}
TASKS = "io.modelcontextprotocol/tasks"


@pytest.fixture
def model() -> Iterator[Provider]:
    with provider() as found:
        yield found


@asynccontextmanager
async def client(model: Provider, *options: str, progress: list[str] | None = None) -> AsyncIterator[Client[Any]]:
    """Start the command as an agent's program does."""

    async def note(done: float, total: float | None, message: str | None) -> None:
        if progress is not None:
            progress.append(message or "")

    transport = StdioTransport(
        launcher(COMMAND), ["mcp", "--model", MODEL, *options], env=environment_of(model), keep_alive=False
    )
    async with Client(transport, progress_handler=note, init_timeout=PATIENCE) as connected:
        yield connected


def environment_of(model: Provider) -> dict[str, str]:
    return {**os.environ, **environment(model.url), "OPENAI_API_KEY": "k"}


def sessions_of() -> list[dict[str, Any]]:
    listed = subprocess.run(
        [launcher(COMMAND), "sessions", "list", "--json"], capture_output=True, text=True, check=True
    )
    found: list[dict[str, Any]] = json.loads(listed.stdout)
    return found


def text_of(result: Any) -> str:
    return str(result.content[0].text)


async def test_a_deliberation_returns_the_head_of_its_report_and_tells_its_progress(
    model: Provider, home: Path
) -> None:
    progress: list[str] = []
    async with client(model, progress=progress) as agent:
        result = await agent.call_tool("deliberate", VOTE)
        session = sessions_of()[0]["session"]
        whole = await agent.read_resource(f"consilience://sessions/{session}/report")
        said = await agent.read_resource(f"consilience://sessions/{session}/transcript")
        for show, resource in (("report", whole), ("transcript", said)):  # for clients that read no resources
            shown = await agent.call_tool("status", {"session": session, "show": show})
            assert text_of(shown) == resource[0].text
    assert text_of(result).startswith("**Finished")
    assert "the answer is yes" in text_of(result)
    assert session in text_of(result)
    assert sum("respondent" in line for line in progress) == 3
    assert "consilience replay" in whole[0].text
    assert said[0].text.count(f"({MODEL})") == 3


async def test_a_follow_up_is_one_call_that_reads_the_documents_under_their_numbers_and_the_answer(
    model: Provider, home: Path
) -> None:
    minutes = [{"name": "minutes.md", "text": "The hall is let on Mondays."}]
    async with client(model) as agent:
        await agent.call_tool("deliberate", {**VOTE, "documents": minutes})
        session = sessions_of()[0]["session"]
        result = await agent.call_tool("ask", {"task": "And on Mondays?", "follow_up": session})
        unknown = await agent.call_tool("ask", {"task": "And?", "follow_up": "r00000000"}, raise_on_error=False)
    assert text_of(result).startswith("**Finished")
    assert unknown.is_error
    prompt = str(model.asked[-1]["messages"][-1]["content"])
    assert prompt.index("document S1>\nminutes.md") < prompt.index(f"document S2>\nthe answer of session {session}")
    assert len(model.asked) == 3 + 1


async def test_a_tool_that_is_not_waited_for_returns_a_handle_and_status_the_result(
    model: Provider, home: Path
) -> None:
    model.open.clear()
    async with client(model) as agent:
        handle = await agent.call_tool("deliberate", {**VOTE, "wait_s": 0})
        session = sessions_of()[0]["session"]
        assert text_of(handle).startswith(f"Running: session {session}, 0 of 3 calls")
        model.open.set()
        result = await agent.call_tool("status", {"session": session, "wait_s": PATIENCE})
    assert text_of(result).startswith("**Finished")
    assert len(model.asked) == 3


def reading(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
    """Prose, and of a task that it is a plain question."""
    status, answer = prose(body, headers)
    if body.get("response_format"):
        content = {"kind": "answer", "divides": False, "record": False, "shape": "one", "why": "It is asked plainly."}
        answer["choices"][0]["message"]["content"] = json.dumps(content)  # type: ignore[index]
    return status, answer


@pytest.fixture
def reader() -> Iterator[Provider]:
    with provider(reading) as found:
        yield found


async def test_ask_waits_no_longer_than_it_is_told_while_a_model_reads_the_task(reader: Provider, home: Path) -> None:
    ask = {"task": "Should the club meet weekly?", "wait_s": 0}
    reader.open.clear()
    async with client(reader) as agent:
        handle = text_of(await agent.call_tool("ask", ask))
        session = handle.partition("session ")[2].partition(",")[0]
        assert handle.startswith(f"Running: session {session}, a model reads the task")
        assert f'status(session="{session}"' in handle
        again = [await agent.call_tool("ask", ask), await agent.call_tool("status", {"session": session})]
        assert [text_of(result).partition(",")[0] for result in again] == [f"Running: session {session}"] * 2
        reader.open.set()
        result = await agent.call_tool("status", {"session": session, "wait_s": PATIENCE})
        paid = len(reader.asked)
        joined = await agent.call_tool("ask", ask)
    assert text_of(result).startswith("**Finished")
    assert text_of(joined).startswith("Chosen: ")
    assert text_of(joined).endswith(text_of(result))
    assert len(reader.asked) == paid
    assert {(row["protocol"], row["session"] == session) for row in sessions_of()} == {
        ("choose", False),
        ("solo", True),
    }


async def test_ask_that_is_cancelled_while_a_model_reads_the_task_begins_nothing(reader: Provider, home: Path) -> None:
    ask = {"task": "Should the club meet weekly?", "wait_s": 0}
    reader.open.clear()
    async with client(reader) as agent:
        handle = text_of(await agent.call_tool("ask", ask))
        session = handle.partition("session ")[2].partition(",")[0]
        await agent.call_tool("cancel", {"session": session})
        ended = await agent.call_tool("status", {"session": session, "wait_s": PATIENCE}, raise_on_error=False)
        later = await agent.call_tool("status", {"session": session})
        assert [row["protocol"] for row in sessions_of()] == ["choose"]
        reader.open.set()
        result = await agent.call_tool("ask", {**ask, "wait_s": PATIENCE})
    assert "cancelled" in text_of(ended)
    assert text_of(later).startswith(f"Session {session} was not begun")
    assert "**Finished" in text_of(result)


async def test_ask_goes_on_after_the_death_of_the_server_that_read_the_task(reader: Provider, home: Path) -> None:
    ask = {"task": "Should the club meet weekly?", "wait_s": 0}
    reader.open.clear()
    transport = StdioTransport(
        launcher(COMMAND), ["mcp", "--model", MODEL], env=environment_of(reader), keep_alive=False
    )
    agent = Client(transport, init_timeout=PATIENCE)
    await agent.__aenter__()
    handle = text_of(await agent.call_tool("ask", ask))
    session = handle.partition("session ")[2].partition(",")[0]
    await asyncio.to_thread(reader.arrived.wait, PATIENCE)
    os.kill(server_of(sessions_of()[0]["session"]), signal.SIGKILL)
    with pytest.raises(Exception):  # noqa: B017, PT011  each client has its own for a server that is gone
        await agent.call_tool("status", {"session": session})
    reader.open.set()
    async with client(reader) as another:
        lost = await another.call_tool("status", {"session": session})
        result = await another.call_tool("ask", {**ask, "wait_s": PATIENCE})
    assert text_of(lost).startswith(f"Session {session} was not begun")
    assert f"session {session}" in text_of(result).lower()
    assert "**Finished" in text_of(result)
    assert len(sessions_of()) == 2


async def test_the_same_call_joins_the_session_of_the_first_and_is_paid_once(model: Provider, home: Path) -> None:
    async with client(model) as agent:
        results = [await agent.call_tool("deliberate", VOTE) for _ in range(2)]
        other = await agent.call_tool("deliberate", {**VOTE, "task": "Should the club meet monthly?"})
    assert text_of(results[0]) == text_of(results[1]) != text_of(other)
    assert len(model.asked) == 2 * 3


async def test_a_call_whose_session_failed_begins_another(model: Provider, home: Path) -> None:
    model.answer = lambda body, headers: (400, {"error": {"message": "no such model", "code": "model_not_found"}})
    async with client(model) as agent:
        failed = await agent.call_tool("deliberate", VOTE)
        model.answer = prose
        result = await agent.call_tool("deliberate", VOTE)
    assert "the answer is yes" not in text_of(failed)
    assert "the answer is yes" in text_of(result)
    assert len(sessions_of()) == 2


async def test_a_call_on_other_models_joins_nothing(model: Provider, home: Path) -> None:
    other = MODEL.rpartition(":")[0] + ":other"
    async with client(model) as agent:
        await agent.call_tool("deliberate", VOTE)
    async with client(model, "--model", other) as agent:
        await agent.call_tool("deliberate", VOTE)
    assert len(sessions_of()) == 2


async def test_an_invalid_argument_is_named(model: Provider, home: Path) -> None:
    async with client(model) as agent:
        refused = await agent.call_tool("deliberate", {**VOTE, "task": ""}, raise_on_error=False)
    assert refused.is_error
    assert "task" in text_of(refused)
    assert "Traceback" not in text_of(refused)


async def test_a_cancelled_session_ends_with_a_report(model: Provider, home: Path) -> None:
    model.open.clear()
    async with client(model) as agent:
        await agent.call_tool("deliberate", {**VOTE, "wait_s": 0})
        session = sessions_of()[0]["session"]
        await agent.call_tool("cancel", {"session": session})
        result = await agent.call_tool("status", {"session": session, "wait_s": PATIENCE})
    assert "cancelled" in text_of(result)


MISTAKES: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("deliberate", {**VOTE, "files": ["../secret.txt"]}, "leads out of the root"),
    ("deliberate", {**VOTE, "files": ["way-out/secret.txt"]}, "leads out of the root"),
    ("review", {"files": ["/etc/hostname"]}, "leads out of the root"),
    ("deliberate", {**VOTE, "models": ["exec:touch x"]}, "is not allowed"),
    ("deliberate", {**VOTE, "protocol": "review", "settings": {"gates": ["os:system"]}}, "Input should be"),
    ("deliberate", {**VOTE, "panel": "/etc/passwd"}, "there is no panel"),
    ("deliberate", {**VOTE, "settings": {"votes": 0}}, "votes"),
    ("status", {"session": "r00000000"}, "there is no session"),
    ("status", {"session": "../r00000000"}, "there is no session"),
    ("answer", {"session": "r00000000", "key": "k", "text": "t"}, "there is no session"),
    ("cancel", {"session": "r00000000"}, "there is no session"),
    ("tell", {"session": "r00000000", "fact": "f"}, "there is no session"),
    ("resolve", {"session": "r00000000", "question": "p1", "outcome": True}, "there is no session"),
)


async def test_mistakes_are_told_to_the_agent_and_nothing_is_asked(model: Provider, home: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (root / "way-out").symlink_to(tmp_path)
    async with client(model, "--root", str(root)) as agent:
        for tool, arguments, words in MISTAKES:
            result = await agent.call_tool(tool, arguments, raise_on_error=False)
            assert (result.is_error, words in text_of(result)) == (True, True), (tool, arguments, text_of(result))
        nothing = await agent.call_tool("due", {})
    assert text_of(nothing) == "Nothing is due."
    assert not model.asked


async def test_files_below_the_root_are_read_by_the_server(model: Provider, home: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "minutes.md").write_text("The hall is let on Mondays.\n")
    async with client(model, "--root", str(root)) as agent:
        await agent.call_tool("deliberate", {**VOTE, "protocol": "solo", "settings": {}, "files": ["minutes.md"]})
    assert "The hall is let on Mondays." in json.dumps(model.asked)


async def test_the_servers_death_costs_no_completed_call(model: Provider, home: Path) -> None:
    solo = {"task": "Should the club meet weekly?", "protocol": "solo", "settings": {"reviews": 2}, "wait_s": 0}
    model.open.clear()
    transport = StdioTransport(
        launcher(COMMAND), ["mcp", "--model", MODEL], env=environment_of(model), keep_alive=False
    )
    agent = Client(transport, init_timeout=PATIENCE)
    await agent.__aenter__()
    await agent.call_tool("deliberate", solo)
    session = sessions_of()[0]["session"]
    await asyncio.to_thread(model.arrived.wait, PATIENCE)
    os.kill(server_of(session), signal.SIGKILL)
    with pytest.raises(Exception):  # noqa: B017, PT011  each client has its own for a server that is gone
        await agent.call_tool("status", {"session": session})
    model.open.set()
    async with client(model) as another:
        result = await another.call_tool("status", {"session": session, "wait_s": PATIENCE})
    assert text_of(result).startswith("**Finished")
    assert "possibly charged" in text_of(result)  # the call in flight
    assert len(model.asked) <= 7


def server_of(session: str) -> int:
    shown = subprocess.run([launcher(COMMAND), "show", session, "--json"], capture_output=True, text=True, check=True)
    return int("".join(c for c in str(json.loads(shown.stdout)["holder"]).partition("process ")[2] if c.isdigit()))


async def test_sessions_that_a_user_left_are_not_taken_up(model: Provider, home: Path) -> None:
    """An agent's tools must not spend money on what somebody interrupted on the command line."""
    model.open.clear()
    command = [COMMAND, "vote", "Should the club meet weekly?", "--votes", "1", "--model", MODEL, "--yes"]
    left = subprocess.Popen(  # noqa: ASYNC220
        command, env=environment_of(model), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    await asyncio.to_thread(model.arrived.wait, PATIENCE)
    left.kill()
    left.wait()
    model.open.set()
    (session,) = (row["session"] for row in sessions_of())
    asked = len(model.asked)
    async with client(model) as agent:
        await agent.call_tool("deliberate", VOTE)
        result = await agent.call_tool("status", {"session": session})
    assert "Running" in text_of(result)
    assert len(model.asked) == asked + 3


class TaskHandle(mcp_types.Result):
    result_type: Literal["task"] = "task"
    task_id: str
    status: str


class GotTask(mcp_types.Result):
    task_id: str
    status: str
    result: dict[str, Any] | None = None
    input_requests: dict[str, Any] | None = None


class Follows(ClientExtension):
    """A client that polls tasks, and answers questions with `reply`."""

    identifier = TASKS

    def __init__(self, reply: str = "") -> None:
        self.reply = reply
        self.statuses: list[str] = []
        self.messages: list[str] = []

    def claims(self) -> tuple[ResultClaim[TaskHandle], ...]:
        return (ResultClaim(result_type="task", model=TaskHandle, resolve=self.resolve),)

    async def resolve(self, task: TaskHandle, context: ClaimContext) -> mcp_types.CallToolResult:
        self.statuses.append(task.status)
        while True:
            got = await context.session.send_request(request("tasks/get", taskId=task.task_id), GotTask)
            if got.status != self.statuses[-1]:
                self.statuses.append(got.status)
            if got.status == "completed":
                return mcp_types.CallToolResult.model_validate(got.result)
            if got.status == "cancelled":
                return mcp_types.CallToolResult(content=[], is_error=True)
            for key, asked in (got.input_requests or {}).items():
                self.messages.append(asked["params"]["message"])
                reply = {key: {"action": "accept", "content": {"answer": self.reply}}}
                await context.session.send_request(
                    request("tasks/update", taskId=task.task_id, inputResponses=reply), mcp_types.Result
                )
            await asyncio.sleep(0.05)


def request(method: str, **params: Any) -> Any:
    class Asked(mcp_types.Request[dict[str, Any], str]):
        method: str
        params: dict[str, Any]

    return Asked(method=method, params=params)


@asynccontextmanager
async def official(model: Provider, extension: ClientExtension) -> AsyncIterator[OfficialClient]:
    server = StdioServerParameters(command=launcher(COMMAND), args=["mcp", "--model", MODEL], env=environment_of(model))
    async with OfficialClient(server, extensions=[extension]) as connected:
        yield connected


async def test_a_client_that_knows_tasks_gets_the_session_as_a_task(model: Provider, home: Path) -> None:
    follows = Follows()
    async with official(model, follows) as agent:
        result = await agent.call_tool("deliberate", VOTE)
    assert follows.statuses == ["working", "completed"]
    assert text_of(result).startswith("**Finished")


async def test_a_task_is_worked_on_while_a_model_reads_what_is_asked(reader: Provider, home: Path) -> None:
    reader.open.clear()
    follows = Follows()
    async with official(reader, follows) as agent:
        asked = asyncio.ensure_future(agent.call_tool("ask", {"task": "Should the club meet weekly?"}))
        await asyncio.to_thread(reader.arrived.wait, PATIENCE)
        reader.open.set()
        result = await asked
    assert follows.statuses == ["working", "completed"]
    assert text_of(result).startswith("**Finished")


async def test_a_task_that_is_cancelled_while_a_model_reads_what_is_asked(reader: Provider, home: Path) -> None:
    class Cancels(Follows):
        async def resolve(self, task: TaskHandle, context: ClaimContext) -> mcp_types.CallToolResult:
            await context.session.send_request(request("tasks/cancel", taskId=task.task_id), mcp_types.Result)
            return await super().resolve(task, context)

    reader.open.clear()
    follows = Cancels()
    async with official(reader, follows) as agent:
        result = await agent.call_tool("ask", {"task": "Should the club meet weekly?"})
    assert follows.statuses == ["working", "cancelled"]
    assert result.is_error


async def test_a_task_asks_a_person_and_goes_on_with_the_answer(model: Provider, home: Path) -> None:
    follows = Follows("I vote for the weekly meeting.")
    async with official(model, follows) as agent:
        result = await agent.call_tool("deliberate", {**VOTE, "settings": {"votes": 1}, "models": ["human"]})
    assert follows.statuses[0] in ("working", "input_required")
    assert follows.statuses[-2:] == ["input_required", "completed"]
    assert "Should the club meet weekly?" in follows.messages[0]
    assert "I vote for the weekly meeting." in text_of(result)


async def test_a_mistake_in_a_task_is_a_result(model: Provider, home: Path) -> None:
    async with official(model, Follows()) as agent:
        result = await agent.call_tool("deliberate", {**VOTE, "panel": "nobody"})
    assert result.is_error
    assert "there is no panel" in text_of(result)


async def test_the_server_offers_the_same_tools_over_http(model: Provider, home: Path, monkeypatch: Any) -> None:
    for name, value in environment_of(model).items():
        monkeypatch.setenv(name, value)
    with serving(ServerSettings(models=(MODEL,))) as sessions, listening(build_app(sessions)) as url:
        async with Client(f"{url}/mcp") as agent:
            result = await agent.call_tool("deliberate", VOTE)
            refused = await agent.call_tool("review", {"files": ["Makefile"]}, raise_on_error=False)
    assert text_of(result).startswith("**Finished")
    assert "reads no files" in text_of(refused)


@contextmanager
def listening(app: Any) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("groq:llama-3.3-70b-versatile", "Run: pip install 'pydantic-ai-slim[groq]'"),
        ("openai:gpt-5-mini", "Set OPENAI_API_KEY"),
    ],
)
def test_model_that_cannot_be_asked_is_warned_of_at_the_start_and_refused_by_the_first_tool(
    named: str, words: str, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "groq.py").write_text("raise ModuleNotFoundError('No module', name='groq')")
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "GROQ_API_KEY": "k"}
    command = [COMMAND, "mcp", "--model", named]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        assert words in started.stderr.readline()
        started.kill()

    async def call() -> Any:
        transport = StdioTransport(command[0], command[1:], env=env, keep_alive=False)
        async with Client(transport, init_timeout=PATIENCE) as agent:
            return await agent.call_tool("deliberate", VOTE, raise_on_error=False)

    result = asyncio.run(call())
    assert result.is_error
    assert words in text_of(result)
    assert sessions_of() == []


async def test_a_run_that_fails_is_told_and_the_same_call_goes_on(model: Provider, home: Path) -> None:
    file = home / "journal.db"
    model.open.clear()
    async with client(model) as agent:
        handle = text_of(await agent.call_tool("deliberate", {**VOTE, "wait_s": 0}))
        session = handle.partition("session ")[2].partition(",")[0]
        await asyncio.to_thread(model.arrived.wait, PATIENCE)
        writing = sqlite3.connect(file)
        with writing:
            writing.execute(
                "CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
            )
        model.open.set()
        told = await agent.call_tool("status", {"session": session, "wait_s": PATIENCE})
        with writing:
            writing.execute("DROP TRIGGER full")
        writing.close()
        result = await agent.call_tool("deliberate", {**VOTE, "wait_s": PATIENCE})
    assert text_of(told).startswith(f"Interrupted: session {session}")
    assert "the disk is full" in text_of(told)
    assert text_of(result).startswith("**Finished")


def test_the_list_of_tools_waits_for_nothing_heavy(home: Path) -> None:
    heavy = ("consilience.deliberation", "consilience.engine", "consilience.models.program", "pydantic_ai", "sqlite3")
    code = (
        "import sys; from mcp.server import MCPServer; from consilience.cli.main import app;"
        f"MCPServer.run = lambda *_: print([name for name in {heavy} if name in sys.modules]);"
        "app(['mcp'], standalone_mode=False)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_root_that_is_no_directory_is_an_error(home: Path) -> None:
    ran = subprocess.run([COMMAND, "mcp", "--root", "nowhere"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "there is no such directory" in ran.stderr
