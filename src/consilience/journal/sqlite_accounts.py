"""Accounts in the SQLite journal: claims on the money of a day and on running sessions, each made in one transaction.

A claim of a call is its greatest cost until it is settled. A claim without a call is a running session, and counts while the lease
of the session is held. So a killed process leaves claims that bound its owner until the session is resumed, and no running session.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from consilience.domain.errors import Command, OverAllowance
from consilience.journal.accounts import Allowance
from consilience.journal.sqlite import SqliteJournal
from consilience.journal.statements import CLAIM, CLAIM_RUN, RELEASE, SPEND
from consilience.journal.store import Journal

NANO = 1_000_000_000
"""Money is counted in billionths of a dollar, reservations rounded up."""


@dataclass(frozen=True)
class SqliteAccounts:
    """Bounds what owners use by the claims in the journal of their sessions. `allowances` returns what an owner may use, and is
    asked again for every session that begins to run."""

    allowances: Callable[[str], Allowance]
    now: Callable[[], float] = time.time
    """Seconds since the epoch."""

    async def open(self, journal: Journal, costs: Mapping[str, float | None]) -> SqliteAccount | None:
        if not isinstance(journal, SqliteJournal):
            raise TypeError(f"{type(journal).__name__} is no session of a SQLite journal")
        return await asyncio.to_thread(self._open, journal, costs)

    def _open(self, journal: SqliteJournal, costs: Mapping[str, float | None]) -> SqliteAccount | None:
        store = journal.store
        account = SqliteAccount(
            journal, owner := store.owner(journal.session), allowance := self.allowances(owner), self.now
        )
        for (call,) in store._rows("SELECT call FROM claims WHERE session=? AND call!=''", journal.number):
            account.settle(str(call), costs.get(str(call)))
        if allowance == Allowance():
            return None
        running = "SELECT n, id FROM claims JOIN sessions ON n=session WHERE claims.owner=? AND call='' AND n!=?"
        ended = [n for n, id in store._rows(running, owner, journal.number) if not store.lease(str(id)).is_taken()]
        for number in ended:
            store._writer.put(journal.author, [(RELEASE, {"session": number, "call": ""})])
        claim = {"session": journal.number, "owner": owner, "bound": allowance.running}
        store._writer.put(journal.author, [(CLAIM_RUN, claim)])
        store._writer.flush(journal.author)
        if not store._rows("SELECT 1 FROM claims WHERE session=? AND call=''", journal.number):
            raise OverAllowance(
                f"{owner or 'this machine'} runs as many sessions as allowed: {allowance.running}",
                do="Wait until one ends. Then resume it",
                command=Command("resume", journal.session),
            )
        return account


@dataclass(frozen=True)
class SqliteAccount:
    """The account of the owner of one running session."""

    journal: SqliteJournal
    owner: str
    allowance: Allowance
    now: Callable[[], float]

    async def reserve(self, call: str, cost: float) -> bool:
        bound = self.allowance.cost
        if bound is None:
            return True
        day = time.strftime("%Y-%m-%d", time.gmtime(self.now()))
        claim = {
            **self._key(call),
            "owner": self.owner,
            "day": day,
            "amount": math.ceil(cost * NANO),
            "bound": round(bound * NANO),
        }
        await self.journal.store._writer.put_and_wait(self.journal.author, [(CLAIM, claim)])
        sql = "SELECT 1 FROM claims WHERE session=? AND call=?"
        return bool(await asyncio.to_thread(self.journal.store._rows, sql, self.journal.number, call))

    def settle(self, call: str, cost: float | None) -> None:
        amount = None if cost is None else math.ceil(cost * NANO)
        spend = (SPEND, {**self._key(call), "amount": amount})
        self.journal.store._writer.put(self.journal.author, [spend, (RELEASE, self._key(call))])

    def release(self) -> None:
        self.journal.store._writer.put(self.journal.author, [(RELEASE, self._key(""))])

    def _key(self, call: str) -> dict[str, object]:
        return {"session": self.journal.number, "call": call}
