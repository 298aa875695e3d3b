"""Advisory locks between processes, for what is not a ticket: `locks/NAME~N.json`.

Like tickets, a lock is a series of numbered records of which the last one counts: held, or free. Acquiring, releasing and
breaking a stale lock each link the next number, which only one process can, so nobody ever removes what another wrote.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import ValidationError

from consilience.coordination.files import DamagedFile, Folder, check_id, is_id
from consilience.coordination.records import Record, wall_time
from consilience.coordination.workspace import Workspace
from consilience.domain.errors import WorkspaceError

LOCKS = "locks"
WAIT_SECONDS = 30.0
STALE_SECONDS = 300.0
POLL_SECONDS = 0.05
_KEPT_RECORDS = 64
"""Records kept behind the last one, so that a process that stopped for a while notices that its number is long past."""
_RECORD = re.compile(r"(.+)~([1-9][0-9]{0,14})\.json")


class LockRecord(Record):
    """One record of a lock."""

    name: str
    holder: str = ""
    """Name of the agent that holds it; "" if it is free."""
    acquired_at: float = 0.0
    token: str = ""
    claim_token: str = ""
    """Claim under which it was acquired; the lock ends with the claim."""
    process: str = ""
    """Process of the holder."""


@dataclass(frozen=True)
class Lock:
    """A held lock."""

    workspace: Workspace
    record: LockRecord

    def is_held(self) -> bool:
        """Return whether the lock was neither released nor broken."""
        with self.workspace.folder(LOCKS) as folder:
            return _last(folder, self.record.name)[1].token == self.record.token

    def release(self) -> None:
        """Free the lock if it is still held."""
        with self.workspace.folder(LOCKS) as folder:
            number, last = _last(folder, self.record.name)
            if last.token == self.record.token:
                _append(folder, number, LockRecord(name=last.name))


def acquire(
    workspace: Workspace,
    name: str,
    agent: str,
    *,
    wait: float = WAIT_SECONDS,
    stale: float = STALE_SECONDS,
    claim_token: str = "",
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Lock | None:
    """Acquire a lock; None if another agent kept it for `wait` seconds.

    A lock held for more than `stale` seconds is taken from its holder.
    """
    check_id(name, "name of a lock")
    check_id(agent, "name of an agent")
    seconds_waited = 0.0
    while True:
        at = clock()
        record = LockRecord(
            name=name,
            holder=agent,
            acquired_at=at,
            token=secrets.token_hex(16),
            claim_token=claim_token,
            process=f"{os.getpid()}@{socket.gethostname()}",
        )
        with workspace.folder(LOCKS, make=True) as folder:
            number, last = _last(folder, name)
            if _is_free(last, at, stale) and _append(folder, number, record):
                return Lock(workspace, record)
        if seconds_waited >= wait:
            return None
        sleep(POLL_SECONDS)
        seconds_waited += POLL_SECONDS


@contextmanager
def lock(workspace: Workspace, name: str, agent: str, *, wait: float = WAIT_SECONDS) -> Iterator[Lock]:
    """Hold a lock for a block. Raises `WorkspaceError` if another agent keeps it for `wait` seconds."""
    lock_held = acquire(workspace, name, agent, wait=wait)
    if lock_held is None:
        raise WorkspaceError(
            f"lock {name} was held by another agent for {wait:g} s",
            where=str(workspace.path),
            do=f"Try again later; a lock is freed after {STALE_SECONDS:g} s.",
        )
    try:
        yield lock_held
    finally:
        lock_held.release()


def free_locks(
    workspace: Workspace, claim_token: str = "", *, now: float | None = None, stale: float = STALE_SECONDS
) -> list[str]:
    """Free the locks acquired under a claim or, without one, all that are stale at `now`; return their names."""
    freed = []
    with workspace.folder(LOCKS, make=True) as folder:
        at = wall_time(now)
        for name in _lock_names(folder):
            number, last = _last(folder, name)
            ends = last.claim_token == claim_token if claim_token else _is_free(last, at, stale)
            if last.holder and ends and _append(folder, number, LockRecord(name=name)):
                freed.append(name)
    return freed


def has_live_lock(workspace: Workspace, now: float, *, stale: float = STALE_SECONDS) -> bool:
    """Return whether any lock is held and not stale."""
    with workspace.folder(LOCKS) as folder:
        return any(not _is_free(_last(folder, name)[1], now, stale) for name in _lock_names(folder))


def _lock_names(folder: Folder) -> list[str]:
    return sorted({match[1] for entry in folder.names() if (match := _RECORD.fullmatch(entry)) and is_id(match[1])})


def _is_free(last: LockRecord, at: float, stale: float) -> bool:
    return not last.holder or abs(at - last.acquired_at) > stale  # far in the future: the clock was put back


def _last(folder: Folder, name: str) -> tuple[int, LockRecord]:
    """Return the number (0 without any) and the content of the last record; one that is unreadable frees the lock."""
    number = max(_numbers(folder, name), default=0)
    try:
        record = LockRecord.model_validate_json(folder.read(f"{name}~{number}.json") or b"")
    except (DamagedFile, ValidationError):
        record = LockRecord(name=name)
    return number, record


def _append(folder: Folder, number: int, record: LockRecord) -> bool:
    """Add the record after `number`; return False if another process did."""
    name = record.name
    if not folder.create(f"{name}~{number + 1}.json", record.model_dump_json().encode(), durable=False):
        return False
    numbers = _numbers(folder, name)
    if max(numbers, default=0) != number + 1:  # this process stopped for so long that its number is of the past
        folder.remove(f"{name}~{number + 1}.json")
        return False
    for past in numbers:
        if past < number + 1 - _KEPT_RECORDS:
            folder.remove(f"{name}~{past}.json")
    return True


def _numbers(folder: Folder, name: str) -> list[int]:
    start = f"{name}~"
    return [int(m[2]) for entry in folder.names() if entry.startswith(start) and (m := _RECORD.fullmatch(entry))]
