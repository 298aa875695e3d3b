"""Runs of a server that ended without a report."""

from __future__ import annotations

from consilience.domain.errors import SessionBusy, SessionWaiting
from consilience.domain.report import Report


class RunFailures(dict[str, str]):
    """Why the last run of a session ended without a report, by session. A restart runs these sessions again."""

    def note(self, session: str, outcome: Report | BaseException) -> None:
        """Take in how a run ended, as the executor tells it."""
        if isinstance(outcome, Report | SessionWaiting | SessionBusy):
            self.pop(session, None)
        else:
            self[session] = str(outcome)
