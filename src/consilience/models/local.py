"""Models that run on this machine: llama.cpp in a child process, one per file of weights, shared by all agents.

The child is started at the first request, or by `LocalModel.start`, and ends when the last model that used it is
closed, when this process ends in whatever way, or when it is killed; then the next request starts another. One prompt
is computed at a time: on a few cores that is faster than side by side, because each prompt finds the prefix that the
one before has left. The child listens on a loopback port, and answers only to a key that no other process knows.
"""

from __future__ import annotations

import asyncio
import atexit
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
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from consilience.domain.errors import ProviderError, Rejected, Timeout, UnavailableModel, Unreachable, UserError
from consilience.models.failures import OutputMode
from consilience.models.limiter import retry_allowed, running_count
from consilience.models.port import Completion, ModelRequest
from consilience.models.provider import ProviderModel
from consilience.models.weights import CATALOGUE, DEFAULT, Progress, locate, pull, verify

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

DEADLINE = 900.0
"""Seconds one sending may take, from the moment it is the next one to be computed."""
CONTEXT = 16_384
"""Tokens of context, or what the model was made for if that is less."""
TEMPERATURE = 0.7
_IN_FLIGHT = 2  # one that is computed, one that waits in the child, so that there is no gap between them
_SENDINGS = 2
_GRACE_SECONDS = 0.5
_LARGEST_SEED = 2**32 - 1  # this very number asks for a random one


class LocalModel:
    """A GGUF model. `name` is of the catalogue, a path to a `.gguf` file, or "local" for the default.

    Cheap to make; several with one name share one child. It serves one event loop at a time.
    """

    context_window = CONTEXT

    def __init__(self, name: str = "local") -> None:
        self._weights = DEFAULT if name == "local" else name
        self._provider: _Connection | None = None

    @property
    def name(self) -> str:
        return f"local:{self._weights}"

    @property
    def account(self) -> str:
        return self.name

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return 0.0

    async def start(self, progress: Progress | None = None) -> None:
        """Fetch the weights if they are missing or damaged, and load them: from then on requests are answered at once.

        `progress` is called from another thread. Raises `UnknownName`, or `UnavailableModel` saying what is missing.
        Cancelling stops the fetching; what has been fetched is kept.
        """
        _need_libraries()
        if self._weights in CATALOGUE:
            await _fetch(self._weights, progress)
        else:
            verify(self._weights)
        if progress is not None:
            path = verify(self._weights)
            progress(f"loading {self._weights}", path.stat().st_size, path.stat().st_size)
        child = _acquire(self)
        await _import_libraries()
        await _result(child.ready)

    async def complete(self, request: ModelRequest) -> Completion:
        """One answer; with a schema its grammar is enforced, so only a cut by `max_tokens` makes it invalid.

        Without a temperature `TEMPERATURE` is used; without a seed each answer is another. Cancelling stops the
        computation within a second or so. Should the child die it is started again, once per call. Raises
        `Rejected` where the model cannot be started or the prompt is too long, `Unreachable` where it keeps dying,
        `Timeout`.
        """
        seed = None if request.seed is None else request.seed % _LARGEST_SEED
        temperature = TEMPERATURE if request.temperature is None else request.temperature
        asked = replace(request, temperature=temperature, seed=seed)
        sent, waited = 0, 0.0
        count = running_count()
        count.expect()
        while True:
            child = await self._running_child()
            arrived = time.monotonic()
            async with child.gate():
                waited += time.monotonic() - arrived
                if child.ended.done():  # while this request stood in the queue
                    continue
                sent += 1
                count.dispatched()
                outcome = await self._send(child, asked)
                count.answered()
            if isinstance(outcome, Completion):
                return replace(outcome, requests=sent, waited=waited, cost=0.0)
            vars(outcome).update(requests=sent, waited=waited)
            if not child.ended.done() or sent >= _SENDINGS or not retry_allowed():
                raise outcome

    async def close(self) -> None:
        """Leave the child; the last to leave stops it. The model may be used again afterwards."""
        connection, self._provider = self._provider, None
        child = _release(self)
        if child is not None:
            await child.stop()
        if connection is not None:
            await connection.close()

    async def _running_child(self) -> _Child:
        child = _acquire(self)
        try:
            await _result(child.ready)
        except UserError as error:
            failure = Rejected(str(error))
            vars(failure)["requests"] = 0
            raise failure from None
        return child

    async def _send(self, child: _Child, request: ModelRequest) -> Completion | ProviderError:
        """One sending. A failure is returned once it is known whether the child is alive."""
        await _import_libraries()
        connection = self._provider
        loop = asyncio.get_running_loop()
        if connection is None or connection.child is not child or connection.loop is not loop:
            connection = self._provider = _Connection(child, loop, *_connect(child, self.name))
        try:
            async with asyncio.timeout(DEADLINE):
                return await connection.model.complete(request)
        except TimeoutError:
            return Timeout(f"{self.name}: no answer within {DEADLINE:.0f} s. Ask for less, or take a smaller model.")
        except ProviderError as error:
            with contextlib.suppress(TimeoutError):
                if isinstance(error, Unreachable):
                    await asyncio.wait_for(_result(child.ended), _GRACE_SECONDS)
            return Unreachable(f"{self.name}: {child.epitaph()}") if child.ended.done() else error


