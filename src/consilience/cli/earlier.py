"""`--since`: what was reviewed of a change before, and what was found."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from pydantic import ValidationError

from consilience.cli.inputs import read_file
from consilience.cli.sessions import find_session
from consilience.domain.errors import SettingsError
from consilience.domain.findings import EarlierReviews, FindingsReport
from consilience.domain.report import Report, find_report
from consilience.domain.session_ids import is_session_word
from consilience.journal.open_store import open_store
from consilience.reporting.record import read_record


def read_earlier(since: str | None) -> EarlierReviews:
    """Return what `--since` names. Raises `SettingsError`, `SourceError`, `UnknownName`."""
    if since is None:
        return EarlierReviews()
    if since.endswith(".json") and Path(since).is_file():
        try:
            return EarlierReviews.model_validate_json(read_file(since, "the file of earlier reviews"))
        except ValidationError as error:
            raise SettingsError(
                f"the file cannot be read: {error.errors()[0]['msg']}",
                where=f"--since {since}",
                do="Give a session, a commit, or a file that the GitHub action wrote.",
            ) from None
    if is_session_word(since):
        with closing(open_store()) as store:
            session = find_session(store, since)
            recorded = read_record(store, session).report
        kind = find_report(recorded.protocol) if recorded is not None else Report
        if recorded is None or not issubclass(kind, FindingsReport):
            raise SettingsError(
                f"session {session} is no finished review", where="--since", do="Give a review: consilience sessions."
            )
        return kind.model_validate_json(recorded.model_dump_json()).earlier
    return EarlierReviews(commit=since)
