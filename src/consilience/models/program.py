"""A program as a model: it reads the prompt on standard input and writes its reply on standard output.

`exec:COMMAND` serves the agent command lines of other vendors, and anything else that reads and writes text. No shell
takes part. The program gets an empty working directory, a few variables of the environment and no key, and is killed
with all it started when it is too slow, writes too much, or is not wanted any more.

Cancellation may come at any moment of its start, and a signal that ends this process too. asyncio's own start bears
neither: until all pipes are connected nobody knows the process but the loop, which then kills its leader alone and waits
for pipes that nobody closes. So a supervisor (`supervisor.py`) starts the program and ends it with all it started, also
when this process is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from consilience.domain.errors import ProviderError, Rejected, ServerError, SettingsError, UnavailableModel, UnknownName
from consilience.models import supervisor
from consilience.models.port import Completion, JsonSchema, ModelRequest
from consilience.models.redaction import command_holds_secret, scrub

PREFIX = "exec:"
DEADLINE = 900.0
"""Seconds a program may take for one reply."""
SIDE_BY_SIDE = 4
"""Copies of one program that run at a time."""
MOST_OUTPUT = 4_000_000
"""Bytes a program may write."""
PASSED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
"""What a program is given of the environment. `HOME`, since agents keep their log-in there."""
PASSED_ON = "CONSILIENCE_EXEC_ENV"
"""Names of further variables to give, separated by commas."""


class ProgramModel:
    """One command line. `complete` starts it once; its price, and what it spends, are not known."""

    def __init__(self, name: str, *, most_output: int = MOST_OUTPUT) -> None:
        self._name = name
        self._argv = argv_of(name)
        self._most = most_output

    @property
    def name(self) -> str:
        return self._name

    @property
    def account(self) -> str:
        return f"{PREFIX}{Path(self._argv[0]).name}"

    async def complete(self, request: ModelRequest) -> Completion:
        """Raises `ServerError` where the program fails, `Rejected` where it cannot be run or writes without end."""
        with tempfile.TemporaryDirectory(prefix="consilience-", ignore_cleanup_errors=True) as room:
            text = await self._talk(prompt_of(request).encode("utf-8", "replace"), room)
        return Completion(text=text, model=self._name)

    async def _talk(self, prompt: bytes, room: str) -> str:
        env = environment(os.environ)
        try:
            ended = await run(self._argv, prompt, room=room, env=env, most=self._most)
        except (OSError, ValueError) as error:
            raise Rejected(f"{self.account}: the program cannot be started: {error}") from None
        if ended.code is None:
            raise Rejected(f"{self.account}: the program wrote more than {self._most:,} bytes")
        if ended.code:
            raise self._failed(ended.code, ended.complaint)
        return _without_secrets(ended.output.decode("utf-8", "replace").strip())

    def _failed(self, code: int, complaint: bytes) -> ProviderError:
        ended = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
        said = " ".join(scrub(complaint.decode("utf-8", "replace"), _secrets(os.environ)).split())
        if len(said) > 300:  # what went wrong stands at the end
            said = f"…{said[-299:]}"
        return ServerError(f"{self.account}: the program {ended}" + (f": {said}" if said else ""))

    def price(self, tokens_in: int, tokens_out: int) -> float | None:
        return None

    async def close(self) -> None:
        return None


def argv_of(name: str) -> list[str]:
    """The words of `exec:COMMAND`, the program as an absolute path.

    Raises `UnknownName` for no command, `SettingsError` for one that holds a secret, since it is recorded as it stands, and
    `UnavailableModel` for a program that is not there.
    """
    command = name.removeprefix(PREFIX).strip()
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UnknownName(f"the command cannot be read: {error}", where="exec:…", do="Close the quotation.") from None
    if not words:
        raise UnknownName("exec: names no command", do='Write exec:COMMAND, such as "exec:claude -p".')
    if command_holds_secret(command):
        raise SettingsError(
            f"the command of {shown(name)} holds what looks like a secret, and the command is recorded",
            do=f"Put it into a file that the program reads, or into a variable that you name in {PASSED_ON}. A shell puts a "
            """variable among the options: "exec:sh -c 'agent --token \\$NAME'".""",
        )
    found = shutil.which(words[0])
    if found is None:
        raise UnavailableModel(
            f"{words[0]!r} is no program that may be run"
            if os.sep in words[0] and os.path.exists(words[0])
            else f"there is no program {words[0]!r}",
            where=f"{PREFIX}{command}",
            do="Install it, or give its whole path.",
        )
    return [os.path.abspath(found), *words[1:]]


def shown(name: str) -> str:
    """The name of a model, or of a chain of models, as it may be printed: of a command with a secret only the program."""
    if not name.strip().startswith(PREFIX) and "|" in name:
        return "|".join(map(shown, name.split("|")))
    command = name.strip().removeprefix(PREFIX)
    if command == name.strip() or not command_holds_secret(command):
        return name
    program = Path((command.split() or [""])[0]).name
    return f"{PREFIX}{program if program.replace('-', '').isalnum() else '…'} …"


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a program gets of it: the names in `PASSED`, and those asked for by `CONSILIENCE_EXEC_ENV`."""
    asked = [name.strip() for name in environ.get(PASSED_ON, "").split(",")]
    return {name: environ[name] for name in (*PASSED, *asked) if name in environ}


