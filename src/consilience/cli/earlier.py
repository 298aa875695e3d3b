"""`--since`: what was reviewed of a change before, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from consilience.cli.inputs import read_file
from consilience.cli.sessions import find_session
from consilience.domain.errors import SettingsError
from consilience.domain.findings import EarlierReviews, FindingsReport, KnownFinding, as_known
from consilience.domain.report import Report, find_report
from consilience.domain.session_ids import is_session_word
from consilience.journal.open_store import open_store
from consilience.protocols.review.baseline import with_status
from consilience.reporting.record import read_record
from consilience.targets import Target


@dataclass(frozen=True)
class Earlier:
    """Earlier reviews of a change."""

    commit: str | None = None
    """What was reviewed; None: all is reviewed anew."""
    known: tuple[KnownFinding, ...] = ()

    @property
    def files(self) -> list[str]:
        """The files that say what became of the findings."""
        places = (place for entry in self.known for place in (entry.identities[0], entry.cause) if place is not None)
        return [place.file for place in places]

    def settings(self, target: Target) -> Mapping[str, object]:
        """Return the settings of the review, with the findings as they stand in the target."""
        known = tuple(with_status(entry, target.texts.get) for entry in self.known)
        return {"known_findings": known, "reviewed_commit": target.commit}


def read_earlier(since: str | None) -> Earlier:
    """Return what `--since` names. Raises `SettingsError`, `SourceError`, `UnknownName`."""
    if since is None:
        return Earlier()
    if since.endswith(".json") and Path(since).is_file():
        try:
            state = EarlierReviews.model_validate_json(read_file(since, "the file of earlier reviews"))
        except ValidationError as error:
            raise SettingsError(
                f"the file cannot be read: {error.errors()[0]['msg']}",
                where=f"--since {since}",
                do="Give a session, a commit, or a file that the GitHub action wrote.",
            ) from None
        return Earlier(state.commit or None, state.known)
    if is_session_word(since):
        with closing(open_store()) as store:
            session = find_session(store, since)
            recorded = read_record(store, session).report
        kind = find_report(recorded.protocol) if recorded is not None else Report
        if recorded is None or not issubclass(kind, FindingsReport):
            raise SettingsError(
                f"session {session} is no finished review", where="--since", do="Give a review: consilience sessions."
            )
        report = kind.model_validate_json(recorded.model_dump_json())
        standing = [entry for entry in report.known_findings if entry.status != "gone"]
        known = (*standing, *(as_known(finding) for finding in report.findings if finding.identities))
        return Earlier(report.reviewed_commit if report.complete and report.reviewed_commit else None, known)
    return Earlier(since)
