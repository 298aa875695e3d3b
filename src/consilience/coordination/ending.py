"""The end of a workspace: shutdown with acknowledgements, the archive, and garbage collection.

Every file is written once by the process that it is from: the signal by the lead, each acknowledgement by its agent. So none of
them can overwrite another, whichever comes first.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from consilience.coordination.files import DRAFT_PREFIX, Folder, check_id, open_folder
from consilience.coordination.locks import has_live_lock
from consilience.coordination.records import Record, is_human, wall_time
from consilience.coordination.tickets import withdraw
from consilience.coordination.waiting import MIN_POLL_SECONDS, Waiter
from consilience.coordination.workspace import CONVERGENCE, METADATA, PROTOCOL, SESSION_ID, Workspace
from consilience.domain.errors import WorkspaceError

R = TypeVar("R", bound=Record)

SHUTDOWN = "shutdown.json"
ACKNOWLEDGEMENT = "ack.json"
"""In the directory of an agent."""
ABANDONED = "abandoned.json"
ARCHIVE_PREFIX = "archive_"
ABANDONED_PREFIX = "abandoned_"
ACKNOWLEDGEMENT_SECONDS = 30.0
IDLE_SECONDS = 1800.0
KEPT_SECONDS = 86_400.0
"""Time from being abandoned to being deleted."""
_FOLDERS = ("tickets", "agents", "locks", "artifacts")
_OWN_NAMES = frozenset({SESSION_ID, METADATA, CONVERGENCE, PROTOCOL, SHUTDOWN, ABANDONED, *_FOLDERS})
_WORKSPACE_DRAFT = re.compile(r"\.(.+)\.draft-[0-9a-f]{32}")


class ShutdownSignal(Record):
    """`shutdown.json`: the lead asks all agents to end."""

    reason: str = ""
    requested_at: float


class Acknowledgement(Record):
    """`agents/NAME/ack.json`: an agent has ended its work."""

    agent: str
    acknowledged_at: float
    note: str = ""


class ShutdownResult(Record):
    """The end of a session."""

    acknowledged: tuple[str, ...]
    missing: tuple[str, ...]
    """Agents that did not acknowledge in time."""
    withdrawn: tuple[str, ...]
    """Ids of the tickets that were still open."""
    archive: Path | None
    """Where the workspace lies now; None if it was not moved."""


class Collected(Record):
    """What a garbage collection did with the directories beneath its root, by their names."""

    abandoned: dict[str, str] = {}
    """New names of the workspaces that were set aside."""
    deleted: tuple[str, ...] = ()
    kept: dict[str, str] = {}
    """Why each other directory was left as it is."""


# --- shutdown


def request_shutdown(workspace: Workspace, reason: str = "", *, now: float | None = None) -> ShutdownSignal:
    """Ask all agents to end, durably. A second request changes nothing and returns the first."""
    return _write_once(workspace, "", SHUTDOWN, ShutdownSignal(reason=reason, requested_at=wall_time(now)))


def shutdown_signal(workspace: Workspace) -> ShutdownSignal | None:
    """Return the request to end; None if there is none."""
    return _read(workspace, "", SHUTDOWN, ShutdownSignal)


def acknowledge(workspace: Workspace, agent: str, note: str = "", *, now: float | None = None) -> Acknowledgement:
    """Record that an agent has ended, before or after it was asked to. A second one changes nothing and returns the first."""
    workspace.add_agent(check_id(agent, "name of an agent"), now=now)
    record = Acknowledgement(agent=agent, acknowledged_at=wall_time(now), note=note)
    return _write_once(workspace, f"agents/{agent}", ACKNOWLEDGEMENT, record)


def acknowledgements(workspace: Workspace) -> dict[str, Acknowledgement]:
    """Return the acknowledgements by agent; an unreadable one is none."""
    records = {}
    for agent in workspace.agents():
        with suppress(WorkspaceError):
            if record := _read(workspace, f"agents/{agent}", ACKNOWLEDGEMENT, Acknowledgement):
                records[agent] = record
    return records


def shutdown(
    workspace: Workspace,
    reason: str = "",
    *,
    timeout: float = ACKNOWLEDGEMENT_SECONDS,
    keep: bool = False,
    waiter: Waiter | None = None,
) -> ShutdownResult:
    """End a session: signal, wait for the acknowledgements of all agents, withdraw what is open, archive.

    Pending tickets are withdrawn at once, claimed ones after the wait. `keep`: leave the workspace where it is.
    """
    wait = waiter or Waiter()
    request_shutdown(workspace, reason, now=wait.wall())
    why = f"the session has ended{': ' if reason else ''}{reason}"
    withdrawn = [withdraw(workspace, ticket.id, why, now=wait.wall()).id for ticket in workspace.tickets("pending")]
    ends = wait.clock() + timeout
    while (acknowledged := acknowledgements(workspace)).keys() < set(workspace.agents()) and wait.clock() < ends:
        wait.pause(min(max(ends - wait.clock(), MIN_POLL_SECONDS / 10), 4 * MIN_POLL_SECONDS))
    for ticket in workspace.tickets():
        if not ticket.is_final and withdraw(workspace, ticket.id, why, now=wait.wall()).withdrawn:
            withdrawn.append(ticket.id)
    return ShutdownResult(
        acknowledged=tuple(acknowledged),
        missing=tuple(agent for agent in workspace.agents() if agent not in acknowledged),
        withdrawn=tuple(withdrawn),
        archive=None if keep else archive(workspace),
    )


def archive(workspace: Workspace) -> Path:
    """Rename a workspace to `archive_NAME` beside it, which garbage collection keeps. Return the new path."""
    with open_folder(workspace.path.parent) as parent:
        name = _rename(parent, workspace.path.name, ARCHIVE_PREFIX)
    return workspace.path.with_name(name)


# --- garbage


def collect_garbage(
    root: str | PathLike[str],
    *,
    idle: float = IDLE_SECONDS,
    kept: float = KEPT_SECONDS,
    now: float | None = None,
) -> Collected:
    """Set aside the workspaces directly beneath `root` that are broken or idle, as `abandoned_NAME`; delete old ones of these.

    A workspace is broken without `session_id.txt`. It is not idle while a claim or a lock is live or a person has an open
    ticket. Directories that hold anything else than a workspace does are left alone, as are links and archives.
    """
    at = wall_time(now)
    collected = Collected()
    abandoned, deleted, reasons = dict(collected.abandoned), list(collected.deleted), dict(collected.kept)
    with open_folder(Path(os.path.realpath(root))) as folder:
        for name in sorted(folder.names()):
            status = folder.status(name)
            if status is None or not stat.S_ISDIR(status.st_mode):
                continue
            try:
                if reason := _reason_to_keep(folder, name, at, idle, kept):
                    reasons[name] = reason
                elif name.startswith(ABANDONED_PREFIX):
                    shutil.rmtree(name, dir_fd=folder.descriptor)
                    deleted.append(name)
                else:
                    with folder.folder(name) as inner:
                        inner.remove(ABANDONED)  # somebody took the workspace back into use
                    abandoned[name] = _rename(folder, name, ABANDONED_PREFIX)
                    _record_abandoned(folder, abandoned[name], at)
            except (WorkspaceError, OSError) as error:
                reasons[name] = str(error)
    return Collected(abandoned=abandoned, deleted=tuple(deleted), kept=reasons)


def _reason_to_keep(root: Folder, name: str, at: float, idle: float, kept: float) -> str:
    """Return why a directory is neither set aside nor deleted; "" if it is."""
    if name.startswith(ARCHIVE_PREFIX):
        return "an archive"
    with root.folder(name) as folder:
        names = {entry for entry in folder.names() if not entry.startswith(DRAFT_PREFIX)}
        quiet = at - _last_change(folder)
    if foreign := sorted(names - _OWN_NAMES):
        return f"not only a workspace: {foreign[0]:.60}"
    is_draft = _WORKSPACE_DRAFT.fullmatch(name) is not None
    if not (is_draft or ABANDONED in names or ("tickets" in names and names & {METADATA, CONVERGENCE, PROTOCOL})):
        return "not a workspace"  # such as a directory that holds only `artifacts`
    if name.startswith(ABANDONED_PREFIX):
        since = _record_abandoned(root, name, at)
        if at - since <= kept:
            return "abandoned"
        # agents may still work in it under its new name
        return _reason_not_idle(root.path / name, at) if SESSION_ID in names else ""
    if SESSION_ID not in names and not is_draft:
        return ""
    if quiet <= idle:
        return "in use"
    return _reason_not_idle(root.path / name, at) if SESSION_ID in names else ""


def _reason_not_idle(path: Path, at: float) -> str:
    """Return why a workspace does not age though nothing changes in it; "" if it does."""
    workspace = Workspace.open(path)
    if workspace.path != path:
        return "a link"
    for ticket in workspace.tickets():
        if not ticket.is_final and is_human(ticket.assigned_to):
            return f"ticket {ticket.id} is a person's"
        if not ticket.is_final and "session" in ticket.data:
            return f"a deliberation waits for ticket {ticket.id}"
        if ticket.expires_at is not None and ticket.expires_at >= at:
            return f"ticket {ticket.id} is claimed"
    return "a lock is held" if has_live_lock(workspace, at) else ""


def _last_change(folder: Folder) -> float:
    """Return when a name beneath a workspace last changed. Files are never written in place, so directories know."""
    times = [os.fstat(folder.descriptor).st_mtime]
    for place in _FOLDERS:
        with suppress(WorkspaceError), folder.folder(place) as inner:
            times.append(os.fstat(inner.descriptor).st_mtime)
            for name in inner.names() if place in ("tickets", "agents") else ():
                with suppress(WorkspaceError), inner.folder(name) as deeper:
                    times.append(os.fstat(deeper.descriptor).st_mtime)
    return max(times)


def _record_abandoned(root: Folder, name: str, at: float) -> float:
    """Record in an abandoned workspace when it was set aside, unless that is recorded; return when."""
    with root.folder(name) as folder:
        folder.create(ABANDONED, f'{{"abandoned_at": {at}}}'.encode(), durable=False)
        try:
            return _Abandoned.model_validate_json(folder.read(ABANDONED) or b"").abandoned_at
        except (ValidationError, WorkspaceError):
            return os.fstat(folder.descriptor).st_mtime


class _Abandoned(Record):
    abandoned_at: float


# --- files


def _rename(parent: Folder, name: str, prefix: str) -> str:
    """Rename a directory to its name with a prefix, and a number if that is taken. Return the new name."""
    draft = _WORKSPACE_DRAFT.fullmatch(name)
    new_name = f"{prefix}{draft[1] if draft else name}"
    number, free = 1, new_name
    while parent.status(free) is not None:
        number, free = number + 1, f"{new_name}-{number + 1}"
    try:
        os.rename(name, free, src_dir_fd=parent.descriptor, dst_dir_fd=parent.descriptor)
    except OSError as error:
        problem = f"the workspace cannot be renamed: {error.strerror or error}"
        raise WorkspaceError(problem, where=str(parent.path / name)) from error
    parent.sync()
    return free


def _write_once(workspace: Workspace, place: str, name: str, record: R) -> R:
    """Write a record unless there is one; return the one that is there."""
    with workspace.folder(place) as folder:
        if folder.create(name, record.model_dump_json(indent=1).encode()):
            return record
    return workspace.read(place, name, type(record))


def _read(workspace: Workspace, place: str, name: str, model: type[R]) -> R | None:
    with workspace.folder(place) as folder:
        if folder.status(name) is None:
            return None
    return workspace.read(place, name, model)
