"""The real smollm2-135m in its child process: its answers, and the end of the child with its parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import consilience
from consilience.domain.errors import Rejected, UnavailableModel, UnknownName, Unreachable
from consilience.journal.sqlite import SqliteStore
from consilience.models import local, local_server, weights
from consilience.models.child_process import ChildProcess
from consilience.models.limiter import limiter_for, may_retry
from consilience.models.local import LocalModel
from consilience.models.port import Completion, Model, ModelRequest

real = pytest.mark.local_model

SCHEMA = {
    "type": "object",
    "properties": {
        "stance": {"enum": ["in favour", "against", "undecided"]},
        "sure": {"type": "boolean"},
        "why": {"type": "string", "maxLength": 60},
    },
    "required": ["stance", "sure", "why"],
    "additionalProperties": False,
}


def ask(user: str, **more: object) -> ModelRequest:
    settings = {"max_tokens": 12, "seed": 1, "system": "You are terse."} | more
    return ModelRequest(agent="A", key="k", user=user, **settings)  # type: ignore[arg-type]


LONG = ask("Write a very long story about the sea.", max_tokens=7000)


def server() -> local._LlamaServer:
    (only,) = local._servers.values()
    return only


def pid() -> int:
    process = server().process
    assert process is not None
    return process.pid


def gone(process: int, seconds: float) -> bool:
    """Whether that process ends within the time; one that only waits to be reaped has ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


