"""Removes finished sessions that are older than the operator keeps them, or take more room than their owner may have."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from consilience.domain.errors import SessionBusy, UnknownName
from consilience.journal.store import SessionEntry, Store
from consilience.server.access_settings import AccessSettings
from consilience.server.audit import Audit
from consilience.server.owners import Owners

SWEEP_SECONDS = 3_600.0
DAY_SECONDS = 86_400.0


class Retention:
    """What is kept of each owner: `keep_days` counts from the beginning of a session, `quota` is in bytes of the journal."""

    def __init__(
        self,
        store: Store,
        access: AccessSettings,
        owners: Owners | None,
        audit: Audit,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`now` is in seconds since the epoch."""
        self._store = store
        self._access = access
        self._owners = owners
        self._audit = audit
        self._now = now

    def sweep(self) -> list[str]:
        """Remove what is not kept, and return the ids. A session that is not finished stays. Blocks on the disk."""
        by_owner: dict[str, list[SessionEntry]] = {}
        for entry in self._store.entries():
            if entry.finished:
                with suppress(UnknownName):  # removed meanwhile
                    by_owner.setdefault(self._store.owner(entry.session), []).append(entry)
        return [id for owner, entries in by_owner.items() for id in self._sweep(owner, entries)]

    def _sweep(self, owner: str, entries: Sequence[SessionEntry]) -> list[str]:
        rights = self._owners.rights(owner) if self._owners is not None and owner else None
        keep_days = (rights and rights.keep_days) or self._access.keep_days
        quota = (rights and rights.quota) or self._access.quota
        kept = [e for e in entries if keep_days is None or e.created > self._now() - keep_days * DAY_SECONDS]
        if quota is not None:
            kept = kept[len(kept) - self._fitting([entry.session for entry in kept], quota) :]
        left = {entry.session for entry in kept}
        removed = []
        for session in (entry.session for entry in entries if entry.session not in left):
            with suppress(SessionBusy, UnknownName):
                self._store.admin.remove([session])
                self._audit.note("retention", "expired", session, owner=owner)
                removed.append(session)
        return removed

    def _fitting(self, sessions: Sequence[str], quota: int) -> int:
        """Return how many of the newest sessions, which are last, fit into so many bytes. The journal is read log(n) times."""
        low, high = 0, len(sessions)
        while low < high:
            middle = (low + high + 1) // 2
            if self._store.admin.weight(sessions[-middle:]) <= quota:
                low = middle
            else:
                high = middle - 1
        return low
