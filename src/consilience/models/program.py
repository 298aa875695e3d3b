"""A program as a model: it reads the prompt on standard input and writes its reply on standard output.

`exec:COMMAND` serves the agent command lines of other vendors, and anything else that reads and writes text. No shell takes part.
The program gets an empty working directory, a few environment variables and no key. It is killed with all its descendants at the
time or size limit, and when its reply is no longer needed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.domain.errors import ProviderError, Rejected, ServerError, SettingsError, UnavailableModel, UnknownName
from consilience.domain.model_names import PROGRAM_PREFIX, kind_of, links
from consilience.models.agent_output import AgentFailed, reply_of
from consilience.models.bodies import decoded
from consilience.models.child_process import ChildProcess
from consilience.models.port import Completion, JsonSchema, Model, ModelRequest
from consilience.models.redaction import holds_secret, scrub
from consilience.models.visible import without_controls

DEADLINE_SECONDS = 900.0
"""How long a program may take for one reply."""
MAX_IN_FLIGHT = 4
"""Copies of one program that run at a time."""
MAX_REPLY_BYTES = 4_000_000
"""Bytes a program may write."""
ENVIRONMENT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
"""Variables that a program is given. `HOME`, because agents keep their log-in there."""
ENVIRONMENT_VARIABLE = "CONSILIENCE_EXEC_ENV"
"""Holds the names of further variables to give, separated by commas."""


class ProgramModel(Model):
    """One command line. `complete` starts it once. What it costs is unknown."""

    def __init__(self, name: str, *, max_bytes: int = MAX_REPLY_BYTES) -> None:
        self._name = name
        self._argv = parse_command(name)
        self._max_bytes = max_bytes

    @property
    def name(self) -> str:
        return self._name

    @property
    def account(self) -> str:
        return f"{PROGRAM_PREFIX}{Path(self._argv[0]).name}"

    async def complete(self, request: ModelRequest) -> Completion:
        """Raises `ServerError` if the program fails, `Rejected` if it cannot be started or writes too much."""
        prompt = with_schema(request.text, request.schema)
        with tempfile.TemporaryDirectory(prefix="consilience-", ignore_cleanup_errors=True) as directory:
            try:
                result = await run(
                    self._argv,
                    f"{prompt}\n".encode("utf-8", "replace"),
                    cwd=directory,
                    env=program_environment(os.environ),
                    max_bytes=self._max_bytes,
                )
            except (OSError, ValueError) as error:
                raise Rejected(f"{self.account}: the program cannot be started: {error}") from None
        if result.code is None:
            raise Rejected(f"{self.account}: the program wrote more than {self._max_bytes:,} bytes")
        if result.code:
            raise self._ended(result.code, result.stderr if result.stderr.strip() else result.stdout)
        try:
            reply = reply_of(decoded(result.stdout, ""))
        except AgentFailed as failed:
            raise self._failure("reported a failure", str(failed)) from None
        return Completion(text=_redact(reply), model=self._name)

    def _ended(self, code: int, words: bytes) -> ProviderError:
        outcome = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
        if paths := [word for word in self._argv[1:] if not os.path.isabs(word) and os.path.exists(word)]:
            outcome += f" (it runs in an empty temporary directory; if {' or '.join(paths)} names a file, give its absolute path)"
        return self._failure(outcome, without_controls(decoded(words, "")))

    def _failure(self, outcome: str, words: str) -> ProviderError:
        message = " ".join(scrub(words, _passed_values(os.environ)).split())
        if len(message) > 300:  # the cause is usually at the end
            message = f"…{message[-299:]}"
        error = ServerError(f"{self.account}: the program {outcome}" + (f": {message}" if message else ""))
        error.cost_unknown = True
        return error


def parse_command(name: str) -> list[str]:
    """Return the words of `exec:COMMAND`, the program as an absolute path.

    Raises `UnknownName` for no command, `SettingsError` for a command with a secret, because commands are recorded, and
    `UnavailableModel` for a program that does not exist.
    """
    command = name.removeprefix(PROGRAM_PREFIX).strip()
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UnknownName(f"invalid command: {error}", where="exec:…", do="Close the quotation.") from None
    if not words:
        raise UnknownName("exec: names no command", do='Write exec:COMMAND, for example "exec:claude -p".')
    if holds_secret(command):
        raise SettingsError(
            f"the command of {without_secret(name)} holds what looks like a secret, and the command is recorded",
            do=f"Put it into a file that the program reads, or into a variable named in {ENVIRONMENT_VARIABLE}. A shell puts a "
            """variable among the options: "exec:sh -c 'agent --token \\$NAME'".""",
        )
    program = shutil.which(words[0])
    if program is None:
        exists = os.sep in words[0] and os.path.exists(words[0])
        raise UnavailableModel(
            f"{words[0]!r} is not an executable program" if exists else f"there is no program {words[0]!r}",
            where=f"{PROGRAM_PREFIX}{command}",
            do="Install it, or give its absolute path.",
        )
    return [os.path.abspath(program), *words[1:]]


def without_secret(name: str) -> str:
    """Return the name of a model or chain as it may be printed: a command with a secret is cut to its program."""
    if len(chain := links(name)) > 1:
        return "|".join(map(without_secret, chain))
    command = name.strip().removeprefix(PROGRAM_PREFIX)
    if kind_of(name) != "program" or not holds_secret(command):
        return name
    program = Path((command.split() or [""])[0]).name
    return f"{PROGRAM_PREFIX}{program if program.replace('-', '').isalnum() else '…'} …"


def program_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables a program gets: those of `ENVIRONMENT`, and those named in `CONSILIENCE_EXEC_ENV`."""
    names = [name.strip() for name in environ.get(ENVIRONMENT_VARIABLE, "").split(",")]
    return {name: environ[name] for name in (*ENVIRONMENT, *names) if name in environ}


