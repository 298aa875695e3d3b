"""What readers and sessions cost a server: `python benchmarks/study_server.py [--measure memory]`.

The model, the server and the readers are processes of their own on this machine. It prints a table:

- how much 1,000 readers of one session slow its run down, whose replies take a second each; and as many readers who stop reading
- the lag of the loop that serves readers, while 100 sessions run that have a reader each
- the memory of the server over 2,000 sessions
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

MODEL = "vllm:stub"
"""Of a kind to which requests are not limited to a few in flight, as they are to other servers of the same machine."""
SAMPLE_SECONDS = 0.01
WARMUP = 50
"""Samples of the loop's lag that are left out: those of the start."""
SECOND: dict[str, object] = {"protocol": "emergence", "settings": {"children": 3, "max_rounds": 2}}
LONG = "Should it be built? " + "It costs much and pays late. " * 2_000
"""A task that fills the buffers of a connection: each event of a call has its prompt."""
VOTE: dict[str, object] = {"protocol": "vote", "settings": {"votes": 3}}
REPLY: dict[str, Any] = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "stub",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Yes, since it pays."}}
    ],
    "usage": {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},
}


# --- processes


async def provide(latency: float) -> None:
    """Answer every request with the same text, `latency` seconds later."""
    body = json.dumps(REPLY).encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"content-length: (\d+)", head.lower())
                await reader.readexactly(int(length[1]) if length else 0)
                await asyncio.sleep(latency)
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, backlog=1_000)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def serve() -> None:
    """Serve, and print the lag of the loop at the end."""
    from consilience.server import run
    from consilience.server.settings import ServerSettings

    lags: list[float] = []

    async def sample() -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + SAMPLE_SECONDS
            await asyncio.sleep(SAMPLE_SECONDS)
            lags.append(loop.time() - due)

    tasks = []

    def started(address: str) -> None:
        tasks.append(asyncio.ensure_future(sample()))
        print(address, flush=True)

    run.serve(ServerSettings(models=(MODEL,), running=100), host="127.0.0.1", port=0, on_start=started)
    lags = sorted(lags[WARMUP:])
    print(json.dumps({"median": lags[len(lags) // 2], "p99": lags[int(len(lags) * 0.99)], "max": lags[-1]}))


async def read(address: str, sessions: list[str], readers: int) -> None:
    """Read the events of sessions to their end, each by so many readers; print how many were read."""
    place = urlsplit(address)
    opened = 0

    async def follow(session: str) -> int:
        nonlocal opened
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        writer.write(
            f"GET /api/sessions/{session}/events HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n".encode()
        )
        await reader.readuntil(b"\r\n\r\n")
        opened += 1
        if opened == readers * len(sessions):
            print("open", flush=True)
        text = await reader.read(-1)
        writer.close()
        return text.count(b"\nevent: session_finished") + text.startswith(b"event: session_finished")

    ended = await asyncio.gather(*(follow(session) for session in sessions for _ in range(readers)))
    print(json.dumps({"ended": sum(ended)}), flush=True)


async def stall(address: str, session: str, readers: int) -> None:
    """Ask for the events of a session so many times, and read nothing of them."""
    place = urlsplit(address)
    sockets = []
    for _ in range(readers):
        stalled = socket.socket()
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        stalled.connect((place.hostname, place.port))
        stalled.sendall(f"GET /api/sessions/{session}/events HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
        sockets.append(stalled)
    print("open", flush=True)
    await asyncio.Event().wait()


@contextmanager
def process(*arguments: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run this script with other arguments; yield the process and the first line that it printed."""
    command = [sys.executable, __file__, *arguments]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables})
    assert started.stdout is not None
    try:
        yield started, started.stdout.readline().strip()
    finally:
        started.terminate()
        started.wait()


# --- measures


class ServerUnderStudy:
    """A server process, its home and its model."""

    def __init__(self, running: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = running, address

    def call(self, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)

    def begin(self, body: dict[str, object], task: str = "Should it be built?") -> str:
        return str(self.call("/api/sessions", {"task": task, **body})["session"])

    def wait(self, session: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.address}/api/sessions/{session}/events", timeout=600) as events:
            events.read()
        return dict(self.call(f"/api/sessions/{session}")["report"])

    @property
    def memory(self) -> float:
        """Resident megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None
        return int(found[1]) / 1000

    def end(self) -> dict[str, float]:
        """End the process; return the lag of its loop in seconds."""
        self.process.terminate()
        assert self.process.stdout is not None
        lags: dict[str, float] = json.loads(self.process.stdout.read().strip().splitlines()[-1])
        return lags


@contextmanager
def studied(latency: float) -> Iterator[ServerUnderStudy]:
    with tempfile.TemporaryDirectory() as home, process("provide", str(latency)) as (_, model):
        variables = {
            "CONSILIENCE_HOME": home,
            "VLLM_BASE_URL": f"{model}/v1",
            "CONSILIENCE_FREE_ENDPOINTS": f"{model}/v1",
            "OPENAI_API_KEY": "none-needed",
        }
        with process("serve", **variables) as (server, address):
            yield ServerUnderStudy(server, address)


def slowdown(readers: int, repeats: int) -> Iterator[tuple[str, float, str]]:
    """A run with readers, and one with stalled readers, against one without, in turn."""
    alone, watched, alone_long, stalled = [], [], [], []
    with studied(1.0) as server:
        server.wait(server.begin(SECOND))  # imports
        for _ in range(repeats):
            alone.append(server.wait(server.begin(SECOND))["ledger"]["actual"]["seconds"])
            alone_long.append(server.wait(server.begin(SECOND, LONG))["ledger"]["actual"]["seconds"])
            session = server.begin(SECOND, LONG)
            with process("stall", server.address, session, str(readers)):
                stalled.append(server.wait(session)["ledger"]["actual"]["seconds"])
            session = server.begin(SECOND)
            with process("read", server.address, str(readers), session) as (reading, _):
                watched.append(server.wait(session)["ledger"]["actual"]["seconds"])
                assert reading.stdout is not None
                assert json.loads(reading.stdout.readline())["ended"] == readers
    yield "a run without readers, s", statistics.median(alone), ""
    yield f"the same with {readers:,} readers, s", statistics.median(watched), ""
    yield "slower by, %", 100 * (statistics.median(watched) / statistics.median(alone) - 1), "≤ 5"
    yield "a run with a long task, without readers, s", statistics.median(alone_long), ""
    yield f"the same with {readers:,} readers who stop reading, s", statistics.median(stalled), ""
    yield "slower by, %", 100 * (statistics.median(stalled) / statistics.median(alone_long) - 1), "≤ 5"


def lag(sessions: int) -> Iterator[tuple[str, float, str]]:
    with studied(1.0) as server, ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda n: server.begin(SECOND, f"Question {n}?"), range(sessions)))
        with process("read", server.address, "1", *ids) as (reading, _):
            assert reading.stdout is not None
            assert json.loads(reading.stdout.readline())["ended"] == sessions
        lags = server.end()
    for name, target in (("median", ""), ("p99", "≤ 30"), ("max", "")):
        yield f"lag of the readers' loop with {sessions} sessions, {name}, ms", 1000 * lags[name], target


def memory(sessions: int) -> Iterator[tuple[str, float, str]]:
    with studied(0.0) as server, ThreadPoolExecutor(16) as pool:
        done = 0
        for total in (50, sessions // 4, sessions // 2, sessions):
            ids = list(pool.map(lambda n: server.begin(VOTE, f"Question {n}?"), range(done, total)))
            list(pool.map(server.wait, ids))
            done = total
            yield f"memory after {total:,} sessions, MB", server.memory, ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=1_000)
    parser.add_argument("--sessions", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", choices=("slowdown", "lag", "memory"), help="this one alone")
    options = parser.parse_args()
    measures = {
        "slowdown": lambda: slowdown(options.readers, options.repeats),
        "lag": lambda: lag(100),
        "memory": lambda: memory(options.sessions),
    }
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    began = time.monotonic()
    print("| measure | value | target |\n|---|--:|--:|")
    for measure in [options.measure] if options.measure else measures:
        for name, value, target in measures[measure]():
            print(f"| {name} | {value:,.1f} | {target} |", flush=True)
    print(f"\nIn {time.monotonic() - began:.0f} s; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["provide", latency]:
            asyncio.run(provide(float(latency)))
        case ["serve"]:
            serve()
        case ["stall", address, session, readers]:
            asyncio.run(stall(address, session, int(readers)))
        case ["read", address, readers, *ids]:
            asyncio.run(read(address, ids, int(readers)))
        case _:
            main()