@dataclass(frozen=True, slots=True)
class _Connection:
    child: _Child
    loop: asyncio.AbstractEventLoop
    model: ProviderModel
    client: httpx2.AsyncClient

    async def close(self) -> None:
        if self.loop is asyncio.get_running_loop():
            await self.model.close()
            await self.client.aclose()


class _NativeOnly(ProviderModel):
    """Without weaker means of structured output: in tool mode small models imitate a call, prompted they echo the schema."""

    def _learn(self, error: Exception, mode: OutputMode | None, left_out: AbstractSet[str]) -> bool:
        return False


def _connect(child: _Child, name: str) -> tuple[ProviderModel, httpx2.AsyncClient]:
    import httpx2
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    client = httpx2.AsyncClient(
        timeout=httpx2.Timeout(None, connect=10.0),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),  # an idle one would hold a thread
        trust_env=False,  # a proxy does not know our loopback
    )
    url = f"{child.ready.result()}/v1"
    provider = OpenAICompatibleProvider("llamacpp", base_url=url, api_key=child.key, http_client=client)
    profile = OpenAIModelProfile(supports_json_schema_output=True, supports_tools=False, json_schema_transformer=None)
    library = OpenAIChatModel(child.alias, provider=provider, profile=profile)
    return _NativeOnly(name, name, library, prices=(0.0, 0.0)), client


class _Child:
    """A process of llama.cpp for one file of weights, and the thread that starts it and waits for its end.

    `ready` gives its address, or raises `UnavailableModel`; `ended` its exit code. The thread lives as long as the
    process, for on Linux the process is killed with the thread that started it.
    """

    def __init__(self, weights: str) -> None:
        self.weights = weights
        self.alias = Path(weights).stem if weights not in CATALOGUE else weights
        self.key = secrets.token_urlsafe(32)
        self.ready: Future[str] = Future()
        self.ended: Future[int] = Future()
        self._last_words = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._lock = threading.Lock()
        self._gates: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()
        threading.Thread(target=self._supervise, name=f"local model {self.alias}", daemon=True).start()

    def gate(self) -> asyncio.Semaphore:
        """Lets in as many requests as are worth having in flight, in order of arrival."""
        return self._gates.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(_IN_FLIGHT))

    def epitaph(self) -> str:
        """How it ended, in a few words."""
        code = self.ended.result()
        if code >= 0:
            how = f"its process ended (exit code {code})"
        elif -code == signal.SIGKILL:
            how = "its process was killed, perhaps for want of memory"
        else:
            how = f"its process crashed ({signal.Signals(-code).name})"
        return how + (f": {self._last_words}" if self._last_words else "")

    async def stop(self) -> None:
        """End the process, whatever it is doing. Returns when it is gone; one that is not started yet never will be."""
        self.let_go()
        try:
            await asyncio.wait_for(_result(self.ended), _GRACE_SECONDS)
        except TimeoutError:  # while it loads it does not listen
            self.kill()
            if self._process is not None:
                await _result(self.ended)

    def let_go(self) -> None:
        """Close the lifeline, at whose end the process leaves."""
        with self._lock:
            self._stopping = True
            if self._process is not None and self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()

    def kill(self) -> None:
        with self._lock:
            self._stopping = True
            if self._process is not None:
                self._process.kill()

    def forget(self) -> None:
        """In a forked copy of this process: let go of the lifeline, without a word about a process not ours."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.returncode = 0

    def _supervise(self) -> None:
        code = -1
        try:
            _need_libraries()
            path = verify(self.weights)
            with tempfile.TemporaryFile() as log:
                with self._spawn(log) as process:
                    said = self._converse(process, path)
                    if "url" in said:
                        self.ready.set_result(said["url"])
                    code = process.wait()
                self._last_words = _last_error(log)
            if not self.ready.done():
                self.ended.set_result(code)
                self.ready.set_exception(self._load_failure(said))
        except UserError as error:
            self.ready.set_exception(error)
        except OSError as error:
            self.ready.set_exception(UnavailableModel(f"The process for {self.weights} cannot be started: {error}"))
        finally:
            if not self.ended.done():
                self.ended.set_result(code)

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
        environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
        if "OMP_WAIT_POLICY" not in environment:  # else, beside any other busy process, waiting threads take its cores
            environment.setdefault("GOMP_SPINCOUNT", "500")
        windows = getattr(subprocess, "CREATE_NO_WINDOW", 0) | getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        with self._lock:
            if self._stopping:
                raise self._closed_early()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "consilience.models.local_server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env=environment,
                start_new_session=True,  # a Ctrl-C at the terminal is ours to judge
                creationflags=windows,
            )
            return self._process

    def _converse(self, process: subprocess.Popen[bytes], path: Path) -> dict[str, str]:
        """Send the settings, and wait for the one line that the child says; empty if it dies first."""
        assert process.stdin is not None
        assert process.stdout is not None
        settings = {
            "weights": str(path),
            "alias": self.alias,
            "key": self.key,
            "context": CONTEXT,
            "cache_mib": _cache_mib(),
            "parent": os.getpid(),
        }
        with contextlib.suppress(OSError, ValueError):
            process.stdin.write(json.dumps(settings).encode() + b"\n")
        line = process.stdout.readline()
        return dict(json.loads(line)) if line else {}

    def _closed_early(self) -> UnavailableModel:
        return UnavailableModel(f"The model {self.weights} was closed while it was starting")

    def _load_failure(self, said: dict[str, str]) -> UnavailableModel:
        if self._stopping:
            return self._closed_early()
        if said.get("kind") == "import":
            return UnavailableModel(
                f"llama.cpp cannot be loaded: {said['error']}", do="Run: pip install 'consilience[local]'"
            )
        why = self._last_words or said.get("error") or self.epitaph()
        where = str(locate(self.weights) or self.weights)
        if self.weights in CATALOGUE:
            do = "The file is whole, so memory may be short: close other programs, or take a smaller model."
        else:
            do = "Is it a whole GGUF file of a chat model, and is there memory for it?"
        return UnavailableModel(f"The model {self.alias} cannot be loaded: {why}", where=where, do=do)


_children: dict[str, _Child] = {}
_users: dict[str, WeakSet[LocalModel]] = {}
_registry = threading.Lock()


def _acquire(model: LocalModel) -> _Child:
    """The running child of the model's weights, started if there is none or it has ended."""
    key = _key(model)
    with _registry:
        _users.setdefault(key, WeakSet()).add(model)
        child = _children.get(key)
        if child is None or child.ended.done():
            child = _children[key] = _Child(model.name.removeprefix("local:"))
        return child


