"""Tickets: posting, claiming, handing in, giving back, expiry and withdrawal.

Each transition adds one record to the history of a ticket, by a link that only one of several processes can make. A claim has a
secret token; its result is accepted only while the last record carries that token, and by the link that ends the claim, so that
a claimer that wakes up late changes nothing.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike

from consilience.coordination.files import Folder, check_id
from consilience.coordination.history import (
    HISTORY,
    RecordTooLarge,
    all_records,
    append,
    find_misplaced,
    last_record,
    refresh_links,
    shown_ids,
)
from consilience.coordination.locks import free_locks
from consilience.coordination.records import (
    AgentState,
    FailedAttempt,
    Record,
    Ticket,
    TicketResult,
    assigned_agent,
    is_human,
    wall_time,
)
from consilience.coordination.workspace import Workspace, read_artifact, save_state, stem_of, write_artifact
from consilience.domain.errors import ClaimLost, WorkspaceError
from consilience.domain.outcome import FailureKind

CLOCK_TOLERANCE_SECONDS = 60.0
"""How far in the future a claim may be dated before a sweep takes it for one made before the clock was put back."""
DRAFT_SECONDS = 3600.0
"""Age at which a sweep removes drafts that a process left that ended."""
_ASKED = {
    name
    for name in Ticket.model_fields
    if name not in {"state", "created_at", "requeue_count", "failure_history", "result", "revision"}
    and not name.startswith(("claim", "withdrawn"))
}


@dataclass(frozen=True, slots=True)
class Result:
    """A verified result."""

    ticket: Ticket
    data: bytes
    """Content of the artifact."""

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")

    @property
    def summary(self) -> str:
        return self.ticket.result.summary if self.ticket.result else ""


class SweepResult(Record):
    """What a sweep changed and found."""

    expired: tuple[str, ...] = ()
    """Ids of the tickets whose claims it ended."""
    requeued: tuple[str, ...] = ()
    """Ids of the tickets that it offered again."""
    permanently_failed: tuple[str, ...] = ()
    freed_locks: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    """Ids of the tickets of which no record is readable."""


def post(workspace: Workspace, ticket: Ticket, *, now: float | None = None) -> Ticket:
    """Offer a ticket, durably. Posting it twice returns the ticket as it is now.

    Raises `WorkspaceError` if another ticket has its id, or it belongs to another workspace.
    """
    if ticket.session_id not in ("", workspace.session_id):
        raise WorkspaceError(
            f"ticket {ticket.id} belongs to session {ticket.session_id}, not {workspace.session_id}",
            where=str(workspace.path),
        )
    offered = Ticket.model_validate(
        ticket.model_dump(include=_ASKED | set(ticket.model_extra or ()))
        | {"session_id": workspace.session_id, "created_at": ticket.created_at or wall_time(now), "revision": 1}
    )
    if agent := assigned_agent(offered.assigned_to):
        workspace.add_agent(agent, now=offered.created_at)
    with workspace.root() as root, root.folder(HISTORY, make=True) as history:
        while not append(history, offered):
            last, there = last_record(history, offered.id, workspace.session_id)
            if there is None:
                offered = offered.model_copy(update={"revision": last + 1})
                continue
            if any(getattr(there, name) != getattr(offered, name) for name in _ASKED):
                raise WorkspaceError(
                    f"another ticket has the id {offered.id}", where=str(workspace.path), do="Give it another id."
                )
            offered = there
            break
        refresh_links(root, history, offered)
    return offered


def claim(workspace: Workspace, ticket_id: str, agent: str, *, now: float | None = None) -> Ticket | None:
    """Claim a ticket for an agent; None if it is not pending, because another agent has it or it is done.

    The returned ticket is needed to hand in its result. Raises `WorkspaceError` if there is no such ticket or it is assigned
    to another agent.
    """
    check_id(agent, "name of an agent")
    with workspace.root() as root, root.folder(HISTORY) as history:
        ticket = workspace.ticket_in(history, ticket_id)
        if not is_claimable_by(ticket, agent):
            raise WorkspaceError(f"ticket {ticket_id} is assigned to {ticket.assigned_to}, not to {agent}")
        if ticket.state != "pending":
            return None
        claimed = _next(
            ticket, state="active", claimed_by=agent, claimed_at=wall_time(now), claim_token=secrets.token_hex(16)
        )
        # Not durable: a claim that a power failure undoes is one whose claimer has ended as well.
        if not append(history, claimed, durable=False):
            return None
        refresh_links(root, history, claimed, ticket)
        _note_work(root, claimed)
    return claimed


def claim_next(workspace: Workspace, agent: str, *, now: float | None = None) -> Ticket | None:
    """Claim a ticket that the agent may have, the oldest unless another agent takes that one; None if there is none."""
    with workspace.root() as root:
        waiting = shown_ids(root, "pending")
    place = 0
    while waiting:
        with suppress(WorkspaceError):  # assigned to another agent, or no ticket
            if claimed := claim(workspace, waiting.pop(place), agent, now=now):
                return claimed
            place = random.randrange(len(waiting) or 1)  # others want the first one too: go elsewhere
        place = min(place, len(waiting) - 1)
    for ticket in workspace.tickets("pending"):  # those that are not shown yet
        with suppress(RecordTooLarge):
            if is_claimable_by(ticket, agent) and (claimed := claim(workspace, ticket.id, agent, now=now)):
                return claimed
    return None


def is_claimable_by(ticket: Ticket, agent: str) -> bool:
    return ticket.assigned_to in ("", "human", agent, f"human:{agent}")


def atomic_claim_ticket(ticket: str, agent: str, session_dir: str | PathLike[str]) -> Ticket | None:
    """Claim a ticket by its id for an agent; None if it is not pending."""
    return claim(Workspace.open(session_dir), ticket, agent)


def submit(
    workspace: Workspace,
    claimed: Ticket,
    content: str | bytes | PathLike[str],
    *,
    summary: str = "",
    gates_passed: tuple[str, ...] = (),
    needs_iteration: bool = False,
    iteration_reason: str = "",
    suffix: str = ".md",
    now: float | None = None,
) -> Ticket:
    """Hand in the result of a claimed ticket, a text or a file, durably. Handing it in twice returns the completed ticket.

    Raises `ClaimLost` if the claim has ended, before or while the artifact was written.
    """
    _claimed(workspace, claimed, completed=True)
    stem = stem_of(claimed.claimed_by, claimed.iteration, claimed.id, claimed.requeue_count + 1)
    artifact = write_artifact(workspace, stem, content, suffix=suffix)
    submitted_at = wall_time(now)
    result = TicketResult(
        artifact_path=artifact.path,
        summary=summary,
        gates_passed=gates_passed,
        needs_iteration=needs_iteration,
        iteration_reason=iteration_reason,
        sha256=artifact.sha256,
        bytes=artifact.bytes,
        submitted_by=claimed.claimed_by,
        submitted_at=submitted_at,
    )
    while (current := _claimed(workspace, claimed, completed=True)).state != "completed":
        completed = _next(current, state="completed", result=result)
        if _append(workspace, current, completed):
            _end(workspace, claimed, submitted_at)
            return completed
    if current.result is None or current.result.sha256 != artifact.sha256:
        raise ClaimLost(f"ticket {claimed.id} is completed with another result", where=str(workspace.path))
    return current


def fail(workspace: Workspace, claimed: Ticket, reason: str, *, now: float | None = None) -> Ticket:
    """Give a claimed ticket back; return it pending again, or permanently failed after its last attempt.

    Raises `ClaimLost` if the claim has ended.
    """
    failed_at = wall_time(now)
    current = _claimed(workspace, claimed)
    while not _append(workspace, current, failed := _failed(current, failed_at, reason)):
        current = _claimed(workspace, claimed)
    _end(workspace, claimed, failed_at)
    return _requeue(workspace, failed)


def renew(workspace: Workspace, claimed: Ticket, *, now: float | None = None) -> Ticket:
    """Restart the time of a claim; return the renewed claim. Raises `ClaimLost` if it has ended."""
    renewed_at = wall_time(now)
    current = _claimed(workspace, claimed)
    while not _append(workspace, current, renewed := _next(current, claimed_at=renewed_at), durable=False):
        current = _claimed(workspace, claimed)
    with workspace.root() as root:
        _note_work(root, renewed)
    return renewed


def withdraw(
    workspace: Workspace, ticket_id: str, reason: str, kind: FailureKind | None = None, *, now: float | None = None
) -> Ticket:
    """End a ticket that its asker needs no more, claimed or not; a completed or failed one stays as it is.

    `kind`: as which failure this counts in the session that asked.
    """
    while not (ticket := workspace.ticket(ticket_id)).is_final:
        failed = _failed(ticket, wall_time(now), f"withdrawn: {reason}", final=True)
        ended = failed.model_copy(update={"withdrawn": reason or "withdrawn", "withdrawn_as": kind})
        if _append(workspace, ticket, ended):
            _end(workspace, ticket)
            return ended
    return ticket


def result(workspace: Workspace, ticket_id: str, iteration: int | None = None) -> Result | None:
    """Return the result of a ticket for that iteration (None: its own), verified against its checksum; None if there is none.

    Raises `WorkspaceError` if the artifact is missing or was changed.
    """
    ticket = workspace.ticket(ticket_id)
    if ticket.state != "completed" or ticket.result is None or iteration not in (None, ticket.iteration):
        return None
    return Result(ticket, read_artifact(workspace, ticket.result.artifact_path, ticket.result.sha256))


def look(workspace: Workspace, ticket_id: str, *, now: float | None = None) -> Ticket:
    """Return a ticket as it is now, swept, so that waiting for it needs no other sweep. Raises `WorkspaceError`."""
    ticket = workspace.ticket(ticket_id)
    swept = _sweep(workspace, [ticket], wall_time(now))
    return workspace.ticket(ticket_id) if swept.expired or swept.requeued else ticket


def sweep(workspace: Workspace, *, now: float | None = None) -> SweepResult:
    """End expired claims, offer their tickets again or fail them for good, free locks, and finish what others left half done."""
    at = wall_time(now)
    with workspace.root() as root, root.folder(HISTORY) as history:
        tickets, damaged = all_records(history, workspace.session_id)
        for ticket in find_misplaced(root, tickets):
            refresh_links(root, history, ticket)
    _remove_drafts(workspace, at - DRAFT_SECONDS)
    swept = _sweep(workspace, tickets, at)
    freed: list[str] = []
    with suppress(WorkspaceError):
        freed = free_locks(workspace, now=at)
    return swept.model_copy(update={"freed_locks": (*swept.freed_locks, *freed), "damaged": (*damaged, *swept.damaged)})


def _sweep(workspace: Workspace, tickets: Iterable[Ticket], at: float) -> SweepResult:
    """Sweep these tickets, given as they are now."""
    expired, requeued, ended, freed, damaged = [], [], [], [], []
    for ticket in tickets:
        try:
            swept = _end_expired_claim(workspace, ticket, at) if ticket.state == "active" else ticket
            if swept is None:
                continue
            if swept is not ticket:
                expired.append(ticket.id)
                freed += _end(workspace, ticket)
                ended += [ticket.id] if swept.state == "permanently_failed" else []
            if swept.state == "failed" and _requeue(workspace, swept).state == "pending":
                requeued.append(ticket.id)
        except RecordTooLarge:  # no record can follow its last one; the others are swept all the same
            damaged.append(ticket.id)
    return SweepResult(
        expired=tuple(expired),
        requeued=tuple(requeued),
        permanently_failed=tuple(ended),
        freed_locks=tuple(freed),
        damaged=tuple(damaged),
    )


def _remove_drafts(workspace: Workspace, before: float) -> None:
    """Remove drafts that processes left that ended."""
    with suppress(WorkspaceError):
        agents = [f"agents/{agent}" for agent in workspace.agents()]
        for place in ("", HISTORY, "artifacts", "locks", *agents):
            with suppress(WorkspaceError), workspace.folder(place) as folder:
                folder.remove_drafts(before)


def _end_expired_claim(workspace: Workspace, ticket: Ticket, at: float) -> Ticket | None:
    """Return the ticket after its expired claim was ended; None if it has not expired or another process ended it."""
    if ticket.claimed_at is None or is_human(ticket.assigned_to):
        return None
    if ticket.claimed_at > at + CLOCK_TOLERANCE_SECONDS:  # the clock was put back: count the TTL from now
        _append(workspace, ticket, _next(ticket, claimed_at=at))
        return None
    if at - ticket.claimed_at <= ticket.ttl_seconds:
        return None
    reason = f"no result from {ticket.claimed_by} within {ticket.ttl_seconds:g} s of its claim"
    failed = _failed(ticket, at, reason, expired=True)
    return failed if _append(workspace, ticket, failed) else None


def _failed(ticket: Ticket, at: float, reason: str, *, final: bool = False, expired: bool = False) -> Ticket:
    requeued = not final and ticket.requeue_count < ticket.max_requeues
    attempt = FailedAttempt(
        failed_at=at, failure_reason=reason, requeued=requeued, agent=ticket.claimed_by, expired=expired
    )
    return _next(
        ticket,
        state="failed" if requeued else "permanently_failed",
        failure_history=(*ticket.failure_history, attempt),
    )


def _requeue(workspace: Workspace, ticket: Ticket) -> Ticket:
    """Offer a failed ticket again; return it as it is now, which may be beyond that."""
    if ticket.state != "failed":
        return ticket
    offered = _next(
        ticket,
        state="pending",
        requeue_count=ticket.requeue_count + 1,
        claimed_by="",
        claimed_at=None,
        claim_token="",
    )
    return offered if _append(workspace, ticket, offered) else workspace.ticket(ticket.id)


def _claimed(workspace: Workspace, claimed: Ticket, *, completed: bool = False) -> Ticket:
    """Return the ticket as it is now if the claim holds, or, where allowed, was completed. Raises `ClaimLost`."""
    ticket = workspace.ticket(claimed.id)
    allowed = ("active", "completed") if completed else ("active",)
    is_own = bool(claimed.claim_token) and secrets.compare_digest(
        f"{ticket.claimed_by}:{ticket.claim_token}".encode("utf-8", "surrogatepass"),
        f"{claimed.claimed_by}:{claimed.claim_token}".encode("utf-8", "surrogatepass"),
    )
    if is_own and ticket.state in allowed:
        return ticket
    if ticket.withdrawn:
        what = f"it was withdrawn: {ticket.withdrawn}"
    elif ticket.state == "active":
        what = f"{ticket.claimed_by} has claimed it since"
    else:
        what = f"it is {ticket.state.replace('_', ' ')}"
    raise ClaimLost(
        f"the claim of ticket {claimed.id} by {claimed.claimed_by or 'nobody'} has ended: {what}",
        where=str(workspace.path),
        do="Claim a pending ticket and hand in the result within its time.",
    )


def _append(workspace: Workspace, before: Ticket, ticket: Ticket, *, durable: bool = True) -> bool:
    """Add the record that follows `before`; return False if another process added one first."""
    with workspace.root() as root, root.folder(HISTORY) as history:
        if not append(history, ticket, durable=durable):
            return False
        refresh_links(root, history, ticket, before)
    return True


def _note_work(root: Folder, claimed: Ticket) -> None:
    """Let the agent's state show what it works on. Never raises: the claim holds without it."""
    agent, at = claimed.claimed_by, claimed.claimed_at or 0.0
    with suppress(WorkspaceError):
        save_state(root, AgentState(agent=agent, status="working", last_heartbeat=at, current_ticket=claimed.id))


def _end(workspace: Workspace, claimed: Ticket, at: float | None = None) -> list[str]:
    """Free the locks of an ended claim and let the agent's state show that it is idle; return the names of the locks.

    `at`: time of a sign of life of the agent; None if another process ended its claim. Never raises: a sweep repeats it.
    """
    freed: list[str] = []
    with suppress(WorkspaceError):
        freed = free_locks(workspace, claimed.claim_token) if claimed.claim_token else []
        if claimed.claimed_by:
            state = workspace.state_of(claimed.claimed_by)
            if state.current_ticket == claimed.id:
                last = state.last_heartbeat if at is None else at
                workspace.save_state(AgentState(agent=claimed.claimed_by, last_heartbeat=last))
    return freed


def _next(ticket: Ticket, **changes: object) -> Ticket:
    return ticket.model_copy(update={"revision": ticket.revision + 1, **changes})