def prompt_of(request: ModelRequest) -> str:
    """The prompt as the program reads it: a typed reply is asked for in words."""
    return f"{request.text}\n\n{in_words(request.schema)}" if request.schema is not None else f"{request.text}\n"


def in_words(schema: JsonSchema) -> str:
    return (
        "Reply with one JSON object and nothing else, neither before nor after it. It must follow this JSON schema:\n"
        f"{json.dumps(schema, ensure_ascii=False)}\n"
    )


def _secrets(environ: Mapping[str, str]) -> list[str]:
    """Values that this process itself was asked to pass on."""
    return [environ[name] for name in environment(environ) if name not in PASSED and environ[name]]


def _without_secrets(text: str) -> str:
    """A reply as it came, but for what was passed on and is a secret by its name or its look."""
    for secret in sorted(_secrets(os.environ), key=len, reverse=True):
        if scrub(secret, []) != secret:
            text = text.replace(secret, "***")
    return text


T = TypeVar("T")
V = TypeVar("V")

_LET_GO = 2.0
"""Seconds for the pipes to close after all that can be killed was."""
_MOST_COMPLAINT = 10_000
"""Bytes of standard error that are kept, the last ones."""
_UNWANTED = "it is not wanted any more"


@dataclass(frozen=True, slots=True)
class Ended:
    """What it wrote, and its exit code: negative for the signal that ended it, None for more output than allowed."""

    code: int | None
    output: bytes
    complaint: bytes