async def turns_until(condition: Callable[[], bool]) -> None:
    """Let other tasks have their turns until the condition holds."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.fixture
async def model(smollm2: Path) -> AsyncIterator[LocalModel]:
    first = LocalModel(weights.TESTS)
    yield first
    await first.close()
    assert local._servers == {}


# --- answers


@real
async def test_local_model_answers_and_counts_tokens(model: LocalModel) -> None:
    assert isinstance(model, Model)
    assert model.name == model.account == "local:smollm2-135m"
    assert model.price(10**6, 10**6) == 0.0
    first = await model.complete(ask("Is water wet?"))
    assert first.text.strip()
    assert (first.model, first.cost, first.requests) == ("local:smollm2-135m", 0.0, 1)
    assert (first.tokens_out, first.finish_reason) == (12, "length")
    again = await model.complete(ask("Is water wet?", max_tokens=200))
    assert again.tokens_in == first.tokens_in == again.tokens_cached + 1
    assert again.finish_reason == "stop"


@real
async def test_seed_determines_the_answer(model: LocalModel) -> None:
    async def answer(seed: int | None) -> str:
        return (await model.complete(ask("Name a colour, and say why.", max_tokens=16, seed=seed))).text

    await answer(0)
    assert await answer(3) == await answer(3)
    assert len({await answer(seed) for seed in range(5)}) > 1
    assert len({await answer(None) for _ in range(5)}) > 1
    assert await answer(3 + local._SEED_MODULUS) == await answer(3)


@real
async def test_schema_is_enforced_by_the_local_model(model: LocalModel) -> None:
    for seed in range(3):
        reply = await model.complete(ask("Should we move to the sea?", schema=SCHEMA, max_tokens=120, seed=seed))
        text = json.loads(reply.text)
        assert set(text) == {"stance", "sure", "why"}
        assert text["stance"] in ("in favour", "against", "undecided")
        assert isinstance(text["sure"], bool)
        assert len(text["why"]) <= 60


@real
async def test_local_models_share_one_child_and_are_served_concurrently(model: LocalModel) -> None:
    other = LocalModel(weights.TESTS)
    try:
        replies = await asyncio.gather(
            *(local.complete(ask(f"Say {n}.")) for n in range(4) for local in (model, other))
        )
        assert len(replies) == 8
        process = pid()
        assert max(reply.waited for reply in replies) > 0
    finally:
        await other.close()
    assert pid() == process
    assert (await model.complete(ask("Again."))).text


@real
async def test_too_long_prompt_is_rejected(model: LocalModel) -> None:
    with pytest.raises(Rejected, match="longer than the model's context window"):
        await model.complete(ask("word " * 9000))


@real
async def test_server_refuses_requests_without_its_key(model: LocalModel) -> None:
    await model.start()
    request = urllib.request.Request(f"{server().ready.result()}/v1/chat/completions", data=b"{}")
    with pytest.raises(urllib.error.HTTPError) as refused:
        await asyncio.to_thread(urllib.request.urlopen, request)
    assert refused.value.code == 401
    refused.value.close()


@real
def test_local_model_works_on_successive_event_loops(smollm2: Path) -> None:
    model = LocalModel(weights.TESTS)
    first = asyncio.run(model.complete(ask("One.")))
    process = pid()
    second = asyncio.run(model.complete(ask("Two.")))
    assert (first.requests, second.requests) == (1, 1)
    assert pid() == process
    asyncio.run(model.close())
    assert gone(process, 2)


# --- cancelled, killed, closed


@real
async def test_cancelled_request_stops_the_generation(model: LocalModel) -> None:
    await model.start()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.5):
            await model.complete(LONG)
    async with asyncio.timeout(20):  # the long one would take longer
        assert (await model.complete(ask("Is water wet?"))).text


@real
async def test_a_killed_child_is_started_again(model: LocalModel) -> None:
    await model.start()
    first = pid()
    asked = asyncio.create_task(model.complete(ask("Write about the sea.", max_tokens=400)))
    await asyncio.sleep(0)
    os.kill(first, signal.SIGKILL)
    assert isinstance(await asked, Completion)
    assert pid() != first
    assert gone(first, 2)


@real
async def test_a_child_that_keeps_dying_is_unreachable(model: LocalModel) -> None:
    await model.start()
    may_retry.set(lambda: False)
    asked = asyncio.create_task(model.complete(LONG))
    await turns_until(lambda: limiter_for(model.account).in_flight == 1)
    os.kill(pid(), signal.SIGKILL)
    with pytest.raises(Unreachable, match="killed, perhaps because memory is short") as raised:
        await asked
    assert vars(raised.value)["requests"] == 1


@real
async def test_close_ends_the_child_in_the_middle_of_a_generation(smollm2: Path) -> None:
    model = LocalModel(weights.TESTS)
    await model.start()
    process = pid()
    asked = [asyncio.create_task(model.complete(LONG)) for _ in range(3)]
    done, _ = await asyncio.wait(asked, timeout=1)
    assert not done
    for task in asked:
        task.cancel()
    began = time.monotonic()
    await model.close()
    assert time.monotonic() - began < 20
    assert gone(process, 0.1)
    await asyncio.wait(asked)
    assert (await model.complete(ask("Once more."))).text
    await model.close()


@real
async def test_close_during_loading_ends_the_child(smollm2: Path) -> None:
    model = LocalModel(weights.TESTS)
    starting = asyncio.create_task(model.start())
    await turns_until(lambda: bool(local._servers))
    began = time.monotonic()
    await model.close()
    assert time.monotonic() - began < 20
    with pytest.raises(UnavailableModel, match="closed while it was starting"):
        await starting


# --- what cannot be started


@real
async def test_unloadable_weights_are_a_user_error(smollm2: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with smollm2.open("rb") as whole:
        cut.write_bytes(whole.read(5_000_000))
    model = LocalModel(str(cut))
    with pytest.raises(UnavailableModel, match="corrupted or incomplete") as raised:
        await model.start()
    assert str(cut) in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(Rejected, match="cannot be loaded"):
        await model.complete(ask("Hello?"))
    await model.close()


async def test_absent_weights_are_rejected_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSILIENCE_HOME", str(tmp_path / "empty"))
    model = LocalModel()
    assert model.name == f"local:{weights.DEFAULT}"
    with pytest.raises(Rejected, match=f"consilience models pull {weights.DEFAULT}"):
        await model.complete(ask("Hello?"))
    await model.close()


async def test_unknown_weights_are_refused() -> None:
    with pytest.raises(UnknownName, match="nonesuch"):
        await LocalModel("nonesuch").start()


async def test_a_missing_runtime_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableModel, match=r"pip install 'consilience\[local\]'"):
        await LocalModel().start()


# --- the end of the parent

PARENT = """
import asyncio, os, signal, sys
from consilience.models import local
from consilience.models.local import LocalModel
from consilience.models.port import ModelRequest

def ask(user, tokens=8):
    return ModelRequest(agent="A", key="k", system="", user=user, max_tokens=tokens, seed=1)

def say(*words):
    print(*words, flush=True)

async def begin():
    model = LocalModel("smollm2-135m")
    await model.start()
    (server,) = local._servers.values()
    say(server.process.pid)
    return model

"""

ENDS = {
    "killed": "async def main():\n    await (await begin()).complete(ask('A long story.', 7000))\nasyncio.run(main())",
    "leaves": "asyncio.run(begin())",
    "raises": "async def main():\n    await begin()\n    raise SystemExit(3)\nasyncio.run(main())",
    "interrupted": """
