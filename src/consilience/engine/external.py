"""Outside agents: a seat named `workspace:DIR[#NAME]`, whose requests become tickets in a workspace.

A ticket holds all that an agent of another process needs to answer. It survives this process: its id follows from the session and
the request, so that a resumed session finds what became of it and asks nothing twice. All files are read and written in threads.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from consilience.coordination import Ticket, Workspace, WorkspaceError, look, post, read_protocol, result, withdraw
from consilience.coordination.files import check_id
from consilience.coordination.records import HUMAN, MAX_TTL_SECONDS, assigned_agent
from consilience.coordination.waiting import MAX_POLL_SECONDS, MIN_POLL_SECONDS
from consilience.domain.errors import ProviderError, Refused, Rejected, SettingsError, Timeout, Unreachable
from consilience.domain.model_names import WORKSPACE_PREFIX
from consilience.domain.outcome import FailureKind
from consilience.domain.paths import expanded
from consilience.engine.ports import AwaitedAnswer, FreePort, PendingAnswer
from consilience.engine.quorum import Claims, LateForQuorum, QuorumReached, current_claims, current_replies
from consilience.engine.timing import ENDED_BY
from consilience.models.port import Completion, ModelRequest
from consilience.models.program import with_schema
from consilience.models.registry import WorkspaceName

T = TypeVar("T")

TTL_SECONDS = 300.0
"""Time from the claim of a ticket to its expiry, unless its phase declares another. `timeout_multiplier` multiplies either."""
MAX_UNREADABLE_SECONDS = 10.0
"""How long a workspace may be unreadable before its seats fail; a network file system may pause."""
MAX_REPLY_BYTES = 4_000_000
"""Bytes of a result."""
MAX_KEY_CHARS = 60
"""Characters of a call's key in the id of its ticket."""
WITHDRAWN: Mapping[FailureKind | None, type[ProviderError]] = {
    FailureKind.QUORUM: QuorumReached,
    FailureKind.LATE: LateForQuorum,
    FailureKind.TIME: Timeout,
}
"""What a ticket raises that this session, or an earlier process of it, withdrew."""


def open_seat(name: WorkspaceName) -> WorkspacePort:
    """Return the port of `workspace:DIR[#NAME]`, where NAME may be `human` or `human:PERSON`.

    Raises `SettingsError` for an invalid name, `WorkspaceError` for the directory.
    """
    directory, hash_sign, agent = name.rest.partition("#")
    make = f"consilience workspace new {shlex.quote(directory or 'DIR')}"
    if not directory.strip():
        raise SettingsError(
            f"{name.text!r} names no workspace",
            do=f"Write workspace:DIR or workspace:DIR#NAME. To make a workspace: {make}.",
        )
    if hash_sign:
        check_id(agent.removeprefix(f"{HUMAN}:"), "name of an agent")
    path = expanded(directory)
    if not path.is_dir():
        raise WorkspaceError("there is no workspace", where=str(path.absolute()), do=f"Make it: {make}.")
    if "#" in str(path.resolve()):  # the recorded name would be read as another directory
        raise SettingsError(f"the path {str(path.resolve())!r} has a # in it", do="Move the workspace to one without.")
    workspace = Workspace.open(path)
    extensions = read_protocol(workspace).extensions
    for extension in ("quorum_percentage", "priority_agents"):
        if getattr(extensions, extension):
            raise SettingsError(
                f"{extension} has no effect on seats of a deliberation, and protocol.json sets it",
                where=str(workspace.path),
                do="Remove it there, or take a workspace without it. A protocol has a quorum of its own.",
            )
    return WorkspacePort(workspace, agent, extensions.timeout_multiplier)