def _release(model: LocalModel) -> _Child | None:
    """Take the model from the users of its child; the child if nobody uses it any more."""
    with _registry:
        for key, users in list(_users.items()):
            if model in users:
                users.discard(model)
                if not users:
                    del _users[key]
                    return _children.pop(key, None)
    return None


def _key(model: LocalModel) -> str:
    weights = model.name.removeprefix("local:")
    return os.path.realpath(locate(weights) or weights)


def _kill_all() -> None:
    for child in list(_children.values()):
        child.kill()
        with contextlib.suppress(Exception):
            child.ended.result(timeout=1.0)


def _forget_all() -> None:
    """After a fork: the children are the other process's."""
    global _registry
    _registry = threading.Lock()
    for child in _children.values():
        child.forget()
    _children.clear()
    _users.clear()


atexit.register(_kill_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


async def _result(future: Future[T]) -> T:
    """Wait for a thread's result. Cancelling the wait leaves the future alone, for others wait for it too."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def done(_: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(wake)

    future.add_done_callback(done)
    await waiter
    return future.result()


def _in_thread(function: Callable[[], T]) -> Future[T]:
    """Run in a thread of its own that neither delays the end of the event loop nor that of the process."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


async def _fetch(name: str, progress: Progress | None) -> None:
    given_up = threading.Event()

    def tell(message: str, done: int, total: int) -> None:
        if given_up.is_set():
            raise _GivenUp
        if progress is not None:
            progress(message, done, total)

    try:
        await _result(_in_thread(lambda: pull(name, tell)))
    finally:
        given_up.set()


class _GivenUp(Exception):
    """Nobody waits for the weights any more."""


def _need_libraries() -> None:
    missing = [package for package in ("xllamacpp", "openai") if importlib.util.find_spec(package) is None]
    if missing:
        raise UnavailableModel(
            f"Local models need {' and '.join(missing)}, not installed here", do="Run: pip install 'consilience[local]'"
        )


async def _import_libraries() -> None:
    """0.7 s of importing, once, in a thread, so that the loop goes on and the child loads meanwhile."""

    def work() -> None:
        import pydantic_ai.direct
        import pydantic_ai.models.openai
        import pydantic_ai.providers.openai_compatible  # noqa: F401

        _imported.set()

    if not _imported.is_set():
        await _result(_in_thread(work))


_imported = threading.Event()


def _cache_mib() -> int:
    """Memory for prompts that were computed and displaced: 1 GiB, or a sixteenth of the machine's where that is less."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    except (AttributeError, ValueError, OSError):
        return 512
    return max(128, min(1024, machine // 16))


def _last_error(log: IO[bytes]) -> str:
    """The first error line that llama.cpp left, which says most, without its time stamp; else the last line."""
    log.seek(0)
    said = log.read()[-20_000:].decode(errors="replace")
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    errors = [line.partition(" E ")[2] for line in lines if " E " in line]
    return (errors[:1] or lines[-1:] or [""])[0][:300].rstrip(".")
