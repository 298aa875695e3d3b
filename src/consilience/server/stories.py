"""What a chat client is told of a session: the transcript while it runs, then the answer. The same for whoever joins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from consilience.domain.events import AnyEvent
from consilience.domain.report import Report
from consilience.journal.store import Records
from consilience.reporting.record import SessionRecord, read_record
from consilience.server.access import page_of as page_of
from consilience.server.callers import Caller
from consilience.server.chat_bodies import ChatTurn, Signature
from consilience.server.joins import Joined
from consilience.server.narration import Narrator, figures_of, head_of
from consilience.server.openai_errors import RefusedRequest
from consilience.server.service import Sessions

SESSION_HEADER = "X-Consilience-Session"
IGNORED = {
    "tools": "The tools of the request have no effect: the agents of a deliberation call none of a client's.",
    "instructions": "Its system prompt, which says how to use them, was left out.",
}
"""What the answer says of what a request names in vain."""


@dataclass(frozen=True)
class StoryEnd:
    """The end of a story."""

    text: str
    """Markdown: what is missing, the answer, dissent, and a last line that names the session."""
    report: Report
    spent: tuple[Report, ...]
    """The reports of all sessions that this answer took."""
    was_cut: bool
    """Whether the text of the answer ended at a token limit."""


@dataclass(frozen=True)
class Story:
    """A session as a chat client is told it."""

    sessions: Sessions
    caller: Caller
    turn: ChatTurn
    joined: Joined
    url: str
    """Where a person reads the session."""

    async def begun(self) -> None:
        """Wait until the session, or the one in which its task is read, is recorded. Raises what was wrong with the request."""
        await self.joined.recorded()

    async def passages(self) -> AsyncGenerator[str]:
        """Yield the session's link, then its transcript as it is committed; nothing where a chat program asks for itself.

        Raises `ConsilienceError`.
        """
        if self.turn.helper_tokens is None:
            yield f"*Session [{self.joined.session}]({self.url})*"
        await asyncio.shield(self.joined.beginning)
        for session in await self._all():
            narrator = Narrator(answer_follows=session == self.joined.session)
            async with aclosing(self.sessions.events(self.caller, session)) as events:
                async for event in events:
                    if self.turn.helper_tokens is None and (passage := await self._tell(narrator, event)):
                        yield passage

    async def ended(self) -> None:
        """Wait for the end of the session. Raises as `passages` does."""
        async with aclosing(self.passages()) as passages:
            async for _ in passages:
                pass

    async def answer(self) -> StoryEnd:
        """Return the answer of the session, which is finished. Raises `RefusedRequest` if the helper model failed."""
        ids = await self._all()

        def read(records: Records) -> StoryEnd:
            spent = [record.report for id in ids if (record := read_record(records, id)).report is not None]
            record = read_record(records, self.joined.session)
            assert record.report is not None
            text = self._text(record, record.report)
            return StoryEnd(text, record.report, tuple(spent), record.report.answer_cut)

        return await self.sessions.read(self.caller, read)

    def _text(self, record: SessionRecord, report: Report) -> str:
        if self.turn.helper_tokens is None:
            signature = Signature(self.joined.session, self.url, self.turn.model, self.turn.parent)
            ignored = " ".join(IGNORED[what] for what in self.turn.ignored if what in IGNORED)
            parts = (head_of(record), f"*{ignored}*" if ignored else "", signature.markdown(figures_of(report)))
            return "\n\n".join(filter(None, parts))
        if report.answer is None:
            reasons = "; ".join(failed.detail for failed in report.failed_calls)
            raise RefusedRequest(f"The helper model gave no answer: {reasons}", code="helper_failed", status=502)
        return report.answer

    async def created(self) -> int:
        """Return when the session was recorded, in seconds since the epoch."""
        return int(await self.sessions.read(self.caller, lambda records: records.created(self.joined.session)))

    async def _all(self) -> tuple[str, ...]:
        """Return the session, after the one in which its task was read, if it was."""
        reading, exists = await self.sessions.joins.reading(self.caller, self.joined.session)
        return (reading, self.joined.session) if exists else (self.joined.session,)

    async def _tell(self, narrator: Narrator, event: AnyEvent) -> str:
        return await self.sessions.read(self.caller, lambda records: narrator.tell(event, records.text), told=[event])


def tokens_of(reports: tuple[Report, ...]) -> tuple[int, int, int, int]:
    """Return tokens read, tokens of them that providers had cached, tokens written and tokens of them that were thinking."""
    spent = [report.ledger.actual for report in reports]
    return (
        sum(totals.tokens_in for totals in spent),
        sum(totals.tokens_cached for totals in spent),
        sum(totals.tokens_out for totals in spent),
        sum(totals.tokens_thought for totals in spent),
    )


def chat_usage(answer: StoryEnd) -> dict[str, Any]:
    """Return the usage of an answer as of a chat completion."""
    read, cached, written, thought = tokens_of(answer.spent)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