class WorkspacePort(FreePort):
    """An agent of another process, the one of that name if there is one, which answers tickets of a workspace."""

    def __init__(self, workspace: Workspace, agent: str = "", timeout_multiplier: float = 1.0) -> None:
        self.workspace = workspace
        self.agent = agent
        super().__init__(f"{WORKSPACE_PREFIX}{workspace.path}{f'#{agent}' if agent else ''}")
        self._timeout_multiplier = timeout_multiplier

    async def send(self, request: ModelRequest) -> PendingAnswer:
        """Post the ticket. Raises `ProviderError`s."""
        now = time.time()
        if (replies := current_replies.get()) and (reached := replies.withdrawal(request.agent, now, now)):
            raise reached
        return self._pending(await self._post(self._ticket(request)))

    async def _post(self, ticket: Ticket) -> Ticket:
        """Post a ticket; withdraw it if a time limit ends the call meanwhile, since the thread that posts cannot be ended.

        A run that is cancelled keeps the ticket, which it finds when it is resumed.
        """
        ended: list[FailureKind] = []

        def post_in_time() -> Ticket:
            posted = post(self.workspace, ticket)
            return withdraw(self.workspace, posted.id, ENDED_BY[ended[0]], ended[0]) if ended else posted

        posting = asyncio.ensure_future(in_thread(post_in_time))
        try:
            return await asyncio.shield(posting)
        except asyncio.CancelledError as cancelled:
            ended += cancelled.args
            if ended:
                with suppress(ProviderError):
                    posted = await posting  # the thread may have looked at the limit before
                    await in_thread(lambda: withdraw(self.workspace, posted.id, ENDED_BY[ended[0]], ended[0]))
            raise

    async def collect(self, key: str, digest: str) -> Completion | PendingAnswer | None:
        ticket_id = ticket_id_of(key, digest)
        try:
            ticket = await asyncio.to_thread(self.look, ticket_id)
        except WorkspaceError:  # the process ended before it was posted
            return None
        return await self.completion(ticket) if ticket.is_final else self._pending(ticket)

    def look(self, ticket_id: str) -> Ticket:
        """Return the ticket as it is now; its claim is ended if it has expired. Blocks on the disk."""
        return look(self.workspace, ticket_id)

    async def completion(self, ticket: Ticket) -> Completion:
        """Return the answer of a ticket that has ended. Raises the `ProviderError` that it ended in otherwise."""
        if ticket.result is None:
            raise _failure_of(ticket)
        if ticket.result.bytes > MAX_REPLY_BYTES:
            raise _too_large(ticket.result.bytes)
        try:
            answer = await asyncio.to_thread(result, self.workspace, ticket.id)
        except WorkspaceError as error:
            raise Rejected(f"the result cannot be used: {error}") from None
        if answer and len(answer.data) > MAX_REPLY_BYTES:  # the record may say otherwise
            raise _too_large(len(answer.data))
        return Completion(
            text=answer.text.removeprefix("\ufeff").strip() if answer else "",
            model=self.name if self.agent else f"{self.name}#{ticket.result.submitted_by}",
            cost=0.0,
            requeued=ticket.requeue_count,
        )

    def _pending(self, ticket: Ticket) -> PendingAnswer:
        waiting = WaitingTicket(self, ticket)
        return PendingAnswer(AwaitedAnswer(waiting.arrive), ticket=waiting)

    def _ticket(self, request: ModelRequest) -> Ticket:
        id = ticket_id_of(request.key, request.digest)
        claims = current_claims.get() or Claims({})
        return Ticket(
            id=id,
            iteration=request.attempt,
            assigned_to=self.agent,
            assigned_by=f"consilience session {request.session}",
            topic=f"{request.agent}: {request.key}",
            ttl_seconds=min(claims.seconds.get(request.agent, TTL_SECONDS) * self._timeout_multiplier, MAX_TTL_SECONDS),
            max_requeues=claims.max_requeues,
            instructions=f"{with_schema(request.for_person or request.text, request.schema)}\n\n{self._how_to_answer(id)}",
            data={
                "session": request.session,
                "key": request.key,
                "agent": request.agent,
                "schema": json.loads(json.dumps(request.schema)),
            },
        )

    def _how_to_answer(self, ticket_id: str) -> str:
        command, directory = "consilience workspace", shlex.quote(str(self.workspace.path))
        return (
            "# How to answer\nClaim this ticket, unless you hold it already; the first line printed is the claim:\n"
            f"{command} claim {directory} {ticket_id} --agent {assigned_agent(self.agent) or 'NAME'}\n"
            "Write the reply and nothing else to a file, and submit the file:\n"
            f"{command} submit {directory} FILE --claim CLAIM\n"
            "If the claim expires before, the ticket is offered to others again."
        )


