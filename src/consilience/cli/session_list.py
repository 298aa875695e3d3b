"""The command `sessions list`: recorded sessions, newest first, with a comparison on one line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.errors import notify, print_result
from consilience.cli.options import JsonOption, argument, names_option
from consilience.cli.sessions import user_store
from consilience.domain.errors import JournalError, UnknownName
from consilience.domain.paths import check_home, journal_path
from consilience.journal.store import SessionEntry
from consilience.reporting.formatting import count, money
from consilience.sessions.rows import SessionRow, created_at, session_row
from consilience.sessions.search import local_time, moment, search, title

if TYPE_CHECKING:
    from consilience.journal.store import Store

MIN_TITLE_CHARS = 40
MAX_TITLE_CHARS = 160
"""Of a list that is not printed on a terminal."""


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """All sessions of a comparison in a list."""

    comparison: str
    name: str = ""
    state: str = "comparison"
    runs: int
    unfinished: int
    protocols: list[str]
    created: str
    """Start of its newest session."""
    tasks: int
    task: str
    """The first of them."""


@contextmanager
def unless_removed(store: Store, session: str) -> Iterator[None]:
    """Skip a session that another process removes meanwhile."""
    try:
        yield
    except (JournalError, UnknownName):
        if session in store.sessions():
            raise


def list_sessions(
    words: Annotated[
        list[str] | None,
        argument("Words of the question, the answer, the name or the id, in any case of letters.", "WORD"),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help='Only sessions begun since: 2027-03-31, "2027-03-31 14:00", 12h, 7d.', metavar="TIME"),
    ] = None,
    protocols: Annotated[
        list[str] | None, names_option("--protocol", help="Only sessions of these protocols.", metavar="NAME")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only sessions with this name.", metavar="NAME")] = None,
    max_sessions: Annotated[int, typer.Option("--limit", min=1, help="Max number of lines.", metavar="N")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List sessions, newest first.

    With words, those whose question, answer, name or id contains all of them. The runs of a comparison are one line.
    """
    check_home()
    begun = 0.0 if since is None else moment(since)
    if not journal_path().exists():
        print_result([], "No session is recorded yet.", as_json=as_json)
        return
    rows: list[SessionRow | ComparisonRow] = []
    with user_store() as store:
        found = search(store, words or (), since=begun, protocols=protocols or (), name=name, answers=True)
        lines = _lines(found, words or ())
        for entries in lines[:max_sessions]:
            with unless_removed(store, entries[0].session):
                rows.append(session_row(store, entries[0]) if len(entries) == 1 else _comparison_row(store, entries))
    is_filtered = bool(words or since or protocols) or name is not None
    none = "No session matches." if is_filtered else "No session is recorded."
    print_result([asdict(row) for row in rows], "\n".join(map(_line, rows)) or none, as_json=as_json)
    if len(lines) > max_sessions and not as_json:
        notify(f"{len(lines) - max_sessions} older: --limit {len(lines)} shows all.")
    if not as_json and (comparison := next((row for row in rows if isinstance(row, ComparisonRow)), None)):
        notify(f"The runs of a comparison: consilience sessions {comparison.comparison}")


def _lines(found: Sequence[SessionEntry], words: Sequence[str]) -> list[list[SessionEntry]]:
    """Return the sessions of each line, newest first. A comparison whose id is among the words has a line per run."""
    lines: dict[str, list[SessionEntry]] = {}
    for entry in reversed(found):
        is_alone = not entry.comparison or entry.comparison in words
        lines.setdefault(entry.session if is_alone else entry.comparison, []).append(entry)
    return list(lines.values())


def _comparison_row(store: Store, entries: Sequence[SessionEntry]) -> ComparisonRow:
    """Return the line of a comparison from its sessions, newest first. They are not read: there may be hundreds."""
    tasks = list(dict.fromkeys(entry.task for entry in reversed(entries)))
    return ComparisonRow(
        comparison=entries[0].comparison,
        name=entries[0].name,
        runs=len(entries),
        unfinished=sum(not entry.finished for entry in entries),
        protocols=sorted({entry.protocol for entry in entries}),
        created=created_at(entries[0].created),
        tasks=len(tasks),
        task=store.text(tasks[0]),
    )


def _line(row: SessionRow | ComparisonRow) -> str:
    if isinstance(row, ComparisonRow):
        id, kind, stop, calls = row.comparison, "compare", f"{row.runs} runs", ""
        missing = f"{row.unfinished} open" if row.unfinished else ""
        further = f" (and {count(row.tasks - 1, 'further task')})" if row.tasks > 1 else ""
        task = f"{row.task}{further}"
    else:
        id, kind, stop = row.session, row.protocol or "–", row.stop_reason or row.state
        missing = "no answer" if row.has_answer is False else "no quorum" if row.quorum_met is False else ""
        calls = f"{row.calls:>5} calls {money(row.cost):>9}"
        task = row.task or ""
    begun = local_time(datetime.fromisoformat(row.created).timestamp())
    head = f"{id:<10} {begun} {kind:<12} {stop:<17} {missing:<10} {calls:<21}  "
    columns = shutil.get_terminal_size((0, 0)).columns
    return head + title(row.name, task, max(columns - len(head), MIN_TITLE_CHARS) if columns else MAX_TITLE_CHARS)
