"""Agents of other processes, played in this one: they claim tickets of a workspace and submit, or do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from consilience.coordination import Ticket, Workspace, claim_next, submit, sweep
from consilience.engine.external import WorkspacePort, ticket_id_of
from consilience.engine.ports import PendingAnswer
from consilience.models.port import Completion, ModelRequest

Work = Callable[[Workspace, Ticket], object]
"""What an agent does with a ticket that it has claimed."""


def answering(text: str = "It is.") -> Work:
    return lambda workspace, claimed: submit(workspace, claimed, text)


def leave(workspace: Workspace, claimed: Ticket) -> None:
    """Be killed with the ticket in hand."""


def work_off(workspace: Workspace, agent: str, work: Work) -> list[Ticket]:
    """Claim and work on all tickets that are there for the agent; return them as they were claimed."""
    claimed = []
    while (ticket := claim_next(workspace, agent)) is not None:
        claimed.append(ticket)
        work(workspace, ticket)
    return claimed


async def work_off_when_there(workspace: Workspace, agent: str, work: Work) -> list[Ticket]:
    """As `work_off`, once there is a ticket, while a session runs on this loop."""
    while True:
        if claimed := await asyncio.to_thread(work_off, workspace, agent, work):
            return claimed


def expire(workspace: Workspace) -> None:
    """Let the time of every claim pass."""
    for ticket in workspace.tickets("active"):
        sweep(workspace, now=(ticket.expires_at or 0) + 1)


class Outsider(WorkspacePort):
    """A seat that knows what each of its tickets asked, so that a script can answer them."""

    def __init__(self, directory: Path, requests: dict[str, ModelRequest] | None = None) -> None:
        """`requests`: by ticket, those of a seat in a process that was killed."""
        super().__init__(Workspace.open(directory), "red")
        self.requests = {} if requests is None else requests

    async def send(self, request: ModelRequest) -> PendingAnswer:
        self.requests[ticket_id_of(request.key, request.digest)] = request
        return await super().send(request)


class PromptOutsider(Outsider):
    """One whose tickets are answered as soon as they are posted, or when a resumed session finds them."""

    def __init__(
        self, directory: Path, reply: Callable[[ModelRequest], str], requests: dict[str, ModelRequest] | None = None
    ) -> None:
        super().__init__(directory, requests)
        self._reply = reply

    async def send(self, request: ModelRequest) -> PendingAnswer:
        answer = await super().send(request)
        await asyncio.to_thread(work_off, self.workspace, self.agent, self._answer)
        return answer

    async def collect(self, key: str, digest: str) -> Completion | PendingAnswer | None:
        await asyncio.to_thread(work_off, self.workspace, self.agent, self._answer)
        return await super().collect(key, digest)

    def _answer(self, workspace: Workspace, claimed: Ticket) -> None:
        submit(workspace, claimed, self._reply(self.requests[claimed.id]))