def _too_large(size: int) -> Rejected:
    return Rejected(f"the result has {size:,} bytes; at most {MAX_REPLY_BYTES:,} are read")


async def in_thread(work: Callable[[], T]) -> T:
    """Return the result of `work`, which blocks on the disk. Raises `Unreachable` instead of `WorkspaceError`."""
    try:
        return await asyncio.to_thread(work)
    except WorkspaceError as error:
        raise Unreachable(str(error)) from None


class WaitingTicket:
    """A posted ticket."""

    def __init__(self, port: WorkspacePort, ticket: Ticket) -> None:
        self.id = ticket.id
        self._port = port
        self._posted = ticket
        self._replies = current_replies.get()
        if self._replies is not None:
            self._replies.post(ticket.created_at)
        self._unreadable_since = 0.0

    async def is_live(self) -> bool:
        try:
            ticket = await asyncio.to_thread(self._port.look, self.id)
        except WorkspaceError:
            return bool(self._unreadable_since)  # until `arrive` gives up
        if ticket.state == "active" and ticket.expires_at is None:
            return False  # a person's: nothing tells whether anybody still works on it
        return ticket.state != "pending" or self._quorum_reached(ticket) is not None

    async def withdraw(self, reason: str, kind: FailureKind | None = None) -> Completion | None:
        ticket = await self._withdrawn(reason, kind)
        return None if ticket.result is None else await self._port.completion(ticket)

    async def _withdrawn(self, reason: str, kind: FailureKind | None) -> Ticket:
        return await in_thread(lambda: withdraw(self._port.workspace, self.id, reason, kind))

    async def arrive(self) -> Completion:
        """Return the answer once it is there. Raises `ProviderError`s.

        Withdraws the ticket at the quorum of its phase.
        """
        last, pause = self._posted, MIN_POLL_SECONDS
        while True:
            ticket = await self._read(last)
            if self._replies is not None and (reached := self._quorum_reached(ticket)):
                await self._replies.flush()  # what follows from the replies leaves the process
                ticket = await self._withdrawn(reached.detail, reached.kind)
            if ticket.is_final:
                return await self._port.completion(ticket)
            pause = MIN_POLL_SECONDS if ticket.revision != last.revision else min(2 * pause, MAX_POLL_SECONDS)
            last = ticket
            await (self._replies.wait(pause) if self._replies is not None else asyncio.sleep(pause))

    def _quorum_reached(self, ticket: Ticket) -> QuorumReached | None:
        if ticket.is_final or self._replies is None:
            return None
        began_at = ticket.claimed_at or ticket.created_at
        return self._replies.withdrawal(str(ticket.data.get("agent")), began_at, time.time())

    async def _read(self, last: Ticket) -> Ticket:
        """Return the ticket as it is now; as it was while the workspace cannot be read, for a while."""
        try:
            ticket = await asyncio.to_thread(self._port.look, self.id)
        except WorkspaceError as error:
            self._unreadable_since = self._unreadable_since or time.monotonic()
            if time.monotonic() - self._unreadable_since > MAX_UNREADABLE_SECONDS:
                raise Unreachable(str(error)) from None
            return last
        self._unreadable_since = 0.0
        return ticket


def ticket_id_of(key: str, digest: str) -> str:
    """Return the id of the ticket for a request."""
    words = re.sub(r"[^A-Za-z0-9._]+", "-", key).strip("-._")[:MAX_KEY_CHARS]
    return f"{words or 'call'}-{digest}"


def _failure_of(ticket: Ticket) -> ProviderError:
    if ticket.withdrawn_as in WITHDRAWN:
        return WITHDRAWN[ticket.withdrawn_as](ticket.withdrawn)
    if ticket.withdrawn:
        return Rejected(f"the ticket was withdrawn: {ticket.withdrawn}")
    detail = "; ".join(attempt.failure_reason for attempt in ticket.failure_history)
    return Timeout(detail) if any(attempt.expired for attempt in ticket.failure_history) else Refused(detail)