async def main():
    model = await begin()
    long = asyncio.create_task(model.complete(ask("A long story.", 7000)))
    loop = asyncio.get_running_loop()
    interrupted = asyncio.Event()
    loop.add_signal_handler(signal.SIGINT, interrupted.set)
    say("ready")
    await interrupted.wait()
    long.cancel()
    say("answered" if (await model.complete(ask("Hello?"))).requests == 1 else "died")
    await model.close()
asyncio.run(main())
""",
    "forks": """
model = asyncio.run(begin())
copy = os.fork()
if not copy:
    sys.exit(0)
os.waitpid(copy, 0)

async def main():
    say("answered" if (await model.complete(ask("Hello?"))).requests == 1 else "died")
    await model.close()
asyncio.run(main())
""",
}


@pytest.fixture
def parent(smollm2: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A process that uses the model and ends as its parameter says."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PARENT + ENDS[request.param]],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        yield process
        process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@real
@pytest.mark.parametrize("parent", ["killed"], indirect=True)
def test_a_killed_parent_leaves_no_child(parent: subprocess.Popen[str]) -> None:
    process = int(line(parent))
    parent.kill()
    assert gone(process, 3)


@real
@pytest.mark.parametrize(("parent", "code"), [("leaves", 0), ("raises", 3)], indirect=["parent"])
def test_a_parent_that_ends_without_closing_leaves_no_child(parent: subprocess.Popen[str], code: int) -> None:
    process = int(line(parent))
    _, printed = parent.communicate(timeout=300)
    assert (parent.returncode, printed) == (code, "")
    assert gone(process, 1)


@real
@pytest.mark.parametrize("parent", ["interrupted"], indirect=True)
def test_child_ignores_an_interrupt_at_the_terminal(parent: subprocess.Popen[str]) -> None:
    process = int(line(parent))
    assert line(parent) == "ready"
    os.killpg(parent.pid, signal.SIGINT)
    os.kill(process, signal.SIGINT)
    assert line(parent) == "answered"
    _, printed = parent.communicate(timeout=300)
    assert (parent.returncode, printed) == (0, "")
    assert gone(process, 1)


@real
@pytest.mark.parametrize("parent", ["forks"], indirect=True)
def test_forked_process_does_not_close_the_child(parent: subprocess.Popen[str]) -> None:
    process = int(line(parent))
    assert line(parent) == "answered"
    assert parent.wait(30) == 0
    assert gone(process, 1)


# --- the child's own reading


def test_usable_cores_are_set_only_below_the_number_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(Path, "read_text", lambda path: "max 100000")
    assert local_server.usable_cores() is None
    monkeypatch.setattr(Path, "read_text", lambda path: "250000 100000")
    assert local_server.usable_cores() == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3}, raising=False)
    assert local_server.usable_cores() == 1


STUBBORN = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.stdin.readline(); time.sleep(60)"
)


async def test_child_that_is_never_ready_ends_at_the_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of llama.cpp, a process that loads for ever and does not listen."""
    path = tmp_path / "some.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    started: list[ChildProcess] = []

    class Stubborn(ChildProcess):
        def __init__(self, argv: object, **options: Any) -> None:
            super().__init__([sys.executable, "-c", STUBBORN], **options)
            started.append(self)

    monkeypatch.setattr(local, "ChildProcess", Stubborn)
    monkeypatch.setattr(local, "need_libraries", lambda: None)
    began = time.monotonic()
    report = await consilience.deliberate(
        "Is it so?",
        consilience.Emergence(children=2),
        model=f"local:{path}",
        store=SqliteStore(":memory:"),
        limits=consilience.Limits(seconds=1.0),
    )
    assert 1.0 <= time.monotonic() - began < 30.0
    assert report.stop_reason == "exhausted_time"
    assert report.ledger.actual.requests == 0, "nothing was sent to it"
    assert len(started) == 1
    assert gone(started[0].pid, 1.0)
    assert local._servers == {}


async def test_close_does_not_wait_for_a_child_not_yet_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are still being checked when nobody wants it any more."""
    path = tmp_path / "some.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    checked = threading.Event()

    def slowly(name: str) -> Path:
        checked.wait(30)
        return path

    monkeypatch.setattr(local, "verify", slowly)
    monkeypatch.setattr(local, "need_libraries", lambda: None)
    model = LocalModel(str(path))
    waiting = asyncio.create_task(model.complete(LONG))
    await turns_until(lambda: bool(local._servers))
    started = server()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.wait_for(model.close(), 5)
    checked.set()
    with pytest.raises(UnavailableModel, match="closed while it was starting"):
        started.ready.result()
    assert started.process is None