async def run(argv: Sequence[str], given: bytes, *, room: str, env: Mapping[str, str], most: int) -> Ended:
    """Runs a program in the directory `room` until it ends or writes more than `most` bytes.

    However this is left, nothing that it started is left running: on Linux no descendant whatever, elsewhere none in its
    process group. Raises `OSError` or `ValueError` if it cannot be started.
    """
    loop = asyncio.get_running_loop()
    output, complaint = _Heard(loop, most), _Heard(loop, _MOST_COMPLAINT)
    process = _Process(argv, room, env, loop)
    readers: list[tuple[asyncio.ReadTransport, _Heard]] = []
    stdin: asyncio.WriteTransport | None = None
    try:
        started = await process.started
        readers.append(await loop.connect_read_pipe(lambda: output, started.stdout))
        readers.append(await loop.connect_read_pipe(lambda: complaint, started.stderr))
        stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, started.stdin)
        stdin.write(given)
        stdin.close()  # when all is written
        await asyncio.wait((process.exited, output.overflowed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        process.kill()  # whatever it left running, too
        try:
            ends: list[asyncio.Future[Any]] = [process.exited, *(heard.closed for _, heard in readers)]
            await asyncio.wait(ends, timeout=_LET_GO)
        finally:
            for reader, _ in readers:
                reader.close()
            if stdin is not None and stdin.get_write_buffer_size():
                stdin.abort()  # there is nobody to read the rest
            process.close()
    code = None if output.overflowed.done() else process.exited.result()
    return Ended(code, bytes(output.written), bytes(complaint.written))


def kill_all() -> None:
    """For a process that ends on the spot: no program outlives it, nor its directory."""
    processes = tuple(_PROCESSES)
    for process in processes:
        process.kill()
    for process in processes:
        process.over.wait(_LET_GO)
        shutil.rmtree(process.room, ignore_errors=True)


class _Heard(asyncio.Protocol):
    """What comes out of a pipe: the last `most` bytes. `overflowed` is done when there were more, `closed` at the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self.written = bytearray()
        self.overflowed: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._most = most

    def data_received(self, data: bytes) -> None:
        self.written += data
        if len(self.written) > self._most:
            del self.written[: -self._most]
            _settle(self.overflowed, None)

    def connection_lost(self, exc: Exception | None) -> None:
        _settle(self.closed, None)


class _Process:
    """A program below a supervisor. It is known to `kill_all` from before its start until it is killed.

    A thread starts the supervisor and hears from it. Neither a cancellation nor a signal's handler can break in there
    between the start and the moment it can be killed: `kill` waits until it is started, or sees to it that it never will be.
    """

    def __init__(self, argv: Sequence[str], room: str, env: Mapping[str, str], loop: asyncio.AbstractEventLoop) -> None:
        self.room = room
        self.started: asyncio.Future[subprocess.Popen[bytes]] = loop.create_future()
        self.exited: asyncio.Future[int | None] = loop.create_future()
        """Done with the program's exit code when no process is left of what it started."""
        self.over = threading.Event()
        """Set at the same time."""
        self._loop = loop
        self._lifeline, self._far_end = socket.socketpair()
        self._popen: subprocess.Popen[bytes] | None = None
        self._wanted = True
        self._starting = threading.RLock()  # a signal's handler may come while its own thread holds it
        _PROCESSES.add(self)
        try:
            threading.Thread(target=self._lead, args=(argv, env), name=f"run {argv[0]}", daemon=True).start()
        except BaseException:
            _PROCESSES.discard(self)
            raise

    def kill(self) -> None:
        """Have it end with all it started. What is not started yet never is."""
        with self._starting:
            self._wanted = False
            with contextlib.suppress(OSError):  # its supervisor has ended
                self._lifeline.shutdown(socket.SHUT_WR)
            if self._popen is not None:
                self._popen.send_signal(signal.SIGCONT)  # the program may have stopped its supervisor
        _PROCESSES.discard(self)

    def close(self) -> None:
        """Shuts its pipes, also those that were not connected. Only after `kill`."""
        if self._popen is not None:
            for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
                if pipe is not None:
                    pipe.close()

    def _lead(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        code = None
        try:
            popen = self._start(argv, env)
            with self._lifeline.makefile("rb") as told:
                leader = _leader(told.readline(), argv[0])
                self._tell(_settle, self.started, popen)
                code = _exit_code(told.readline(), leader)
            popen.wait()
        except Exception as error:
            if self._popen is not None:
                self._popen.wait()
            self._tell(_fail, self.started, error)
        finally:
            self._lifeline.close()
            self._far_end.close()
            self.over.set()
            self._tell(_settle, self.exited, code)

    def _start(self, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        keep_locale = "1" if "LC_CTYPE" in env else "0"
        with self._starting, self._far_end:
            if not self._wanted:
                raise ProcessLookupError(_UNWANTED)
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, str(self._far_end.fileno()), keep_locale, *argv],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.room,
                env=env,
                start_new_session=True,
                pass_fds=[self._far_end.fileno()],
            )
            return self._popen

    def _tell(self, what: Callable[[asyncio.Future[T], V], None], future: asyncio.Future[T], value: V) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(what, future, value)


_PROCESSES: set[_Process] = set()


def _leader(line: bytes, program: str) -> int:
    """The process id in a supervisor's first line. Raises `OSError` if the program was not started."""
    word, _, number = line.partition(b" ")
    if word == b"failed":
        raise OSError(int(number), os.strerror(int(number)), program)
    if word != b"started":
        raise ProcessLookupError(_UNWANTED)
    return int(number)


def _exit_code(line: bytes, leader: int) -> int:
    """The exit code in a supervisor's last line. Without one the supervisor was killed: then the program's group ends too."""
    if line:
        return int(line.partition(b" ")[2])
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    return -signal.SIGKILL


def _settle(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
