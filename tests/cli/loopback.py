"""A provider on this machine that speaks OpenAI's chat completions, for commands that run in processes of their own."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import DEVNULL, PIPE, CompletedProcess
from typing import Any

from kit import forks

MODEL = "openai-chat:stub"
PATIENCE = 300

Answer = Callable[[dict[str, Any], dict[str, str]], tuple[int, object]]
"""From a request's body and headers (names in lower case) to a status and a body."""


def prose(body: dict[str, Any], headers: dict[str, str]) -> tuple[int, object]:
    """A text that depends on all that was read and on nothing else."""
    read = hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()[:12]
    message = {"role": "assistant", "content": f"Having read {read}, the answer is yes."}
    return 200, {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "stub",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15},
    }


@dataclass
class Provider:
    """What was asked, in order of arrival; `open` lets answers out."""

    answer: Answer = prose
    asked: list[dict[str, Any]] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    """Further headers of every answer."""


def environment(url: str) -> dict[str, str]:
    """Names the server at `url` for `MODEL`, and says that it costs nothing."""
    return {"OPENAI_BASE_URL": f"{url}/v1", "CONSILIENCE_FREE_ENDPOINTS": f"{url}/v1"}


@contextmanager
def provider(answer: Answer = prose, listing: object = None, key: str = "") -> Iterator[Provider]:
    """Listens on a free port of 127.0.0.1 while the block runs; answers at once unless `open` is cleared.

    `listing` is what `/v1/models` gives, to requests with the `key` only if there is one; without it there is no such path.
    """
    found = Provider(answer)
    found.open.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            found.asked.append(body)
            found.arrived.set()
            found.open.wait(PATIENCE)
            self.send(*found.answer(body, {name.lower(): value for name, value in self.headers.items()}))

        def do_GET(self) -> None:
            if key and self.headers["Authorization"] != f"Bearer {key}":
                self.send(401, {"error": "no key"})
                return
            there = listing is not None and self.path == "/v1/models"
            self.send(200 if there else 404, listing if there else {"error": "no such path"})

        def send(self, status: int, said: object) -> None:
            sent = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            for name, value in found.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(sent)

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:  # whoever asked was killed
                self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.open.set()
        server.shutdown()
        server.server_close()
        thread.join()


LIMIT = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, resource.RLIM_INFINITY))
"""
MAIN = """
from consilience.cli.main import main
main()
"""


def begin(*arguments: str, env: dict[str, str], cwd: Path, most: int | None = None, before: str = "") -> forks.Fork:
    """The real command, as a process with exactly this environment, whose files may have `most` bytes each, and which runs the code
    `before` first."""
    before = before if most is None else LIMIT.format(most=most) + before
    program = ["-c", before + MAIN] if before else ["-m", "consilience"]
    command = [sys.executable, *program, *arguments]
    return forks.Fork(command, env=env, cwd=cwd, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True)


def command(*arguments: str, env: dict[str, str], cwd: Path, most: int | None = None) -> CompletedProcess[str]:
    """The same, to its end."""
    process = begin(*arguments, env=env, cwd=cwd, most=most)
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return CompletedProcess(process.args, process.returncode, out, err)
