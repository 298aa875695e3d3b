"""A process with all it starts: it is given bytes, heard up to a limit, and killed as a whole whenever that must be.

Cancellation may come at any moment of its start, and a signal that ends this process too. asyncio's own start bears
neither: until all pipes are connected nobody knows the process but the loop, which then kills its leader alone and waits
for pipes that nobody closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
V = TypeVar("V")

_LET_GO = 2.0
"""Seconds for the pipes to close after all that can be killed was."""
_MOST_COMPLAINT = 10_000
"""Bytes of standard error that are kept, the last ones."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What it wrote, and its exit code: negative for the signal that ended it, None for more output than allowed."""

    code: int | None
    output: bytes
    complaint: bytes


async def run(argv: Sequence[str], given: bytes, *, room: str, env: Mapping[str, str], most: int) -> Ended:
    """Runs a program in the directory `room` until it ends or writes more than `most` bytes.

    However this is left, nothing that it started in its group is left running. Raises `OSError` or `ValueError` where it
    cannot be started.
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
    for process in tuple(_PROCESSES):
        process.kill()
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
    """A process that leads a group of its own. It is known to `kill_all` from before its start until it is killed.

    A thread starts it and waits for its end. Neither a cancellation nor a signal's handler can break in there between
    the start and the moment it can be killed: `kill` waits until it is started, or sees to it that it never will be.
    """

    def __init__(self, argv: Sequence[str], room: str, env: Mapping[str, str], loop: asyncio.AbstractEventLoop) -> None:
        self.room = room
        self.started: asyncio.Future[subprocess.Popen[bytes]] = loop.create_future()
        self.exited: asyncio.Future[int | None] = loop.create_future()
        self._loop = loop
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
        """It and all it started. What is not started yet never is."""
        with self._starting:
            self._wanted = False
        if self._popen is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)
        _PROCESSES.discard(self)

    def close(self) -> None:
        """Shuts its pipes, also those that were not connected. Only after `kill`."""
        if self._popen is not None:
            for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
                if pipe is not None:
                    pipe.close()

    def _lead(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        try:
            popen = self._start(argv, env)
        except Exception as error:
            self._tell(_fail, self.started, error)
            self._tell(_settle, self.exited, None)
        else:
            self._tell(_settle, self.started, popen)
            self._tell(_settle, self.exited, popen.wait())

    def _start(self, argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self._starting:
            if not self._wanted:
                raise ProcessLookupError("it is not wanted any more")
            self._popen = subprocess.Popen(
                argv,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.room,
                env=env,
                start_new_session=True,
            )
            return self._popen

    def _tell(self, what: Callable[[asyncio.Future[T], V], None], future: asyncio.Future[T], value: V) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(what, future, value)


_PROCESSES: set[_Process] = set()


def _settle(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


__all__ = ["Ended", "kill_all", "run"]
