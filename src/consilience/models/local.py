"""Models that run on this machine: llama.cpp in a child process, one per file of weights, shared by all agents.

The server is started at the first request, or by `LocalModel.start`. It ends when the last model that uses it is closed, or
when this process ends in any way. If it is killed, the next request starts another. It computes one prompt at a time, because
on a few cores that is faster than several side by side: each prompt reuses the prefix of the one before. It listens on a
loopback port and answers only requests with a key that no other process knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING
from weakref import WeakSet

from consilience.domain.errors import ProviderError, Rejected, UnavailableModel, Unreachable, UserError
from consilience.models.child_process import ChildProcess
from consilience.models.limiter import Pace, limiter_for, running_count
from consilience.models.port import Completion, Model, ModelRequest
from consilience.models.provider import ProviderModel
from consilience.models.refusals import Change, RequestForm
from consilience.models.weights import CATALOGUE, CONTEXT_TOKENS, canonical_name, locate, verify

if TYPE_CHECKING:
    import httpx2

DEADLINE_SECONDS = 900.0
"""How long one sending may take, from when it is the next to be computed."""
DEFAULT_TEMPERATURE = 0.7
SERVER_COMMAND = (sys.executable, "-P", "-m", "consilience.models.local_server")
_PACE = Pace(initial_window=2, max_window=2)  # one is computed and one waits in the server, so that there is no gap
_DEATH_SECONDS = 0.5
"""How long a failed connection waits for the news that the server has ended."""
_SEED_MODULUS = 2**32 - 1  # llama.cpp takes this number itself for "random"


class LocalModel(Model):
    """A GGUF model. `name` is a catalogue name, a path to a `.gguf` file, or "local" for the default.

    Cheap to create; several with one name share one server. It serves one event loop at a time.
    """

    context_window = CONTEXT_TOKENS

    def __init__(self, name: str = "local") -> None:
        self._weights = canonical_name(name)
        self._connection: _Connection | None = None

    @property
    def name(self) -> str:
        return f"local:{self._weights}"

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return 0.0

    async def start(self) -> None:
        """Load the weights, so that requests are answered at once.

        Raises `UnknownName`, or `UnavailableModel` saying what is missing.
        """
        need_libraries()
        verify(self._weights)
        server = _acquire(self)
        await asyncio.to_thread(_import_libraries)  # while the server loads
        await asyncio.wrap_future(server.ready)

    async def complete(self, request: ModelRequest) -> Completion:
        """Return one answer. A schema is enforced by a grammar, so only a cut at `max_tokens` makes the reply invalid.

        Without a temperature, `DEFAULT_TEMPERATURE` is used; without a seed, each answer is different. Cancelling stops the
        computation within about a second. If the server dies it is started again, once per call. Raises `Rejected` if the model
        cannot be started or the prompt is too long, `Unreachable` if the server keeps dying, `Timeout`.
        """
        seed = None if request.seed is None else request.seed % _SEED_MODULUS
        temperature = DEFAULT_TEMPERATURE if request.temperature is None else request.temperature
        request = replace(request, temperature=temperature, seed=seed)
        running_count().expect()  # while the server loads, nothing is sent
        await self._running_server()
        completion, failed, seconds_waited = await limiter_for(self.account, _PACE).send(
            lambda: self._send(request), deadline=DEADLINE_SECONDS, retries=1
        )
        return replace(completion, requests=failed + completion.requests, waited=seconds_waited, cost=0.0)

    async def close(self) -> None:
        """Release the server; the last model to release it stops it. The model may be used again afterwards."""
        connection, self._connection = self._connection, None
        server = _release(self)
        if server is not None:
            await server.stop()
        if connection is not None:
            await connection.close()

    async def _running_server(self) -> _LlamaServer:
        server = _acquire(self)
        try:
            await asyncio.wrap_future(server.ready)
        except UserError as error:
            failure = Rejected(str(error))
            failure.requests = 0
            raise failure from None
        return server

    async def _send(self, request: ModelRequest) -> Completion:
        """One sending. It fails once it is known whether the server is alive."""
        server = await self._running_server()
        connection = self._connection
        loop = asyncio.get_running_loop()
        if connection is None or connection.server is not server or connection.loop is not loop:
            await asyncio.to_thread(_import_libraries)
            connection = self._connection = _Connection(server, loop, *_connect(server, self.name))
        try:
            return await connection.model.complete(request)
        except ProviderError as error:
            if isinstance(error, Unreachable):
                await asyncio.wait([asyncio.wrap_future(server.ended)], timeout=_DEATH_SECONDS)
            if not server.ended.done():
                raise
        raise Unreachable(f"{self.name}: {server.describe_end()}")


@dataclass(frozen=True, slots=True)
class _Connection:
    server: _LlamaServer
    loop: asyncio.AbstractEventLoop
    model: ProviderModel
    client: httpx2.AsyncClient

    async def close(self) -> None:
        if self.loop is asyncio.get_running_loop():
            await self.model.close()
            await self.client.aclose()


class _NativeOnly(ProviderModel):
    """Uses JSON schemas only: small models imitate a tool call, and echo a schema that is in the prompt."""

    def _next_form(self, error: Exception, request: ModelRequest, form: RequestForm, room: int | None) -> Change | None:
        return None


def _connect(server: _LlamaServer, name: str) -> tuple[ProviderModel, httpx2.AsyncClient]:
    import httpx2
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    client = httpx2.AsyncClient(
        timeout=httpx2.Timeout(None, connect=10.0),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),  # an idle one would occupy a thread
        trust_env=False,  # a proxy cannot reach our loopback
    )
    url = f"{server.ready.result()}/v1"
    provider = OpenAICompatibleProvider("llamacpp", base_url=url, api_key=server.key, http_client=client)
    profile = OpenAIModelProfile(supports_json_schema_output=True, supports_tools=False, json_schema_transformer=None)
    library = OpenAIChatModel(server.alias, provider=provider, profile=profile)
    return _NativeOnly(name, name, library), client


class _LlamaServer:
    """llama.cpp with one file of weights in a child process, and the thread that starts it and waits for its end."""

    def __init__(self, weights: str) -> None:
        self.weights = weights
        self.alias = Path(weights).stem if weights not in CATALOGUE else weights
        self.key = secrets.token_urlsafe(32)
        self.ready: Future[str] = Future()
        """Its address. Raises `UnavailableModel` if it cannot be started."""
        self.ended: Future[int] = Future()
        """Its exit code, -1 if it was not started."""
        for future in (self.ready, self.ended):
            future.set_running_or_notify_cancel()  # so that cancelling one wait leaves it to the others
        self.process: ChildProcess | None = None
        self._last_error = ""
        self._stopping = False
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name=f"local model {self.alias}", daemon=True).start()

    def describe_end(self) -> str:
        """How it ended, in a few words."""
        code = self.ended.result()
        if code >= 0:
            description = f"its process ended (exit code {code})"
        elif -code == signal.SIGKILL:
            description = "its process was killed, perhaps because memory is short"
        else:
            description = f"its process crashed ({signal.Signals(-code).name})"
        return description + (f": {self._last_error}" if self._last_error else "")

    async def stop(self) -> None:
        """Kill the process, whatever it is doing, and return when it has ended. A process not started yet never will be."""
        with self._lock:
            self._stopping = True
        if self.process is not None:
            self.process.kill()
            await asyncio.wrap_future(self.ended)

    def _run(self) -> None:
        code = -1
        try:
            need_libraries()
            path = verify(self.weights)
            with tempfile.TemporaryFile() as log, contextlib.ExitStack() as ending:
                process = self._start(log)
                ending.callback(process.close_pipes)
                report = self._send_settings(process.started.result(), path)
                if "url" in report:
                    self.ready.set_result(report["url"])
                code = process.ended.result()
                self._last_error = _last_error(log)
            self.ended.set_result(code)
            if not self.ready.done():
                self.ready.set_exception(self._load_failure(report))
        except UserError as error:
            self.ready.set_exception(error)
        except OSError as error:
            cause = self._closed_early() if self._stopping else None
            self.ready.set_exception(cause or UnavailableModel(f"cannot start the process for {self.weights}: {error}"))
        finally:
            if not self.ended.done():
                self.ended.set_result(code)

    def _start(self, log: IO[bytes]) -> ChildProcess:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
        environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
        if "OMP_WAIT_POLICY" not in environment:  # else waiting threads take the cores of any other busy process
            environment.setdefault("GOMP_SPINCOUNT", "500")
        with self._lock:
            if self._stopping:
                raise self._closed_early()
            self.process = ChildProcess(SERVER_COMMAND, env=environment, stderr=log)
            return self.process

    def _send_settings(self, pipes: subprocess.Popen[bytes], path: Path) -> dict[str, str]:
        """Send the settings and return the one line that the server reports; empty if it ends first."""
        assert pipes.stdin is not None
        assert pipes.stdout is not None
        settings = {
            "weights": str(path),
            "alias": self.alias,
            "key": self.key,
            "context": CONTEXT_TOKENS,
            "cache_mib": _cache_mib(),
        }
        with contextlib.suppress(OSError, ValueError):
            pipes.stdin.write(json.dumps(settings).encode() + b"\n")
        line = pipes.stdout.readline()
        return dict(json.loads(line)) if line else {}

    def _closed_early(self) -> UnavailableModel:
        return UnavailableModel(f"the model {self.weights} was closed while it was starting")

    def _load_failure(self, report: dict[str, str]) -> UnavailableModel:
        if self._stopping:
            return self._closed_early()
        if report.get("kind") == "import":
            return UnavailableModel(
                f"llama.cpp cannot be loaded: {report['error']}", do="Run: pip install 'consilience[local]'"
            )
        reason = self._last_error or report.get("error") or self.describe_end()
        place = str(locate(self.weights) or self.weights)
        if self.weights in CATALOGUE:
            do = "The file is complete, so memory may be short: close other programs, or use a smaller model."
        else:
            do = "Check that it is a complete GGUF file of a chat model, and that there is memory for it."
        return UnavailableModel(f"the model {self.alias} cannot be loaded: {reason}", where=place, do=do)


_servers: dict[str, _LlamaServer] = {}
_users: dict[str, WeakSet[LocalModel]] = {}
_lock = threading.Lock()


def _acquire(model: LocalModel) -> _LlamaServer:
    """The running server of the model's weights, started if there is none or it has ended."""
    weights = model.name.removeprefix("local:")
    key = os.path.realpath(locate(weights) or weights)
    with _lock:
        _users.setdefault(key, WeakSet()).add(model)
        server = _servers.get(key)
        if server is None or server.ended.done():
            server = _servers[key] = _LlamaServer(weights)
        return server