def with_schema(prompt: str, schema: JsonSchema | None) -> str:
    """Return the prompt with a request in words for the form of the reply, for models that are not known to enforce a schema."""
    if schema is None:
        return prompt
    return (
        f"{prompt}\n\nReply with one JSON object and nothing else, neither before nor after it. It must follow this JSON schema:\n"
        f"{json.dumps(schema, ensure_ascii=False)}"
    )


def _passed_values(environ: Mapping[str, str]) -> list[str]:
    """Values that the user asked this process to pass on."""
    return [value for name, value in program_environment(environ).items() if name not in ENVIRONMENT and value]


def _redact(text: str) -> str:
    """A reply without those passed values that are secrets by their name or form."""
    for value in sorted(_passed_values(os.environ), key=len, reverse=True):
        if scrub(value, []) != value:
            text = text.replace(value, "***")
    return text


_PIPE_SECONDS = 2.0
"""How long the pipes may take to close after the program was killed."""
_MAX_STDERR_BYTES = 10_000
"""Bytes of standard error that are kept, the last ones."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What a program wrote and how it ended."""

    code: int | None
    """The exit code, negative for the signal that ended it; None if it wrote more than allowed."""
    stdout: bytes
    stderr: bytes


async def run(argv: Sequence[str], stdin: bytes, *, cwd: str, env: Mapping[str, str], max_bytes: int) -> ProgramResult:
    """Run a program in the directory `cwd` until it ends or has written more than `max_bytes`.

    Whether this returns, raises or is cancelled, no process that the program started is left running: on Linux no descendant,
    elsewhere none in its process group. Raises `OSError` or `ValueError` if it cannot be started.
    """
    loop = asyncio.get_running_loop()
    stdout, stderr = _PipeReader(loop, max_bytes), _PipeReader(loop, _MAX_STDERR_BYTES)
    child = ChildProcess(argv, env=env, cwd=cwd, stderr=subprocess.PIPE)
    end = asyncio.wrap_future(child.ended)
    readers: list[tuple[asyncio.ReadTransport, _PipeReader]] = []
    writer: asyncio.WriteTransport | None = None
    try:
        pipes = await asyncio.wrap_future(child.started)
        readers.append(await loop.connect_read_pipe(lambda: stdout, pipes.stdout))
        readers.append(await loop.connect_read_pipe(lambda: stderr, pipes.stderr))
        writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, pipes.stdin)
        writer.write(stdin)
        writer.close()  # once all is written
        await asyncio.wait((end, stdout.overflowed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        child.kill()  # also what an ended program left running
        try:
            ends: list[asyncio.Future[Any]] = [end, *(reader.closed for _, reader in readers)]
            await asyncio.wait(ends, timeout=_PIPE_SECONDS)
        finally:
            for transport, _ in readers:
                transport.close()
            if writer is not None and writer.get_write_buffer_size():
                writer.abort()  # no process is left to read the rest
            child.close_pipes()
    code = None if stdout.overflowed.done() else end.result()
    return ProgramResult(code, bytes(stdout.data), bytes(stderr.data))


class _PipeReader(asyncio.Protocol):
    """Keeps the last `max_bytes` that came out of a pipe. `overflowed` is done if there were more, `closed` at the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_bytes: int) -> None:
        self.data = bytearray()
        self.overflowed: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._max_bytes = max_bytes

    def data_received(self, data: bytes) -> None:
        self.data += data
        if len(self.data) > self._max_bytes:
            del self.data[: -self._max_bytes]
            if not self.overflowed.done():
                self.overflowed.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
