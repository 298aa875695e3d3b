"""The history of each ticket: numbered records, each written once, of which the last is the ticket.

A transition links record n + 1. The link fails if another process made a transition from record n first, so every transition is
atomic and a process that stops at any instant leaves the ticket in a state from which every other process can go on. The
directories of the states hold links to the last records, for people and scripts to look at; only the history decides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from contextlib import suppress

from pydantic import ValidationError

from consilience.coordination.files import MAX_RECORD_BYTES, DamagedFile, Folder, is_id
from consilience.coordination.records import STATES, Ticket, TicketState, assigned_agent
from consilience.domain.errors import WorkspaceError

HISTORY = "tickets/history"
_RECORD = re.compile(r"(.+)~([1-9][0-9]{0,5})\.json")
_MAX_REFRESHES = 20


class RecordTooLarge(WorkspaceError):
    """A ticket has no room for another record."""


def record_name(ticket_id: str, revision: int) -> str:
    return f"{ticket_id}~{revision}.json"


def last_record(folder: Folder, ticket_id: str, session_id: str) -> tuple[int, Ticket | None]:
    """Return the number of the last record (0 without any) and the ticket; None if no record is readable."""
    last = 0
    while folder.status(record_name(ticket_id, last + 1)) is not None:
        last += 1
    return last, _last_readable(folder, ticket_id, session_id, last)


def all_records(folder: Folder, session_id: str, skip: Collection[str] = ()) -> tuple[list[Ticket], list[str]]:
    """Return every ticket but those to `skip`, oldest first, and the ids of tickets without any readable record."""
    tickets, damaged = [], []
    for ticket_id, last in _last_numbers(folder.names()).items():
        if ticket_id in skip:
            continue
        ticket = None
        with suppress(WorkspaceError):  # of a file that another user owns
            ticket = _last_readable(folder, ticket_id, session_id, last)
        if ticket is None:
            damaged.append(ticket_id)
        else:
            tickets.append(ticket)
    return sorted(tickets, key=lambda ticket: (ticket.created_at, ticket.id)), sorted(damaged)


def append(folder: Folder, ticket: Ticket, *, durable: bool = True) -> bool:
    """Add a record under its `revision`; return False if another process added one of that number first."""
    data = ticket.model_dump_json(indent=1).encode()
    if len(data) > MAX_RECORD_BYTES:
        raise RecordTooLarge(
            f"ticket {ticket.id} is too large: {len(data):,} bytes, at most {MAX_RECORD_BYTES:,}",
            do="Write long material to a file and name the file in the instructions.",
        )
    return folder.create(record_name(ticket.id, ticket.revision), data, durable=durable)


def refresh_links(root: Folder, history: Folder, ticket: Ticket, before: Ticket | None = None) -> None:
    """Let the directories of states and agents show the ticket's last record. Files of others are left alone.

    `before`: the record before it, if this process has just made the transition; only their two states are looked at then.
    Never raises: the links are for onlookers, and the next sweep repeats what was impossible now.
    """
    with suppress(WorkspaceError):
        states: Iterable[TicketState] = STATES if before is None else dict.fromkeys((ticket.state, before.state))
        for _ in range(_MAX_REFRESHES):
            statuses = [history.status(record_name(ticket.id, number + 1)) for number in range(ticket.revision)]
            inodes = {(status.st_dev, status.st_ino) for status in statuses if status is not None}
            with suppress(WorkspaceError), root.folder("tickets") as tickets:
                for state in states:
                    _show(history, tickets, state, ticket, inodes, state == ticket.state)
            with suppress(WorkspaceError), root.folder("agents") as agents:
                for box, is_shown in _agent_directories(ticket).items():
                    _show(history, agents, box, ticket, inodes, is_shown)
            if history.status(record_name(ticket.id, ticket.revision + 1)) is None:
                return
            _, newer = last_record(history, ticket.id, ticket.session_id)
            if newer is None:
                return
            ticket, states = newer, STATES  # another process moved it meanwhile, and may have refreshed before this one


def find_misplaced(root: Folder, tickets: Iterable[Ticket]) -> list[Ticket]:
    """Return the tickets that are not shown where they belong, as a process leaves them that ends between two steps."""
    places = {state: _names(root, f"tickets/{state}") for state in STATES}
    return [
        ticket
        for ticket in tickets
        if {state for state in STATES if f"{ticket.id}.json" in places[state]} != {ticket.state}
    ]


def shown_ids(root: Folder, state: TicketState) -> list[str]:
    """Return what may be ids of the tickets in a state, oldest record first: a ticket may have moved on, or not be shown yet."""
    times: dict[str, int] = {}
    with suppress(WorkspaceError), root.folder(f"tickets/{state}") as folder:
        for name in folder.names():
            if name.endswith(".json"):
                with suppress(OSError):
                    times[name[:-5]] = os.lstat(name, dir_fd=folder.descriptor).st_mtime_ns
    return sorted(times, key=lambda ticket_id: (times[ticket_id], ticket_id))


def _names(root: Folder, place: str) -> set[str]:
    try:
        with root.folder(place) as folder:
            return set(folder.names())
    except WorkspaceError:
        return set()


def _agent_directories(ticket: Ticket) -> dict[str, bool]:
    """Directories of agents that may show a ticket, and whether they do now."""
    assignee = assigned_agent(ticket.assigned_to)
    boxes = {}
    for agent in {assignee, ticket.claimed_by, *(attempt.agent for attempt in ticket.failure_history)} - {""}:
        is_theirs = agent == (ticket.claimed_by or assignee)
        boxes[f"{agent}/inbox"] = is_theirs and not ticket.is_final
        boxes[f"{agent}/outbox"] = is_theirs and ticket.state == "completed"
    return boxes


def _show(
    history: Folder, base: Folder, place: str, ticket: Ticket, inodes: set[tuple[int, int]], current: bool
) -> None:
    """Link or unlink the ticket in a directory. A file of that name which is no record of the ticket stays."""
    name, record = f"{ticket.id}.json", record_name(ticket.id, ticket.revision)
    with suppress(WorkspaceError), base.folder(place, make=current and place in STATES) as folder:
        status = folder.status(name)
        if status is not None:
            latest = history.status(record)
            if current and latest is not None and os.path.samestat(status, latest):
                return
            if (status.st_dev, status.st_ino) not in inodes and not _is_record(history, folder, name, ticket):
                return
            folder.remove(name)
        if current:
            history.link(record, folder, name)


def _is_record(history: Folder, folder: Folder, name: str, ticket: Ticket) -> bool:
    """Return whether a shown file holds a record of the ticket. Some file systems number each name of a file anew."""
    try:
        data = folder.read(name) or b""
        record = Ticket.model_validate_json(data)
        return record.id == ticket.id and data == history.read(record_name(ticket.id, record.revision))
    except (WorkspaceError, ValidationError):
        return False


def _last_numbers(names: Iterable[str]) -> dict[str, int]:
    numbers: dict[str, set[int]] = {}
    for name in names:
        if (match := _RECORD.fullmatch(name)) and is_id(match[1]):
            numbers.setdefault(match[1], set()).add(int(match[2]))
    counts = {
        ticket_id: next(n for n in range(1, len(seen) + 2) if n not in seen) - 1 for ticket_id, seen in numbers.items()
    }
    return {ticket_id: count for ticket_id, count in counts.items() if count}


def _last_readable(folder: Folder, ticket_id: str, session_id: str, last: int) -> Ticket | None:
    """Skip records that are torn or foreign, which every process does alike: what they would have changed did not happen."""
    for number in range(last, 0, -1):
        ticket = _read(folder, ticket_id, number)
        if ticket is not None and (ticket.id, ticket.session_id) == (ticket_id, session_id):
            return ticket if ticket.revision == last else ticket.model_copy(update={"revision": last})
    return None


def _read(folder: Folder, ticket_id: str, number: int) -> Ticket | None:
    try:
        data = folder.read(record_name(ticket_id, number))
        ticket = Ticket.model_validate_json(data or b"")
    except (DamagedFile, ValidationError):
        return None
    return ticket if ticket.revision == number else None