def _release(model: LocalModel) -> _LlamaServer | None:
    """Remove the model from the users of its server. Returns the server if it has no users left."""
    with _lock:
        for key, users in list(_users.items()):
            if model in users:
                users.discard(model)
                if not users:
                    del _users[key]
                    return _servers.pop(key, None)
    return None


def _forget_all() -> None:
    """After a fork: the servers belong to the other process."""
    global _lock
    _lock = threading.Lock()
    _servers.clear()
    _users.clear()


os.register_at_fork(after_in_child=_forget_all)


def need_libraries() -> None:
    """Raise `UnavailableModel` naming the missing packages if local models cannot run."""
    missing = [package for package in ("xllamacpp", "openai") if importlib.util.find_spec(package) is None]
    if missing:
        raise UnavailableModel(
            f"local models need {' and '.join(missing)}, not installed here", do="Run: pip install 'consilience[local]'"
        )


def _import_libraries() -> None:
    """Takes 0.7 s, the first time."""
    import pydantic_ai.direct
    import pydantic_ai.models.openai
    import pydantic_ai.providers.openai_compatible  # noqa: F401


def _cache_mib() -> int:
    """Memory for prompts that were computed and displaced: 1 GiB, or a sixteenth of the machine's where that is less."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    except (AttributeError, ValueError, OSError):
        return 512
    return max(128, min(1024, machine // 16))


def _last_error(log: IO[bytes]) -> str:
    """The first error line that llama.cpp wrote, without its time stamp: it is the most specific one. Else the last line."""
    log.seek(0)
    text = log.read()[-20_000:].decode(errors="replace")
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    errors = [line.partition(" E ")[2] for line in lines if " E " in line]
    return (errors[:1] or lines[-1:] or [""])[0][:300].rstrip(".")
